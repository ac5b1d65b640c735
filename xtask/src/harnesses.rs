//! Tests that no harness runs: a manifest that switches one off, and sources that have tests for it.

use crate::words::sources;
use std::fs;
use std::path::Path;

/// True if a line of documentation begins an example that is compiled and run.
fn begins_example(fence: &str) -> bool {
    let ignored = ["text", "ignore", "toml", "json", "sh", "console", "python", "html"];
    !fence.split(',').any(|word| ignored.contains(&word.trim()))
}

/// Unit tests and doc tests of a file.
fn tests(source: &str) -> (usize, usize) {
    let (mut unit, mut doc, mut inside) = (0, 0, false);
    for line in source.lines().map(str::trim) {
        unit += usize::from(line == "#[test]" || line.starts_with("proptest!"));
        let comment = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"));
        if let Some(fence) = comment.and_then(|text| text.trim().strip_prefix("```")) {
            doc += usize::from(!inside && begins_example(fence));
            inside = !inside;
        }
    }
    (unit, doc)
}

/// One line for each manifest that switches off a harness that its crate needs.
pub(crate) fn check(root: &Path) -> Vec<String> {
    let mut problems = Vec::new();
    for folder in fs::read_dir(root.join("crates")).into_iter().flatten().flatten().map(|e| e.path()) {
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap_or_default();
        let manifest: toml::Table = manifest.parse().unwrap_or_default();
        let off = |key: &str| {
            manifest.get("lib").and_then(|lib| lib.get(key)).and_then(toml::Value::as_bool) == Some(false)
        };
        let mut files = Vec::new();
        sources(&folder.join("src"), &mut files);
        let counts = files.iter().map(|file| tests(&fs::read_to_string(file).unwrap_or_default()));
        let (unit, doc) = counts.fold((0, 0), |sum, each| (sum.0 + each.0, sum.1 + each.1));
        for (key, count, what) in
            [("test", unit, "unit tests"), ("doctest", doc, "examples in documentation")]
        {
            if off(key) && count > 0 {
                problems
                    .push(format!("crates/{name}/Cargo.toml: `{key} = false` in [lib], but {count} {what}"));
            }
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    #[test]
    fn tests_and_examples_are_counted() {
        let source = "//! ```text\n//! a\n//! ```\n/// ```\n/// f();\n/// ```\n#[test]\nfn t() {}\n";
        assert_eq!(super::tests(source), (1, 1));
    }
}
