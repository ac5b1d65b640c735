//! The CPU backend: one op a file, forward and backward together.
//!
//! [`CpuBackend`] implements [`bessemer_tensor::Backend`]. Every operator is in `op/` with its formula, a plain
//! reference loop that the tests compare with, and its faster variants. Work is cut into tiles by shape, never by the number
//! of threads, so results have the same bits for any number of threads.
//!
//! Unit tests launch no operator: a test program contains the code that its tests reach, which would be every operator for every
//! instruction set, compiled once more.
#![allow(clippy::disallowed_methods, reason = "reads /proc and /sys only")]

mod arena;
mod backend;
mod background;
mod config;
mod ctx;
mod element;
mod engine;
mod error;
mod gemm;
pub mod memory;
mod op;
mod operand;
mod panels;
pub mod peak;
mod pool;
mod rung;
mod simd;

pub use backend::CpuBackend;
pub use config::CpuConfig;
pub use engine::Engine;
pub use error::CpuError;
pub use pool::cpu_list;
pub use rung::Rung;
