//! The integration tests of this crate as one program: each test program costs a link.

#![allow(clippy::unwrap_used)] // the lint sees tests only inside test functions, and helpers of tests are none

#[path = "../../../train/tests/integration/device.rs"]
mod device;
mod drift;
#[path = "../../../kernels-cpu/tests/instruction_set/mod.rs"]
mod instruction_set;
mod parity;
mod parity_faults;
mod parity_pairwise;
mod routes;
mod traffic;
mod traffic_grids;
