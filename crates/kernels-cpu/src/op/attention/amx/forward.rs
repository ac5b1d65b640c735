//! The forward pass on the tile unit; strips of queries as in [`super::super::forward`].
#![allow(unsafe_code)] // scratch memory and packed panels by address

use super::weights::{Totals, softmax};
use super::{MOST_PARTS, PANEL, Packed, Panel, Part, WIDTH, multiply, panels_len, parts_of, seen_panels};
use crate::ctx::Ctx;
use crate::engine::amx::tile::Configured;
use crate::op::attention::WeightDropout;
use crate::op::attention::forward::{Forward, Strip, share};
use crate::op::attention::panel::{LOWEST, drop_row, fill};
use crate::simd::Simd;
use crate::simd::avx512::Avx512;
use bessemer_tensor::op::AttentionShape;
use std::arch::x86_64::*;
use std::ops::Range;

/// Keys of a block.
const BLOCK: usize = 64;

/// Floats of the parts of one worker's scratch, for operands of [`MOST_PARTS`].
pub(in crate::op::attention) struct Parts {
    /// Packed keys of a block.
    keys: usize,
    /// Packed values of a block.
    values: usize,
    /// Packed queries of a panel.
    queries: usize,
    /// Sums of a panel, `[element][query]`.
    sums: usize,
    /// Outputs of a panel as rows.
    rows: usize,
    scores: usize,
    /// Packed weights.
    weights: usize,
    /// Dropout factors of a panel, twice.
    drop: usize,
    /// Panels of a strip.
    share: usize,
    /// Panels of all heads of the group.
    panels: usize,
}

impl Parts {
    pub(in crate::op::attention) fn new(s: &AttentionShape, dropout: bool) -> Parts {
        let e = s.head_dim;
        let (queries, sums) = (panels_len(WIDTH, e, MOST_PARTS), e.next_multiple_of(PANEL) * WIDTH);
        let share = share(s, WIDTH, queries + sums);
        Parts {
            keys: panels_len(BLOCK, e, MOST_PARTS),
            values: panels_len(e, BLOCK, MOST_PARTS),
            queries,
            sums,
            rows: WIDTH * e.next_multiple_of(Avx512::LANES),
            scores: BLOCK * WIDTH,
            weights: panels_len(WIDTH, BLOCK, MOST_PARTS),
            drop: if dropout { BLOCK * WIDTH + WIDTH * drop_row(BLOCK) } else { 0 },
            share,
            panels: s.heads / s.kv_heads * share,
        }
    }

    pub(in crate::op::attention) fn total(&self) -> usize {
        // Each panel has its own maxima and totals; alpha is shared.
        self.keys
            + self.values
            + self.panels * (self.queries + self.sums + 2 * WIDTH)
            + self.rows
            + self.scores
            + self.weights
            + WIDTH
            + self.drop
    }
}

/// Scratch of one worker.
struct Scratch {
    keys: *mut f32,
    values: *mut f32,
    rows: *mut f32,
    scores: *mut f32,
    weights: Packed,
    alpha: *mut f32,
    drop: *mut f32,
    panels: *mut f32,
}

impl Scratch {
    fn new(base: *mut f32, parts: &Parts, weight_parts: usize) -> Scratch {
        let mut at = base;
        let mut take = |len: usize| {
            let part = at;
            at = at.wrapping_add(len);
            part
        };
        Scratch {
            keys: take(parts.keys),
            values: take(parts.values),
            rows: take(parts.rows),
            scores: take(parts.scores),
            weights: Packed::new(take(parts.weights), BLOCK, weight_parts),
            alpha: take(WIDTH),
            drop: take(parts.drop),
            panels: take(0),
        }
    }
}

/// A panel of queries within its tile.
struct Place {
    head: usize,
    /// First query.
    t: usize,
    count: usize,
    queries: Packed,
    sums: *mut f32,
    state: Totals,
}

/// One tile: a strip of queries of all heads of a group.
struct Tile<'a> {
    f: &'a Forward<'a>,
    /// Parts of weights, and of operands in f32.
    parts: usize,
    strip: Strip,
    sizes: &'a Parts,
    scratch: Scratch,
}

/// Keys and values of a block, packed.
struct Block {
    keys: Range<usize>,
    k: Packed,
    v: Packed,
}

impl Tile<'_> {
    /// Panels of all heads.
    fn places(&self) -> impl Iterator<Item = Place> {
        let (f, strip, sizes) = (self.f, &self.strip, self.sizes);
        let per_group = f.shape.heads / f.shape.kv_heads;
        let panels = strip.queries.len().div_ceil(WIDTH);
        (0..per_group * panels).map(move |i| {
            let t = strip.queries.start + i % panels * WIDTH;
            let queries = self.scratch.panels.wrapping_add(i * (sizes.queries + sizes.sums + 2 * WIDTH));
            let sums = queries.wrapping_add(sizes.queries);
            let maxima = sums.wrapping_add(sizes.sums);
            Place {
                head: strip.g * per_group + i / panels,
                t,
                count: WIDTH.min(strip.queries.end - t),
                queries: Packed::new(queries, f.shape.head_dim, parts_of(&f.q, self.parts)),
                sums,
                state: Totals { maxima, totals: maxima.wrapping_add(WIDTH), alpha: self.scratch.alpha },
            }
        })
    }

    /// # Safety
    /// The processor has the tile unit and this thread no configuration; operands were checked; the scratch is this worker's.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,bmi2")]
    unsafe fn run(&self) {
        let f = self.f;
        let (s, Strip { b, g, queries }) = (f.shape, &self.strip);
        let (b, columns) = (*b, (g * s.head_dim, s.head_dim));
        // SAFETY: by contract.
        unsafe {
            let _tiles = Configured::new();
            self.places().for_each(|place| self.bring(&place));
            let (first, end) = (f.sight.first(b, queries.start), f.sight.end(queries.end - 1));
            // Blocks begin at multiples of their size, whatever the first query sees.
            for s0 in (first - first % BLOCK..end).step_by(BLOCK) {
                let ns = BLOCK.min(end - s0);
                let part = |rows| Part { rows, first: b * f.capacity + s0, count: ns, columns };
                let block = Block {
                    keys: s0..s0 + ns,
                    k: Packed::new(self.scratch.keys, s.head_dim, parts_of(&f.k, self.parts)),
                    v: Packed::new(self.scratch.values, ns, parts_of(&f.v, self.parts)),
                };
                block.k.rows::<false>(part(&f.k));
                block.v.columns(part(&f.v));
                self.places().for_each(|place| self.block(&place, &block));
            }
            self.places().for_each(|place| self.finish(&place));
        }
    }

    /// Loads the queries of a panel.
    ///
    /// # Safety
    /// Same requirements as [`Tile::run`].
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,bmi2")]
    unsafe fn bring(&self, place: &Place) {
        let (s, e) = (self.f.shape, self.f.shape.head_dim);
        let first = self.strip.b * s.seq + place.t;
        let columns = (place.head * e, e);
        // SAFETY: by contract.
        unsafe {
            place.queries.rows::<true>(Part { rows: &self.f.q, first, count: place.count, columns });
            fill::<Avx512>(place.sums, e.next_multiple_of(PANEL) * WIDTH, 0.0);
            fill::<Avx512>(place.state.maxima, WIDTH, LOWEST);
            fill::<Avx512>(place.state.totals, WIDTH, 0.0);
        }
    }

    /// Accumulates the keys of a block that the queries of a panel see.
    ///
    /// # Safety
    /// Same requirements as [`Tile::run`], with tiles configured.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,bmi2")]
    unsafe fn block(&self, place: &Place, block: &Block) {
        let (f, keys) = (self.f, &block.keys);
        if f.sight.end(place.t + place.count - 1) <= keys.start
            || f.sight.first(self.strip.b, place.t) >= keys.end
        {
            return;
        }
        let panel = &Panel::new::<Avx512>(&f.sight, self.strip.b, place.t, place.count);
        // SAFETY: by contract.
        unsafe {
            let drop = f.dropout.as_ref().map(|dropout| self.drop(dropout, (panel, place), keys));
            // Queries, scores, weights and sums of half a panel stay in the L1 cache.
            for half in 0..place.count.div_ceil(PANEL) {
                self.half(panel, place, block, half, drop);
            }
        }
    }

    /// Accumulates the keys of a block that half a panel sees.
    ///
    /// # Safety
    /// Same requirements as [`Tile::block`]; `drop`: factors in the layout of the scores.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,bmi2")]
    unsafe fn half(
        &self,
        panel: &Panel,
        place: &Place,
        block: &Block,
        half: usize,
        drop: Option<*const f32>,
    ) {
        let (f, keys, seen) = (self.f, &block.keys, seen_panels(panel, half, &block.keys));
        if seen.is_empty() {
            return;
        }
        let (e, scores, weights) = (f.shape.head_dim, self.scratch.scores, &self.scratch.weights);
        let cols = place.count - half * PANEL;
        // SAFETY: by contract.
        unsafe {
            for keys_of in seen.clone() {
                let sizes = (keys.len() - keys_of * PANEL, cols);
                let c = (scores.add(keys_of * PANEL * WIDTH + half * PANEL), WIDTH);
                multiply((&block.k, keys_of), (&place.queries, half), 0..block.k.steps, sizes, c, false);
            }
            let slope = f.sight.slope(place.head);
            let mut factor = f.shape.scale * std::f32::consts::LOG2_E;
            if !self.folds_scale(place) {
                let at = scores.add(half * PANEL);
                (0..keys.len()).for_each(|key| scale(at.add(key * WIDTH), PANEL, f.shape.scale));
                factor = std::f32::consts::LOG2_E;
            }
            let vectors = 2 * half..panel.vectors::<Avx512>().min(2 * half + 2);
            for v in vectors.clone() {
                panel.mask::<Avx512>(&f.sight, v, keys, slope, scores, None);
            }
            let (z, state) = ((scores.cast_const(), factor), &place.state);
            match self.parts {
                1 => softmax::<1>(panel, vectors.clone(), keys, z, state, drop, weights),
                2 => softmax::<2>(panel, vectors.clone(), keys, z, state, drop, weights),
                _ => softmax::<3>(panel, vectors.clone(), keys, z, state, drop, weights),
            }
            rescale(place.sums, e, vectors, state.alpha);
            for i in (0..e).step_by(PANEL) {
                let c = (place.sums.add(i * WIDTH + half * PANEL), WIDTH);
                let (values, weights) = ((&block.v, i / PANEL), (weights, half));
                multiply(values, weights, seen.clone(), (e - i, cols), c, true);
            }
        }
    }

    /// True if scores are multiplied by the scale as they become exponents, and their maxima before.
    fn folds_scale(&self, place: &Place) -> bool {
        self.f.shape.scale > 0.0 && self.f.sight.slope(place.head) == 0.0
    }

    /// Draws the dropout factors of a panel for a block of keys.
    ///
    /// # Safety
    /// Same requirements as [`Tile::run`].
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,bmi2")]
    unsafe fn drop(
        &self,
        dropout: &WeightDropout,
        (panel, place): (&Panel, &Place),
        keys: &Range<usize>,
    ) -> *const f32 {
        let WeightDropout { mask, heads, first } = dropout;
        let sight = &self.f.sight;
        let first = (self.strip.b * heads + first + place.head) * sight.all;
        let row = |r| (first + sight.position(place.t + r)) * sight.all;
        let to = self.scratch.drop;
        // SAFETY: by contract.
        unsafe { panel.drop_factors::<Avx512>(sight, mask, keys, row, to.add(BLOCK * WIDTH), to) };
        to
    }

    /// Writes outputs and log-sum-exp of a panel.
    ///
    /// # Safety
    /// Same requirements as [`Tile::run`].
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,bmi2")]
    unsafe fn finish(&self, place: &Place) {
        let (f, s, b, count) = (self.f, self.f.shape, self.strip.b, place.count);
        let e = s.head_dim;
        let wide = e.next_multiple_of(Avx512::LANES);
        let scale = if self.folds_scale(place) { s.scale } else { 1.0 };
        // SAFETY: by contract.
        unsafe {
            let total = |r: usize| *place.state.totals.add(r);
            if let Some(lse) = f.lse {
                let row = lse.row(b * s.heads + place.head);
                for r in 0..count {
                    *row.add(place.t + r) = *place.state.maxima.add(r) * scale + total(r).ln();
                }
            }
            to_rows(place.sums, e, count, self.scratch.rows, wide);
            // The sum is empty for a query that sees no key.
            let factor = |r| if total(r) == 0.0 { 0.0 } else { 1.0 / total(r) };
            f.out.store::<Avx512>(
                b * s.seq + place.t,
                count,
                (place.head * e, e),
                factor,
                self.scratch.rows,
                wide,
            );
        }
    }
}

/// Multiplies `len` floats, a multiple of 16, by `by`.
///
/// # Safety
/// The floats exist, and the processor has AVX-512.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn scale(z: *mut f32, len: usize, by: f32) {
    for i in (0..len).step_by(16) {
        // SAFETY: by contract.
        unsafe { _mm512_storeu_ps(z.add(i), _mm512_mul_ps(_mm512_loadu_ps(z.add(i)), _mm512_set1_ps(by))) };
    }
}

/// Multiplies the sums of each query, `[element][query]`, by its factor. Most factors are 1 once maxima are found.
///
/// # Safety
/// `sums` and `alpha` have as many rows and vectors; the processor has AVX-512.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn rescale(sums: *mut f32, rows: usize, vectors: Range<usize>, alpha: *const f32) {
    for v in vectors {
        // SAFETY: by contract.
        unsafe {
            let by = _mm512_loadu_ps(alpha.add(16 * v));
            if _mm512_cmp_ps_mask::<_CMP_EQ_OQ>(by, _mm512_set1_ps(1.0)) == 0xffff {
                continue;
            }
            for r in 0..rows {
                let at = sums.add(r * WIDTH + 16 * v);
                _mm512_storeu_ps(at, _mm512_mul_ps(_mm512_loadu_ps(at), by));
            }
        }
    }
}

/// Transposes sums `[element][query]` of `count` queries into rows of `wide` floats, zeros past e.
///
/// # Safety
/// The sums exist, and there is space for [`WIDTH`] rows; the processor has AVX-512.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,bmi2")]
pub(super) unsafe fn to_rows(sums: *const f32, e: usize, count: usize, rows: *mut f32, wide: usize) {
    for lane in (0..count).step_by(16) {
        for i in (0..e).step_by(16) {
            // SAFETY: by contract.
            unsafe {
                let (from, to) = (sums.add(i * WIDTH + lane), rows.add(lane * wide + i));
                Avx512::transpose(from, WIDTH, 16.min(e - i), 16, to, wide, 16);
            }
        }
    }
}

/// Runs a forward pass, tile by tile.
pub(in crate::op::attention) fn run(ctx: &Ctx<'_>, f: &Forward<'_>) {
    let s = f.shape;
    let parts = Parts::new(s, f.dropout.is_some());
    let weight_parts = ctx.engine.tile_parts().unwrap_or(MOST_PARTS);
    let span = parts.share * WIDTH;
    ctx.pool.run(s.batch * s.kv_heads * s.seq.div_ceil(span), &|tile, worker| {
        let base = f.scratch.at(worker * parts.total(), parts.total());
        let scratch = Scratch::new(base, &parts, weight_parts);
        let strip = Strip::of(s, span, tile);
        // SAFETY: the engine is available; operands are checked views; scratch is this worker's.
        unsafe { Tile { f, parts: weight_parts, strip, sizes: &parts, scratch }.run() }
    });
}
