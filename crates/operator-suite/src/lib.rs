//! Tests of the operators of [`bessemer_tensor::op`] for any [`Backend`]: a crate for `dev-dependencies` only.
//!
//! A backend implements [`Devices`] in a test program and writes one line there: `operator_suite!(MyDevices)`. The
//! macro makes a `#[test]` of each case, with the name that the case has for every backend.
//!
//! Cases compare results with a reference backend, with finite differences of the forward pass, with golden values of
//! PyTorch, with the same operator on simulated ranks, and with another launch on the same device. They also test errors, workspaces,
//! strided operands, stored types and host copies. [`Tolerance`] is the profile of a device. [`Exception`] lists the
//! cases that a device does not pass yet, each with its reason.
//!
//! To add a case, write `pub(crate) fn name(suite: &Suite<'_>)` in the module of its operator and add it to the list in
//! `list.rs`. A test fails if a case is missing there, or if an operator of [`bessemer_tensor::op::Op`] has no case.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test with a backtrace")]

mod allocation;
mod attention;
mod attention_blocks;
mod attention_golden;
mod attention_masks;
mod backend;
mod background;
mod elementwise;
mod embedding;
mod experts;
mod gates;
mod gradients;
mod late;
mod linear;
mod list;
mod loss;
mod norm;
mod not_a_number;
mod optimizer;
mod quantised;
mod setup;
mod sharding;
mod suite;
mod tensor_shards;

pub use allocation::warm_launches_allocate_nothing;
pub use late::{LateStreams, Lateness};
pub use list::{CASES, Case, check_exceptions, run};
pub use setup::Setup;

use bessemer_tensor::Backend;
use std::fmt;
use suite::Suite;

/// Factory of the backends of one device. Each call makes a backend without buffers.
pub trait Devices {
    /// A backend with plain loops, to which results are compared.
    fn reference(&self) -> Box<dyn Backend>;

    /// Names of the kernel variants under test (instruction sets of a processor), the fastest one last.
    fn variants(&self) -> Vec<&'static str>;

    /// A backend with the kernels of variant number `variant` that computes with `workers` workers.
    ///
    /// Results must have the same bits for any number of workers. A device without such a number ignores it; the suite
    /// then compares two runs.
    fn backend(&self, variant: usize, workers: usize) -> Box<dyn Backend>;

    /// Engines of matrix products under test.
    fn engines(&self) -> Vec<ProductEngine> {
        let engine = |name: &str| ProductEngine { name: name.into(), reduced_parameters: [0.0; 2] };
        self.variants().into_iter().map(engine).collect()
    }

    /// A backend that multiplies matrices by engine number `engine`.
    fn engine_backend(&self, engine: usize, workers: usize) -> Box<dyn Backend> {
        self.backend(engine, workers)
    }

    /// Bounds on the deviations of results.
    fn tolerance(&self) -> Tolerance {
        Tolerance::SUITE
    }

    /// Cases that the device does not pass.
    fn exceptions(&self) -> &'static [Exception] {
        &[]
    }
}

/// One way in which a device multiplies matrices.
#[derive(Debug, Clone, PartialEq)]
pub struct ProductEngine {
    /// Name for messages.
    pub name: String,
    /// Bounds on the change of a product when parameters in bf16, and in f16, are replaced by the same values in f32:
    /// relative above 10, absolute below. 0: no bit changes.
    pub reduced_parameters: [f32; 2],
}

/// Bounds that a device states for its results. Every bound of the suite is one that f32 arithmetic keeps.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tolerance {
    /// Factor on the bounds of the suite: deviations from the reference, from golden values, from finite differences, and of
    /// parts from the whole.
    pub factor: f32,
    /// Bound where the suite wants the values of the reference: copies, optimizers, codes of 8 bits. 0: the same values.
    pub same_as_reference: f32,
    /// Bound where the suite wants the bits of another launch on the same device: another number of workers, the same sums
    /// in another operator. 0: the same bits.
    pub same_as_itself: f32,
}

impl Tolerance {
    /// The bounds of the suite.
    pub const SUITE: Tolerance = Tolerance { factor: 1.0, same_as_reference: 0.0, same_as_itself: 0.0 };
}

/// A case that a device does not pass. Its test runs it, and fails once the case passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exception {
    /// Name of the case, with its module: "linear::forward_agrees_with_the_reference".
    pub case: &'static str,
    /// Reason why the device does not pass it.
    pub reason: &'static str,
}

/// The reference, or one of the variants under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kernels {
    Reference,
    Variant { number: usize, name: &'static str },
}

impl fmt::Display for Kernels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Kernels::Reference => "reference",
            Kernels::Variant { name, .. } => name,
        })
    }
}
