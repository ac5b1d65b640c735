//! The integration tests of this crate as one program: each test program costs a link.

#![allow(clippy::unwrap_used, reason = "a failed unwrap in a test is a failed test")]

mod crash;
mod damage;
mod faults;
mod hf;
mod hf_logits;
mod links;
mod parts;
mod refusals;
mod simdisk;
mod sliced;
mod throughput;
