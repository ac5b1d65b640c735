//! How activations are kept.

use bessemer_units::{RecomputePlan, Storage};

/// How a decoder made to train keeps its activations. One made to score keeps f32, and nothing longer than a layer.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct ActivationConfig {
    /// Element type of activations and of their gradients.
    pub storage: Storage,
    /// Values that the backward pass of each layer recomputes.
    pub recompute: RecomputePlan,
}

/// Rows of logits made at a time by [`crate::Decoder::logits`].
pub(crate) const LOGIT_ROWS: usize = 16;
