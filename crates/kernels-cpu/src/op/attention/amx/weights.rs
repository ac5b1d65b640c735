//! Packed weights from scores: exponentials, their sums and their gradients, split into parts.
#![allow(unsafe_code)] // scores and packed panels by address

use super::{PANEL, Packed, Panel, WIDTH, seen_panels};
use crate::engine::amx::pack::split_weights;
use crate::engine::amx::tile::{ROWS, TILE};
use crate::simd::avx512::Avx512;
use crate::simd::math::exp2;
use std::arch::x86_64::*;
use std::ops::Range;

/// Running maxima and sums of the queries of a panel, a float each.
pub(super) struct Totals {
    /// Running maxima of scores, before they are multiplied by the factor.
    pub(super) maxima: *mut f32,
    pub(super) totals: *mut f32,
    /// Rescaling factors of the earlier sums.
    pub(super) alpha: *mut f32,
}

/// Writes line `line` of every part of a tile.
///
/// # Safety
/// The tile is inside a panel of PARTS parts.
#[inline(always)]
unsafe fn store<const PARTS: usize>(tile: *mut u8, line: usize, parts: [__m512i; PARTS]) {
    for (part, words) in parts.into_iter().enumerate() {
        // SAFETY: by contract.
        unsafe { _mm512_store_si512(tile.add(part * 2 * TILE + line * 64).cast(), words) };
    }
}

/// Packs the exponentials of `factor (z - max)` of the queries of some vectors as operand B, rows queries and k keys, with running
/// maxima and sums; zeros
/// where a vector sees nothing. `drop`: factors of the packed weights, in the layout of the scores. `factor` is positive.
///
/// # Safety
/// `keys` begin at a panel and end at one; `z` and `drop`: rows of [`WIDTH`] floats, one for each key; `to` has space for all.
/// The processor has the tile unit.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,bmi2")]
pub(super) unsafe fn softmax<const PARTS: usize>(
    panel: &Panel,
    vectors: Range<usize>,
    keys: &Range<usize>,
    (z, factor): (*const f32, f32),
    state: &Totals,
    drop: Option<*const f32>,
    to: &Packed,
) {
    let factor = _mm512_set1_ps(factor);
    for v in vectors {
        let lane = v * 16;
        let seen = panel.seen(lane..lane + 16, keys);
        let seen = seen.start - keys.start..seen.end - keys.start;
        let panels = seen_panels(panel, v / 2, keys);
        // SAFETY: lanes of the panel and keys of the block.
        unsafe {
            let at = |key: usize| z.add(key * WIDTH + lane);
            let old = _mm512_loadu_ps(state.maxima.add(lane));
            // Four chains: one would wait for itself.
            let mut best = [old; 4];
            let mut key = seen.start;
            while key + 4 <= seen.end {
                for (i, best) in best.iter_mut().enumerate() {
                    *best = _mm512_max_ps(_mm512_loadu_ps(at(key + i)), *best);
                }
                key += 4;
            }
            while key < seen.end {
                best[0] = _mm512_max_ps(_mm512_loadu_ps(at(key)), best[0]);
                key += 1;
            }
            let new = _mm512_max_ps(_mm512_max_ps(best[0], best[1]), _mm512_max_ps(best[2], best[3]));
            // Exactly 1 where the maximum stays, as without tiles.
            let rises = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(old, new);
            let scaled = exp2::<Avx512>(_mm512_mul_ps(_mm512_sub_ps(old, new), factor));
            let alpha = _mm512_mask_blend_ps(rises, _mm512_set1_ps(1.0), scaled);
            let shift = _mm512_sub_ps(_mm512_setzero_ps(), _mm512_mul_ps(new, factor));
            let exponential =
                |key: usize| exp2::<Avx512>(_mm512_fmadd_ps(_mm512_loadu_ps(at(key)), factor, shift));
            let kept = |key: usize, p: __m512| match drop {
                Some(drop) => _mm512_mul_ps(p, _mm512_loadu_ps(drop.add(key * WIDTH + lane))),
                None => p,
            };
            let mut sums = [_mm512_setzero_ps(); 2];
            for tile in panels {
                let to = to.place(v / 2, tile).add(v % 2 * TILE);
                for line in 0..ROWS {
                    let key = tile * PANEL + 2 * line;
                    let mut p = [_mm512_setzero_ps(); 2];
                    if key >= seen.start && key + 2 <= seen.end {
                        p = [exponential(key), exponential(key + 1)];
                    } else if seen.contains(&key) {
                        p[0] = exponential(key);
                    } else if seen.contains(&(key + 1)) {
                        p[1] = exponential(key + 1);
                    } else {
                        store::<PARTS>(to, line, [_mm512_setzero_si512(); PARTS]);
                        continue;
                    }
                    sums = [_mm512_add_ps(sums[0], p[0]), _mm512_add_ps(sums[1], p[1])];
                    store::<PARTS>(to, line, split_weights::<PARTS>(kept(key, p[0]), kept(key + 1, p[1])));
                }
            }
            let sum = _mm512_add_ps(sums[0], sums[1]);
            _mm512_storeu_ps(state.maxima.add(lane), new);
            let totals = state.totals.add(lane);
            _mm512_storeu_ps(totals, _mm512_fmadd_ps(_mm512_loadu_ps(totals), alpha, sum));
            _mm512_storeu_ps(state.alpha.add(lane), alpha);
        }
    }
}

/// Per-query inputs of the gradients of a panel, a float each.
pub(super) struct Queries {
    /// Log-sum-exp times log2(e).
    pub(super) lse_log2: *const f32,
    /// `dout . out`.
    pub(super) d: *const f32,
}

/// Packed weights and gradients of scores of a block.
pub(super) struct Gradients<'a> {
    /// `m p`: operand A, rows keys and k queries, in the order of [`crate::engine::amx::pack::pack_halves`].
    pub(super) p: &'a Packed,
    /// `dz / scale`, likewise.
    pub(super) dz: &'a Packed,
    /// `dz / scale`: operand B, rows queries and k keys.
    pub(super) dz_queries: &'a Packed,
}

/// Packs weights `m exp2(factor z - lse_log2)` and gradients of scores from scores `z` and products `dout . v`; zeros where a
/// vector sees nothing. `drop`: factors in the layout of the scores.
///
/// # Safety
/// `z`, `dp` and `drop`: rows of [`WIDTH`] floats, one for each key; there is space for whole panels of keys. The processor has
/// the tile unit.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,bmi2")]
pub(super) unsafe fn gradients<const PARTS: usize>(
    panel: &Panel,
    keys: &Range<usize>,
    (z, factor, dp): (*const f32, f32, *const f32),
    queries: &Queries,
    drop: Option<*const f32>,
    to: &Gradients<'_>,
) {
    let zero = _mm512_setzero_ps();
    let factor = _mm512_set1_ps(factor);
    for half in 0..panel.count.div_ceil(PANEL) {
        let lanes = [0, 1].map(|v| half * PANEL + 16 * v);
        let seen = lanes.map(|lane| {
            // A vector of lanes past the last query is not computed.
            let all =
                if lane < panel.count { panel.seen(lane..lane + 16, keys) } else { keys.start..keys.start };
            all.start - keys.start..all.end - keys.start
        });
        // SAFETY: lanes of the panel and keys of the block.
        unsafe {
            let shift = lanes.map(|lane| _mm512_sub_ps(zero, _mm512_loadu_ps(queries.lse_log2.add(lane))));
            let d = lanes.map(|lane| _mm512_loadu_ps(queries.d.add(lane)));
            // Weights and gradients of one key and the queries of one vector.
            let pair = |key: usize, v: usize| {
                if !seen[v].contains(&key) {
                    return [zero; 2];
                }
                let at = key * WIDTH + lanes[v];
                let w = exp2::<Avx512>(_mm512_fmadd_ps(_mm512_loadu_ps(z.add(at)), factor, shift[v]));
                let g = _mm512_loadu_ps(dp.add(at));
                let (kept, g) = match drop {
                    Some(drop) => {
                        let drop = _mm512_loadu_ps(drop.add(at));
                        (_mm512_mul_ps(w, drop), _mm512_mul_ps(g, drop))
                    }
                    None => (w, g),
                };
                [kept, _mm512_mul_ps(w, _mm512_sub_ps(g, d[v]))]
            };
            for tile in seen_panels(panel, half, keys) {
                let places =
                    [to.p.place(tile, half), to.dz.place(tile, half), to.dz_queries.place(half, tile)];
                for line in 0..ROWS {
                    let key = tile * PANEL + 2 * line;
                    let mut dz = [[_mm512_setzero_si512(); PARTS]; 2];
                    for (i, dz) in dz.iter_mut().enumerate() {
                        let [[p0, dz0], [p1, dz1]] = [pair(key + i, 0), pair(key + i, 1)];
                        *dz = split_weights::<PARTS>(dz0, dz1);
                        // Rows of keys: the upper 16 of a panel are in its second tile.
                        let (tile, row) = (line / 8 * TILE, line % 8 * 2 + i);
                        store::<PARTS>(places[0].add(tile), row, split_weights::<PARTS>(p0, p1));
                        store::<PARTS>(places[1].add(tile), row, *dz);
                    }
                    let [lower, upper] = exchange(dz);
                    store::<PARTS>(places[2], line, lower);
                    store::<PARTS>(places[2].add(TILE), line, upper);
                }
            }
        }
    }
}

/// Converts pairs of queries (j, 16 + j) of two keys to pairs of keys: of queries 0 .. 16, and of 16 .. 32.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn exchange<const PARTS: usize>([first, second]: [[__m512i; PARTS]; 2]) -> [[__m512i; PARTS]; 2] {
    const UPPER: u32 = 0xaaaa_aaaa;
    let mut pairs = [[_mm512_setzero_si512(); PARTS]; 2];
    for part in 0..PARTS {
        let (a, b) = (first[part], second[part]);
        pairs[0][part] = _mm512_mask_blend_epi16(UPPER, a, _mm512_slli_epi32::<16>(b));
        pairs[1][part] = _mm512_mask_blend_epi16(UPPER, _mm512_srli_epi32::<16>(a), b);
    }
    pairs
}
