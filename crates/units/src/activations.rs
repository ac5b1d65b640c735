//! Element type of the activations of a training step.

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
