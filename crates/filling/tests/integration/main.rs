//! Steps whose bubbles are filled, against steps that do the same work elsewhere.

#![allow(clippy::unwrap_used, reason = "a failed unwrap in a test is a failed test")]

mod check;
mod combined;
mod evaluation;
mod fill;
#[path = "../../../kernels-cpu/tests/instruction_set/mod.rs"]
mod instruction_set;
mod snapshot;
