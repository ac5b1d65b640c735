//! The benchmarks as their users meet them: the real binary in a folder of its own, with a recipe and a small corpus.

#![allow(clippy::unwrap_used, reason = "a failed unwrap in a test's own plumbing is a failed test")]

mod measurements;
#[allow(dead_code, reason = "the tests of `bessemer` use the rest of it")]
#[path = "../../../bessemer/tests/program/workplace.rs"]
mod workplace;

/// The program that is tested.
const PROGRAM: &str = env!("CARGO_BIN_EXE_bessemer-bench");
