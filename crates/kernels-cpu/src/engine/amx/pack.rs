//! Packing for the tile unit: f32 or bf16 operands as 1, 2 or 3 bf16 parts, in tiles of 16 x 32.
//!
//! Parts: `h = bf16(x)`, `m = bf16(x - h)`, `l = bf16(x - h - m)`, each rounded to nearest even, so that h alone is x to 8
//! bits, h + m to 16, and h + m + l is x exactly (8 + 8 + 8 bits). Three things are not exact:
//! - The tile unit and the conversion treat subnormal numbers as zero: parts below 2^-126 are lost, which starts to matter
//!   for |x| < 2^-110 and makes an x below 2^-126 zero.
//! - If h would round up past the largest finite number, it is that number instead, and m takes the rest: no overflow.
//! - An infinity becomes parts whose products are infinite or NaN, a NaN stays NaN. With one part nothing is clamped: a
//!   value above 3.39e38 becomes an infinity, as in any conversion to bf16.
//!
//! A panel is 32 rows of an operand. Memory: `[step of 32 k][part][half of 16 rows][tile]`, rows and k that do not exist
//! as zeros. As operand A a tile is `[16 rows][32 k]`, as operand B `[16 pairs of k][16 rows][2]`.
#![allow(unsafe_code)] // vectors by address

use super::tile::{DEPTH, ROWS, TILE};
use crate::element::Element;
use crate::simd::avx512::Avx512;
use bessemer_units::DType;
use std::arch::x86_64::*;

/// Rows of a panel.
pub(crate) const PANEL: usize = 2 * ROWS;

/// Memory layout of an operand: element (row, k) is at `row * rs + k * ks`; one of the strides is 1.
#[derive(Clone, Copy)]
pub(super) struct Source<T> {
    pub(super) at: *const T,
    pub(super) rs: usize,
    pub(super) ks: usize,
}

/// The largest finite bf16.
const LARGEST: f32 = f32::from_bits(0x7f7f_0000);

/// Bytes of one panel of `k` steps.
pub(crate) const fn panel_bytes(steps: usize, parts: usize) -> usize {
    steps * parts * 2 * TILE
}

/// Packs `rows` rows by `k` elements into `rows / 32` panels, rounded up, `panel_stride` bytes apart.
///
/// # Safety
/// [`super::tile::available`]; the elements exist; `dst` has space for whole panels, aligned to 64 bytes.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,bmi2")]
pub(super) unsafe fn pack<T: Element, const PARTS: usize, const AS_B: bool>(
    from: Source<T>,
    rows: usize,
    k: usize,
    dst: *mut u8,
    panel_stride: usize,
) {
    let (steps, halves) = (k.div_ceil(DEPTH), rows.div_ceil(ROWS));
    let along_k = from.ks == 1;
    // In the order of memory: the lines of the source are read from end to end.
    let (outer, inner) = if along_k { (halves, steps) } else { (steps, halves) };
    for o in 0..outer {
        for i in 0..inner {
            let (half, step) = if along_k { (o, i) } else { (i, o) };
            let (row, k0) = (half * ROWS, step * DEPTH);
            let source = Source { at: from.at.wrapping_add(row * from.rs + k0 * from.ks), ..from };
            let (rows, depth) = (ROWS.min(rows - row), DEPTH.min(k - k0));
            let at = half / 2 * panel_stride + step * PARTS * 2 * TILE + half % 2 * TILE;
            // SAFETY: the block's elements exist; its tiles are inside the panel.
            unsafe {
                let dst = dst.add(at);
                match (along_k, rows == ROWS && depth == DEPTH) {
                    (true, true) => block::<T, PARTS, true, AS_B, true>(source, rows, depth, dst),
                    (true, false) => block::<T, PARTS, true, AS_B, false>(source, rows, depth, dst),
                    (false, true) => block::<T, PARTS, false, AS_B, true>(source, rows, depth, dst),
                    (false, false) => block::<T, PARTS, false, AS_B, false>(source, rows, depth, dst),
                }
            }
        }
    }
}

/// One block of 16 rows and 32 k: a tile for each part, `2 * TILE` bytes apart.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,bmi2")]
unsafe fn block<T: Element, const PARTS: usize, const ALONG_K: bool, const AS_B: bool, const WHOLE: bool>(
    from: Source<T>,
    rows: usize,
    depth: usize,
    dst: *mut u8,
) {
    // SAFETY: line i of the tile of a part.
    let put = |part: usize, i: usize, line: __m512i| unsafe {
        _mm512_store_si512(dst.add(part * 2 * TILE + i * 64).cast(), line);
    };
    let all = |part: usize, lines: &[__m512i; ROWS]| {
        lines.iter().enumerate().for_each(|(i, line)| put(part, i, *line));
    };
    let zeros = [_mm512_setzero_si512(); ROWS];
    if ALONG_K && AS_B && PARTS > 1 {
        // Transposed before they are split, not once for each part.
        for (half, k) in [0, ROWS].into_iter().enumerate() {
            let mut values = zeros;
            for (i, values) in values.iter_mut().enumerate() {
                let have = if WHOLE || i < rows { depth.saturating_sub(k).min(ROWS) } else { 0 };
                // SAFETY: only elements that exist are read.
                *values = unsafe {
                    _mm512_castps_si512(load::<T, WHOLE>(from.at.wrapping_add(i * from.rs + k), have))
                };
            }
            let values = transpose(&values);
            for j in 0..ROWS / 2 {
                let [even, odd] = [0, 1].map(|i| _mm512_castsi512_ps(values[2 * j + i]));
                let lines = split::<PARTS>(even, odd);
                lines.into_iter().enumerate().for_each(|(part, line)| put(part, half * ROWS / 2 + j, line));
            }
        }
        return;
    }
    let mut lines = [zeros; PARTS];
    #[allow(clippy::needless_range_loop)] // line i of each part
    for i in 0..ROWS {
        // SAFETY: only elements that exist are read.
        let line = unsafe {
            if ALONG_K {
                let at = from.at.wrapping_add(i * from.rs);
                let have = if WHOLE || i < rows { depth } else { 0 };
                if PARTS == 1 {
                    [pairs_along_k(at, have); PARTS]
                } else {
                    let (x0, x1) = (
                        load::<T, WHOLE>(at, have.min(16)),
                        load::<T, WHOLE>(at.wrapping_add(16), have.saturating_sub(16)),
                    );
                    let even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
                    let odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
                    split::<PARTS>(_mm512_permutex2var_ps(x0, even, x1), _mm512_permutex2var_ps(x0, odd, x1))
                }
            } else {
                let at = from.at.wrapping_add(2 * i * from.ks);
                let have = |k: usize| if WHOLE || k < depth { rows } else { 0 };
                let next = at.wrapping_add(from.ks);
                if PARTS == 1 && T::DTYPE == DType::Bf16 {
                    [pairs_of_rows((at.cast(), have(2 * i)), (next.cast(), have(2 * i + 1))); PARTS]
                } else {
                    let (even, odd) =
                        (load::<T, WHOLE>(at, have(2 * i)), load::<T, WHOLE>(next, have(2 * i + 1)));
                    split::<PARTS>(even, odd)
                }
            }
        };
        for (part, line) in line.into_iter().enumerate() {
            // Lines are rows of k pairs if the source runs along k, and pairs of k otherwise.
            if ALONG_K == AS_B {
                lines[part][i] = line;
            } else {
                put(part, i, line);
            }
        }
    }
    if ALONG_K == AS_B {
        lines.iter().enumerate().for_each(|(part, lines)| all(part, &transpose(lines)));
    }
}

/// Elements `0 .. n <= 32` in order as bf16, zeros after them.
///
/// # Safety
/// The elements exist.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
unsafe fn pairs_along_k<T: Element>(at: *const T, n: usize) -> __m512i {
    // SAFETY: by contract.
    unsafe {
        if T::DTYPE == DType::Bf16 {
            return _mm512_maskz_loadu_epi16(((1u64 << n) - 1) as u32, at.cast());
        }
        let (low, high) = (n.min(ROWS), n.saturating_sub(ROWS));
        pairs_in_order(load::<T, false>(at, low), load::<T, false>(at.wrapping_add(ROWS), high))
    }
}

/// Pairs of bf16 elements of two rows, the first `n <= 16` of each, zeros after them.
///
/// # Safety
/// The elements exist.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn pairs_of_rows((even, n): (*const i16, usize), (odd, m): (*const i16, usize)) -> __m512i {
    // SAFETY: by contract.
    let wide = |at: *const i16, n: usize| unsafe {
        _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(((1u32 << n) - 1) as u16, at))
    };
    _mm512_or_si512(wide(even, n), _mm512_slli_epi32::<16>(wide(odd, m)))
}

/// The first `n <= 16` elements, zeros after them.
#[inline(always)]
unsafe fn load<T: Element, const WHOLE: bool>(p: *const T, n: usize) -> __m512 {
    // SAFETY: by contract.
    unsafe { if WHOLE { T::load::<Avx512>(p) } else { T::load_n::<Avx512>(p, n) } }
}

/// 32 elements in order as bf16.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
pub(super) fn pairs_in_order(x0: __m512, x1: __m512) -> __m512i {
    // SAFETY: both are 512 bits without structure.
    unsafe { std::mem::transmute(_mm512_cvtne2ps_pbh(x1, x0)) }
}

/// The parts of 16 pairs of elements, the even ones in the lower halves.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512bf16")]
fn split<const PARTS: usize>(mut even: __m512, mut odd: __m512) -> [__m512i; PARTS] {
    let mut parts = [_mm512_setzero_si512(); PARTS];
    for (part, to) in parts.iter_mut().enumerate() {
        let (mut e, mut o) = (even, odd);
        if part + 1 < PARTS && part == 0 {
            // The smaller magnitude of the two, with the sign of the first. NaN counts as the larger.
            const SMALLER: i32 = 0b0010;
            let largest = _mm512_set1_ps(LARGEST);
            (e, o) = (_mm512_range_ps::<SMALLER>(e, largest), _mm512_range_ps::<SMALLER>(o, largest));
        }
        let words = pairs_in_order(e, o);
        // Words 0..16 are the even elements and 16..32 the odd ones; a pair has one of each.
        let interleave = _mm512_set_epi16(
            31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3,
            18, 2, 17, 1, 16, 0,
        );
        let pairs = _mm512_permutexvar_epi16(interleave, words);
        *to = pairs;
        if part + 1 < PARTS {
            let upper = _mm512_set1_epi32(0xffff_0000u32 as i32);
            even = _mm512_sub_ps(even, _mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs)));
            odd = _mm512_sub_ps(odd, _mm512_castsi512_ps(_mm512_and_si512(pairs, upper)));
        }
    }
    parts
}

/// Writes 32 rows by `cols` columns in f32, bf16 or f16 as steps of operand B whose rows are the columns and whose k are the rows:
/// pair j of a step is k = j and k = 16 + j, as [`split_weights`] of k = 0 .. 16 and k = 16 .. 32 leaves them. Rows past `rows` are zeros.
///
/// # Safety
/// Same requirements as [`pack`], with `cols` rows and `rows` elements of k; the elements of a row are contiguous, rows `step` elements apart.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,bmi2")]
pub(crate) unsafe fn pack_halves<T: Element, const PARTS: usize>(
    (from, step): (*const T, usize),
    (rows, cols): (usize, usize),
    dst: *mut u8,
    panel_stride: usize,
) {
    for first in (0..rows).step_by(DEPTH) {
        for half in 0..cols.div_ceil(ROWS) {
            let have = ROWS.min(cols - half * ROWS);
            let at = half / 2 * panel_stride + panel_bytes(first / DEPTH, PARTS) + half % 2 * TILE;
            for line in 0..ROWS {
                // SAFETY: only rows and columns that exist are read; the line is inside the panel.
                unsafe {
                    let row = |row: usize| {
                        let n = if row < rows { have } else { 0 };
                        T::load_n::<Avx512>(from.wrapping_add(row * step + half * ROWS), n)
                    };
                    let lines = split::<PARTS>(row(first + line), row(first + ROWS + line));
                    for (part, words) in lines.into_iter().enumerate() {
                        _mm512_store_si512(dst.add(at + part * 2 * TILE + line * 64).cast(), words);
                    }
                }
            }
        }
    }
}

/// The parts of 16 pairs of elements, the even ones in the lower halves, in fewer instructions than [`split`]: all parts but the last
/// one are cut off instead of rounded. Three parts are still exact; of two, the last one is rounded to nearest, ties away from zero.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16,avx512dq,avx512vl,avx2,fma,bmi2")]
pub(crate) fn split_weights<const PARTS: usize>(even: __m512, odd: __m512) -> [__m512i; PARTS] {
    if PARTS == 1 {
        return split::<PARTS>(even, odd);
    }
    let upper = _mm512_set1_epi32(0xffff_0000u32 as i32);
    let half = _mm512_set1_epi32(0x8000);
    let mut parts = [_mm512_setzero_si512(); PARTS];
    let (mut even, mut odd) = (even, odd);
    for (part, to) in parts.iter_mut().enumerate() {
        let (mut e, mut o) = (_mm512_castps_si512(even), _mm512_castps_si512(odd));
        if part + 1 == PARTS && PARTS == 2 {
            (e, o) = (_mm512_add_epi32(e, half), _mm512_add_epi32(o, half));
        }
        *to = _mm512_mask_blend_epi16(0xaaaa_aaaa, _mm512_srli_epi32::<16>(e), o);
        if part + 1 < PARTS {
            even = _mm512_sub_ps(even, _mm512_castsi512_ps(_mm512_and_si512(e, upper)));
            odd = _mm512_sub_ps(odd, _mm512_castsi512_ps(_mm512_and_si512(o, upper)));
        }
    }
    parts
}

/// Transposes 16 x 16 values of 32 bits.
#[inline]
#[target_feature(enable = "avx512f")]
pub(in crate::engine) fn transpose(r: &[__m512i; 16]) -> [__m512i; 16] {
    let zero = _mm512_setzero_si512();
    // Pairs of rows, quads, then the four 128-bit parts by two rounds of exchanges.
    let mut t = [zero; 16];
    for i in 0..8 {
        t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
    // u[4i + j] holds, in its 128-bit part p, column 4p + j of rows 4i .. 4i+4.
    let mut u = [zero; 16];
    for i in 0..4 {
        u[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
        u[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
        u[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
        u[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
    }
    let mut out = [zero; 16];
    for j in 0..4 {
        let a = _mm512_shuffle_i32x4::<0x88>(u[j], u[j + 4]); // parts 0, 2 of both
        let b = _mm512_shuffle_i32x4::<0xDD>(u[j], u[j + 4]); // parts 1, 3 of both
        let c = _mm512_shuffle_i32x4::<0x88>(u[j + 8], u[j + 12]);
        let d = _mm512_shuffle_i32x4::<0xDD>(u[j + 8], u[j + 12]);
        out[j] = _mm512_shuffle_i32x4::<0x88>(a, c);
        out[j + 4] = _mm512_shuffle_i32x4::<0x88>(b, d);
        out[j + 8] = _mm512_shuffle_i32x4::<0xDD>(a, c);
        out[j + 12] = _mm512_shuffle_i32x4::<0xDD>(b, d);
    }
    out
}
