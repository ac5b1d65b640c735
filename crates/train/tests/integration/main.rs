//! The integration tests of this crate as one program: each test program costs a link.

mod bubbles;
mod device;
mod drift;
#[path = "../../../kernels-cpu/tests/instruction_set/mod.rs"]
mod instruction_set;
mod mixture;
mod parity;
mod parity_faults;
mod place;
mod ranks;
mod resume;
mod run;
