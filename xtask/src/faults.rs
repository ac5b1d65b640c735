//! Faults that the tests must find: each patch in `xtask/faults` is applied to a copy of the tree, and the tests of the changed
//! crate and then of those that use it run until one fails. The copy has its own target directory: cargo compares times, so
//! programs that contain a fault must never lie where it looks for those of the tree itself.

use crate::cargo::{Arguments, Package, cargo, packages};
use crate::test_report::running;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Write as _};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

struct Fault {
    /// File name without `.patch`.
    name: String,
    /// First line of the patch: one sentence with the error, one with its effect on a user.
    wrong: String,
    patch: PathBuf,
    /// Files that the patch changes, from the root.
    files: Vec<String>,
}

#[derive(Debug, PartialEq)]
enum Outcome {
    Caught { program: String, test: String },
    Hung { program: String },
    Survived,
    Broken(String),
}

impl Outcome {
    fn describe(&self) -> String {
        match self {
            Self::Caught { program, test } => format!("{program}: {test}"),
            Self::Hung { program } => format!("{program}: hangs"),
            Self::Survived => "SURVIVED".into(),
            Self::Broken(why) => format!("BROKEN: {why}"),
        }
    }
}

fn read_faults(folder: &Path) -> Result<Vec<Fault>, String> {
    let wrong = |e: std::io::Error| format!("{}: {e}", folder.display());
    let mut faults = Vec::new();
    for entry in fs::read_dir(folder).map_err(wrong)? {
        let patch = entry.map_err(wrong)?.path();
        if patch.extension().is_some_and(|e| e == "patch") {
            let text = fs::read_to_string(&patch).map_err(wrong)?;
            faults.push(read_fault(&patch, &text)?);
        }
    }
    faults.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(faults)
}

fn read_fault(patch: &Path, text: &str) -> Result<Fault, String> {
    let wrong = text.lines().next().and_then(|line| line.strip_prefix("# ")).map(str::to_string);
    let files: Vec<String> =
        text.lines().filter_map(|line| Some(line.strip_prefix("+++ b/")?.to_string())).collect();
    match wrong {
        Some(wrong) if !files.is_empty() => {
            let name = patch.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            Ok(Fault { name, wrong, patch: patch.to_owned(), files })
        }
        _ => Err(format!(
            "{}: expected a first line `# what is wrong. What a user sees.` and lines `+++ b/FILE`",
            patch.display()
        )),
    }
}

/// The copy of the tree: files that git tracks or would add, as they are now.
struct Copy<'a> {
    root: &'a Path,
    at: PathBuf,
}

impl Copy<'_> {
    /// Makes the copy equal to the tree. A file that is equal keeps its time, so that cargo compiles nothing again.
    fn refresh(&self) -> Result<(), String> {
        let output = Command::new("git")
            .args(["ls-files", "-z", "-co", "--exclude-standard"])
            .current_dir(self.root)
            .output()
            .map_err(|e| format!("git ls-files: {e}"))?;
        let listed = String::from_utf8_lossy(&output.stdout);
        let files: BTreeSet<&str> = listed.split('\0').filter(|f| self.root.join(f).is_file()).collect();
        self.remove_others(&self.at, &files).map_err(|e| format!("{}: {e}", self.at.display()))?;
        files.iter().try_for_each(|file| self.refresh_file(file))
    }

    fn remove_others(&self, folder: &Path, files: &BTreeSet<&str>) -> std::io::Result<()> {
        fs::create_dir_all(folder)?;
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            let name = path.strip_prefix(&self.at).unwrap_or(&path).to_string_lossy().into_owned();
            if path.is_dir() {
                self.remove_others(&path, files)?;
            } else if !files.contains(name.as_str()) {
                fs::remove_file(&path)?;
            }
        }
        Ok(())
    }

    fn refresh_file(&self, file: &str) -> Result<(), String> {
        let (from, to) = (self.root.join(file), self.at.join(file));
        let copy = || {
            let text = fs::read(&from)?;
            if fs::read(&to).is_ok_and(|old| old == text) {
                return Ok(());
            }
            fs::create_dir_all(to.parent().unwrap_or(&self.at))?;
            fs::copy(&from, &to).map(|_| ())
        };
        copy().map_err(|e: std::io::Error| format!("{} to {}: {e}", from.display(), to.display()))
    }

    fn apply(&self, fault: &Fault) -> Result<(), String> {
        let output = Command::new("git")
            .arg("apply")
            .arg(&fault.patch)
            .current_dir(&self.at)
            // Inside a repository, git would leave out files that this repository ignores.
            .env("GIT_CEILING_DIRECTORIES", self.at.parent().unwrap_or(&self.at))
            .output()
            .map_err(|e| format!("git apply: {e}"))?;
        if output.status.success() {
            Ok(())
        } else {
            Err(String::from_utf8_lossy(&output.stderr).trim().into())
        }
    }
}

/// For each package, the longest chain of own crates below it.
fn heights(packages: &[Package]) -> Vec<usize> {
    fn height(at: usize, packages: &[Package], known: &mut [Option<usize>]) -> usize {
        if let Some(height) = known[at] {
            return height;
        }
        let below = packages[at].uses.iter().filter(|(used, e)| (e.normal || e.build) && packages[*used].own);
        let height = below.map(|(used, _)| height(*used, packages, known) + 1).max().unwrap_or(0);
        known[at] = Some(height);
        height
    }
    let mut known = vec![None; packages.len()];
    (0..packages.len()).map(|at| height(at, packages, &mut known)).collect()
}

/// The changed package, then all whose programs or tests contain it, lowest first.
fn to_test(changed: usize, packages: &[Package], heights: &[usize]) -> Vec<usize> {
    let mut using = BTreeSet::from([changed]);
    let mut open = vec![changed];
    while let Some(used) = open.pop() {
        for (user, package) in packages.iter().enumerate().filter(|(_, p)| p.own) {
            if package.uses.iter().any(|(at, e)| *at == used && (e.normal || e.build)) && using.insert(user) {
                open.push(user);
            }
        }
    }
    let tests = packages
        .iter()
        .enumerate()
        .filter(|(_, package)| package.own && package.uses.iter().any(|(at, e)| e.dev && using.contains(at)));
    let mut order: Vec<usize> = tests.map(|(at, _)| at).chain(using.iter().copied()).collect();
    order.sort_by_key(|at| (*at != changed, heights[*at], *at));
    order.dedup();
    order
}

/// A run of cargo in a process group of its own, which ends as a whole.
struct Run {
    child: Child,
    lines: Receiver<String>,
}

impl Run {
    fn start(mut command: Command) -> std::io::Result<Self> {
        let (output, input) = std::io::pipe()?;
        let child = command.stdout(input.try_clone()?).stderr(input).process_group(0).spawn()?;
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            let mut output = BufReader::new(output);
            let mut line = Vec::new();
            while output.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
                if sender.send(String::from_utf8_lossy(&line).trim_end().to_string()).is_err() {
                    break;
                }
                line.clear();
            }
        });
        Ok(Self { child, lines })
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let group = format!("-{}", self.child.id());
        // Where the group has ended by itself there is nobody to end.
        let _ =
            Command::new("kill").args(["-KILL", "--", &group]).stderr(std::process::Stdio::null()).status();
        let _ = self.child.wait();
    }
}

/// In the place of a test's name where a program ended without one.
const NO_NAME: &str = "ends with an error";

/// Runs the tests of one crate; None if they pass.
fn test(krate: &str, mut run: Run, log: &mut fs::File, limits: &Limits) -> Result<Option<Outcome>, String> {
    let short = krate.trim_start_matches("bessemer-");
    let mut program: Option<(String, Instant)> = None;
    let mut error = None;
    loop {
        match run.lines.recv_timeout(Duration::from_millis(200)) {
            Ok(line) => {
                let _ = writeln!(log, "{line}");
                if let Some((source, _)) = running(&line) {
                    program = Some((format!("{short} {source}"), Instant::now()));
                } else if let Some((program, _)) = &program
                    && let Some(test) = line.strip_prefix("test ").and_then(|l| l.strip_suffix(" ... FAILED"))
                {
                    return Ok(Some(Outcome::Caught { program: program.clone(), test: test.to_string() }));
                }
                if error.is_none() && line.starts_with("error") {
                    error = Some(line);
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        if limits.interrupted.load(Ordering::Relaxed) {
            return Err("interrupted; the tree itself was not touched".into());
        }
        if let Some((program, begun)) = &program
            && begun.elapsed() > limits.program
        {
            return Ok(Some(Outcome::Hung { program: program.clone() }));
        }
    }
    let status = run.child.wait().map_err(|e| format!("cargo: {e}"))?;
    Ok(match (status.success(), program) {
        (true, _) => None,
        (false, Some((program, _))) => Some(Outcome::Caught { program, test: NO_NAME.into() }),
        (false, None) => Some(Outcome::Broken(error.unwrap_or_else(|| "cargo failed".into()))),
    })
}

struct Limits {
    /// Longest time of one test program.
    program: Duration,
    /// Most crates whose tests run for a fault.
    crates: usize,
    interrupted: Arc<AtomicBool>,
}

struct Workshop<'a> {
    copy: Copy<'a>,
    /// For `target` and logs.
    folder: PathBuf,
    packages: Vec<Package>,
    heights: Vec<usize>,
    limits: Limits,
    cargo: &'a [String],
}

impl Workshop<'_> {
    /// Positions of the packages that a fault changes.
    fn changed(&self, fault: &Fault) -> Option<usize> {
        let file = fault.files.first()?;
        let inside = |package: &Package| package.own && file.starts_with(&format!("{}/", package.folder));
        self.packages.iter().position(inside)
    }

    fn try_fault(&self, fault: &Fault) -> Result<Outcome, String> {
        let Some(changed) = self.changed(fault) else {
            return Ok(Outcome::Broken(format!("no crate contains {}", fault.files.join(", "))));
        };
        let path = self.folder.join(format!("{}.log", fault.name));
        let mut log = fs::File::create(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        if let Err(why) = self.copy.apply(fault) {
            return Ok(Outcome::Broken(format!("does not apply: {why}")));
        }
        for at in to_test(changed, &self.packages, &self.heights).into_iter().take(self.limits.crates) {
            let krate = &self.packages[at].name;
            let mut arguments = Vec::new();
            while let Some(outcome) = self.run_tests(krate, &arguments, &mut log)? {
                // Another failure of the test alone, so that a test that waits for a busy machine does not count.
                match &outcome {
                    Outcome::Caught { test, .. }
                        if test != NO_NAME
                            && self.run_tests(krate, &["--exact", test], &mut log)?.is_none() =>
                    {
                        println!("{}: {test} of {krate} failed once and passed alone", fault.name);
                        arguments.extend(["--skip".to_string(), test.clone()]);
                    }
                    _ => return Ok(outcome),
                }
            }
        }
        Ok(Outcome::Survived)
    }

    /// Runs the tests of a crate with arguments of its test programs.
    fn run_tests(
        &self,
        krate: &str,
        arguments: &[impl AsRef<std::ffi::OsStr>],
        log: &mut fs::File,
    ) -> Result<Option<Outcome>, String> {
        let mut command = cargo(&self.copy.at);
        command.args(["test", "--tests", "-p", krate, "--target-dir"]).arg(self.folder.join("target"));
        command.args(self.cargo).arg("--").args(arguments);
        let run = Run::start(command).map_err(|e| format!("cargo: {e}"))?;
        test(krate, run, log, &self.limits)
    }
}

pub(crate) fn run(arguments: &[String]) -> Result<(), String> {
    let root = crate::root();
    let names = arguments.iter().take_while(|a| !a.starts_with("--")).count();
    let (names, rest) = arguments.split_at(names);
    let arguments = Arguments::parse(rest, &["--markdown", "--timeout", "--crates"])?;
    let number = |name: &str, default: u64| match arguments.options.get(name) {
        None => Ok(default),
        Some(text) => {
            text.parse().map_err(|_| format!("{name} {text}: expected a number, as in `{name} 900`"))
        }
    };
    let (seconds, crates) = (number("--timeout", 900)?, number("--crates", u64::MAX)?);
    let mut faults = read_faults(&root.join("xtask/faults"))?;
    faults.retain(|fault| names.is_empty() || names.iter().any(|name| fault.name.contains(name.as_str())));
    if faults.is_empty() {
        return Err(format!(
            "no fault has `{}` in its name; `ls xtask/faults` lists them",
            names.join("`, `")
        ));
    }
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, interrupted.clone()).map_err(|e| format!("signals: {e}"))?;
    }
    let folder = root.join("target/faults");
    let packages = packages(&root)?;
    let workshop = Workshop {
        copy: Copy { root: &root, at: folder.join("tree") },
        heights: heights(&packages),
        packages,
        folder,
        limits: Limits { program: Duration::from_secs(seconds), crates: crates as usize, interrupted },
        cargo: arguments.cargo,
    };
    let wrong = |e: std::io::Error| format!("{}: {e}", workshop.folder.display());
    fs::create_dir_all(&workshop.folder).map_err(wrong)?;
    let lock = fs::File::create(workshop.folder.join("lock")).map_err(wrong)?;
    lock.try_lock().map_err(|_| "another `cargo xtask faults` works in target/faults; wait for its end")?;
    workshop.copy.refresh()?;
    // Highest crates first: what a fault leaves to be compiled again is then above all that follow.
    faults.sort_by_key(|fault| {
        let changed = workshop.changed(fault);
        (std::cmp::Reverse(changed.map(|at| workshop.heights[at])), changed)
    });
    let mut table = String::from("| fault | wrong | caught by | s |\n|---|---|---|---|\n");
    let mut missed = Vec::new();
    for fault in &faults {
        let begun = Instant::now();
        let outcome = workshop.try_fault(fault);
        for file in &fault.files {
            workshop.copy.refresh_file(file)?;
        }
        let outcome = outcome?;
        let (shown, seconds) = (outcome.describe(), begun.elapsed().as_secs());
        println!("{}: {shown} ({seconds} s)", fault.name);
        let _ = writeln!(table, "| {} | {} | {shown} | {seconds} |", fault.name, fault.wrong);
        if matches!(outcome, Outcome::Survived | Outcome::Broken(_)) {
            missed.push(fault.name.as_str());
        }
    }
    if let Some(path) = arguments.options.get("--markdown") {
        fs::write(path, &table).map_err(|e| format!("{path}: {e}"))?;
    }
    if missed.is_empty() {
        println!("{} faults, all caught", faults.len());
        return Ok(());
    }
    let logs = workshop.folder.display();
    Err(format!(
        "{} of {} faults were not caught: {}; logs: {logs}",
        missed.len(),
        faults.len(),
        missed.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cargo::tests::sample;

    const PATCH: &str = "# Off by one. A user sees less.\n--- a/crates/a/x.rs\n+++ b/crates/a/x.rs\n@@ -1,2 +1,2 @@\n one\n-two\n+three\n";

    #[test]
    fn a_patch_states_what_is_wrong() {
        let fault = read_fault(Path::new("01-x.patch"), PATCH).expect("a fault");
        assert_eq!(
            (fault.name.as_str(), fault.wrong.as_str(), &fault.files[..]),
            ("01-x", "Off by one. A user sees less.", &["crates/a/x.rs".to_string()][..])
        );
        assert!(read_fault(Path::new("x.patch"), &PATCH[2..]).is_err());
    }

    /// Each patch of the repository names one crate, and no two have one number.
    #[test]
    fn faults_can_be_read() {
        let faults = read_faults(&crate::root().join("xtask/faults")).expect("faults");
        let numbers: BTreeSet<&str> = faults.iter().filter_map(|f| Some(f.name.split_once('-')?.0)).collect();
        assert_eq!(numbers.len(), faults.len());
        for fault in &faults {
            assert!(fault.files.iter().all(|file| crate::root().join(file).is_file()), "{}", fault.name);
        }
    }

    /// `b` is used by `a`; `c` is used by the tests of `a` alone.
    #[test]
    fn the_crate_itself_is_tested_first() {
        let packages = sample();
        let heights = heights(&packages);
        assert_eq!(to_test(1, &packages, &heights), [1, 0]);
        assert_eq!(to_test(2, &packages, &heights), [2, 0]);
        assert_eq!(to_test(0, &packages, &heights), [0]);
    }

    #[test]
    fn a_patch_changes_the_copy_only_and_is_undone() {
        let root = tempfile::tempdir().expect("a directory");
        let git = |arguments: &[&str]| {
            let done = Command::new("git").args(arguments).current_dir(root.path()).status().expect("git");
            assert!(done.success());
        };
        git(&["init", "-q"]);
        fs::write(root.path().join(".gitignore"), "/target\n").expect("written");
        let file = "crates/a/x.rs";
        fs::create_dir_all(root.path().join("crates/a")).expect("made");
        fs::write(root.path().join(file), "one\ntwo\n").expect("written");
        let patch = root.path().join("x.patch");
        fs::write(&patch, PATCH).expect("written");
        let copy = Copy { root: root.path(), at: root.path().join("target/faults/tree") };
        copy.refresh().expect("copied");
        let fault = read_fault(&patch, PATCH).expect("a fault");
        copy.apply(&fault).expect("applies");
        let text = |folder: &Path| fs::read_to_string(folder.join(file)).expect("a file");
        assert_eq!((text(&copy.at).as_str(), text(root.path()).as_str()), ("one\nthree\n", "one\ntwo\n"));
        assert!(copy.apply(&fault).is_err(), "applied twice");
        fs::write(copy.at.join("crates/a/left.rs"), "").expect("written");
        copy.refresh().expect("copied");
        assert_eq!(text(&copy.at), "one\ntwo\n");
        assert!(!copy.at.join("crates/a/left.rs").exists());
    }

    fn outcome(script: &str, program: u64) -> Option<Outcome> {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let limits =
            Limits { program: Duration::from_millis(program), crates: 1, interrupted: Arc::default() };
        let mut log = tempfile::tempfile().expect("a file");
        test("bessemer-a", Run::start(command).expect("a shell"), &mut log, &limits).expect("not interrupted")
    }

    #[test]
    fn the_first_failing_test_ends_a_run() {
        let begin = "echo '     Running tests/t.rs (target/debug/deps/t-0)';";
        let caught = |test: &str| Some(Outcome::Caught { program: "a tests/t.rs".into(), test: test.into() });
        assert_eq!(
            outcome(&format!("{begin} echo 'test x::y ... FAILED'; sleep 600"), 100_000),
            caught("x::y")
        );
        assert_eq!(outcome(&format!("{begin} exit 1"), 100_000), caught("ends with an error"));
        assert_eq!(outcome(&format!("{begin} echo 'test x ... ok'"), 100_000), None);
        let hung = outcome(&format!("{begin} sleep 600"), 100);
        assert_eq!(hung, Some(Outcome::Hung { program: "a tests/t.rs".into() }));
        let broken = outcome("echo 'error: could not compile'; exit 101", 100_000);
        assert_eq!(broken, Some(Outcome::Broken("error: could not compile".into())));
    }
}
