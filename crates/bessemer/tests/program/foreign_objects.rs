//! Every path that a run reads or writes, replaced in turn by something that is no file of the run: a link to a file, a link to
//! a folder, a hard link, a FIFO, a socket, a folder, an unreadable file. Nothing outside changes, nothing hangs, no command
//! ends by a panic, and each failure names the path and a remedy.
//!
//! A sample runs with every commit. The whole matrix:
//!
//! ```text
//! cargo test -p bessemer --test program foreign_objects -- --ignored
//! ```

use crate::workplace::{Finished, GPT2, Workplace, assert_untouched};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Most time of a command; the longest takes a second.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, PartialEq)]
enum Replacement {
    LinkToFile,
    LinkToFolder,
    HardLink,
    Fifo,
    Socket,
    Folder,
    Unreadable,
}

const REPLACEMENTS: [Replacement; 7] = [
    Replacement::LinkToFile,
    Replacement::LinkToFolder,
    Replacement::HardLink,
    Replacement::Fifo,
    Replacement::Socket,
    Replacement::Folder,
    Replacement::Unreadable,
];

/// Names that a run directory has for a moment, or after a failure only.
const PASSING: [&str; 16] = [
    ".metrics.jsonl.partial",
    ".recipe.toml.partial",
    ".report.html.partial",
    ".tokenizer.json.partial",
    "checkpoints/step-00000006",
    "corpus.cluster.partial",
    "corpus.lock.partial",
    "corpus.old.partial",
    "corpus.partial",
    "corpus.parts.partial",
    "corpus.tombstones.json",
    "metrics.damaged",
    "shards/.tokens.json.partial",
    "shards/train/.00000.shard.partial",
    "shards/train/.shards.json.partial",
    "stages/.tokenizer.json.partial",
];

/// Words of which an error has at least one: each begins an advice.
const REMEDIES: [&str; 16] = [
    "put ",
    "move ",
    "remove ",
    "check ",
    "make it",
    "again",
    "link the run",
    "raise ",
    "choose ",
    "delete ",
    "cp ",
    "free ",
    "name ",
    "give ",
    "build ",
    "--text",
];

/// A finished run of four steps.
fn finished_run() -> Workplace {
    let place = Workplace::new(GPT2);
    place.train(&[
        "train.steps=4",
        "save.every_steps=2",
        "optim.schedule=constant",
        "eval.ngram.enabled=false",
    ]);
    place
}

/// Paths below the run directory, those of a moment included.
fn paths(run: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = PASSING.iter().map(PathBuf::from).collect();
    let mut folders = vec![run.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            found.push(path.strip_prefix(run).unwrap().to_path_buf());
            if path.is_dir() {
                folders.push(path);
            }
        }
    }
    found.sort();
    found
}

fn copy(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg("-a").args([from, to]).status().unwrap().success());
}

/// Puts the replacement at `at`, and what it leads to below `outside`: the very content where there was one.
fn replace(kind: Replacement, at: &Path, outside: &Path) {
    let (file, folder) = (outside.join("file"), outside.join("folder"));
    fs::create_dir(outside).unwrap();
    let was_dir = at.is_dir();
    if was_dir {
        copy(at, &folder);
    } else {
        fs::create_dir(&folder).unwrap();
    }
    fs::write(folder.join("precious"), "precious").unwrap();
    fs::write(&file, if at.is_file() { fs::read(at).unwrap() } else { b"precious".to_vec() }).unwrap();
    if kind != Replacement::Unreadable {
        match was_dir {
            true => fs::remove_dir_all(at).unwrap(),
            false => drop(fs::remove_file(at)),
        }
    }
    match kind {
        Replacement::LinkToFile => symlink(&file, at).unwrap(),
        Replacement::LinkToFolder => symlink(&folder, at).unwrap(),
        Replacement::HardLink => fs::hard_link(&file, at).unwrap(),
        Replacement::Fifo => assert!(Command::new("mkfifo").arg(at).status().unwrap().success()),
        Replacement::Socket => drop(UnixListener::bind(at).unwrap()),
        Replacement::Folder => copy(&folder, at),
        Replacement::Unreadable => {
            if !at.exists() {
                fs::write(at, "unreadable").unwrap();
            }
            fs::set_permissions(at, fs::Permissions::from_mode(0o0)).unwrap();
        }
    }
}

/// Runs a command; none if it does not end in time.
fn within_time(mut command: Command, log: &Path) -> Option<Finished> {
    let output = fs::File::create(log).unwrap();
    let mut child = command.stdout(output.try_clone().unwrap()).stderr(output).spawn().unwrap();
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            let err = String::from_utf8_lossy(&fs::read(log).unwrap()).into_owned();
            return Some(Finished { code: status.code(), out: Vec::new(), err });
        }
        if begun.elapsed() > PATIENCE {
            child.kill().unwrap();
            child.wait().unwrap();
            return None;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Commands that read a path of the run directory.
fn readers(path: &Path) -> &'static [&'static [&'static str]] {
    match path.iter().next().and_then(|name| name.to_str()).unwrap_or_default() {
        "corpus" | "corpus.tombstones.json" => {
            &[&["corpus", "verify", "runs/t"], &["corpus", "stats", "runs/t"]]
        }
        "checkpoints" => &[
            &["checkpoint", "verify", "runs/t"],
            &["generate", "runs/t", "--prompt", "the", "--max-tokens", "2"],
            &["checkpoint", "gc", "runs/t", "--keep-last", "1"],
        ],
        "shards" | "recipe.toml" => &[&["eval", "runs/t"], &["config", "show", "runs/t/recipe.toml"]],
        "tokenizer.json" => &[&["generate", "runs/t", "--prompt", "the", "--max-tokens", "2"]],
        _ => &[&["report", "runs/t"]],
    }
}

/// Commands that write the run directory: one goes on, and one begins with another corpus.
const WRITERS: [&[&str]; 2] = [
    &["run", "recipe.toml", "--set", "train.steps=6"],
    &["run", "recipe.toml", "--set", "train.steps=6", "--set", "corpus.clean.min_bytes=20"],
];

/// One replacement, with all commands; returns what is wrong.
fn attack(finished: &Workplace, path: &Path, kind: Replacement, commands: &[&[&str]]) -> Vec<String> {
    let mut wrong = Vec::new();
    for words in commands {
        let place = Workplace::new(GPT2);
        fs::create_dir(place.path("runs")).unwrap();
        copy(&finished.path("runs/t"), &place.path("runs/t"));
        replace(kind, &place.path("runs/t").join(path), &place.path("outside"));
        let before = place.files("outside");
        let mut words = words.to_vec();
        if words[0] == "run" {
            for set in ["save.every_steps=2", "optim.schedule=constant", "eval.ngram.enabled=false"] {
                words.extend(["--set", set]);
            }
        }
        let done = within_time(place.command(&words), &place.path("log"));
        let mut fault =
            |what: String| wrong.push(format!("{} as {kind:?}, {words:?}: {what}", path.display()));
        let after = std::panic::catch_unwind(|| assert_untouched(&place.files("outside"), &before));
        if after.is_err() {
            fault("what lies outside was changed".into());
        }
        let Some(Finished { code, err, .. }) = done else {
            fault("hangs".into());
            continue;
        };
        if !matches!(code, Some(0 | 1 | 78)) || err.contains("panicked") {
            fault(format!("ends with {code:?}: {err}"));
        } else if code != Some(0) {
            let name = path.file_name().unwrap().to_string_lossy();
            let name = name.trim_start_matches('.').trim_end_matches(".partial");
            let is_named = err.contains(name)
                || path.parent().is_some_and(|p| {
                    p.iter()
                        .next()
                        .is_some_and(|top| err.contains(&format!("runs/t/{}", top.to_string_lossy())))
                });
            if !is_named || !REMEDIES.iter().any(|word| err.contains(word)) {
                fault(format!("names no path or no remedy: {err}"));
            }
        }
        // So that the folder can be removed.
        if kind == Replacement::Unreadable {
            let _ = fs::set_permissions(place.path("runs/t").join(path), fs::Permissions::from_mode(0o700));
        }
    }
    wrong
}

/// Whether permissions do not bind this process, as those of root do not.
fn reads_everything() -> bool {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::set_permissions(file.path(), fs::Permissions::from_mode(0o0)).unwrap();
    fs::File::open(file.path()).is_ok()
}

/// Attacks on two threads; panics with all that is wrong.
fn attack_all(chosen: impl Fn(usize, &Path) -> Vec<(Replacement, Vec<&'static [&'static str]>)> + Sync) {
    let finished = finished_run();
    let paths = paths(&finished.path("runs/t"));
    let skipped = reads_everything();
    let (next, wrong) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(path) = paths.get(index) else { break };
                    for (kind, commands) in chosen(index, path) {
                        if kind == Replacement::Unreadable && skipped {
                            continue;
                        }
                        wrong.lock().unwrap().extend(attack(&finished, path, kind, &commands));
                    }
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{} faults:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn a_sample_of_paths_replaced_by_foreign_objects_harms_nothing() {
    attack_all(|index, path| {
        let kind = REPLACEMENTS[(index + index / REPLACEMENTS.len()) % REPLACEMENTS.len()];
        let readers = readers(path);
        let writer = WRITERS[usize::from(PASSING.iter().any(|passing| path == Path::new(passing)))];
        vec![(kind, vec![readers[index % readers.len()], writer])]
    });
}

#[test]
#[ignore = "minutes: every path, every replacement, every command"]
fn every_path_replaced_by_every_foreign_object_harms_nothing() {
    attack_all(|_, path| {
        let commands: Vec<_> = readers(path).iter().copied().chain(WRITERS).collect();
        REPLACEMENTS.iter().map(|&kind| (kind, commands.clone())).collect()
    });
}
