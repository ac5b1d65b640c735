//! Eight lanes with AVX2 and FMA.
#![allow(unsafe_code)] // processor intrinsics

use super::{Kernel, Simd, tiles};
use std::arch::x86_64::*;

/// AVX2 and FMA.
#[derive(Clone, Copy)]
pub(crate) struct Avx2;

/// Eight set words, then eight clear ones: a window into it masks the first n lanes.
static MASKS: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];

#[inline(always)]
unsafe fn mask(n: usize) -> __m256i {
    debug_assert!(n <= 8);
    // SAFETY: n <= 8, so the window of eight words is inside the table.
    unsafe { _mm256_loadu_si256(MASKS.as_ptr().add(8 - n).cast()) }
}

/// Writes the first n < 8 lanes, in up to three parts: AMD's processors make a masked store of many microinstructions.
///
/// # Safety
/// n floats at `p`.
#[inline(always)]
unsafe fn store_first(p: *mut f32, v: __m256, n: usize) {
    debug_assert!(n < 8);
    // SAFETY: by contract.
    unsafe {
        let (mut p, mut rest) = (p, _mm256_castps256_ps128(v));
        if n & 4 != 0 {
            _mm_storeu_ps(p, rest);
            (p, rest) = (p.add(4), _mm256_extractf128_ps::<1>(v));
        }
        if n & 2 != 0 {
            _mm_storel_pd(p.cast(), _mm_castps_pd(rest));
            (p, rest) = (p.add(2), _mm_movehl_ps(rest, rest));
        }
        if n & 1 != 0 {
            _mm_store_ss(p, rest);
        }
    }
}

/// The nearest bf16 of every lane, as [`crate::element::nearest_bf16`].
#[inline(always)]
unsafe fn nearest_bf16(v: __m256) -> __m128i {
    // SAFETY: register arithmetic only.
    unsafe {
        let bits = _mm256_castps_si256(v);
        let high = _mm256_srli_epi32::<16>(bits);
        let odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
        let carry = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
        let rounded = _mm256_srli_epi32::<16>(_mm256_add_epi32(bits, carry));
        let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(v, v));
        let quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
        let all = _mm256_blendv_epi8(rounded, quiet, nan);
        // Packing works within halves: quarters 0 and 2 hold the result.
        let packed = _mm256_permute4x64_epi64::<0b1000>(_mm256_packus_epi32(all, all));
        _mm256_castsi256_si128(packed)
    }
}

/// bf16 to f32.
#[inline(always)]
unsafe fn widen(x: __m128i) -> __m256 {
    // SAFETY: register arithmetic only.
    unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(x))) }
}

// SAFETY of every function: as the trait demands of its callers.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Simd for Avx2 {
    type V = __m256;
    const LANES: usize = 8;

    tiles!(6, 64, 96, [6 5 4 3 2 1] x [2, 1]);

    #[inline(always)]
    unsafe fn call<K: Kernel>(kernel: K) -> K::Out {
        unsafe { super::run_avx2(kernel) }
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
    unsafe fn splat(x: f32) -> __m256 {
        unsafe { _mm256_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> __m256 {
        unsafe { _mm256_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn load_n(p: *const f32, n: usize) -> __m256 {
        unsafe { _mm256_maskload_ps(p, mask(n)) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: __m256) {
        unsafe { _mm256_storeu_ps(p, v) }
    }
    #[inline(always)]
    unsafe fn store_n(p: *mut f32, v: __m256, n: usize) {
        unsafe { if n == 8 { Self::store(p, v) } else { store_first(p, v, n) } }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> __m256 {
        unsafe { widen(_mm_loadu_si128(p.cast())) }
    }
    #[inline(always)]
    unsafe fn load_bf16_n(p: *const u16, n: usize) -> __m256 {
        // There is no masked load of 16-bit elements.
        let mut x = [0u16; 8];
        unsafe {
            std::ptr::copy_nonoverlapping(p, x.as_mut_ptr(), n);
            Self::load_bf16(x.as_ptr())
        }
    }
    #[inline(always)]
    unsafe fn store_bf16(p: *mut u16, v: __m256) {
        unsafe { _mm_storeu_si128(p.cast(), nearest_bf16(v)) }
    }
    #[inline(always)]
    unsafe fn store_bf16_n(p: *mut u16, v: __m256, n: usize) {
        let mut x = [0u16; 8];
        unsafe {
            Self::store_bf16(x.as_mut_ptr(), v);
            std::ptr::copy_nonoverlapping(x.as_ptr(), p, n);
        }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> __m256 {
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(p.cast())) }
    }
    #[inline(always)]
    unsafe fn store_f16(p: *mut u16, v: __m256) {
        unsafe { _mm_storeu_si128(p.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v)) }
    }
    #[inline(always)]
    unsafe fn add(a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_add_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn sub(a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_sub_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn div(a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_div_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn sqrt(a: __m256) -> __m256 {
        unsafe { _mm256_sqrt_ps(a) }
    }
    #[inline(always)]
    unsafe fn fma(a: __m256, b: __m256, c: __m256) -> __m256 {
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn max(a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_max_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn min(a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_min_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn abs(a: __m256) -> __m256 {
        unsafe { _mm256_andnot_ps(_mm256_set1_ps(-0.0), a) }
    }
    #[inline(always)]
    unsafe fn round(a: __m256) -> __m256 {
        unsafe { _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a) }
    }
    #[inline(always)]
    unsafe fn pow2(n: __m256) -> __m256 {
        unsafe {
            let biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
            _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased))
        }
    }
    #[inline(always)]
    unsafe fn times_pow2(p: __m256, shifted: __m256) -> __m256 {
        unsafe {
            let n = _mm256_slli_epi32::<23>(_mm256_castps_si256(shifted));
            _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), n))
        }
    }
    #[inline(always)]
    unsafe fn select_lt(a: __m256, b: __m256, x: __m256, y: __m256) -> __m256 {
        unsafe { _mm256_blendv_ps(y, x, _mm256_cmp_ps::<_CMP_LT_OQ>(a, b)) }
    }
    #[inline(always)]
    unsafe fn power_of_two(a: __m256) -> __m256 {
        unsafe { _mm256_and_ps(a, _mm256_set1_ps(f32::INFINITY)) }
    }
    #[inline(always)]
    unsafe fn with_sign(a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_or_ps(a, _mm256_and_ps(b, _mm256_set1_ps(-0.0))) }
    }
    #[inline(always)]
    unsafe fn look_up(table: &[f32; 256], codes: *const u8) -> __m256 {
        unsafe {
            let codes = codes.cast::<u64>().read_unaligned();
            let value = |i: u32| table[(codes >> (8 * i)) as usize & 0xff];
            let (a, b, c, d) = (value(0), value(1), value(2), value(3));
            _mm256_setr_ps(a, b, c, d, value(4), value(5), value(6), value(7))
        }
    }
    #[inline(always)]
    unsafe fn store_bytes(p: *mut u8, numbers: [__m256; 4]) {
        unsafe {
            // Bits 15 to 22 of a lane, below bits of the exponent.
            let integer = |v: __m256| _mm256_srli_epi32::<15>(_mm256_castps_si256(v));
            let [a, b, c, d] = numbers;
            let byte = _mm256_set1_epi16(0xff);
            let low = _mm256_and_si256(_mm256_packus_epi32(integer(a), integer(b)), byte);
            let high = _mm256_and_si256(_mm256_packus_epi32(integer(c), integer(d)), byte);
            // Packing works within halves.
            let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
            let packed = _mm256_permutevar8x32_epi32(_mm256_packus_epi16(low, high), order);
            _mm256_storeu_si256(p.cast(), packed);
        }
    }
    #[inline(always)]
    unsafe fn any_without(bits: u32, lanes: [__m256; 4]) -> bool {
        unsafe {
            let common = |v: __m256| _mm256_and_si256(_mm256_castps_si256(v), _mm256_set1_epi32(bits as i32));
            let [a, b, c, d] = lanes;
            let least = _mm256_min_epu32(
                _mm256_min_epu32(common(a), common(b)),
                _mm256_min_epu32(common(c), common(d)),
            );
            _mm256_movemask_epi8(_mm256_cmpeq_epi32(least, _mm256_setzero_si256())) != 0
        }
    }
    #[inline(always)]
    unsafe fn sum(a: __m256) -> f32 {
        unsafe {
            let q = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let d = _mm_add_ps(q, _mm_movehl_ps(q, q));
            _mm_cvtss_f32(_mm_add_ss(d, _mm_movehdup_ps(d)))
        }
    }
    #[inline(always)]
    unsafe fn hmax(a: __m256) -> f32 {
        unsafe {
            let q = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let d = _mm_max_ps(q, _mm_movehl_ps(q, q));
            _mm_cvtss_f32(_mm_max_ss(d, _mm_movehdup_ps(d)))
        }
    }
    #[inline(always)]
    unsafe fn add_squares_f64(acc: f64, a: __m256) -> f64 {
        unsafe {
            let lo = _mm256_cvtps_pd(_mm256_castps256_ps128(a));
            let hi = _mm256_cvtps_pd(_mm256_extractf128_ps::<1>(a));
            let s = _mm256_fmadd_pd(lo, lo, _mm256_mul_pd(hi, hi));
            let d = _mm_add_pd(_mm256_castpd256_pd128(s), _mm256_extractf128_pd::<1>(s));
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
            let mut r = [_mm256_setzero_ps(); 8];
            for (i, r) in r.iter_mut().enumerate() {
                if i < nr {
                    let p = src.add(i * ld);
                    *r = if nk == 8 { _mm256_loadu_ps(p) } else { _mm256_maskload_ps(p, mask(nk)) };
                }
            }
            // Pairs of rows, then quads, then halves.
            let mut t = [_mm256_setzero_ps(); 8];
            for i in 0..4 {
                t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
                t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
            }
            let mut u = [_mm256_setzero_ps(); 8];
            for i in 0..2 {
                u[4 * i] = _mm256_shuffle_ps::<0x44>(t[4 * i], t[4 * i + 2]);
                u[4 * i + 1] = _mm256_shuffle_ps::<0xEE>(t[4 * i], t[4 * i + 2]);
                u[4 * i + 2] = _mm256_shuffle_ps::<0x44>(t[4 * i + 1], t[4 * i + 3]);
                u[4 * i + 3] = _mm256_shuffle_ps::<0xEE>(t[4 * i + 1], t[4 * i + 3]);
            }
            let mut out = [_mm256_setzero_ps(); 8];
            for i in 0..4 {
                out[i] = _mm256_permute2f128_ps::<0x20>(u[i], u[i + 4]);
                out[i + 4] = _mm256_permute2f128_ps::<0x31>(u[i], u[i + 4]);
            }
            for (k, v) in out.iter().enumerate() {
                if k < nk {
                    let p = dst.add(k * dst_ld);
                    // Where the next row of the block overwrites the surplus, one store is enough.
                    if width == 8 || (k + 1 < nk && dst_ld == width && width >= 4) {
                        _mm256_storeu_ps(p, *v);
                    } else {
                        store_first(p, *v, width);
                    }
                }
            }
        }
    }
}
