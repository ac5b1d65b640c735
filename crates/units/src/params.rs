//! How the parameters of a training step are kept.

use crate::DType;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Element type of parameters, or of their gradients, on the device.
#[derive(
    Debug, Default, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum ParamDType {
    /// 4 bytes an element.
    #[default]
    F32,
    /// 2 bytes, 8 significant bits, the range of f32.
    Bf16,
    /// 2 bytes, 11 significant bits, 6e-8 to 65504.
    F16,
}

impl ParamDType {
    /// The element type.
    pub const fn dtype(self) -> DType {
        match self {
            ParamDType::F32 => DType::F32,
            ParamDType::Bf16 => DType::Bf16,
            ParamDType::F16 => DType::F16,
        }
    }
}

impl fmt::Display for ParamDType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.dtype().fmt(f)
    }
}

/// Type in which gradients travel between data-parallel ranks.
#[derive(
    Debug, Default, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum ReduceDType {
    /// The type of `train.gradients`, in which they are stored. Sums are formed in f32 and rounded to it.
    #[default]
    Stored,
    /// Integers of 8 bits by blocks, each with an f32 scale; sums are formed in f32 (Wang et al. 2023, ZeRO++, section 3.3).
    Int8,
}

impl fmt::Display for ReduceDType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ReduceDType::Stored => "stored",
            ReduceDType::Int8 => "int8",
        })
    }
}

/// Types of the parameters and of their gradients. Parameters of fewer bits than f32 have f32 masters, which the optimizer
/// steps and checkpoints carry; what products read is their values, rounded to nearest.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ParamStorage {
    /// Of the parameters.
    pub weights: ParamDType,
    /// Of their gradients.
    pub gradients: ParamDType,
}

impl ParamStorage {
    /// Parameters of this type with gradients in f32.
    pub const fn weights(weights: ParamDType) -> ParamStorage {
        ParamStorage { weights, gradients: ParamDType::F32 }
    }

    /// Parameters and gradients of one type.
    pub const fn both(dtype: ParamDType) -> ParamStorage {
        ParamStorage { weights: dtype, gradients: dtype }
    }

    /// Whether parameters have f32 masters.
    pub const fn has_masters(&self) -> bool {
        !matches!(self.weights, ParamDType::F32)
    }
}

impl fmt::Display for ParamStorage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "weights in {}, gradients in {}", self.weights, self.gradients)
    }
}
