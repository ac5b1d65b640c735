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
mod browser;
mod cargo_source;
mod chat;
mod checkpoints;
mod cli;
mod cluster;
mod compare;
mod continued;
mod corpus_output;
mod evaluation;
mod expert_ranks;
mod explain;
mod extract;
mod fixtures;
mod foreign_objects;
mod hf_oracle;
mod json;
mod judge;
mod kill_resume;
mod limits;
mod metric;
#[cfg(feature = "remote")]
#[path = "../../../object-store/tests/integration/moto.rs"]
mod moto;
mod network;
mod plan;
mod plan_layers;
mod programs;
mod ranks;
mod review;
mod round_trip;
mod safety;
mod scaling;
mod schedule;
mod serve;
#[cfg(feature = "remote")]
#[path = "../../../object-store/tests/integration/store.rs"]
mod store;
mod study;
mod supervise;
mod switch;
mod trace;
mod tuning;
mod workplace;

/// The program that is tested.
const PROGRAM: &str = env!("CARGO_BIN_EXE_bessemer");
