//! Where the seconds of the tests go, from the output of `cargo test`.

use crate::cargo::{Arguments, cargo};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write as _};
use std::path::Path;

const SLOWEST: usize = 50;

#[derive(Debug, PartialEq)]
struct Program {
    /// `units unit tests`, `train tests/integration`.
    name: String,
    krate: String,
    /// None where it has no harness, or did not end.
    seconds: Option<f64>,
    passed: u64,
    failed: u64,
    ignored: u64,
    tests: Vec<(String, f64)>,
}

/// The folder of the crate that a test program was made from, by the list of its sources that the compiler left beside it.
fn crate_of(root: &Path, executable: &str, source: &str) -> Option<String> {
    let list = std::fs::read_to_string(root.join(executable).with_extension("d")).ok()?;
    let line = list.lines().find(|line| line.contains(source))?;
    let path = line.split_whitespace().find(|path| path.ends_with(source))?;
    Some(path.trim_end_matches(source).trim_end_matches('/').rsplit('/').next()?.to_string())
}

/// Source and executable of the test program that a line of cargo announces.
pub(crate) fn running(line: &str) -> Option<(&str, &str)> {
    let (source, executable) = line.trim_start().strip_prefix("Running ")?.rsplit_once(" (")?;
    Some((source, executable.strip_suffix(')')?))
}

/// Programs in the order of the log. `locate` gives the crate of a program, by its executable and its source.
fn read(log: &str, locate: impl Fn(&str, &str) -> Option<String>) -> Vec<Program> {
    let mut programs: Vec<Program> = Vec::new();
    for line in log.lines() {
        if let Some((source, executable)) = running(line) {
            let (unit, path) = match source.strip_prefix("unittests ") {
                Some(path) => (true, path),
                None => (false, source),
            };
            let krate = locate(executable, path).unwrap_or_else(|| "?".into());
            let what = path.trim_end_matches("/main.rs").trim_end_matches(".rs");
            let name = if unit { format!("{krate} unit tests ({path})") } else { format!("{krate} {what}") };
            let (seconds, tests) = (None, Vec::new());
            programs.push(Program { name, krate, seconds, passed: 0, failed: 0, ignored: 0, tests });
        } else if let Some(name) = line.trim_start().strip_prefix("Doc-tests ") {
            let krate = name.trim_start_matches("bessemer_").replace('_', "-");
            let (name, seconds, tests) = (format!("{krate} doc tests"), None, Vec::new());
            programs.push(Program { name, krate, seconds, passed: 0, failed: 0, ignored: 0, tests });
        } else if let (Some(rest), Some(program)) = (line.strip_prefix("test result: "), programs.last_mut())
        {
            let count = |what: &str| {
                let part = rest.split(['.', ';']).find_map(|part| part.trim().strip_suffix(what))?;
                part.trim().parse().ok()
            };
            program.passed = count("passed").unwrap_or(0);
            program.failed = count("failed").unwrap_or(0);
            program.ignored = count("ignored").unwrap_or(0);
            program.seconds = rest
                .rsplit_once("finished in ")
                .and_then(|(_, s)| s.trim().trim_end_matches('s').parse().ok());
        } else if let (Some(rest), Some(program)) = (line.strip_prefix("test "), programs.last_mut())
            && let Some((name, result)) = rest.split_once(" ... ")
            && let Some((_, time)) = result.rsplit_once('<')
            && let Ok(seconds) = time.trim_end_matches("s>").parse()
        {
            program.tests.push((name.to_string(), seconds));
        }
    }
    programs
}

fn report(programs: &[Program]) -> String {
    let sum = |count: fn(&Program) -> u64| programs.iter().map(count).sum::<u64>();
    let all: f64 = programs.iter().filter_map(|p| p.seconds).sum();
    let mut out = format!(
        "{} programs, {} passed, {} failed, {} ignored, {all:.0} s\n",
        programs.len(),
        sum(|p| p.passed),
        sum(|p| p.failed),
        sum(|p| p.ignored),
    );
    let mut crates: BTreeMap<&str, f64> = BTreeMap::new();
    for program in programs {
        *crates.entry(&program.krate).or_default() += program.seconds.unwrap_or(0.0);
    }
    table(
        &mut out,
        "seconds by crate",
        crates.into_iter().map(|(name, s)| (name.to_string(), s)),
        usize::MAX,
    );
    let rows =
        programs.iter().map(|p| (format!("{} ({} tests)", p.name, p.passed), p.seconds.unwrap_or(0.0)));
    table(&mut out, "seconds by program", rows, usize::MAX);
    let tests =
        programs.iter().flat_map(|p| p.tests.iter().map(|(test, s)| (format!("{} {test}", p.name), *s)));
    table(&mut out, "slowest tests (seconds beside the other tests of their program)", tests, SLOWEST);
    if programs.iter().all(|p| p.tests.is_empty()) {
        out.push_str("    none: only `cargo xtask test-report` makes a log with the seconds of each test\n");
    }
    out
}

/// Appends the `most` longest rows.
fn table(out: &mut String, title: &str, rows: impl Iterator<Item = (String, f64)>, most: usize) {
    let mut rows: Vec<(String, f64)> = rows.collect();
    rows.sort_by(|a, b| b.1.total_cmp(&a.1));
    let _ = writeln!(out, "\n{title}");
    for (name, seconds) in rows.iter().take(most) {
        let _ = writeln!(out, "{seconds:8.2}  {name}");
    }
}

/// Each test program runs through this line, which asks its harness for the seconds of each test. The option is unstable, and
/// the harness looks for the variable when it runs; cargo and the compiler do not get it.
const RUNNER: &str = r#"target."cfg(all())".runner=["sh","-c",'RUSTC_BOOTSTRAP=1 exec "$0" "$@" -Zunstable-options --report-time']"#;

/// Runs the tests, shows their output and keeps it in a file.
fn test(root: &Path, arguments: &[String], log: &Path) -> Result<bool, String> {
    let default = ["test".to_string(), "--workspace".to_string()];
    let arguments = if arguments.is_empty() { &default[..] } else { arguments };
    let shown = format!("cargo {}", arguments.join(" "));
    let wrong = |e: std::io::Error| format!("{shown}, log {}: {e}", log.display());
    std::fs::create_dir_all(log.parent().unwrap_or(root)).map_err(wrong)?;
    let mut file = std::fs::File::create(log).map_err(wrong)?;
    let (output, input) = std::io::pipe().map_err(wrong)?;
    let mut command = cargo(root);
    command.args(["--config", RUNNER]).args(arguments);
    let mut child = command.stdout(input.try_clone().map_err(wrong)?).stderr(input).spawn().map_err(wrong)?;
    // The command holds the other end of the pipe.
    drop(command);
    for line in BufReader::new(output).split(b'\n') {
        let line = [&line.map_err(wrong)?[..], b"\n"].concat();
        file.write_all(&line).map_err(wrong)?;
        std::io::stdout().write_all(&line).map_err(wrong)?;
    }
    Ok(child.wait().map_err(wrong)?.success())
}

pub(crate) fn run(arguments: &[String]) -> Result<(), String> {
    let root = crate::root();
    let arguments = Arguments::parse(arguments, &["--from", "--log"])?;
    let option = |name: &str| arguments.options.get(name).map(|path| Path::new(*path).to_owned());
    let (log, passed) = match option("--from") {
        Some(log) => (log, true),
        None => {
            let log = option("--log").unwrap_or_else(|| root.join("target/test-report.log"));
            let passed = test(&root, arguments.cargo, &log)?;
            (log, passed)
        }
    };
    let shown = log.display();
    let text =
        std::fs::read(&log).map_err(|e| format!("{shown}: {e}; expected the output of `cargo test`"))?;
    let text = String::from_utf8_lossy(&text);
    let programs = read(&text, |executable, source| crate_of(&root, executable, source));
    if programs.is_empty() {
        return Err(format!(
            "{shown}: no line `Running ... (...)`; expected the output of `cargo test`, stderr included"
        ));
    }
    println!("\n{}", report(&programs));
    if passed { Ok(()) } else { Err(format!("tests failed; their output is in {shown}")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "   Compiling units
     Running unittests src/lib.rs (target/debug/deps/bessemer_units-de23)

running 2 tests
test tests::a ... ok <0.120s>
test tests::b ... ignored

test result: ok. 1 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.13s

     Running tests/integration/main.rs (/elsewhere/deps/integration-0f)
test c::d ... FAILED <2.500s>
test e ... ok <0.001s>

test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 2.51s

   Doc-tests bessemer_external_sort
test crates/x/src/lib.rs - f (line 3) ... ok

test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.40s
     Running tests/integration/main.rs (target/debug/deps/integration-aa)
test result: ok. 6 passed; 0 failed; 0 ignored; 0 measured
";

    #[test]
    fn a_log_becomes_programs_and_tests() {
        let locate = |executable: &str, source: &str| {
            assert!(["src/lib.rs", "tests/integration/main.rs"].contains(&source), "{source}");
            match executable {
                "target/debug/deps/bessemer_units-de23" => Some("units".to_string()),
                "/elsewhere/deps/integration-0f" => Some("train".to_string()),
                _ => None,
            }
        };
        let programs = read(LOG, locate);
        let names: Vec<&str> = programs.iter().map(|p| p.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "units unit tests (src/lib.rs)",
                "train tests/integration",
                "external-sort doc tests",
                "? tests/integration"
            ]
        );
        let counts: Vec<_> = programs.iter().map(|p| (p.passed, p.failed, p.ignored, p.seconds)).collect();
        assert_eq!(
            counts,
            [(1, 0, 1, Some(0.13)), (1, 1, 0, Some(2.51)), (1, 0, 0, Some(0.4)), (6, 0, 0, None)]
        );
        assert_eq!(programs[0].tests, [("tests::a".to_string(), 0.12)]);
        assert_eq!(programs[1].tests, [("c::d".to_string(), 2.5), ("e".to_string(), 0.001)]);
        let report = report(&programs);
        assert!(report.starts_with("4 programs, 9 passed, 1 failed, 1 ignored, 3 s\n"), "{report}");
        let (c, a) =
            (report.find("2.50  train tests/integration c::d"), report.find("0.12  units unit tests"));
        assert!(c.is_some() && c < a, "{report}");
    }

    #[test]
    fn the_crate_of_a_program_comes_from_its_list_of_sources() {
        let dir = tempfile::tempdir().expect("a directory");
        let list = "/t/deps/integration-aa: crates/units/tests/integration/main.rs crates/units/tests/integration/x.rs\n";
        std::fs::write(dir.path().join("integration-aa.d"), list).expect("written");
        let found = |name: &str| crate_of(dir.path(), name, "tests/integration/main.rs");
        assert_eq!(found("integration-aa"), Some("units".into()));
        assert_eq!(found("integration-bb"), None);
    }
}
