//! Values in memory (f32) to bytes in files (f32, bf16, f16, u32, little-endian) and back.

use bessemer_units::DType;
use half::{bf16, f16};

/// f32 holds integers up to this exactly; a u32 tensor above it cannot pass through [`bessemer_tensor::host::HostTensor`].
const LARGEST_EXACT: u32 = 1 << 24;

/// Codes of block-quantised values mean nothing without their scales: checkpoints hold the values.
const NO_CODES: &str = "a tensor of u8; checkpoints hold f32, bf16, f16 or u32";

/// Writes `values` as `dtype` into `out`, which holds exactly as many elements. bf16 and f16 round to nearest even.
///
/// Errors with the position of the first value that a u32 cannot hold exactly, or that is finite and lies beyond an f16.
pub(crate) fn encode(values: &[f32], dtype: DType, out: &mut [u8]) -> Result<(), String> {
    debug_assert_eq!(values.len() * dtype.size(), out.len());
    match dtype {
        DType::F32 => {
            for (v, o) in values.iter().zip(out.chunks_exact_mut(4)) {
                o.copy_from_slice(&v.to_le_bytes());
            }
        }
        DType::Bf16 => {
            for (v, o) in values.iter().zip(out.chunks_exact_mut(2)) {
                o.copy_from_slice(&bf16::from_f32(*v).to_le_bytes());
            }
        }
        DType::F16 => {
            for (i, (v, o)) in values.iter().zip(out.chunks_exact_mut(2)).enumerate() {
                let half = f16::from_f32(*v);
                if half.is_infinite() && v.is_finite() {
                    return Err(format!(
                        "value {v} at element {i} is beyond {}, the largest of f16; use bf16 or f32",
                        f16::MAX
                    ));
                }
                o.copy_from_slice(&half.to_le_bytes());
            }
        }
        DType::U32 => {
            for (i, (v, o)) in values.iter().zip(out.chunks_exact_mut(4)).enumerate() {
                if !(v.fract() == 0.0 && (0.0..=LARGEST_EXACT as f32).contains(v)) {
                    return Err(format!(
                        "value {v} at element {i} is not an integer from 0 to {LARGEST_EXACT}"
                    ));
                }
                o.copy_from_slice(&(*v as u32).to_le_bytes());
            }
        }
        DType::U8 => return Err(NO_CODES.into()),
    }
    Ok(())
}

/// Reads `bytes`, elements of `dtype`, into `values`, which has exactly as many places.
///
/// Errors with the position of the first u32 that an f32 cannot hold exactly.
pub(crate) fn decode(bytes: &[u8], dtype: DType, values: &mut [f32]) -> Result<(), String> {
    debug_assert_eq!(values.len() * dtype.size(), bytes.len());
    match dtype {
        DType::F32 => {
            for (v, b) in values.iter_mut().zip(bytes.chunks_exact(4)) {
                *v = f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
            }
        }
        DType::Bf16 => {
            for (v, b) in values.iter_mut().zip(bytes.chunks_exact(2)) {
                *v = bf16::from_le_bytes([b[0], b[1]]).to_f32();
            }
        }
        DType::F16 => {
            for (v, b) in values.iter_mut().zip(bytes.chunks_exact(2)) {
                *v = f16::from_le_bytes([b[0], b[1]]).to_f32();
            }
        }
        DType::U32 => {
            for (i, (v, b)) in values.iter_mut().zip(bytes.chunks_exact(4)).enumerate() {
                let n = u32::from_le_bytes([b[0], b[1], b[2], b[3]]);
                if n > LARGEST_EXACT {
                    return Err(format!("value {n} at element {i} does not fit an f32 exactly"));
                }
                *v = n as f32;
            }
        }
        DType::U8 => return Err(NO_CODES.into()),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_16_bit_pattern_survives_the_round_trip_but_signalling_nans_become_quiet() {
        for dtype in [DType::Bf16, DType::F16] {
            let bytes: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
            let mut values = vec![0.0; 1 << 16];
            decode(&bytes, dtype, &mut values).unwrap();
            let mut back = vec![0; bytes.len()];
            encode(&values, dtype, &mut back).unwrap();
            for (i, (a, b)) in bytes.chunks(2).zip(back.chunks(2)).enumerate() {
                assert!(a == b || values[i].is_nan(), "{dtype} {i:#x}");
            }
        }
    }

    #[test]
    fn f32_keeps_every_bit() {
        let values = [0.0f32, -0.0, f32::MIN_POSITIVE / 2.0, f32::INFINITY, f32::from_bits(0x7fc0_1234), 1.1];
        let (mut bytes, mut back) = ([0; 24], [0.0; 6]);
        encode(&values, DType::F32, &mut bytes).unwrap();
        decode(&bytes, DType::F32, &mut back).unwrap();
        assert_eq!(values.map(f32::to_bits), back.map(f32::to_bits));
    }

    /// Halfway between the largest f16, 65504, and the next power of two the rounding goes to infinity (IEEE 754, 4.3.1).
    #[test]
    fn what_f16_cannot_hold_is_refused() {
        let mut bytes = [0; 4];
        encode(&[65519.0, -65519.0], DType::F16, &mut bytes).unwrap();
        assert_eq!(bytes, [0xff, 0x7b, 0xff, 0xfb]);
        let problem = encode(&[1.0, -65520.0], DType::F16, &mut bytes).unwrap_err();
        assert_eq!(problem, "value -65520 at element 1 is beyond 65504, the largest of f16; use bf16 or f32");
        encode(&[65520.0, 3e38], DType::Bf16, &mut bytes).unwrap();
    }

    #[test]
    fn integers_that_would_be_rounded_are_refused() {
        assert!(encode(&[0.5], DType::U32, &mut [0; 4]).is_err());
        assert!(encode(&[-1.0], DType::U32, &mut [0; 4]).is_err());
        assert!(encode(&[f32::NAN], DType::U32, &mut [0; 4]).is_err());
        assert!(decode(&u32::MAX.to_le_bytes(), DType::U32, &mut [0.0]).is_err());
        assert!(encode(&[1.0], DType::U8, &mut [0]).is_err());
        assert!(decode(&[1], DType::U8, &mut [0.0]).is_err());
        let mut b = [0; 4];
        encode(&[16_777_216.0], DType::U32, &mut b).unwrap();
        assert_eq!(u32::from_le_bytes(b), 1 << 24);
    }
}
