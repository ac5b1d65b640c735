//! The integration tests of this crate as one program: each test program costs a link.

#![allow(clippy::unwrap_used, reason = "a failed unwrap in a test is a failed test")]

mod auxiliary;
mod bits;
mod compress;
mod coordinate_check;
mod decoding;
mod dry_run;
mod golden;
mod gradient_memory;
mod gradients;
mod grids;
mod group;
#[path = "../../../kernels-cpu/tests/instruction_set/mod.rs"]
mod instruction_set;
mod ladder;
mod lengths;
mod offload;
mod programs;
mod recompute;
mod short_parameters;
mod stage_memory;
mod stage_ranks;
mod stages;
mod storage;
mod teacher;
mod tensor_shards;
mod tiny;
mod units;
