//! The integration tests of this crate as one program: each test program costs a link.

mod crash;
mod damage;
mod faults;
mod hf;
mod hf_logits;
mod links;
mod refusals;
mod simdisk;
mod sliced;
mod throughput;
