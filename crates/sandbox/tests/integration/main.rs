//! Commands that try what confinement forbids. The program is its own keeper, so it has no harness.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a test program without a harness")]

use bessemer_sandbox::{Confined, Limits, NOT_CONFINED, Outcome, SandboxError, WorkingDirectory, keep, run};
use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    if arguments.first().is_some_and(|word| word == "keep") {
        return match Confined::from_arguments(&arguments[1..]).map(|confined| keep(&confined)) {
            Some(Ok(code)) => ExitCode::from(code),
            Some(Err(error)) => {
                eprintln!("{error}");
                ExitCode::from(NOT_CONFINED)
            }
            None => ExitCode::from(2),
        };
    }
    if let Err(SandboxError::Start { cause, .. }) = confined("true", Limits::default()) {
        println!(
            "left out, this host cannot confine: {cause}\ntest result: ok. 0 passed; 0 failed; 0 ignored; 0 measured"
        );
        return ExitCode::SUCCESS;
    }
    let tests: [(&str, fn()); 6] = [
        ("what_ends_has_its_code_and_its_output", ends),
        ("nothing_outside_can_be_read_or_written", outside),
        ("there_is_no_network", network),
        ("limits_hold", limits),
        ("nothing_runs_on", runs_on),
        ("arguments_are_read_as_they_were_written", arguments_round_trip),
    ];
    let asked = arguments.iter().find_map(|word| word.to_str().filter(|word| !word.starts_with('-')));
    let mut passed = 0;
    for (name, test) in tests {
        if asked.is_none_or(|asked| name.contains(asked)) {
            test();
            println!("test {name} ... ok");
            passed += 1;
        }
    }
    println!("test result: ok. {passed} passed; 0 failed; 0 ignored; 0 measured");
    ExitCode::SUCCESS
}

/// Runs a line of shell.
fn confined(line: &str, limits: Limits) -> Result<Outcome, SandboxError> {
    let directory = WorkingDirectory::new(&std::env::temp_dir()).expect("a directory");
    in_directory(line, limits, directory.path())
}

fn in_directory(line: &str, limits: Limits, directory: &Path) -> Result<Outcome, SandboxError> {
    let command = ["/bin/sh", "-c", line].map(str::to_string).to_vec();
    let confined = Confined { command, directory: directory.to_owned(), read_only: Vec::new(), limits };
    let mut keeper = Command::new(std::env::current_exe().expect("this program"));
    keeper.arg("keep").args(confined.to_arguments());
    run(keeper, &confined)
}

fn ended(line: &str) -> (i32, String) {
    match confined(line, Limits { seconds: 20.0, ..Limits::default() }) {
        Ok(Outcome::Ended { code, output }) => (code, output),
        other => panic!("{line}: {other:?}"),
    }
}

fn ends() {
    assert_eq!(ended("exit 0"), (0, String::new()));
    assert_eq!(ended("echo out; echo err >&2; exit 3").0, 3);
    assert_eq!(ended("echo out").1, "out\n");
    assert_eq!(ended("sh -c 'kill -9 $$'; exit $?").0, 137);
    let (_, output) = ended("env; pwd; echo $$");
    assert!(
        output.contains("HOME=/work") && output.contains("/work\n") && output.ends_with("\n1\n"),
        "{output}"
    );
    assert!(!output.contains("CARGO"), "{output}");
    let directory = WorkingDirectory::new(&std::env::temp_dir()).expect("a directory");
    let path = directory.path().to_owned();
    let done = in_directory("echo 5 > result", Limits::default(), &path);
    assert_eq!(done.expect("an end"), Outcome::Ended { code: 0, output: String::new() });
    assert_eq!(std::fs::read_to_string(path.join("result")).expect("the file"), "5\n");
    drop(directory);
    assert!(!path.exists());
}

fn outside() {
    let marker = std::env::temp_dir().join(format!("outside-{}", std::process::id()));
    std::fs::write(&marker, "secret").expect("a file");
    let home = std::env::current_dir().expect("a directory");
    for path in [
        marker.as_path(),
        home.as_path(),
        Path::new("/etc/passwd"),
        Path::new("/proc/1"),
        Path::new("/root"),
        Path::new("/dev/shm"),
    ] {
        let (code, output) = ended(&format!("ls {} 2>/dev/null", path.display()));
        assert!(code != 0 && output.is_empty(), "{}: {code} {output}", path.display());
    }
    for path in ["/x", "/usr/x", "/bin/x", "/tmp/x", "/dev/x"] {
        let (code, _) = ended(&format!("echo x > {path}"));
        assert!(code != 0, "{path}");
    }
    assert_ne!(ended("mount -o remount,rw / && echo x > /usr/x").0, 0);
    assert!(marker.exists());
    std::fs::remove_file(&marker).expect("removed");
}

fn network() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("its address").port();
    let line = format!("exec 3<>/dev/tcp/127.0.0.1/{port}");
    let (code, output) = ended(&format!("bash -c '{line}'"));
    assert!(code != 0 && output.contains("unreachable"), "{code} {output}");
}

fn limits() {
    let of = |line: &str, limits: Limits| confined(line, limits).expect("an end");
    let start = Instant::now();
    assert_eq!(of("sleep 60", Limits { seconds: 0.5, ..Limits::default() }), Outcome::TimedOut);
    assert_eq!(of("while :; do :; done", Limits { seconds: 0.5, ..Limits::default() }), Outcome::TimedOut);
    assert!(start.elapsed() < Duration::from_secs(20));
    let small = Limits { memory: 64 << 20, seconds: 20.0, ..Limits::default() };
    // A string that doubles until there is no room for it.
    assert!(matches!(of("x=0123456789; while :; do x=$x$x; done", small), Outcome::Ended { code: 1.., .. }));
    let few = Limits { processes: 5, seconds: 20.0, ..Limits::default() };
    let bomb = "for i in 1 2 3 4 5 6 7 8 9; do sleep 5 & done; echo all of them";
    match of(bomb, few) {
        Outcome::Ended { output, .. } => {
            assert!(!output.contains("all of them") || output.contains("fork"), "{output}")
        }
        Outcome::TimedOut => panic!("the shell goes on"),
    }
    let little = Limits { file_bytes: 1 << 16, seconds: 20.0, ..Limits::default() };
    assert!(matches!(
        of("head -c 1000000 /dev/zero > big", little.clone()),
        Outcome::Ended { code: 1.., .. }
    ));
    assert!(matches!(of("head -c 1000000 /dev/zero", little), Outcome::Ended { code: 1.., .. }));
}

fn runs_on() {
    let directory = WorkingDirectory::new(&std::env::temp_dir()).expect("a directory");
    let done = in_directory(
        "(sleep 1; echo late > late) >/dev/null 2>&1 & exit 0",
        Limits::default(),
        directory.path(),
    );
    assert!(matches!(done, Ok(Outcome::Ended { code: 0, .. })), "{done:?}");
    let timed = Limits { seconds: 0.3, ..Limits::default() };
    let done = in_directory("setsid sh -c 'sleep 1; echo late > late' & sleep 30", timed, directory.path());
    assert!(matches!(done, Ok(Outcome::TimedOut)), "{done:?}");
    std::thread::sleep(Duration::from_millis(1500));
    assert!(!directory.path().join("late").exists());
}

fn arguments_round_trip() {
    let confined = Confined {
        command: vec!["a".into(), "b c".into(), String::new()],
        directory: "/x y".into(),
        read_only: vec!["/p".into(), "/q".into()],
        limits: Limits { seconds: 1.5, memory: 7, processes: 8, file_bytes: 9 },
    };
    let arguments = confined.to_arguments();
    assert_eq!(Confined::from_arguments(&arguments), Some(confined));
    for cut in 0..arguments.len() - 2 {
        assert_eq!(Confined::from_arguments(&arguments[..cut]), None, "{cut}");
    }
}
