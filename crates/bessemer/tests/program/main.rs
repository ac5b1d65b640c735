//! The program as its users meet it: the real binary in a folder of its own, with a recipe and a small corpus.
//!
//! One test binary for all, so that it is linked once; each module is one promise.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a failed unwrap in a test's own plumbing is a failed test"
)]

mod alpa;
mod auto;
mod bad_input;
mod bench;
mod cargo_source;
mod cli;
mod cluster;
mod compare;
mod corpus_output;
mod explain;
mod extract;
mod hf_oracle;
mod json;
mod kill_resume;
mod network;
mod plan;
mod plan_layers;
mod programs;
mod ranks;
mod round_trip;
mod safety;
mod schedule;
mod study;
mod switch;
mod trace;
mod workplace;
