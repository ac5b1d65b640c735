//! Four lanes in plain code, which compilers turn into the vectors that every 64-bit target has.
#![allow(unsafe_code)] // the trait's pointers

use super::{Kernel, Simd, tiles};
use crate::element::nearest_bf16;
use half::f16;

/// Plain code.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

type V = [f32; 4];

#[inline(always)]
fn map(a: V, f: impl Fn(f32) -> f32) -> V {
    [f(a[0]), f(a[1]), f(a[2]), f(a[3])]
}

#[inline(always)]
fn zip(a: V, b: V, f: impl Fn(f32, f32) -> f32) -> V {
    [f(a[0], b[0]), f(a[1], b[1]), f(a[2], b[2]), f(a[3], b[3])]
}

// SAFETY of the pointer functions: as the trait demands of their callers.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Simd for Portable {
    type V = V;
    const LANES: usize = 4;

    tiles!(6, 16, 96, [6 5 4 3 2 1] x [2, 1]);

    #[inline(always)]
    unsafe fn call<K: Kernel>(kernel: K) -> K::Out {
        unsafe { super::run_plain::<Portable, K>(kernel) }
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> V {
        [x; 4]
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> V {
        unsafe { p.cast::<V>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn load_n(p: *const f32, n: usize) -> V {
        let mut v = [0.0; 4];
        for (i, x) in v.iter_mut().enumerate().take(n) {
            *x = unsafe { *p.add(i) };
        }
        v
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: V) {
        unsafe { p.cast::<V>().write_unaligned(v) }
    }
    #[inline(always)]
    unsafe fn store_n(p: *mut f32, v: V, n: usize) {
        for (i, x) in v.iter().enumerate().take(n) {
            unsafe { *p.add(i) = *x };
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> V {
        unsafe { Self::load_bf16_n(p, 4) }
    }
    #[inline(always)]
    unsafe fn load_bf16_n(p: *const u16, n: usize) -> V {
        let mut v = [0.0; 4];
        for (i, x) in v.iter_mut().enumerate().take(n) {
            *x = f32::from_bits(u32::from(unsafe { *p.add(i) }) << 16);
        }
        v
    }
    #[inline(always)]
    unsafe fn store_bf16(p: *mut u16, v: V) {
        unsafe { Self::store_bf16_n(p, v, 4) }
    }
    #[inline(always)]
    unsafe fn store_bf16_n(p: *mut u16, v: V, n: usize) {
        for (i, x) in v.iter().enumerate().take(n) {
            unsafe { *p.add(i) = nearest_bf16(x.to_bits()) };
        }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> V {
        std::array::from_fn(|i| f16::from_bits(unsafe { *p.add(i) }).to_f32())
    }
    #[inline(always)]
    unsafe fn store_f16(p: *mut u16, v: V) {
        for (i, x) in v.iter().enumerate() {
            unsafe { *p.add(i) = f16::from_f32(*x).to_bits() };
        }
    }
    #[inline(always)]
    unsafe fn add(a: V, b: V) -> V {
        zip(a, b, |a, b| a + b)
    }
    #[inline(always)]
    unsafe fn sub(a: V, b: V) -> V {
        zip(a, b, |a, b| a - b)
    }
    #[inline(always)]
    unsafe fn mul(a: V, b: V) -> V {
        zip(a, b, |a, b| a * b)
    }
    #[inline(always)]
    unsafe fn div(a: V, b: V) -> V {
        zip(a, b, |a, b| a / b)
    }
    #[inline(always)]
    unsafe fn sqrt(a: V) -> V {
        map(a, f32::sqrt)
    }
    #[inline(always)]
    unsafe fn fma(a: V, b: V, c: V) -> V {
        // `mul_add` is one instruction where the target has it, and a slow library call where it has not.
        #[cfg(any(target_arch = "aarch64", target_feature = "fma"))]
        return [
            a[0].mul_add(b[0], c[0]),
            a[1].mul_add(b[1], c[1]),
            a[2].mul_add(b[2], c[2]),
            a[3].mul_add(b[3], c[3]),
        ];
        #[cfg(not(any(target_arch = "aarch64", target_feature = "fma")))]
        zip(zip(a, b, |a, b| a * b), c, |ab, c| ab + c)
    }
    #[inline(always)]
    unsafe fn max(a: V, b: V) -> V {
        zip(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    unsafe fn min(a: V, b: V) -> V {
        zip(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    unsafe fn abs(a: V) -> V {
        map(a, f32::abs)
    }
    #[inline(always)]
    unsafe fn round(a: V) -> V {
        // Adding 1.5 * 2^23 leaves no bits for the fraction, so the sum is rounded to an integer, ties to even.
        const SHIFT: f32 = 12_582_912.0;
        map(a, |x| (x + SHIFT) - SHIFT)
    }
    #[inline(always)]
    unsafe fn pow2(n: V) -> V {
        // SAFETY: the values are integers within the exponent's range, or NaN where any result will do, because
        // the product with the NaN polynomial is NaN.
        map(n, |x| f32::from_bits(((x as i32).wrapping_add(127) as u32) << 23))
    }
    #[inline(always)]
    unsafe fn times_pow2(p: V, shifted: V) -> V {
        let one = |i: usize| f32::from_bits(p[i].to_bits().wrapping_add(shifted[i].to_bits() << 23));
        [one(0), one(1), one(2), one(3)]
    }
    #[inline(always)]
    unsafe fn select_lt(a: V, b: V, x: V, y: V) -> V {
        let pick = |i: usize| if a[i] < b[i] { x[i] } else { y[i] };
        [pick(0), pick(1), pick(2), pick(3)]
    }
    #[inline(always)]
    unsafe fn power_of_two(a: V) -> V {
        map(a, |x| f32::from_bits(x.to_bits() & f32::INFINITY.to_bits()))
    }
    #[inline(always)]
    unsafe fn with_sign(a: V, b: V) -> V {
        zip(a, b, f32::copysign)
    }
    #[inline(always)]
    unsafe fn look_up(table: &[f32; 256], codes: *const u8) -> V {
        std::array::from_fn(|i| table[usize::from(unsafe { *codes.add(i) })])
    }
    #[inline(always)]
    unsafe fn store_bytes(p: *mut u8, numbers: [V; 4]) {
        for (i, number) in numbers.as_flattened().iter().enumerate() {
            // Bits 15 to 22 of a number, below bits of the exponent.
            unsafe { *p.add(i) = (number.to_bits() >> 15) as u8 };
        }
    }
    #[inline(always)]
    unsafe fn any_without(bits: u32, lanes: [V; 4]) -> bool {
        lanes.as_flattened().iter().fold(u32::MAX, |least, lane| least.min(lane.to_bits() & bits)) == 0
    }
    #[inline(always)]
    unsafe fn sum(a: V) -> f32 {
        (a[0] + a[2]) + (a[1] + a[3])
    }
    #[inline(always)]
    unsafe fn hmax(a: V) -> f32 {
        let m = |a: f32, b: f32| if a > b { a } else { b };
        m(m(a[0], a[2]), m(a[1], a[3]))
    }
    #[inline(always)]
    unsafe fn add_squares_f64(acc: f64, a: V) -> f64 {
        let s = |i: usize| f64::from(a[i]) * f64::from(a[i]);
        acc + ((s(0) + s(2)) + (s(1) + s(3)))
    }

    #[inline(always)]
    unsafe fn transpose(
        src: *const f32,
        ld: usize,
        nr: usize,
        nk: usize,
        dst: *mut f32,
        dst_ld: usize,
        width: usize,
    ) {
        for k in 0..nk {
            for r in 0..width {
                unsafe { *dst.add(k * dst_ld + r) = if r < nr { *src.add(r * ld + k) } else { 0.0 } };
            }
        }
    }
}
