//! The integration tests of this crate as one program: each test program costs a link.

#![allow(clippy::unwrap_used)] // the lint sees tests only inside test functions, and helpers of tests are none

mod beside;
mod bubbles;
mod changed;
mod corruption;
mod device;
mod divergence;
mod early_stop;
mod expert_loads;
mod gates;
mod grouped;
mod initial;
#[path = "../../../kernels-cpu/tests/instruction_set/mod.rs"]
mod instruction_set;
mod lengths;
mod masks;
mod memory_copies;
mod mixture;
mod place;
mod power_cuts;
mod preferences;
mod prefetch;
mod ranks;
mod reading;
mod refusals;
mod reshard;
mod resume;
mod run;
mod simulated;
mod skipped;
mod slices;
mod stopped;
mod tasks;
mod teacher;
mod updates;
