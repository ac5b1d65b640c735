//! The backward pass on the tile unit; strips of keys and the order of sums as in [`super::super::backward`].
#![allow(unsafe_code)] // scratch memory and packed panels by address

use super::forward::{scale, to_rows};
use super::weights::{Gradients, Queries, gradients};
use super::{MOST_PARTS, PANEL, Packed, Panel, Part, WIDTH, multiply, panels_len, parts_of, seen_panels};
use crate::ctx::Ctx;
use crate::engine::amx::tile::Configured;
use crate::op::attention::WeightDropout;
use crate::op::attention::backward::{Backward, Item, Strip};
use crate::op::attention::panel::{drop_row, fill};
use crate::op::attention::products::Copied;
use crate::simd::Simd;
use crate::simd::avx512::Avx512;
use bessemer_tensor::op::AttentionShape;
use std::ops::Range;

/// Keys of a block.
pub(in crate::op::attention) const BLOCK: usize = 64;

/// Floats of the parts of one worker's scratch, for operands of [`MOST_PARTS`].
pub(in crate::op::attention) struct Parts {
    /// Packed keys of the strip; values too.
    keys: usize,
    /// Packed keys of the strip as columns.
    columns: usize,
    /// dk and dv, each.
    gradients: usize,
    /// Packed queries of a panel and their gradients of outputs, each.
    queries: usize,
    /// Packed queries of a panel and their gradients of outputs as columns, each.
    query_columns: usize,
    /// Gradients of outputs as they are.
    rows: usize,
    /// dq, `[element][query]`, and as rows.
    dq: [usize; 2],
    /// Scores and their gradients, each.
    scores: usize,
    /// Packed weights and gradients of scores, three of them.
    weights: usize,
    /// Dropout factors, twice.
    drop: usize,
}

impl Parts {
    pub(in crate::op::attention) fn new(s: &AttentionShape, strip: usize, dropout: bool) -> Parts {
        let e = s.head_dim;
        let wide = e.next_multiple_of(Avx512::LANES);
        Parts {
            keys: panels_len(strip, e, MOST_PARTS),
            columns: panels_len(e, strip, MOST_PARTS),
            gradients: strip.next_multiple_of(PANEL) * wide,
            queries: panels_len(WIDTH, e, MOST_PARTS),
            query_columns: panels_len(e, WIDTH, MOST_PARTS),
            rows: Copied::len(WIDTH, e),
            dq: [e.next_multiple_of(PANEL) * WIDTH, WIDTH * wide],
            scores: BLOCK * WIDTH,
            weights: panels_len(BLOCK, WIDTH, MOST_PARTS),
            drop: if dropout { BLOCK * WIDTH + WIDTH * drop_row(BLOCK) } else { 0 },
        }
    }

    pub(in crate::op::attention) fn total(&self) -> usize {
        let twice = self.keys + self.gradients + self.queries + self.query_columns + self.scores + WIDTH;
        2 * twice + self.columns + self.rows + self.dq[0] + self.dq[1] + 3 * self.weights + self.drop
    }
}

/// One tile: a strip of keys, and the scratch of one worker.
struct Tile<'a> {
    f: &'a Backward<'a>,
    /// Parts of weights, and of operands in f32.
    parts: usize,
    strip: Strip,
    k: Packed,
    v: Packed,
    /// Keys as columns.
    k_columns: Packed,
    dk: *mut f32,
    dv: *mut f32,
    q: Packed,
    dout: Packed,
    q_columns: Packed,
    dout_columns: Packed,
    dout_rows: Copied,
    /// Gradients of queries, `[element][query]`.
    dq: *mut f32,
    dq_rows: *mut f32,
    scores: *mut f32,
    dp: *mut f32,
    p: Packed,
    dz: Packed,
    dz_queries: Packed,
    lse_log2: *mut f32,
    d: *mut f32,
    drop: *mut f32,
}

impl<'a> Tile<'a> {
    /// `base`: memory of this worker with the floats that `sizes` counts.
    fn new(f: &'a Backward<'a>, parts: usize, tile: usize, sizes: &Parts, base: *mut f32) -> Tile<'a> {
        let strip = f.strip_of(tile);
        let (e, keys) = (f.shape.head_dim, strip.keys.len());
        let [q, k, v, dout] = [&f.q, &f.k, &f.v, &f.dout].map(|rows| parts_of(rows, parts));
        let mut at = base;
        let mut take = |len: usize| {
            let part = at;
            at = at.wrapping_add(len);
            part
        };
        Tile {
            f,
            parts,
            strip,
            k: Packed::new(take(sizes.keys), e, k),
            v: Packed::new(take(sizes.keys), e, v),
            k_columns: Packed::new(take(sizes.columns), keys, k),
            dk: take(sizes.gradients),
            dv: take(sizes.gradients),
            q: Packed::new(take(sizes.queries), e, q),
            dout: Packed::new(take(sizes.queries), e, dout),
            q_columns: Packed::new(take(sizes.query_columns), WIDTH, q),
            dout_columns: Packed::new(take(sizes.query_columns), WIDTH, dout),
            dout_rows: Copied::new(take(sizes.rows), WIDTH),
            dq: take(sizes.dq[0]),
            dq_rows: take(sizes.dq[1]),
            scores: take(sizes.scores),
            dp: take(sizes.scores),
            p: Packed::new(take(sizes.weights), WIDTH, parts),
            dz: Packed::new(take(sizes.weights), WIDTH, parts),
            dz_queries: Packed::new(take(sizes.weights), BLOCK, parts),
            lse_log2: take(WIDTH),
            d: take(WIDTH),
            drop: take(sizes.drop),
        }
    }

    /// # Safety
    /// The processor has the tile unit and this thread no configuration; operands were checked; the scratch is this worker's.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,bmi2")]
    unsafe fn run(&self, tile: usize) {
        let (f, s, strip) = (self.f, self.f.shape, &self.strip);
        let (e, count) = (s.head_dim, strip.keys.len());
        let wide = e.next_multiple_of(Avx512::LANES);
        let done = f.begin(tile);
        // SAFETY: by contract.
        unsafe {
            let _tiles = Configured::new();
            let (row, columns) = (strip.b * f.keys + strip.keys.start, (strip.g * e, e));
            let part = |rows| Part { rows, first: row, count, columns };
            self.k.rows::<false>(part(&f.k));
            self.v.rows::<false>(part(&f.v));
            self.k_columns.columns(part(&f.k));
            fill::<Avx512>(self.dk, count.next_multiple_of(PANEL) * wide, 0.0);
            fill::<Avx512>(self.dv, count.next_multiple_of(PANEL) * wide, 0.0);
            for item in f.items(strip, WIDTH) {
                let panel = Panel::new::<Avx512>(&f.sight, strip.b, item.t, WIDTH.min(s.seq - item.t));
                if f.unseen::<Avx512>(strip, &item, &panel, self.dq_rows) {
                    continue;
                }
                self.bring(&panel, &item);
                let seen = panel.seen(0..WIDTH, &strip.keys);
                // Blocks begin at multiples of their size from the first key of the strip on.
                let first = seen.start - (seen.start - strip.keys.start) % BLOCK;
                for key in (first..seen.end).step_by(BLOCK) {
                    self.block(&panel, &item, key..(key + BLOCK).min(strip.keys.end));
                }
                to_rows(self.dq, e, panel.count, self.dq_rows, wide);
                f.finish::<Avx512>(strip, &item, &panel, self.dq_rows, &done);
            }
            f.dk.store::<Avx512>(row, count, columns, |_| s.scale, self.dk, wide);
            f.dv.store::<Avx512>(row, count, columns, |_| 1.0, self.dv, wide);
        }
    }

    /// Loads one panel of queries: packed queries and gradients of outputs, log-sum-exp, `dout . out`.
    ///
    /// # Safety
    /// Same requirements as [`Tile::run`].
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,bmi2")]
    unsafe fn bring(&self, panel: &Panel, item: &Item) {
        let (f, s, b) = (self.f, self.f.shape, self.strip.b);
        let (e, count, first) = (s.head_dim, panel.count, b * s.seq + item.t);
        let columns = (item.head * e, e);
        // SAFETY: by contract.
        unsafe {
            let part = |rows| Part { rows, first, count, columns };
            self.q.rows::<true>(part(&f.q));
            self.dout.rows::<true>(part(&f.dout));
            self.q_columns.halves(part(&f.q));
            self.dout_columns.halves(part(&f.dout));
            f.dout.load::<Avx512>(first, count, columns, 1.0, self.dout_rows);
            fill::<Avx512>(self.dq, e.next_multiple_of(PANEL) * WIDTH, 0.0);
            // Lanes past the last query: weight 0.
            fill::<Avx512>(self.lse_log2, WIDTH, f32::INFINITY);
            fill::<Avx512>(self.d, WIDTH, 0.0);
            let lse = f.lse.row(b * s.heads + item.head);
            for r in 0..count {
                let lse = *lse.add(item.t + r) * std::f32::consts::LOG2_E;
                // A query that sees no key at all: weight 0.
                *self.lse_log2.add(r) = if lse == f32::NEG_INFINITY { f32::INFINITY } else { lse };
                *self.d.add(r) = f.out.dot::<Avx512>(first + r, columns, self.dout_rows, r);
            }
        }
    }

    /// All products of one panel and a block of keys.
    ///
    /// # Safety
    /// Same requirements as [`Tile::run`], with tiles configured, and the panel loaded.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,bmi2")]
    unsafe fn block(&self, panel: &Panel, item: &Item, keys: Range<usize>) {
        let f = self.f;
        let first = (keys.start - self.strip.keys.start) / PANEL;
        let halves = [0, 1].map(|half| seen_panels(panel, half, &keys));
        // SAFETY: by contract.
        unsafe {
            for (a, b, c) in [(&self.k, &self.q, self.scores), (&self.v, &self.dout, self.dp)] {
                for keys_of in 0..keys.len().div_ceil(PANEL) {
                    for half in [0, 1].into_iter().filter(|half| halves[*half].contains(&keys_of)) {
                        let sizes = (keys.len() - keys_of * PANEL, panel.count - half * PANEL);
                        let c = (c.add(keys_of * PANEL * WIDTH + half * PANEL), WIDTH);
                        multiply((a, first + keys_of), (b, half), 0..a.steps, sizes, c, false);
                    }
                }
            }
            let (slope, mut factor) = (f.sight.slope(item.head), f.shape.scale * std::f32::consts::LOG2_E);
            if slope != 0.0 {
                scale(self.scores, keys.len() * WIDTH, f.shape.scale);
                factor = std::f32::consts::LOG2_E;
            }
            for v in 0..panel.vectors::<Avx512>() {
                panel.mask::<Avx512>(&f.sight, v, &keys, slope, self.scores, Some(self.dp));
            }
            let drop = f.dropout.as_ref().map(|dropout| self.drop(dropout, panel, item, &keys));
            let z = (self.scores.cast_const(), factor, self.dp.cast_const());
            let queries = Queries { lse_log2: self.lse_log2, d: self.d };
            let to = Gradients { p: &self.p, dz: &self.dz, dz_queries: &self.dz_queries };
            match self.parts {
                1 => gradients::<1>(panel, &keys, z, &queries, drop, &to),
                2 => gradients::<2>(panel, &keys, z, &queries, drop, &to),
                _ => gradients::<3>(panel, &keys, z, &queries, drop, &to),
            }
            self.add(panel, &keys, &halves);
        }
    }

    /// Adds the products of packed weights and gradients of scores to all three gradients.
    ///
    /// # Safety
    /// Same requirements as [`Tile::block`].
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,bmi2")]
    unsafe fn add(&self, panel: &Panel, keys: &Range<usize>, halves: &[Range<usize>; 2]) {
        let e = self.f.shape.head_dim;
        let wide = e.next_multiple_of(Avx512::LANES);
        let first = (keys.start - self.strip.keys.start) / PANEL;
        // SAFETY: by contract.
        unsafe {
            for keys_of in 0..keys.len().div_ceil(PANEL) {
                let seeing = [0, 1].map(|half| halves[half].contains(&keys_of));
                let steps = usize::from(!seeing[0])..1 + usize::from(seeing[1]);
                if steps.is_empty() {
                    continue;
                }
                for i in (0..e).step_by(PANEL) {
                    let sizes = (keys.len() - keys_of * PANEL, e - i);
                    let at = (first + keys_of) * PANEL * wide + i;
                    for (a, b, c) in
                        [(&self.p, &self.dout_columns, self.dv), (&self.dz, &self.q_columns, self.dk)]
                    {
                        multiply((a, keys_of), (b, i / PANEL), steps.clone(), sizes, (c.add(at), wide), true);
                    }
                }
            }
            for (half, seen) in halves.iter().enumerate().filter(|(_, seen)| !seen.is_empty()) {
                let cols = panel.count - half * PANEL;
                for i in (0..e).step_by(PANEL) {
                    let c = (self.dq.add(i * WIDTH + half * PANEL), WIDTH);
                    self.add_queries((first, i / PANEL), half, seen.clone(), (e - i, cols), c);
                }
            }
        }
    }

    /// Adds the product of keys as columns and gradients of scores; the former are packed for the strip, the latter for a block that
    /// begins with panel `first` of the strip.
    ///
    /// # Safety
    /// Same requirements as [`Tile::block`].
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,bmi2")]
    unsafe fn add_queries(
        &self,
        (first, elements): (usize, usize),
        half: usize,
        steps: Range<usize>,
        sizes: (usize, usize),
        c: (*mut f32, usize),
    ) {
        let from = self.k_columns.starting_at(first);
        // SAFETY: by contract.
        unsafe { multiply((&from, elements), (&self.dz_queries, half), steps, sizes, c, true) }
    }

    /// Draws the dropout factors of a panel for a block of keys.
    ///
    /// # Safety
    /// Same requirements as [`Tile::run`].
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,bmi2")]
    unsafe fn drop(
        &self,
        dropout: &WeightDropout,
        panel: &Panel,
        item: &Item,
        keys: &Range<usize>,
    ) -> *const f32 {
        let WeightDropout { mask, heads, first } = dropout;
        let sight = &self.f.sight;
        let first = (self.strip.b * heads + first + item.head) * sight.all;
        let row = |r| (first + sight.position(item.t + r)) * sight.all;
        // SAFETY: by contract.
        unsafe {
            let beside = self.drop.add(BLOCK * WIDTH);
            panel.drop_factors::<Avx512>(sight, mask, keys, row, beside, self.drop);
        }
        self.drop
    }
}

/// Runs a backward pass, tile by tile.
pub(in crate::op::attention) fn run(ctx: &Ctx<'_>, f: &Backward<'_>, tiles: usize) {
    let sizes = Parts::new(f.shape, f.strip, f.dropout.is_some());
    let parts = ctx.engine.tile_parts().unwrap_or(MOST_PARTS);
    ctx.pool.run(tiles, &|tile, worker| {
        let base = f.scratch.at(worker * sizes.total(), sizes.total());
        // SAFETY: the engine is available; operands are checked views; scratch is this worker's.
        unsafe { Tile::new(f, parts, tile, &sizes, base).run(tile) }
    });
}
