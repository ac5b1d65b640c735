//! How exact matrix products must be.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The accuracy that a backend's matrix products must reach at least; each processor takes its fastest way to it.
/// Inputs and outputs keep their types, sums are f32 but for short blocks of `Medium`. The names are those of PyTorch's `set_float32_matmul_precision`.
#[derive(
    Debug, Default, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum MatmulPrecision {
    /// About as exact as with operands rounded to 8 significant bits (bf16). An engine may instead round them to 11 bits and sum
    /// short blocks in fp16.
    Medium,
    /// Operands with about 16 significant bits.
    High,
    /// Operands with all 24 bits of f32, and sums as exact as those of f32 multiply-adds wherever products are above about
    /// 2^-110 (1e-33): below that an engine may lose bits for want of subnormal numbers.
    #[default]
    Highest,
}

impl MatmulPrecision {
    /// All of them, most exact first.
    pub const ALL: [MatmulPrecision; 3] =
        [MatmulPrecision::Highest, MatmulPrecision::High, MatmulPrecision::Medium];
}

impl fmt::Display for MatmulPrecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MatmulPrecision::Medium => "medium",
            MatmulPrecision::High => "high",
            MatmulPrecision::Highest => "highest",
        })
    }
}
