//! Types of the weights in a file, and values in them.

use crate::element::encode;
use bessemer_units::DType;
use half::f16;

/// Values that share a scale in [`GgufWeights::Q8_0`].
const BLOCK: usize = 32;

/// Bytes of such a block: an f16 scale and an i8 for each value.
const BLOCK_BYTES: usize = 2 + BLOCK;

/// Type of the matrices in a file. Vectors, the table of positions and routers of experts are always f32, as llama.cpp's own converter has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GgufWeights {
    /// 4 bytes a value.
    F32,
    /// 2 bytes a value, up to 65504.
    F16,
    /// 2 bytes a value, the range of f32.
    Bf16,
    /// 34 bytes for 32 values: whole numbers from -127 to 127 times an f16 scale.
    Q8_0,
}

impl GgufWeights {
    /// Number of the type in a tensor's description (`ggml_type`).
    pub(super) fn tensor_type(self) -> u32 {
        match self {
            GgufWeights::F32 => 0,
            GgufWeights::F16 => 1,
            GgufWeights::Q8_0 => 8,
            GgufWeights::Bf16 => 30,
        }
    }

    /// Value of `general.file_type` (`llama_ftype`).
    pub(super) fn file_type(self) -> u32 {
        match self {
            GgufWeights::F32 => 0,
            GgufWeights::F16 => 1,
            GgufWeights::Q8_0 => 7,
            GgufWeights::Bf16 => 32,
        }
    }

    /// This type for a tensor of `shape`, or the one that takes its place there.
    pub(super) fn of(self, shape: &[usize]) -> GgufWeights {
        match (self, shape) {
            (_, [] | [_]) => GgufWeights::F32,
            (GgufWeights::Q8_0, [.., columns]) if !columns.is_multiple_of(BLOCK) => GgufWeights::F16,
            _ => self,
        }
    }

    /// Bytes of so many values.
    pub(super) fn bytes(self, values: u64) -> Option<u64> {
        match self {
            GgufWeights::F32 => values.checked_mul(4),
            GgufWeights::F16 | GgufWeights::Bf16 => values.checked_mul(2),
            GgufWeights::Q8_0 => (values / BLOCK as u64).checked_mul(BLOCK_BYTES as u64),
        }
    }

    /// Values that are encoded at a time: whole blocks.
    pub(super) const CHUNK: usize = BLOCK << 13;

    /// Writes `values` in this type into `out`, which is made as long as they need.
    ///
    /// # Errors
    /// The position of the first value that is not finite, or that an f16 cannot hold.
    pub(super) fn encode(self, values: &[f32], out: &mut Vec<u8>) -> Result<(), usize> {
        if let Some(at) = values.iter().position(|v| !v.is_finite()) {
            return Err(at);
        }
        out.clear();
        let dtype = match self {
            GgufWeights::Q8_0 => return encode_blocks(values, out),
            GgufWeights::F32 => DType::F32,
            GgufWeights::Bf16 => DType::Bf16,
            GgufWeights::F16 => {
                if let Some(at) = values.iter().position(|v| f16::from_f32(*v).is_infinite()) {
                    return Err(at);
                }
                DType::F16
            }
        };
        out.resize(values.len() * dtype.size(), 0);
        // Floats of these types are never refused.
        encode(values, dtype, out).map_err(|_| 0)
    }
}

/// Rounds to the nearest multiple of (largest magnitude) / 127, halves away from zero.
fn encode_blocks(values: &[f32], out: &mut Vec<u8>) -> Result<(), usize> {
    for (i, block) in values.chunks_exact(BLOCK).enumerate() {
        let largest = block.iter().fold(0.0f32, |most, v| most.max(v.abs()));
        let scale = largest / 127.0;
        let stored = f16::from_f32(scale);
        if stored.is_infinite() {
            return Err(i * BLOCK);
        }
        let inverse = if scale == 0.0 { 0.0 } else { scale.recip() };
        out.extend_from_slice(&stored.to_le_bytes());
        out.extend(block.iter().flat_map(|v| ((v * inverse).round() as i8).to_le_bytes()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against `gguf.quants.quantize(x, GGMLQuantizationType.Q8_0)` of the Python package gguf 0.19.0, with
    /// `x = ((np.arange(64) * 37 % 101 - 50) / np.float32(16)).astype(np.float32)`, the last 32 of them zero.
    #[test]
    fn blocks_of_8_bits_are_those_of_gguf() {
        let values: Vec<f32> =
            (0..64).map(|i| if i < 32 { ((i * 37 % 101) as f32 - 50.0) / 16.0 } else { 0.0 }).collect();
        let mut out = Vec::new();
        GgufWeights::Q8_0.encode(&values, &mut out).unwrap();
        let hex: String = out.iter().map(|b| format!("{b:02x}")).collect();
        let first = "4d2681df3d9af856b41270cd2b89e745a2005ebb1977d53390ee4caa0866c3217fdc";
        assert_eq!(hex, first.to_owned() + &"0".repeat(68));
    }

    #[test]
    fn values_that_a_type_cannot_hold_are_named() {
        let mut out = Vec::new();
        assert_eq!(GgufWeights::F16.encode(&[1.0, 65504.0, 65536.0], &mut out), Err(2));
        assert_eq!(GgufWeights::Bf16.encode(&[1.0, 65536.0, f32::NAN], &mut out), Err(2));
        assert_eq!(GgufWeights::F32.encode(&[f32::INFINITY], &mut out), Err(0));
        let mut values = [1.0; 64];
        values[40] = 1e7;
        assert_eq!(GgufWeights::Q8_0.encode(&values, &mut out), Err(32));
    }

    #[test]
    fn a_type_gives_way_where_rows_are_no_whole_blocks() {
        assert_eq!(GgufWeights::Q8_0.of(&[3, 64]), GgufWeights::Q8_0);
        assert_eq!(GgufWeights::Q8_0.of(&[64, 40]), GgufWeights::F16);
        assert_eq!(GgufWeights::Bf16.of(&[64, 40]), GgufWeights::Bf16);
        assert_eq!(GgufWeights::Bf16.of(&[64]), GgufWeights::F32);
    }
}
