//! Dropout masks of a training step. Nothing is stored: an element's mask is a function of (seed, step, place, global
//! element), where the global element counts from the step's first sequence, so that masks do not depend on how the
//! batch is cut into micro-batches or over devices.

use bessemer_tensor::op::DropoutMask;
use bessemer_tensor::rng::RngKey;

/// Dropout of one micro-batch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Masks {
    pub(crate) p: f32,
    pub(crate) seed: u64,
    pub(crate) step: u64,
    /// Number of the micro-batch's first sequence within the step's whole batch.
    pub(crate) first_sequence: u64,
}

impl Masks {
    /// The mask at `place` of a tensor with `per_sequence` elements for each sequence.
    pub(crate) fn mask(&self, place: &str, per_sequence: usize) -> DropoutMask {
        DropoutMask {
            p: self.p,
            key: RngKey::new(self.seed, self.step, place),
            first: self.first_sequence.wrapping_mul(per_sequence as u64),
        }
    }
}
