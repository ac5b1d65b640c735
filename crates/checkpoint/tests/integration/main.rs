//! The integration tests of this crate as one program: each test program costs a link.

#![allow(clippy::unwrap_used, reason = "a failed unwrap in a test is a failed test")]

mod crash;
mod damage;
mod difference;
mod faults;
mod gguf;
mod hf;
mod hf_logits;
mod links;
#[cfg(feature = "remote")]
#[path = "../../../object-store/tests/integration/moto.rs"]
mod moto;
mod parts;
mod refusals;
#[cfg(feature = "remote")]
mod remote;
mod reshard;
mod simdisk;
mod sliced;
#[cfg(feature = "remote")]
#[path = "../../../object-store/tests/integration/store.rs"]
mod store;
mod throughput;
