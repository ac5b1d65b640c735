//! Sixteen lanes with AVX-512 F, BW, DQ, VL.
#![allow(unsafe_code)] // processor intrinsics

use super::avx2::Avx2;
use super::{Kernel, Simd, tiles};
use std::arch::x86_64::*;

/// AVX-512.
#[derive(Clone, Copy)]
pub(crate) struct Avx512;

#[inline(always)]
fn mask(n: usize) -> __mmask16 {
    debug_assert!(n <= 16);
    ((1u32 << n) - 1) as __mmask16
}

/// The nearest bf16 of every lane, as [`crate::element::nearest_bf16`].
#[inline(always)]
unsafe fn nearest_bf16(v: __m512) -> __m256i {
    // SAFETY: register arithmetic only.
    unsafe {
        let bits = _mm512_castps_si512(v);
        let high = _mm512_srli_epi32::<16>(bits);
        let odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
        let carry = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
        let rounded = _mm512_srli_epi32::<16>(_mm512_add_epi32(bits, carry));
        let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(v, v);
        _mm512_cvtepi32_epi16(_mm512_mask_or_epi32(rounded, nan, high, _mm512_set1_epi32(0x40)))
    }
}

/// bf16 to f32.
#[inline(always)]
unsafe fn widen(x: __m256i) -> __m512 {
    // SAFETY: register arithmetic only.
    unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(x))) }
}

/// [`Simd::transpose`] of at most eight rows to a width of at most eight, by 24 exchanges instead of 64.
///
/// # Safety
/// Same requirements as [`Simd::transpose`].
#[inline(always)]
unsafe fn transpose_narrow(
    src: *const f32,
    ld: usize,
    nr: usize,
    nk: usize,
    dst: *mut f32,
    dst_ld: usize,
    width: usize,
) {
    // SAFETY: by contract; masks keep loads and stores inside the block.
    unsafe {
        let nk_mask = mask(nk);
        let mut r = [_mm512_setzero_ps(); 8];
        for (i, r) in r.iter_mut().enumerate() {
            if i < nr {
                *r = _mm512_maskz_loadu_ps(nk_mask, src.add(i * ld));
            }
        }
        let mut t = [_mm512_setzero_ps(); 8];
        for i in 0..4 {
            t[2 * i] = _mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]);
            t[2 * i + 1] = _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]);
        }
        // u[4i + j] holds, in its 128-bit part p, column 4p + j of rows 4i .. 4i+4.
        let mut u = [_mm512_setzero_ps(); 8];
        for i in 0..2 {
            u[4 * i] = _mm512_shuffle_ps::<0x44>(t[4 * i], t[4 * i + 2]);
            u[4 * i + 1] = _mm512_shuffle_ps::<0xEE>(t[4 * i], t[4 * i + 2]);
            u[4 * i + 2] = _mm512_shuffle_ps::<0x44>(t[4 * i + 1], t[4 * i + 3]);
            u[4 * i + 3] = _mm512_shuffle_ps::<0xEE>(t[4 * i + 1], t[4 * i + 3]);
        }
        let (low, high) = (mask(width), mask(width) << 8);
        // Pairs of f64 lanes are 128-bit parts: part 0 of both, part 1 of both; then parts 2 and 3.
        let first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
        let second = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
        for j in 0..4 {
            let (a, b) = (_mm512_castps_pd(u[j]), _mm512_castps_pd(u[j + 4]));
            for (half, order) in [first, second].into_iter().enumerate() {
                let v = _mm512_castpd_ps(_mm512_permutex2var_pd(a, order, b));
                let k = 8 * half + j;
                if k < nk {
                    _mm512_mask_storeu_ps(dst.add(k * dst_ld), low, v);
                }
                if k + 4 < nk {
                    // The upper half starts where the lower would: masked lanes are not touched.
                    _mm512_mask_storeu_ps(dst.add((k + 4) * dst_ld).wrapping_sub(8), high, v);
                }
            }
        }
    }
}

// SAFETY of every function: as the trait demands of its callers.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Simd for Avx512 {
    type V = __m512;
    const LANES: usize = 16;

    // 24 sums with four vectors of B take 10 loads a step. 14 x 2 needs 16 loads for 28 multiply-adds and is 8 % slower;
    // 8 x 3 and 5 x 5 are between.
    tiles!(14, 64, 112, [6 5 4 3 2 1] x [4, 3, 2, 1]);

    #[inline(always)]
    unsafe fn call<K: Kernel>(kernel: K) -> K::Out {
        unsafe { super::run_avx512(kernel) }
    }
    #[inline(always)]
    unsafe fn prefetch(p: *const f32) {
        unsafe { _mm_prefetch::<_MM_HINT_T1>(p.cast()) }
    }
    #[inline(always)]
    unsafe fn prefetch_write(p: *const f32) {
        unsafe { _mm_prefetch::<_MM_HINT_ET0>(p.cast()) }
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> __m512 {
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> __m512 {
        unsafe { _mm512_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn load_n(p: *const f32, n: usize) -> __m512 {
        unsafe { _mm512_maskz_loadu_ps(mask(n), p) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: __m512) {
        unsafe { _mm512_storeu_ps(p, v) }
    }
    #[inline(always)]
    unsafe fn store_n(p: *mut f32, v: __m512, n: usize) {
        unsafe { _mm512_mask_storeu_ps(p, mask(n), v) }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> __m512 {
        unsafe { widen(_mm256_loadu_si256(p.cast())) }
    }
    #[inline(always)]
    unsafe fn load_bf16_n(p: *const u16, n: usize) -> __m512 {
        unsafe { widen(_mm256_maskz_loadu_epi16(mask(n), p.cast())) }
    }
    #[inline(always)]
    unsafe fn store_bf16(p: *mut u16, v: __m512) {
        unsafe { _mm256_storeu_si256(p.cast(), nearest_bf16(v)) }
    }
    #[inline(always)]
    unsafe fn store_bf16_n(p: *mut u16, v: __m512, n: usize) {
        unsafe { _mm256_mask_storeu_epi16(p.cast(), mask(n), nearest_bf16(v)) }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> __m512 {
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
    }
    #[inline(always)]
    unsafe fn store_f16(p: *mut u16, v: __m512) {
        unsafe { _mm256_storeu_si256(p.cast(), _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v)) }
    }
    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn sub(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn div(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_div_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn sqrt(a: __m512) -> __m512 {
        unsafe { _mm512_sqrt_ps(a) }
    }
    #[inline(always)]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn max(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn min(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_min_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn abs(a: __m512) -> __m512 {
        unsafe { _mm512_abs_ps(a) }
    }
    #[inline(always)]
    unsafe fn round(a: __m512) -> __m512 {
        unsafe { _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a) }
    }
    #[inline(always)]
    unsafe fn pow2(n: __m512) -> __m512 {
        unsafe {
            let biased = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(biased))
        }
    }
    #[inline(always)]
    unsafe fn times_pow2(p: __m512, shifted: __m512) -> __m512 {
        unsafe {
            let n = _mm512_slli_epi32::<23>(_mm512_castps_si512(shifted));
            _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p), n))
        }
    }
    #[inline(always)]
    unsafe fn select_lt(a: __m512, b: __m512, x: __m512, y: __m512) -> __m512 {
        unsafe { _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b), y, x) }
    }
    #[inline(always)]
    unsafe fn power_of_two(a: __m512) -> __m512 {
        unsafe { _mm512_and_ps(a, _mm512_set1_ps(f32::INFINITY)) }
    }
    #[inline(always)]
    unsafe fn with_sign(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_or_ps(a, _mm512_and_ps(b, _mm512_set1_ps(-0.0))) }
    }
    #[inline(always)]
    unsafe fn look_up(table: &[f32; 256], codes: *const u8) -> __m512 {
        // Scalar loads. Gathers and permutations of the table's 16 registers are slower on Zen 4 (docs/lab-log.md, 2026-11-26).
        unsafe {
            let (low, high) = (Avx2::look_up(table, codes), Avx2::look_up(table, codes.add(8)));
            _mm512_insertf32x8::<1>(_mm512_castps256_ps512(low), high)
        }
    }
    #[inline(always)]
    unsafe fn store_bytes(p: *mut u8, numbers: [__m512; 4]) {
        unsafe {
            // Bits 15 to 22 of a lane, below bits of the exponent.
            let integer = |v: __m512| _mm512_srli_epi32::<15>(_mm512_castps_si512(v));
            let [a, b, c, d] = numbers;
            let byte = _mm512_set1_epi16(0xff);
            let low = _mm512_and_si512(_mm512_packus_epi32(integer(a), integer(b)), byte);
            let high = _mm512_and_si512(_mm512_packus_epi32(integer(c), integer(d)), byte);
            // Packing works within 128-bit parts.
            let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
            let packed = _mm512_permutexvar_epi32(order, _mm512_packus_epi16(low, high));
            _mm512_storeu_si512(p.cast(), packed);
        }
    }
    #[inline(always)]
    unsafe fn any_without(bits: u32, lanes: [__m512; 4]) -> bool {
        unsafe {
            let common = |v: __m512| _mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(bits as i32));
            let [a, b, c, d] = lanes;
            let least = _mm512_min_epu32(
                _mm512_min_epu32(common(a), common(b)),
                _mm512_min_epu32(common(c), common(d)),
            );
            _mm512_testn_epi32_mask(least, least) != 0
        }
    }
    #[inline(always)]
    unsafe fn sum(a: __m512) -> f32 {
        unsafe {
            let h = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps::<1>(a));
            let q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps::<1>(h));
            let d = _mm_add_ps(q, _mm_movehl_ps(q, q));
            _mm_cvtss_f32(_mm_add_ss(d, _mm_movehdup_ps(d)))
        }
    }
    #[inline(always)]
    unsafe fn hmax(a: __m512) -> f32 {
        unsafe {
            let h = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps::<1>(a));
            let q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps::<1>(h));
            let d = _mm_max_ps(q, _mm_movehl_ps(q, q));
            _mm_cvtss_f32(_mm_max_ss(d, _mm_movehdup_ps(d)))
        }
    }
    #[inline(always)]
    unsafe fn add_squares_f64(acc: f64, a: __m512) -> f64 {
        unsafe {
            let lo = _mm512_cvtps_pd(_mm512_castps512_ps256(a));
            let hi = _mm512_cvtps_pd(_mm512_extractf32x8_ps::<1>(a));
            let s = _mm512_fmadd_pd(lo, lo, _mm512_mul_pd(hi, hi));
            let h = _mm256_add_pd(_mm512_castpd512_pd256(s), _mm512_extractf64x4_pd::<1>(s));
            let d = _mm_add_pd(_mm256_castpd256_pd128(h), _mm256_extractf128_pd::<1>(h));
            acc + (_mm_cvtsd_f64(d) + _mm_cvtsd_f64(_mm_unpackhi_pd(d, d)))
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
            if nr <= 8 && width <= 8 {
                return transpose_narrow(src, ld, nr, nk, dst, dst_ld, width);
            }
            let (nk_mask, out_mask) = (mask(nk), mask(width));
            let mut r = [_mm512_setzero_ps(); 16];
            for (i, r) in r.iter_mut().enumerate() {
                if i < nr {
                    *r = _mm512_maskz_loadu_ps(nk_mask, src.add(i * ld));
                }
            }
            // Pairs of rows, quads, then the four 128-bit parts by two rounds of exchanges.
            let mut t = [_mm512_setzero_ps(); 16];
            for i in 0..8 {
                t[2 * i] = _mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]);
                t[2 * i + 1] = _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]);
            }
            // u[4i + j] holds, in its 128-bit part p, column 4p + j of rows 4i .. 4i+4.
            let mut u = [_mm512_setzero_ps(); 16];
            for i in 0..4 {
                u[4 * i] = _mm512_shuffle_ps::<0x44>(t[4 * i], t[4 * i + 2]);
                u[4 * i + 1] = _mm512_shuffle_ps::<0xEE>(t[4 * i], t[4 * i + 2]);
                u[4 * i + 2] = _mm512_shuffle_ps::<0x44>(t[4 * i + 1], t[4 * i + 3]);
                u[4 * i + 3] = _mm512_shuffle_ps::<0xEE>(t[4 * i + 1], t[4 * i + 3]);
            }
            let mut out = [_mm512_setzero_ps(); 16];
            for j in 0..4 {
                let a = _mm512_shuffle_f32x4::<0x88>(u[j], u[j + 4]); // parts 0, 2 of both
                let b = _mm512_shuffle_f32x4::<0xDD>(u[j], u[j + 4]); // parts 1, 3 of both
                let c = _mm512_shuffle_f32x4::<0x88>(u[j + 8], u[j + 12]);
                let d = _mm512_shuffle_f32x4::<0xDD>(u[j + 8], u[j + 12]);
                out[j] = _mm512_shuffle_f32x4::<0x88>(a, c);
                out[j + 4] = _mm512_shuffle_f32x4::<0x88>(b, d);
                out[j + 8] = _mm512_shuffle_f32x4::<0xDD>(a, c);
                out[j + 12] = _mm512_shuffle_f32x4::<0xDD>(b, d);
            }
            for (k, v) in out.iter().enumerate() {
                if k < nk {
                    _mm512_mask_storeu_ps(dst.add(k * dst_ld), out_mask, *v);
                }
            }
        }
    }
}
