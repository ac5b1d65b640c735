//! Reductions, elementwise and in the order of the ranks.
//!
//! ```text
//! sum:  y = round( ((v_0 + v_1) + v_2) + ... )      in f32; round is to the type of the values
//! max:  y = the first of the largest; NaN if there is one
//! ```
//! The first term is copied, not added to zero, so that a sum of negative zeros is one.

use crate::Reduce;
use bessemer_units::DType;
use half::bf16;

/// A type of values that travels: what its bytes are and how it becomes f32 and back.
pub(crate) trait Element: Copy + Send + Sync + Default + std::fmt::Debug + 'static {
    const DTYPE: DType;

    fn wide(self) -> f32;

    fn narrow(value: f32) -> Self;

    /// Appends little-endian bytes.
    fn put(values: &[Self], bytes: &mut Vec<u8>);

    /// Reads little-endian bytes, `DTYPE.size()` for each value.
    fn each(bytes: &[u8]) -> impl Iterator<Item = Self>;

    /// The values of this type.
    fn lane(lanes: &Lanes) -> &Vec<Self>;

    fn lane_mut(lanes: &mut Lanes) -> &mut Vec<Self>;
}

/// Memory for values of either type.
#[derive(Debug, Default)]
pub(crate) struct Lanes {
    f32: Vec<f32>,
    bf16: Vec<bf16>,
}

impl Element for f32 {
    const DTYPE: DType = DType::F32;

    #[inline(always)]
    fn wide(self) -> f32 {
        self
    }

    #[inline(always)]
    fn narrow(value: f32) -> f32 {
        value
    }

    fn put(values: &[f32], bytes: &mut Vec<u8>) {
        let from = bytes.len();
        bytes.resize(from + 4 * values.len(), 0);
        for (b, v) in bytes[from..].as_chunks_mut::<4>().0.iter_mut().zip(values) {
            *b = v.to_le_bytes();
        }
    }

    fn each(bytes: &[u8]) -> impl Iterator<Item = f32> {
        bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b))
    }

    fn lane(lanes: &Lanes) -> &Vec<f32> {
        &lanes.f32
    }

    fn lane_mut(lanes: &mut Lanes) -> &mut Vec<f32> {
        &mut lanes.f32
    }
}

impl Element for bf16 {
    const DTYPE: DType = DType::Bf16;

    #[inline(always)]
    fn wide(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }

    /// To nearest, ties to even; NaN stays NaN. Written without a branch so that the loops around it are vectorized.
    #[inline(always)]
    fn narrow(value: f32) -> bf16 {
        let bits = value.to_bits();
        let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
        let quiet = (bits >> 16) | 0x40;
        bf16::from_bits(if value.is_nan() { quiet } else { rounded } as u16)
    }

    fn put(values: &[bf16], bytes: &mut Vec<u8>) {
        let from = bytes.len();
        bytes.resize(from + 2 * values.len(), 0);
        for (b, v) in bytes[from..].as_chunks_mut::<2>().0.iter_mut().zip(values) {
            *b = v.to_le_bytes();
        }
    }

    fn each(bytes: &[u8]) -> impl Iterator<Item = bf16> {
        bytes.as_chunks::<2>().0.iter().map(|b| bf16::from_le_bytes(*b))
    }

    fn lane(lanes: &Lanes) -> &Vec<bf16> {
        &lanes.bf16
    }

    fn lane_mut(lanes: &mut Lanes) -> &mut Vec<bf16> {
        &mut lanes.bf16
    }
}

/// First term.
pub(crate) fn begin<E: Element>(acc: &mut [f32], term: impl Iterator<Item = E>) {
    for (a, t) in acc.iter_mut().zip(term) {
        *a = t.wide();
    }
}

/// Next term.
pub(crate) fn add<E: Element>(acc: &mut [f32], term: impl Iterator<Item = E>, reduce: Reduce) {
    match reduce {
        Reduce::Sum => {
            for (a, t) in acc.iter_mut().zip(term) {
                *a += t.wide();
            }
        }
        Reduce::Max => {
            for (a, t) in acc.iter_mut().zip(term) {
                *a = larger(*a, t.wide());
            }
        }
    }
}

/// Result.
pub(crate) fn end<E: Element>(acc: &[f32], out: &mut [E]) {
    for (o, a) in out.iter_mut().zip(acc) {
        *o = E::narrow(*a);
    }
}

#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if b > a || b.is_nan() { b } else { a }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bf16_rounds_like_the_half_crate() {
        let mut bits = 1u32;
        for _ in 0..1_000_000 {
            bits = bits.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let v = f32::from_bits(bits);
            assert_eq!(bf16::narrow(v).to_bits(), bf16::from_f32(v).to_bits(), "{bits:08x}");
        }
        for v in [0.0, -0.0, f32::MAX, f32::MIN, f32::INFINITY, f32::MIN_POSITIVE, 1.003_906_3, 1.011_718_8] {
            assert_eq!(bf16::narrow(v).to_bits(), bf16::from_f32(v).to_bits(), "{v}");
        }
    }

    #[test]
    fn max_keeps_nan_wherever_it_stands() {
        for terms in [[f32::NAN, 1.0, 2.0], [1.0, f32::NAN, 2.0], [1.0, 2.0, f32::NAN]] {
            let mut acc = [0.0];
            begin(&mut acc, terms[..1].iter().copied());
            add(&mut acc, terms[1..2].iter().copied(), Reduce::Max);
            add(&mut acc, terms[2..].iter().copied(), Reduce::Max);
            assert!(acc[0].is_nan(), "{terms:?}");
        }
    }

    #[test]
    fn bytes_come_back() {
        let v = [1.5f32, -0.0, f32::NAN, 3e-42];
        let mut bytes = vec![9];
        f32::put(&v, &mut bytes);
        let back: Vec<u32> = f32::each(&bytes[1..]).map(f32::to_bits).collect();
        assert_eq!(v.map(f32::to_bits), *back);
        let h = v.map(bf16::from_f32);
        bytes.clear();
        bf16::put(&h, &mut bytes);
        assert_eq!(bytes.len(), 8);
        let back: Vec<u16> = bf16::each(&bytes).map(bf16::to_bits).collect();
        assert_eq!(h.map(bf16::to_bits), *back);
    }
}
