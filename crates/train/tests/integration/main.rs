//! The integration tests of this crate as one program: each test program costs a link.

#![allow(clippy::unwrap_used)] // the lint sees tests only inside test functions, and helpers of tests are none

mod bubbles;
mod device;
mod divergence;
mod drift;
#[path = "../../../kernels-cpu/tests/instruction_set/mod.rs"]
mod instruction_set;
mod lengths;
mod mixture;
mod parity;
mod parity_faults;
mod parity_pairwise;
mod place;
mod ranks;
mod refusals;
mod resume;
mod run;
mod simulated;
mod slices;
mod traffic;
mod traffic_grids;
mod updates;
