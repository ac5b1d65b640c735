//! Packing of operands in fp16 for [`super::tile`].
//!
//! The elements of one row in one block of k are multiplied by the power of two that brings the largest of them to
//! 8 .. 16, and rounded to fp16, to nearest even. So elements down to 2^-17 of the largest keep the 11 bits of fp16, smaller ones lose
//! bits one by one (fp16's subnormal numbers, which these instructions compute with at full speed), and below 2^-28 of
//! the largest nothing is left. A row of an infinity or a NaN takes the smallest factor, so that its other elements do
//! not become infinite as well.
#![allow(unsafe_code)] // vectors by address

use super::tile::{BLOCK, MR, NR, lines};
use crate::element::Element;
use crate::engine::amx::transpose;
use crate::simd::avx512::Avx512;
use std::arch::x86_64::*;
use std::ops::Range;

/// Memory layout of an operand: element (row, k) is at `row * rs + k * ks`; one of the strides is 1.
#[derive(Clone, Copy)]
pub(super) struct Source<T> {
    pub(super) at: *const T,
    pub(super) rs: usize,
    pub(super) ks: usize,
}

impl<T: Element> Source<T> {
    fn after(self, row: usize, k: usize) -> Source<T> {
        Source { at: self.at.wrapping_add(row * self.rs + k * self.ks), ..self }
    }
}

/// Scale factor of rows whose largest magnitudes have these bits, and its inverse for A: for B the inverse is [`OF_B`] times that,
/// so that both stay within the range of f32.
#[inline(always)]
fn scales(largest: u32) -> (u32, u32) {
    let factor = (257 - (largest >> 23)).clamp(3, 254);
    (factor << 23, (257 - factor) << 23)
}

/// Lines of memory that are prefetched before they are needed, as in [`crate::panels`].
const LINES_AHEAD: usize = 8;

/// 2^-6.
const OF_B: f32 = 0.015_625;

/// Most rows packed in one call of an operand whose rows are interleaved in memory.
pub(super) const ROWS: usize = 512;

/// Packs `blocks` of `rows` rows of `k` elements as panels of B or of A.
///
/// # Safety
/// [`super::tile::available`]; the elements exist; `dst` has space for whole panels; at most [`ROWS`] rows if k does not
/// run along them.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi2,avx512fp16,avx2,fma,bmi2")]
pub(super) unsafe fn pack<T: Element, const AS_B: bool>(
    from: Source<T>,
    rows: usize,
    k: usize,
    blocks: Range<usize>,
    dst: *mut u32,
) {
    let width = if AS_B { NR } else { MR };
    let depth = |block: usize| BLOCK.min(k - block * BLOCK);
    if from.ks != 1 {
        for block in blocks {
            // SAFETY: by contract.
            unsafe {
                let to = dst.add(lines(block * BLOCK) * width);
                across::<T, AS_B>(from.after(0, block * BLOCK), rows, depth(block), to, lines(k) * width);
            }
        }
        return;
    }
    for panel in 0..rows.div_ceil(width) {
        let rows = width.min(rows - panel * width);
        for block in blocks.clone() {
            let source = from.after(panel * width, block * BLOCK);
            if block + 1 < blocks.end {
                ask(source.after(0, BLOCK), rows, depth(block + 1));
            }
            // SAFETY: the block's elements exist, and its lines are inside the panel.
            unsafe {
                let to = dst.add((panel * lines(k) + lines(block * BLOCK)) * width);
                along::<T, AS_B>(source, rows, depth(block), to);
            }
        }
    }
}

/// Prefetches `lines` pieces of memory of `len` elements, `rs` apart.
#[inline]
#[target_feature(enable = "avx512f")]
fn ask<T: Element>(from: Source<T>, lines: usize, len: usize) {
    for r in 0..lines {
        for c in (0..len).step_by(64 / size_of::<T>()) {
            _mm_prefetch::<_MM_HINT_T0>(from.at.wrapping_add(r * from.rs + c).cast());
        }
    }
}

/// The first `n` elements, at most 16, zeros after them.
#[inline(always)]
unsafe fn load<T: Element>(p: *const T, n: usize) -> __m512 {
    // SAFETY: by contract.
    unsafe { if n >= 16 { T::load::<Avx512>(p) } else { T::load_n::<Avx512>(p, n) } }
}

/// 16 numbers in fp16.
#[inline]
#[target_feature(enable = "avx512f")]
fn halves(x: __m512) -> __m256i {
    _mm512_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(x)
}

/// One block of rows along which k runs.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi2,avx512fp16,avx2,fma,bmi2")]
unsafe fn along<T: Element, const AS_B: bool>(from: Source<T>, rows: usize, depth: usize, to: *mut u32) {
    let (width, step) = if AS_B { (NR, 2) } else { (MR, 1) };
    let pairs = depth.div_ceil(2);
    // SAFETY: elements that exist; lines of this block.
    unsafe {
        let scale = to.add(pairs * width).cast::<f32>();
        for half in 0..step {
            // Words of 16 rows: every second one of B.
            let mut words = [[_mm512_setzero_si512(); 16]; BLOCK / 32];
            for i in 0..16 {
                let row = half + i * step;
                if row >= rows {
                    if row < width {
                        *scale.add(row) = 1.0;
                    }
                    continue;
                }
                let at = from.at.wrapping_add(row * from.rs);
                let mut x = [_mm512_setzero_ps(); BLOCK / 16];
                let mut largest = _mm512_setzero_si512();
                for (j, x) in x.iter_mut().enumerate() {
                    if j * 16 < depth {
                        *x = load(at.wrapping_add(j * 16), depth - j * 16);
                        largest = _mm512_max_epu32(largest, _mm512_castps_si512(_mm512_abs_ps(*x)));
                    }
                }
                let (factor, undo) = scales(_mm512_reduce_max_epu32(largest));
                let factor = _mm512_set1_ps(f32::from_bits(factor));
                *scale.add(row) = f32::from_bits(undo) * if AS_B { OF_B } else { 1.0 };
                for (words, x) in words.iter_mut().zip(x.chunks_exact(2)) {
                    let (low, high) =
                        (halves(_mm512_mul_ps(x[0], factor)), halves(_mm512_mul_ps(x[1], factor)));
                    words[i] = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high);
                }
            }
            for (j, words) in words.iter().enumerate().take(pairs.div_ceil(16)) {
                let line = transpose(words);
                for (i, line) in line.iter().enumerate().take(pairs - j * 16) {
                    let to = to.add((j * 16 + i) * width + half * 16);
                    store::<AS_B>(to, *line);
                }
            }
        }
    }
}

/// Words of 16 rows of B or of the 14 rows of A.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn store<const AS_B: bool>(to: *mut u32, words: __m512i) {
    // SAFETY: by contract.
    unsafe {
        if AS_B {
            _mm512_storeu_si512(to.cast(), words);
        } else {
            _mm512_mask_storeu_epi32(to.cast(), (1 << MR) - 1, words);
        }
    }
}

/// Packs one block of interleaved rows: first the largest of each, line by line in memory order, then panels.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi2,avx512fp16,avx2,fma,bmi2")]
unsafe fn across<T: Element, const AS_B: bool>(
    from: Source<T>,
    rows: usize,
    depth: usize,
    to: *mut u32,
    panel: usize,
) {
    let mut factors = [0.0f32; ROWS + 16];
    let mut undo = [0.0f32; ROWS + 16];
    assert!(rows <= ROWS);
    // SAFETY: elements that exist; vectors of these arrays, which have one more than all rows need.
    unsafe {
        for i in 0..depth {
            let at = from.at.wrapping_add(i * from.ks);
            for c in (0..rows).step_by(64 / size_of::<T>()) {
                _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(LINES_AHEAD * from.ks + c).cast());
            }
            for c in (0..rows).step_by(16) {
                let x = _mm512_castps_si512(_mm512_abs_ps(load(at.wrapping_add(c), rows - c)));
                let largest = factors.as_mut_ptr().add(c).cast();
                _mm512_storeu_si512(largest, _mm512_max_epu32(x, _mm512_loadu_si512(largest.cast())));
            }
        }
        for c in (0..rows).step_by(16) {
            let at = factors.as_mut_ptr().add(c);
            let e = _mm512_srli_epi32::<23>(_mm512_loadu_si512(at.cast()));
            let e = _mm512_sub_epi32(_mm512_set1_epi32(257), e);
            let e = _mm512_max_epi32(_mm512_min_epi32(e, _mm512_set1_epi32(254)), _mm512_set1_epi32(3));
            _mm512_storeu_si512(at.cast(), _mm512_slli_epi32::<23>(e));
            let back = _mm512_slli_epi32::<23>(_mm512_sub_epi32(_mm512_set1_epi32(257), e));
            let share = _mm512_set1_ps(if AS_B { OF_B } else { 1.0 });
            _mm512_storeu_ps(undo.as_mut_ptr().add(c), _mm512_mul_ps(_mm512_castsi512_ps(back), share));
        }
    }
    let width = if AS_B { NR } else { MR };
    for p in 0..rows.div_ceil(width) {
        // SAFETY: the rows of this panel, and its lines.
        unsafe {
            let rows = width.min(rows - p * width);
            let (factors, undo) = (factors.as_ptr().add(p * width), undo.as_ptr().add(p * width));
            panel_across::<T, AS_B>(from.after(p * width, 0), rows, depth, to.add(p * panel), factors, undo);
        }
    }
}

/// One panel of [`across`]: its block from the place of its first line on.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi2,avx512fp16,avx2,fma,bmi2")]
unsafe fn panel_across<T: Element, const AS_B: bool>(
    from: Source<T>,
    rows: usize,
    depth: usize,
    mut to: *mut u32,
    factors: *const f32,
    undo: *const f32,
) {
    /// The upper halves of words.
    const UPPER: u32 = 0xaaaa_aaaa;
    // SAFETY: by contract; with more than 16 rows there are two vectors of factors.
    unsafe {
        let second = |p: *const f32| if rows > 16 { _mm512_loadu_ps(p.add(16)) } else { _mm512_setzero_ps() };
        let (f0, f1) = (_mm512_loadu_ps(factors), second(factors));
        let half = |k: usize, f: __m512, c: usize| {
            let have = if k < depth { rows.saturating_sub(c) } else { 0 };
            halves(_mm512_mul_ps(load(from.at.wrapping_add(k * from.ks + c), have), f))
        };
        for k in (0..depth).step_by(2) {
            if AS_B {
                let both = |k: usize| {
                    let low = _mm512_castsi256_si512(half(k, f0, 0));
                    _mm512_inserti64x4::<1>(low, half(k, f1, 16))
                };
                let (x, y) = (both(k), both(k + 1));
                store::<AS_B>(to, _mm512_mask_blend_epi16(UPPER, x, _mm512_slli_epi32::<16>(y)));
                store::<AS_B>(to.add(16), _mm512_mask_blend_epi16(UPPER, _mm512_srli_epi32::<16>(x), y));
                to = to.add(NR);
            } else {
                let (x, y) =
                    (_mm512_cvtepu16_epi32(half(k, f0, 0)), _mm512_cvtepu16_epi32(half(k + 1, f0, 0)));
                store::<AS_B>(to, _mm512_or_si512(x, _mm512_slli_epi32::<16>(y)));
                to = to.add(MR);
            }
        }
        store::<AS_B>(to, _mm512_castps_si512(_mm512_loadu_ps(undo)));
        if AS_B {
            store::<AS_B>(to.add(16), _mm512_castps_si512(second(undo)));
        }
    }
}
