//! How activations are kept.

use bessemer_units::{Recompute, Storage};

/// How a decoder made to train keeps its activations. One made to score keeps f32, and nothing longer than a layer.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct ActivationConfig {
    /// Element type of activations and of their gradients.
    pub storage: Storage,
    /// Values that the backward pass recomputes.
    pub recompute: Recompute,
}

/// Rows of logits made at a time by [`crate::Decoder::logits`].
pub(crate) const LOGIT_ROWS: usize = 16;
