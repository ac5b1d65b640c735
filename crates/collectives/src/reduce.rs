//! Reductions, elementwise and in the order of the ranks.
//!
//! ```text
//! sum:  y = round( ((v_0 + v_1) + v_2) + ... )      floats: in f32, rounded to the type of the values; u32: modulo 2^32
//! max:  y = the first of the largest; NaN if there is one
//! ```
//! The first term is copied, not added to zero, so that a sum of negative zeros is one.
//!
//! Terms are bytes, wherever they come from. An accumulator is one word for each element: the bits of an f32, or a u32.

use crate::{ElementType, Reduce};
use half::{bf16, f16};

/// Makes `acc` the first term.
pub(crate) fn first(element: ElementType, acc: &mut [u32], term: &[u8]) {
    match element {
        ElementType::F32 | ElementType::U32 => each(acc, term, |a, t| *a = u32::from_ne_bytes(t)),
        ElementType::Bf16 => each(acc, term, |a, t| *a = wide_bf16(t).to_bits()),
        ElementType::F16 => each(acc, term, |a, t| *a = f16::from_ne_bytes(t).to_f32().to_bits()),
        ElementType::U8 => unreachable!("a call that reduces bytes is refused"),
    }
}

/// Adds the next term.
pub(crate) fn add(element: ElementType, acc: &mut [u32], term: &[u8], reduce: Reduce) {
    match (element, reduce) {
        (ElementType::U32, Reduce::Sum) => {
            each(acc, term, |a, t| *a = a.wrapping_add(u32::from_ne_bytes(t)));
        }
        (ElementType::U32, Reduce::Max) => each(acc, term, |a, t| *a = (*a).max(u32::from_ne_bytes(t))),
        (ElementType::F32, _) => add_floats(acc, term, reduce, f32::from_ne_bytes),
        (ElementType::Bf16, _) => add_floats(acc, term, reduce, wide_bf16),
        (ElementType::F16, _) => add_floats(acc, term, reduce, |t| f16::from_ne_bytes(t).to_f32()),
        (ElementType::U8, _) => unreachable!("a call that reduces bytes is refused"),
    }
}

/// Puts the result into `out`, rounded to its type.
pub(crate) fn finish(element: ElementType, acc: &[u32], out: &mut [u8]) {
    match element {
        ElementType::F32 | ElementType::U32 => put(acc, out, u32::to_ne_bytes),
        ElementType::Bf16 => put(acc, out, |a| narrow_bf16(f32::from_bits(a))),
        ElementType::F16 => put(acc, out, |a| f16::from_f32(f32::from_bits(a)).to_ne_bytes()),
        ElementType::U8 => unreachable!("a call that reduces bytes is refused"),
    }
}

#[inline(always)]
fn each<const N: usize>(acc: &mut [u32], term: &[u8], work: impl Fn(&mut u32, [u8; N])) {
    acc.iter_mut().zip(term.as_chunks::<N>().0).for_each(|(a, t)| work(a, *t));
}

#[inline(always)]
fn add_floats<const N: usize>(acc: &mut [u32], term: &[u8], reduce: Reduce, wide: impl Fn([u8; N]) -> f32) {
    match reduce {
        Reduce::Sum => each(acc, term, |a, t| *a = (f32::from_bits(*a) + wide(t)).to_bits()),
        Reduce::Max => each(acc, term, |a, t| *a = larger(f32::from_bits(*a), wide(t)).to_bits()),
    }
}

#[inline(always)]
fn put<const N: usize>(acc: &[u32], out: &mut [u8], narrow: impl Fn(u32) -> [u8; N]) {
    out.as_chunks_mut::<N>().0.iter_mut().zip(acc).for_each(|(o, a)| *o = narrow(*a));
}

#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if b > a || b.is_nan() { b } else { a }
}

#[inline(always)]
fn wide_bf16(bytes: [u8; 2]) -> f32 {
    f32::from_bits(u32::from(u16::from_ne_bytes(bytes)) << 16)
}

/// Rounds to nearest, ties to even; NaN stays NaN. Written without a branch so that the loops around it are vectorized.
#[inline(always)]
fn narrow_bf16(value: f32) -> [u8; 2] {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    let quiet = (bits >> 16) | 0x40;
    bf16::from_bits(if value.is_nan() { quiet } else { rounded } as u16).to_ne_bytes()
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
            assert_eq!(narrow_bf16(v), bf16::from_f32(v).to_ne_bytes(), "{bits:08x}");
        }
        for v in [0.0, -0.0, f32::MAX, f32::MIN, f32::INFINITY, f32::MIN_POSITIVE, 1.003_906_3, 1.011_718_8] {
            assert_eq!(narrow_bf16(v), bf16::from_f32(v).to_ne_bytes(), "{v}");
        }
    }

    #[test]
    fn max_keeps_nan_wherever_it_stands() {
        for terms in [[f32::NAN, 1.0, 2.0], [1.0, f32::NAN, 2.0], [1.0, 2.0, f32::NAN]] {
            let mut acc = [0];
            first(ElementType::F32, &mut acc, &terms[0].to_ne_bytes());
            add(ElementType::F32, &mut acc, &terms[1].to_ne_bytes(), Reduce::Max);
            add(ElementType::F32, &mut acc, &terms[2].to_ne_bytes(), Reduce::Max);
            assert!(f32::from_bits(acc[0]).is_nan(), "{terms:?}");
        }
    }
}
