//! Types in which values are stored: f32 and bf16, and for parameters and their gradients f16 too. Kernels compute in f32
//! and are generic over the stored type.
//!
//! bf16 is the upper half of an f32, so loading is a shift; storing rounds to nearest, ties to even, in integer
//! arithmetic: the same bits on every instruction set, subnormal numbers included (the processor's own conversion, VCVTNEPS2BF16,
//! takes those for zero). Infinities stay, NaN stays NaN.
#![allow(unsafe_code)] // elements by address

use crate::simd::Simd;
use bessemer_units::DType;
use half::{bf16, f16};

/// An element in memory.
///
/// # Safety
/// The vector functions need the instructions of `S`, and as many elements from the pointer on as are read or written.
pub(crate) trait Element: Copy + Send + Sync + 'static {
    /// The type as a value.
    const DTYPE: DType;

    fn to_f32(self) -> f32;
    /// Nearest, ties to even.
    fn from_f32(x: f32) -> Self;
    unsafe fn load<S: Simd>(p: *const Self) -> S::V;
    /// The first `n <= LANES` elements, zeros after them; reads no further.
    unsafe fn load_n<S: Simd>(p: *const Self, n: usize) -> S::V;
    unsafe fn store<S: Simd>(p: *mut Self, v: S::V);
    /// Writes the first `n <= LANES` elements only.
    unsafe fn store_n<S: Simd>(p: *mut Self, v: S::V, n: usize);
}

// SAFETY of every function: as the trait demands of its callers.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Element for f32 {
    const DTYPE: DType = DType::F32;

    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }
    #[inline(always)]
    fn from_f32(x: f32) -> f32 {
        x
    }
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const f32) -> S::V {
        unsafe { S::load(p) }
    }
    #[inline(always)]
    unsafe fn load_n<S: Simd>(p: *const f32, n: usize) -> S::V {
        unsafe { S::load_n(p, n) }
    }
    #[inline(always)]
    unsafe fn store<S: Simd>(p: *mut f32, v: S::V) {
        unsafe { S::store(p, v) }
    }
    #[inline(always)]
    unsafe fn store_n<S: Simd>(p: *mut f32, v: S::V, n: usize) {
        unsafe { S::store_n(p, v, n) }
    }
}

// SAFETY of every function: as the trait demands of its callers.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Element for bf16 {
    const DTYPE: DType = DType::Bf16;

    #[inline(always)]
    fn to_f32(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }
    #[inline(always)]
    fn from_f32(x: f32) -> bf16 {
        bf16::from_bits(nearest_bf16(x.to_bits()))
    }
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const bf16) -> S::V {
        unsafe { S::load_bf16(p.cast()) }
    }
    #[inline(always)]
    unsafe fn load_n<S: Simd>(p: *const bf16, n: usize) -> S::V {
        unsafe { S::load_bf16_n(p.cast(), n) }
    }
    #[inline(always)]
    unsafe fn store<S: Simd>(p: *mut bf16, v: S::V) {
        unsafe { S::store_bf16(p.cast(), v) }
    }
    #[inline(always)]
    unsafe fn store_n<S: Simd>(p: *mut bf16, v: S::V, n: usize) {
        unsafe { S::store_bf16_n(p.cast(), v, n) }
    }
}

/// Most lanes of any [`Simd`].
const MOST_LANES: usize = 16;

// SAFETY of every function: as the trait demands of its callers.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Element for f16 {
    const DTYPE: DType = DType::F16;

    #[inline(always)]
    fn to_f32(self) -> f32 {
        f16::to_f32(self)
    }
    #[inline(always)]
    fn from_f32(x: f32) -> f16 {
        f16::from_f32(x)
    }
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const f16) -> S::V {
        unsafe { S::load_f16(p.cast()) }
    }
    #[inline(always)]
    unsafe fn load_n<S: Simd>(p: *const f16, n: usize) -> S::V {
        let mut x = [0u16; MOST_LANES];
        unsafe {
            std::ptr::copy_nonoverlapping(p.cast(), x.as_mut_ptr(), n);
            S::load_f16(x.as_ptr())
        }
    }
    #[inline(always)]
    unsafe fn store<S: Simd>(p: *mut f16, v: S::V) {
        unsafe { S::store_f16(p.cast(), v) }
    }
    #[inline(always)]
    unsafe fn store_n<S: Simd>(p: *mut f16, v: S::V, n: usize) {
        let mut x = [0u16; MOST_LANES];
        unsafe {
            S::store_f16(x.as_mut_ptr(), v);
            std::ptr::copy_nonoverlapping(x.as_ptr(), p.cast(), n);
        }
    }
}

/// The bf16 bits nearest to the f32 with these bits. Adding just under half of the dropped part, and one more if the
/// kept part is odd, carries where the value must be rounded up. A NaN keeps its upper bits and becomes quiet.
#[inline(always)]
pub(crate) fn nearest_bf16(bits: u32) -> u16 {
    if bits & 0x7fff_ffff > 0x7f80_0000 {
        return (bits >> 16) as u16 | 0x0040;
    }
    (bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16) as u16
}

/// Evaluates an expression with `$T` standing for the element type of the given dtype. Launches have checked that it is
/// f32 or bf16.
macro_rules! with_element {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            bessemer_units::DType::Bf16 => {
                type $T = half::bf16;
                $body
            }
            _ => {
                type $T = f32;
                $body
            }
        }
    };
}
pub(crate) use with_element;

/// [`with_element`] for parameters, their gradients and factors of products, which may be f16 as well.
macro_rules! with_parameter {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            bessemer_units::DType::F16 => {
                type $T = half::f16;
                $body
            }
            dtype => crate::element::with_element!(dtype, $T => $body),
        }
    };
}
pub(crate) use with_parameter;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rung;
    use crate::simd::{Kernel, dispatch};

    /// Rounds f32 values to a type of fewer bits and back, whole vectors or `part` elements at a time.
    struct Round<'a, T> {
        from: &'a [f32],
        stored: &'a mut [T],
        back: &'a mut [f32],
        part: usize,
    }

    impl<T: Element> Kernel for Round<'_, T> {
        type Out = ();
        #[inline(always)]
        unsafe fn run<S: Simd>(self) {
            let (whole, step) = (self.part >= S::LANES, self.part.min(S::LANES));
            for at in (0..self.from.len()).step_by(step) {
                let n = step.min(self.from.len() - at);
                // SAFETY: n elements from `at` on are inside all three slices.
                unsafe {
                    let (from, to) = (self.from.as_ptr().add(at), self.stored.as_mut_ptr().add(at));
                    let back = self.back.as_mut_ptr().add(at);
                    if whole && n == S::LANES {
                        T::store::<S>(to, f32::load::<S>(from));
                        f32::store::<S>(back, T::load::<S>(to));
                    } else {
                        T::store_n::<S>(to, f32::load_n::<S>(from, n), n);
                        f32::store_n::<S>(back, T::load_n::<S>(to, n), n);
                    }
                }
            }
        }
    }

    /// Every upper half with the lower halves around which the rounding direction changes.
    fn values() -> Vec<f32> {
        let low = [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff];
        (0..=u16::MAX).flat_map(|h| low.map(|l| f32::from_bits(u32::from(h) << 16 | l))).collect()
    }

    #[test]
    fn every_rung_rounds_to_nearest_even_bit_for_bit_and_keeps_nan() {
        let from = values();
        let truth: Vec<u16> = from.iter().map(|&x| bf16::from_f32(x).to_bits()).collect();
        for (x, t) in from.iter().zip(&truth) {
            assert_eq!(<bf16 as Element>::from_f32(*x).to_bits(), *t, "{x:e}");
        }
        for rung in Rung::ALL.into_iter().filter(|r| r.available()) {
            for part in [1, 3, 16] {
                let mut stored = vec![bf16::ZERO; from.len()];
                let mut back = vec![0.0; from.len()];
                let round = Round { from: &from, stored: &mut stored, back: &mut back, part };
                // SAFETY: the instruction set is available.
                unsafe { dispatch(rung, round) };
                for (i, x) in from.iter().enumerate() {
                    assert_eq!(stored[i].to_bits(), truth[i], "{rung}, {part} at a time: {x:e}");
                    assert_eq!(back[i].to_bits(), u32::from(truth[i]) << 16, "{rung}: {x:e} comes back");
                    assert_eq!(back[i].is_nan(), x.is_nan(), "{rung}: {x:e}");
                }
            }
        }
    }

    /// Every f16 with the f32 values around the point where rounding goes to its neighbour, and values that overflow.
    #[test]
    fn every_rung_rounds_to_f16_as_the_standard_says() {
        let exact = (0..=u16::MAX).map(|b| f16::from_bits(b).to_f32());
        let near = |x: f32| {
            let half_way = (x.to_bits() & 0xffff_e000) | 0x1000;
            [x, f32::from_bits(half_way - 1), f32::from_bits(half_way), f32::from_bits(half_way + 1)]
        };
        let from: Vec<f32> =
            exact.flat_map(near).chain([65519.9, 65520.0, -1e9, 1e-8, 2.9e-8, 3e-8, 6e-8]).collect();
        for rung in Rung::ALL.into_iter().filter(|r| r.available()) {
            for part in [1, 3, 16] {
                let mut stored = vec![f16::ZERO; from.len()];
                let mut back = vec![0.0; from.len()];
                let round = Round { from: &from, stored: &mut stored, back: &mut back, part };
                // SAFETY: the instruction set is available.
                unsafe { dispatch(rung, round) };
                for ((x, s), b) in from.iter().zip(&stored).zip(&back) {
                    let wanted = f16::from_f32_const(*x);
                    assert_eq!(s.to_bits(), wanted.to_bits(), "{rung}, {part} at a time: {x:e}");
                    assert_eq!(b.to_bits(), wanted.to_f32_const().to_bits(), "{rung}: {x:e} comes back");
                }
            }
        }
    }

    #[test]
    fn partial_stores_touch_nothing_else() {
        let from = [1.0f32; 40];
        for rung in Rung::ALL.into_iter().filter(|r| r.available()) {
            for n in 0..=16 {
                let mut stored = [bf16::from_bits(0x1234); 40];
                let mut back = [7.0f32; 40];
                let round = Round { from: &from[..n], stored: &mut stored, back: &mut back, part: 15 };
                // SAFETY: the instruction set is available.
                unsafe { dispatch(rung, round) };
                assert!(stored[n..].iter().all(|x| x.to_bits() == 0x1234), "{rung} {n}");
                assert!(stored[..n].iter().all(|x| x.to_f32() == 1.0), "{rung} {n}");
            }
        }
    }
}
