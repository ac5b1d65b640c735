//! What a crate may not say, by plain search in its sources (tests and comments excepted).

use std::fs;
use std::path::{Path, PathBuf};

/// Crates that touch no file, clock, thread or random source (invariant 1).
const PURE: &[&str] =
    &["units", "mesh", "schedule", "program", "arch", "cluster", "metrics", "plan", "scaling", "sim"];
/// Crates that may contain `unsafe` (invariant 11), by file.
const UNSAFE: &[&str] = &[
    "crates/kernels-cpu/",
    "crates/counting-alloc/",
    "crates/sandbox/src/keep.rs",
    "crates/shards/src/map.rs",
    "crates/dedup/src/minhash/permutations.rs",
    "crates/tokenizer/src/prefetch.rs",
    "crates/collectives-mpi/src/mpi/",
    "crates/clocks-nvml/src/library.rs",
];

/// (words, why, crates or folders of crates it applies to, or empty for all libraries)
const FORBIDDEN: &[(&[&str], &str, &[&str])] = &[
    (
        &["std::fs", "std::time", "std::thread", "std::net", "std::process"],
        "invariant 1: this crate touches no file, clock or thread",
        PURE,
    ),
    (
        &["env::var(", "env::var_os(", "env::vars("],
        "invariant 10: only programs and the tiers of tests read the environment",
        &[],
    ),
    (&["std::process::exit", "process::exit("], "invariant 10: only programs choose exit codes", &[]),
    (&["rank", "coord", "communicator"], "invariant 2: the model's code states one device", &["model"]),
];

/// Rust files below `dir`.
pub(crate) fn sources(dir: &Path, out: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            out.push(path);
        }
    }
}

/// True if a file belongs to a crate, or to a folder of one: "mesh", "tokenizer/src/train".
fn is_in(file: &str, part: &str) -> bool {
    file.strip_prefix("crates/")
        .and_then(|rest| rest.strip_prefix(part))
        .is_some_and(|rest| rest.starts_with('/'))
}

/// True if `line` contains `word`, not inside a longer identifier.
pub(crate) fn contains_word(line: &str, word: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        !before.is_some_and(part) && (word.ends_with('(') || !after.is_some_and(part))
    })
}

/// Lines of a file with their numbers from 0, without its test modules. Sources are formatted: a module ends with a brace at
/// the indentation of its beginning.
pub(crate) fn code_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut attribute: Option<&str> = None;
    let mut module: Option<&str> = None;
    text.lines().enumerate().filter(move |(_, line)| {
        let indent = &line[..line.len() - line.trim_start().len()];
        if let Some(begun) = module {
            if line.trim_end() == format!("{begun}}}") {
                module = None;
            }
            return false;
        }
        if line.trim() == "#[cfg(test)]" {
            attribute = Some(indent);
            return true;
        }
        let Some(begun) = attribute else { return true };
        if line.trim_start().starts_with("#[") {
            return true;
        }
        attribute = None;
        let is_module = line.split_whitespace().take(2).any(|word| word == "mod");
        if is_module && line.trim_end().ends_with('{') {
            module = Some(begun);
        }
        !is_module
    })
}

/// Everything that is said where it may not be, one line each.
pub(crate) fn check(root: &Path) -> Vec<String> {
    let mut problems = Vec::new();
    let mut files = Vec::new();
    for entry in fs::read_dir(root.join("crates")).into_iter().flatten().flatten() {
        sources(&entry.path().join("src"), &mut files);
    }
    files.sort();
    for file in files {
        let shown = file.strip_prefix(root).unwrap_or(&file).to_string_lossy().into_owned();
        let krate = shown.split('/').nth(1).unwrap_or_default().to_string();
        if shown.ends_with("tests.rs") || shown.contains("/tests/") {
            continue;
        }
        let text = fs::read_to_string(&file).unwrap_or_default();
        for (number, line) in code_lines(&text) {
            let line = line.split("//").next().unwrap_or_default();
            let place = || format!("{shown}:{}", number + 1);
            let keyword = ["unsafe {", "unsafe fn", "unsafe impl", "unsafe trait", "unsafe extern"];
            if keyword.iter().any(|k| line.contains(k)) && !UNSAFE.iter().any(|u| shown.starts_with(u)) {
                problems.push(format!("{}: unsafe is kept to {}", place(), UNSAFE.join(" and ")));
            }
            for (words, why, crates) in FORBIDDEN {
                let applies = if crates.is_empty() {
                    !["bessemer", "bessemer-bench", "test-tier"].contains(&krate.as_str())
                } else {
                    crates.iter().any(|c| is_in(&shown, c))
                };
                if applies && let Some(word) = words.iter().find(|w| contains_word(line, w)) {
                    problems.push(format!("{}: says `{word}`. {why}", place()));
                }
            }
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_test_modules_are_left_out() {
        let text = "a\n#[cfg(test)]\nfn b() {\n    c\n}\n#[cfg(test)]\n#[allow(x)]\nmod tests {\n    d\n    mod e {\n    }\n}\n\
                    f\n#[cfg(test)]\npub(crate) mod g;\nh\nmod i {\n    #[cfg(test)]\n    mod j {\n        k\n    }\n    l\n}\n";
        let code: Vec<&str> =
            code_lines(text).map(|(_, line)| line.trim()).filter(|line| !line.starts_with('#')).collect();
        assert_eq!(code, ["a", "fn b() {", "c", "}", "f", "h", "mod i {", "l", "}"]);
        assert_eq!(code_lines(text).find(|(_, line)| *line == "f"), Some((12, "f")));
    }

    #[test]
    fn words_count_only_on_their_own() {
        assert!(contains_word("let rank = 0;", "rank"));
        assert!(!contains_word("let ranked = 0;", "rank"));
        assert!(!contains_word("frank(1)", "rank"));
        assert!(contains_word("std::fs::read(p)", "std::fs"));
        assert!(contains_word("env::var(name)", "env::var("));
    }
}
