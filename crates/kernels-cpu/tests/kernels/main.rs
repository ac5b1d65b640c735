//! The CPU backend: every case of the operator suite on every instruction set and for several numbers of threads, and tests of its
//! engines of matrix products.
#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test with a backtrace

#[path = "../devices/mod.rs"]
mod devices;
mod engines;
#[cfg(target_arch = "x86_64")]
mod fp16;
mod late;
mod mutations;
mod threads;

bessemer_operator_suite::operator_suite!(crate::devices::Cpu);
