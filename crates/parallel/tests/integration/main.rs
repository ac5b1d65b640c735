//! The integration tests of this crate as one program: each test program costs a link.

#![allow(clippy::unwrap_used, reason = "a failed unwrap in a test is a failed test")]

mod adapters;
mod annotations;
mod auxiliary;
mod dry_run;
mod expert_exchanges;
mod expert_mutants;
mod expert_rows;
mod experts;
mod golden_memory;
mod groups;
#[path = "../../../kernels-cpu/tests/instruction_set/mod.rs"]
mod instruction_set;
mod large_dry_run;
mod late;
mod memory_plan;
mod offload;
mod overflow;
mod pipelines;
mod replay;
mod routing;
mod slices;
mod staleness;
mod state;
mod steps;
