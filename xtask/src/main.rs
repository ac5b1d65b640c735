//! Checks and measurements of the workspace that no compiler makes: `cargo xtask help`.
//!
//! - **check** (also a test): the layer table in ARCHITECTURE.md and the manifests name the same crates and the same
//!   dependencies, and every arrow points down; no crate contains words that its layer denies (files, clocks and threads
//!   on the lower layers, the environment in libraries, `unsafe` outside the crates that own it); every outside crate has its
//!   line in docs/dependencies.md.
//!   No error or warning has a fault of style (`messages`).
//! - **messages**: the errors and warnings that the programs can print.
//! - **build-report**, **test-report**: where the seconds of a build and of the tests go.
//! - **dist**: packages of the release program.
//! - **faults**: whether the tests find the faults of `xtask/faults`.
//! - **soak**: what takes too long for every commit.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command-line tool: this is its output")]

mod arrows;
mod build_report;
mod cargo;
mod dist;
mod faults;
mod harnesses;
mod messages;
mod soak;
mod test_report;
mod words;

use signal_hook::consts::SIGPIPE;
use signal_hook::flag::register_conditional_default;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

const HELP: &str = "\
cargo xtask check
    compares ARCHITECTURE.md and docs/dependencies.md with the sources (the default)
cargo xtask messages [PART...], cargo xtask messages --check
    lists the errors and warnings of the programs (those whose path or text contains every PART), or those with faults of style
cargo xtask build-report [--from FILE] [-- CARGO ARGUMENTS]
    runs `cargo build --release --timings`, or cargo with the arguments after `--`, and prints total and processor
    seconds, seconds by group of units, the critical path and the slowest units; --from reads a cargo-timing.html instead
cargo xtask test-report [--from FILE] [--log FILE] [-- CARGO ARGUMENTS]
    runs `cargo test --workspace`, or cargo with the arguments after `--`, and prints seconds by crate and by program and
    the slowest tests; --from reads the log of such a run instead
cargo xtask dist [--out DIRECTORY]
    packages of the release program in target/dist: a Python wheel, an archive with completions and manual pages, checksums
cargo xtask faults [NAME...] [--crates N] [--markdown FILE] [--timeout SECONDS] [-- CARGO ARGUMENTS]
    applies each patch of xtask/faults (those with NAME in their names) to a copy of the tree in target/faults and runs the
    tests of the changed crate, then of those that use it (N crates at most), until one fails or its program takes longer
    than SECONDS (900); prints what caught each fault, fails if one survived; --markdown writes the table, `-- -j1` goes
    to `cargo test`
cargo xtask soak [PART...]
    runs what takes too long for every commit, hours in all: sets, long, kernels, instruction-sets, cluster, aarch64,
    reproducible, fuzz, faults; logs are in target/soak";

/// Root of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask lives one folder below the root")
        .to_path_buf()
}

fn check() -> Result<(), String> {
    let root = root();
    let parts = [arrows::check(&root), words::check(&root), harnesses::check(&root), messages::check(&root)];
    report(&parts.concat())
}

/// Prints problems; an error if there are any.
fn report(problems: &[String]) -> Result<(), String> {
    for p in problems {
        println!("{p}");
    }
    println!("{} problems", problems.len());
    if problems.is_empty() { Ok(()) } else { Err("the lines above name each place".into()) }
}

fn main() -> ExitCode {
    // `cargo xtask build-report | head`: a pipe that is closed ends the program, as it ends others, and `println` does not panic.
    register_conditional_default(SIGPIPE, Arc::new(true.into())).expect("a signal that programs may handle");
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let rest = arguments.get(1..).unwrap_or_default();
    let result = match arguments.first().map(String::as_str) {
        None | Some("check") => check(),
        Some("build-report") => build_report::run(rest),
        Some("test-report") => test_report::run(rest),
        Some("dist") => dist::dist(&root(), rest),
        Some("faults") => faults::run(rest),
        Some("messages") if rest == ["--check"] => report(&messages::check(&root())),
        Some("messages") => messages::run(&root(), rest),
        Some("soak") => soak::run(&root(), rest),
        Some("help" | "--help" | "-h") => {
            println!("{HELP}");
            Ok(())
        }
        Some(other) => Err(format!("there is no command `{other}`; the commands are:\n{HELP}")),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrows_point_down_and_match_the_table() {
        assert_eq!(arrows::check(&root()), Vec::<String>::new());
    }

    #[test]
    fn messages_have_no_faults() {
        assert_eq!(messages::check(&root()), Vec::<String>::new());
    }

    #[test]
    fn crates_say_only_what_they_may() {
        assert_eq!(words::check(&root()), Vec::<String>::new());
    }
}
