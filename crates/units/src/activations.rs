//! How the activations of a training step are kept.

use crate::DType;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Element type in which activations and their gradients are stored. Everything is computed in f32 and rounded to nearest
/// when it is stored; optimizer state, statistics and losses stay f32, parameters have a type of their own
/// ([`crate::ParamStorage`]).
#[derive(
    Debug, Default, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Storage {
    /// 4 bytes an element.
    #[default]
    F32,
    /// 2 bytes an element, 8 significant bits, the range of f32.
    Bf16,
}

impl Storage {
    /// The element type.
    pub const fn dtype(self) -> DType {
        match self {
            Storage::F32 => DType::F32,
            Storage::Bf16 => DType::Bf16,
        }
    }
}

impl fmt::Display for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.dtype().fmt(f)
    }
}

/// What the backward pass computes again instead of having it stored (activation recomputation; Korthikanti et al. 2022,
/// "Reducing Activation Recomputation in Large Transformer Models"). In f32 storage the numbers are the same bits either
/// way.
#[derive(
    Debug, Default, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Recompute {
    /// Nothing: all inputs of products are stored.
    None,
    /// What is large and cheap: normalised rows from the residual stream, activations and gated products from the
    /// pre-activations. No product is computed twice.
    #[default]
    Selective,
}

impl fmt::Display for Recompute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Recompute::None => "none",
            Recompute::Selective => "selective",
        })
    }
}
