//! Element types of buffers and files.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Element type of a tensor, as a value (never a type parameter outside a kernels crate).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    /// IEEE 754 binary32.
    F32,
    /// bfloat16: the upper half of a binary32.
    Bf16,
    /// IEEE 754 binary16.
    F16,
    /// Unsigned 32-bit integer: token ids, positions.
    U32,
    /// Unsigned 8-bit integer: codes of block-quantised values.
    U8,
}

impl DType {
    /// Every type.
    pub const ALL: [DType; 5] = [DType::F32, DType::Bf16, DType::F16, DType::U32, DType::U8];

    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            DType::F32 | DType::U32 => 4,
            DType::Bf16 | DType::F16 => 2,
            DType::U8 => 1,
        }
    }

    /// Name in the safetensors format ("F32", "BF16", "F16", "U32", "U8").
    pub const fn safetensors_name(self) -> &'static str {
        match self {
            DType::F32 => "F32",
            DType::Bf16 => "BF16",
            DType::F16 => "F16",
            DType::U32 => "U32",
            DType::U8 => "U8",
        }
    }

    /// Inverse of [`DType::safetensors_name`]; `None` for a type that Bessemer does not compute with.
    pub fn from_safetensors_name(name: &str) -> Option<DType> {
        DType::ALL.into_iter().find(|d| d.safetensors_name() == name)
    }

    /// True for the types that a model's values may have.
    pub const fn is_float(self) -> bool {
        !matches!(self, DType::U32 | DType::U8)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DType::F32 => "f32",
            DType::Bf16 => "bf16",
            DType::F16 => "f16",
            DType::U32 => "u32",
            DType::U8 => "u8",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn safetensors_names_round_trip() {
        for d in DType::ALL {
            assert_eq!(DType::from_safetensors_name(d.safetensors_name()), Some(d));
        }
        assert_eq!(DType::from_safetensors_name("F8_E4M3"), None);
    }
}
