//! The `media-shard` format, version 1: samples of token ids and one array each. The crate's README is its specification.

mod format;
mod reader;
mod set;
mod writer;

#[cfg(test)]
mod tests;

pub use format::{MAGIC, VERSION};
pub use reader::ShardReader;
pub use set::{INDEX_FILE, ListedFile, SetIndex, SetWriter, shard_name};
pub use writer::{ShardSummary, ShardWriter};

use crate::{MediaError, Result};

/// Element type of an array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DType {
    /// Unsigned bytes.
    U8,
    /// bfloat16, little endian.
    Bf16,
    /// IEEE single precision, little endian.
    F32,
}

impl DType {
    /// Bytes of an element.
    pub fn bytes(self) -> usize {
        match self {
            DType::U8 => 1,
            DType::Bf16 => 2,
            DType::F32 => 4,
        }
    }

    /// Name for people and JSON.
    pub fn name(self) -> &'static str {
        match self {
            DType::U8 => "u8",
            DType::Bf16 => "bf16",
            DType::F32 => "f32",
        }
    }

    fn code(self) -> u8 {
        match self {
            DType::U8 => 1,
            DType::Bf16 => 2,
            DType::F32 => 3,
        }
    }

    fn from_code(code: u8) -> Option<DType> {
        [DType::U8, DType::Bf16, DType::F32].into_iter().find(|d| d.code() == code)
    }
}

/// An array of up to four dims, row by row, the last dim fastest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Array {
    dtype: DType,
    shape: Vec<u32>,
    data: Vec<u8>,
}

impl Array {
    /// An array from its bytes (little endian).
    ///
    /// # Errors
    /// [`MediaError::Argument`] for no or more than four dims, or a length that is not their product.
    pub fn new(dtype: DType, shape: &[u32], data: Vec<u8>) -> Result<Array> {
        let length = byte_length(dtype, shape);
        if !(1..=4).contains(&shape.len()) || length != Some(data.len() as u64) {
            let (name, found) = (dtype.name(), data.len());
            return Err(MediaError::Argument(format!(
                "array: wanted 1 to 4 dims and as many {name} elements as the shape has, found shape \
                 {shape:?} and {found} bytes"
            )));
        }
        Ok(Array { dtype, shape: shape.to_vec(), data })
    }

    /// An array of f32 values, stored as `dtype`. bf16 is rounded to the nearest, ties to even.
    ///
    /// # Errors
    /// As [`Array::new`]; u8 is not made from f32.
    pub fn from_f32(dtype: DType, shape: &[u32], values: &[f32]) -> Result<Array> {
        let data = match dtype {
            DType::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
            DType::Bf16 => values.iter().flat_map(|v| bf16(*v).to_le_bytes()).collect(),
            DType::U8 => return Err(MediaError::Argument("array: f32 values are not stored as u8".into())),
        };
        Array::new(dtype, shape, data)
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Lengths of the dims.
    pub fn shape(&self) -> &[u32] {
        &self.shape
    }

    /// The elements as little-endian bytes.
    pub fn data(&self) -> &[u8] {
        &self.data
    }

    /// The elements as f32; u8 as 0 to 255.
    pub fn to_f32(&self) -> Vec<f32> {
        match self.dtype {
            DType::U8 => self.data.iter().map(|&v| f32::from(v)).collect(),
            DType::Bf16 => {
                let wide = |b: &[u8]| f32::from_bits(u32::from(u16::from_le_bytes([b[0], b[1]])) << 16);
                self.data.chunks_exact(2).map(wide).collect()
            }
            DType::F32 => {
                self.data.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
            }
        }
    }
}

/// Round to nearest even; NaN stays NaN.
fn bf16(v: f32) -> u16 {
    let bits = v.to_bits();
    if v.is_nan() {
        return (bits >> 16) as u16 | 0x40;
    }
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

/// Bytes of an array; `None` on overflow.
fn byte_length(dtype: DType, shape: &[u32]) -> Option<u64> {
    shape.iter().try_fold(dtype.bytes() as u64, |n, &d| n.checked_mul(u64::from(d)))
}

/// One sample: a name, the token ids of its text, and its array.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sample {
    /// Name in its source.
    pub key: String,
    /// Token ids.
    pub tokens: Vec<u32>,
    /// The array.
    pub array: Array,
}

/// Fields that all files of a set share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardMeta {
    /// Number of token ids; every id is below it.
    pub vocab_size: u32,
    /// Fingerprint of the tokenizer.
    pub tokenizer: [u8; 32],
    /// Place of this file in its set, from 0.
    pub ordinal: u32,
}
