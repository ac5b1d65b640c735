//! Starts itself under `mpirun`: collectives over MPI against ranks in one process, and ranks that are killed, stopped,
//! cut off or leave.
//!
//! `cargo test -p bessemer-collectives-mpi --features mpi`; with `-- bench` it measures instead. The launcher is the one
//! beside the `mpicc` that the crate was built with, or `BESSEMER_MPIRUN`.
#![allow(clippy::print_stdout, reason = "a test program of its own: this is its report")]

mod cases;
mod hosts;
mod launcher;
mod work;
mod worker;

use bessemer_counting_alloc::CountingAllocator;
use std::process::ExitCode;
use std::time::Instant;

// What the MPI library takes is not seen.
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["worker", rest @ ..] => worker::run(rest),
        ["bench", ..] => cases::bench(),
        words => {
            let filter: Vec<&str> = words.iter().copied().filter(|w| !w.starts_with('-')).collect();
            run(&filter)
        }
    }
}

/// Runs the cases whose names hold one of the words; one line each.
fn run(filter: &[&str]) -> ExitCode {
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    for (name, case) in cases::CASES {
        if !filter.is_empty() && !filter.iter().any(|f| name.contains(f)) {
            continue;
        }
        let began = Instant::now();
        let result = case();
        let took = began.elapsed().as_secs_f64();
        match result {
            Ok(said) if said.starts_with("skipped") => {
                skipped += 1;
                println!("test {name} ... ignored, {said}");
            }
            Ok(said) => {
                passed += 1;
                println!("test {name} ... ok ({took:.1} s) {said}");
            }
            Err(problem) => {
                failed += 1;
                println!("test {name} ... FAILED ({took:.1} s)\n{problem}\n");
            }
        }
    }
    let verdict = if failed == 0 { "ok" } else { "FAILED" };
    println!("test result: {verdict}. {passed} passed; {failed} failed; {skipped} ignored");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
