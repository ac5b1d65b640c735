//! Buffers, views, operators and the [`Backend`] trait: what a model asks of a device.
//!
//! A model is a list of [`op::Op`] values. An operator names its operands by [`View`]: a handle to a buffer in
//! the backend's arena plus an offset, a shape and a row stride. It knows its own cost
//! ([`op::Op::flops`], [`op::Op::bytes`]) and can check its own shapes ([`op::Op::check`]); how it is computed is
//! the backend's affair. So the same program runs on the CPU, on a GPU, or on [`null::NullBackend`], which only counts.
//!
//! What must never happen: a slice of device memory outside a kernels crate, an allocation in a warm step,
//! a random number that depends on anything but (seed, step, tensor name, element).
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod backend;
mod error;
pub mod host;
pub mod null;
pub mod op;
mod pending;
pub mod quantise;
pub mod rng;
mod view;

pub use backend::{Backend, BufferSpec, Event, MemoryUse, Stream};
pub use error::TensorError;
pub use pending::{PendingRead, ReadProgress, ReadValues, all_finite};
pub use view::{Buffer, View};
