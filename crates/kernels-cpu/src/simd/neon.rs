//! Four lanes with NEON (Advanced SIMD), which every 64-bit Arm processor has.
//!
//! Sums are formed in the order of [`super::Portable`], whose multiply-adds are rounded once on this architecture: both have
//! the same bits.
#![allow(unsafe_code)] // processor intrinsics

use super::{Kernel, Simd, tiles};
use std::arch::aarch64::*;
use std::arch::asm;

/// NEON.
#[derive(Clone, Copy)]
pub(crate) struct Neon;

/// The nearest bf16 of every lane, as [`crate::element::nearest_bf16`].
#[inline(always)]
unsafe fn nearest_bf16(v: float32x4_t) -> uint16x4_t {
    // SAFETY: register arithmetic only.
    unsafe {
        let bits = vreinterpretq_u32_f32(v);
        let high = vshrq_n_u32::<16>(bits);
        let carry = vaddq_u32(vandq_u32(high, vdupq_n_u32(1)), vdupq_n_u32(0x7fff));
        let number = vmovn_u32(vceqq_f32(v, v));
        let quiet = vmovn_u32(vorrq_u32(high, vdupq_n_u32(0x40)));
        vbsl_u16(number, vaddhn_u32(bits, carry), quiet)
    }
}

/// bf16 to f32.
#[inline(always)]
unsafe fn widen(x: uint16x4_t) -> float32x4_t {
    // SAFETY: register arithmetic only.
    unsafe { vreinterpretq_f32_u32(vshlq_n_u32::<16>(vmovl_u16(x))) }
}

/// The first `n <= 4` halves, zeros after them; reads no further.
#[inline(always)]
unsafe fn load_halves(p: *const u16, n: usize) -> uint16x4_t {
    let mut x = [0u16; 4];
    // SAFETY: the caller vouches for `n` elements.
    unsafe {
        for (i, x) in x.iter_mut().enumerate().take(n) {
            *x = *p.add(i);
        }
        vld1_u16(x.as_ptr())
    }
}

// SAFETY of every function: as the trait demands of its callers.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Simd for Neon {
    type V = float32x4_t;
    const LANES: usize = 4;
    // Enough for four pipes of four cycles; measured on no hardware.
    const CHAINS: usize = 16;

    // 24 of 32 registers hold sums, three a row of B and two the elements of A.
    tiles!(12, 16, 96, [8 7 6 5 4 3 2 1] x [3, 2, 1]);

    #[inline(always)]
    unsafe fn call<K: Kernel>(kernel: K) -> K::Out {
        unsafe { super::run_plain::<Neon, K>(kernel) }
    }
    #[inline(always)]
    unsafe fn prefetch(p: *const f32) {
        unsafe { asm!("prfm pldl2keep, [{p}]", p = in(reg) p, options(nostack, preserves_flags, readonly)) }
    }
    #[inline(always)]
    unsafe fn prefetch_write(p: *const f32) {
        unsafe { asm!("prfm pstl1keep, [{p}]", p = in(reg) p, options(nostack, preserves_flags, readonly)) }
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> float32x4_t {
        unsafe { vdupq_n_f32(x) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> float32x4_t {
        unsafe { vld1q_f32(p) }
    }
    #[inline(always)]
    unsafe fn load_n(p: *const f32, n: usize) -> float32x4_t {
        debug_assert!(n <= 4);
        unsafe {
            let none = vdupq_n_f32(0.0);
            match n {
                0 => none,
                1 => vld1q_lane_f32::<0>(p, none),
                2 => vcombine_f32(vld1_f32(p), vdup_n_f32(0.0)),
                3 => vcombine_f32(vld1_f32(p), vld1_lane_f32::<0>(p.add(2), vdup_n_f32(0.0))),
                _ => vld1q_f32(p),
            }
        }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: float32x4_t) {
        unsafe { vst1q_f32(p, v) }
    }
    #[inline(always)]
    unsafe fn store_n(p: *mut f32, v: float32x4_t, n: usize) {
        debug_assert!(n <= 4);
        unsafe {
            match n {
                0 => (),
                1 => vst1q_lane_f32::<0>(p, v),
                2 => vst1_f32(p, vget_low_f32(v)),
                3 => {
                    vst1_f32(p, vget_low_f32(v));
                    vst1q_lane_f32::<2>(p.add(2), v);
                }
                _ => vst1q_f32(p, v),
            }
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> float32x4_t {
        unsafe { widen(vld1_u16(p)) }
    }
    #[inline(always)]
    unsafe fn load_bf16_n(p: *const u16, n: usize) -> float32x4_t {
        unsafe { widen(load_halves(p, n)) }
    }
    #[inline(always)]
    unsafe fn store_bf16(p: *mut u16, v: float32x4_t) {
        unsafe { vst1_u16(p, nearest_bf16(v)) }
    }
    #[inline(always)]
    unsafe fn store_bf16_n(p: *mut u16, v: float32x4_t, n: usize) {
        unsafe {
            let mut x = [0u16; 4];
            vst1_u16(x.as_mut_ptr(), nearest_bf16(v));
            for (i, x) in x.iter().enumerate().take(n) {
                *p.add(i) = *x;
            }
        }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> float32x4_t {
        unsafe { vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))) }
    }
    #[inline(always)]
    unsafe fn store_f16(p: *mut u16, v: float32x4_t) {
        unsafe { vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(v))) }
    }
    #[inline(always)]
    unsafe fn add(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        unsafe { vaddq_f32(a, b) }
    }
    #[inline(always)]
    unsafe fn sub(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        unsafe { vsubq_f32(a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        unsafe { vmulq_f32(a, b) }
    }
    #[inline(always)]
    unsafe fn div(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        unsafe { vdivq_f32(a, b) }
    }
    #[inline(always)]
    unsafe fn sqrt(a: float32x4_t) -> float32x4_t {
        unsafe { vsqrtq_f32(a) }
    }
    #[inline(always)]
    unsafe fn fma(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        unsafe { vfmaq_f32(c, a, b) }
    }
    // The processor's own maximum and minimum are NaN if either is.
    #[inline(always)]
    unsafe fn max(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        unsafe { vbslq_f32(vcgtq_f32(a, b), a, b) }
    }
    #[inline(always)]
    unsafe fn min(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        unsafe { vbslq_f32(vcltq_f32(a, b), a, b) }
    }
    #[inline(always)]
    unsafe fn abs(a: float32x4_t) -> float32x4_t {
        unsafe { vabsq_f32(a) }
    }
    #[inline(always)]
    unsafe fn round(a: float32x4_t) -> float32x4_t {
        unsafe { vrndnq_f32(a) }
    }
    #[inline(always)]
    unsafe fn pow2(n: float32x4_t) -> float32x4_t {
        unsafe {
            let biased = vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127));
            vreinterpretq_f32_s32(vshlq_n_s32::<23>(biased))
        }
    }
    #[inline(always)]
    unsafe fn times_pow2(p: float32x4_t, shifted: float32x4_t) -> float32x4_t {
        unsafe {
            let n = vshlq_n_u32::<23>(vreinterpretq_u32_f32(shifted));
            vreinterpretq_f32_u32(vaddq_u32(vreinterpretq_u32_f32(p), n))
        }
    }
    #[inline(always)]
    unsafe fn select_lt(a: float32x4_t, b: float32x4_t, x: float32x4_t, y: float32x4_t) -> float32x4_t {
        unsafe { vbslq_f32(vcltq_f32(a, b), x, y) }
    }
    #[inline(always)]
    unsafe fn power_of_two(a: float32x4_t) -> float32x4_t {
        unsafe {
            let exponent = vdupq_n_u32(f32::INFINITY.to_bits());
            vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(a), exponent))
        }
    }
    #[inline(always)]
    unsafe fn with_sign(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        unsafe { vbslq_f32(vdupq_n_u32(1 << 31), b, a) }
    }
    #[inline(always)]
    unsafe fn look_up(table: &[f32; 256], codes: *const u8) -> float32x4_t {
        unsafe {
            let code = |i: usize| usize::from(*codes.add(i));
            vld1q_f32([table[code(0)], table[code(1)], table[code(2)], table[code(3)]].as_ptr())
        }
    }
    #[inline(always)]
    unsafe fn store_bytes(p: *mut u8, numbers: [float32x4_t; 4]) {
        unsafe {
            // Bits 15 to 22 of a lane, below bits of the exponent: from bit 15 on 16 bits, of those the lower byte.
            let integer = |v: float32x4_t| vshrn_n_u32::<15>(vreinterpretq_u32_f32(v));
            let [a, b, c, d] = numbers;
            let low = vmovn_u16(vcombine_u16(integer(a), integer(b)));
            let high = vmovn_u16(vcombine_u16(integer(c), integer(d)));
            vst1q_u8(p, vcombine_u8(low, high));
        }
    }
    #[inline(always)]
    unsafe fn any_without(bits: u32, lanes: [float32x4_t; 4]) -> bool {
        unsafe {
            let common = |v: float32x4_t| vandq_u32(vreinterpretq_u32_f32(v), vdupq_n_u32(bits));
            let [a, b, c, d] = lanes;
            vminvq_u32(vminq_u32(vminq_u32(common(a), common(b)), vminq_u32(common(c), common(d)))) == 0
        }
    }
    #[inline(always)]
    unsafe fn sum(a: float32x4_t) -> f32 {
        unsafe { vpadds_f32(vadd_f32(vget_low_f32(a), vget_high_f32(a))) }
    }
    #[inline(always)]
    unsafe fn hmax(a: float32x4_t) -> f32 {
        unsafe {
            let m = |a: f32, b: f32| if a > b { a } else { b };
            let (low, high) = (vget_low_f32(a), vget_high_f32(a));
            let pair = vbsl_f32(vcgt_f32(low, high), low, high);
            m(vget_lane_f32::<0>(pair), vget_lane_f32::<1>(pair))
        }
    }
    #[inline(always)]
    unsafe fn add_squares_f64(acc: f64, a: float32x4_t) -> f64 {
        unsafe {
            let (low, high) = (vcvt_f64_f32(vget_low_f32(a)), vcvt_high_f64_f32(a));
            // A square of 24 bits is exact in f64.
            acc + vpaddd_f64(vfmaq_f64(vmulq_f64(low, low), high, high))
        }
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
        unsafe {
            let mut r = [vdupq_n_f32(0.0); 4];
            for (i, r) in r.iter_mut().enumerate() {
                if i < nr {
                    *r = Self::load_n(src.add(i * ld), nk);
                }
            }
            // Every other row, then the pairs: element k of rows 0 to 3.
            let (a, b) = (vzip1q_f32(r[0], r[2]), vzip2q_f32(r[0], r[2]));
            let (c, d) = (vzip1q_f32(r[1], r[3]), vzip2q_f32(r[1], r[3]));
            let columns = [vzip1q_f32(a, c), vzip2q_f32(a, c), vzip1q_f32(b, d), vzip2q_f32(b, d)];
            for (k, column) in columns.into_iter().enumerate() {
                if k < nk {
                    Self::store_n(dst.add(k * dst_ld), column, width);
                }
            }
        }
    }
}
