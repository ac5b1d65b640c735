//! The forward pass: work is cut into (b, g, strip of queries). Keys and values of a block are copied once for all panels of
//! queries and all query heads of the group; sums stay in scratch memory until the last block.
#![allow(unsafe_code)] // scratch memory and rows by address

#[cfg(target_arch = "x86_64")]
use super::amx;
use super::mask::Sight;
use super::panel::{LOWEST, Panel, drop_row, fill};
use super::products::Copied;
use super::rows::Rows;
use super::{Sizes, WeightDropout};
use crate::ctx::{Ctx, Machine, Span, padded};
use crate::operand::Mat;
use crate::simd::{Kernel, Simd, dispatch};
use bessemer_tensor::op::AttentionShape;
use std::ops::Range;

/// Panels of queries that share a copy of keys and values, at most.
const SHARING: usize = 8;
/// Tiles that there should be at least, so that every thread has some.
const TILES: usize = 16;
/// Floats of queries and of sums that a tile keeps, about, so that they stay in an L2 cache.
const KEPT: usize = 64 << 10;

/// Places of the operands.
pub(super) struct Forward<'a> {
    pub(super) shape: &'a AttentionShape,
    pub(super) sight: Sight<'a>,
    pub(super) q: Rows,
    pub(super) k: Rows,
    pub(super) v: Rows,
    pub(super) out: Rows,
    pub(super) lse: Option<Mat>,
    pub(super) dropout: Option<WeightDropout>,
    /// Rows of k and v for each sequence.
    pub(super) capacity: usize,
    pub(super) scratch: Span,
}

/// Panels of `width` queries that share a copy of keys and values, if each of them keeps so many floats.
pub(super) fn share(s: &AttentionShape, width: usize, kept: usize) -> usize {
    let fitting = (KEPT / (s.heads / s.kv_heads * kept).max(1)).clamp(1, SHARING);
    let spread = (s.batch * s.kv_heads * s.seq.div_ceil(width) / TILES).max(1);
    fitting.min(spread).min(s.seq.div_ceil(width).max(1))
}

/// The queries of one tile.
pub(super) struct Strip {
    pub(super) b: usize,
    pub(super) g: usize,
    pub(super) queries: Range<usize>,
}

impl Strip {
    /// Strips have `span` queries. Late queries see most keys: they go first, so that the short tiles fill the end.
    pub(super) fn of(s: &AttentionShape, span: usize, tile: usize) -> Strip {
        let groups = s.batch * s.kv_heads;
        let strip = s.seq.div_ceil(span) - 1 - tile / groups;
        let (b, g) = (tile % groups / s.kv_heads, tile % groups % s.kv_heads);
        Strip { b, g, queries: strip * span..((strip + 1) * span).min(s.seq) }
    }
}

/// Keys of a block, for BLOCK of an instruction set: with scores of a whole panel, they stay in an L1 cache.
const fn keys(block: usize) -> usize {
    block / 4 * 3
}

/// Lengths of the parts of one worker's scratch.
struct Parts {
    /// Keys of a block; values too.
    keys: usize,
    /// A panel's queries as columns.
    queries: usize,
    /// A panel's sums.
    sums: usize,
    /// A panel's queries as rows, while they are loaded.
    rows: usize,
    scores: usize,
    /// Dropout factors of a panel, twice.
    drop: usize,
    /// Panels of a strip.
    share: usize,
    /// Panels of all heads of the group.
    panels: usize,
}

impl Parts {
    fn new(Sizes { lanes, panel: width, block }: Sizes, s: &AttentionShape, dropout: bool) -> Parts {
        let block = keys(block);
        let wide = s.head_dim.next_multiple_of(lanes);
        let share = share(s, width, 2 * width * wide);
        Parts {
            keys: Copied::len(block, s.head_dim),
            queries: padded(s.head_dim * width),
            sums: padded(width * wide),
            rows: Copied::len(width, s.head_dim),
            scores: padded(block * width),
            drop: if dropout { padded(block * width) + width * drop_row(block) } else { 0 },
            share,
            panels: s.heads / s.kv_heads * share,
        }
    }

    fn total(&self, width: usize) -> usize {
        // Each panel has its own maxima and totals; alpha is shared.
        2 * self.keys
            + self.panels * (self.queries + self.sums + 2 * padded(width))
            + self.rows
            + self.scores
            + padded(width)
            + self.drop
    }
}

/// Scratch floats of a forward pass.
pub(super) fn workspace(machine: Machine, s: &AttentionShape, dropout: bool) -> usize {
    #[cfg(target_arch = "x86_64")]
    if amx::takes(machine.engine, s) {
        return machine.threads * amx::forward::Parts::new(s, dropout).total();
    }
    let sizes = Sizes::new(machine.rung);
    machine.threads * Parts::new(sizes, s, dropout).total(sizes.panel)
}

struct Tile<'a>(&'a Forward<'a>, usize, usize);

/// A panel within its tile.
struct Place {
    head: usize,
    /// First query.
    t: usize,
    count: usize,
    queries: *mut f32,
    sums: *mut f32,
    maxima: *mut f32,
    totals: *mut f32,
}

impl Kernel for Tile<'_> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Tile(f, tile, worker) = self;
        let s = f.shape;
        let (e, per_group) = (s.head_dim, s.heads / s.kv_heads);
        let (wide, width) = (e.next_multiple_of(S::LANES), S::PANEL);
        let block = keys(S::BLOCK);
        let parts = Parts::new(Sizes::of::<S>(), s, f.dropout.is_some());
        let base = f.scratch.at(worker * parts.total(width), parts.total(width));
        let span = parts.share * width;
        let Strip { b, g, queries: Range { start: t0, end: t1 } } = Strip::of(s, span, tile);
        let panels = (t1 - t0).div_ceil(width);
        // SAFETY: the parts are inside this worker's scratch; rows and columns inside the operands, whose shapes were
        // checked; out and lse of these rows and heads are written by this tile alone.
        unsafe {
            let rows = base.add(2 * parts.keys);
            let scores = rows.add(parts.rows);
            let (keys, values) = (Copied::new(base, block), Copied::new(base.add(parts.keys), block));
            let rows = Copied::new(rows, width);
            let alpha = scores.add(parts.scores);
            let drop = alpha.add(padded(width));
            let first_panel = drop.add(parts.drop);
            let place = |i: usize| {
                let (h, p) = (i / panels, i % panels);
                let t = t0 + p * width;
                let queries = first_panel.add(i * (parts.queries + parts.sums + 2 * padded(width)));
                let sums = queries.add(parts.queries);
                let maxima = sums.add(parts.sums);
                let totals = maxima.add(padded(width));
                let (head, count) = (g * per_group + h, width.min(t1 - t));
                Place { head, t, count, queries, sums, maxima, totals }
            };
            for i in 0..per_group * panels {
                let p = place(i);
                f.q.load::<S>(b * s.seq + p.t, p.count, (p.head * e, e), s.scale, rows);
                Panel::new::<S>(&f.sight, b, p.t, p.count).columns::<S>(rows, e, p.queries);
                fill::<S>(p.sums, width * wide, 0.0);
                fill::<S>(p.maxima, width, LOWEST);
                fill::<S>(p.totals, width, 0.0);
            }
            let end = f.sight.end(t1 - 1);
            // Blocks begin at multiples of their size, whatever the first query sees.
            let first = f.sight.first(b, t0);
            for s0 in (first - first % block..end).step_by(block) {
                let ns = block.min(end - s0);
                let row = b * f.capacity + s0;
                f.k.load::<S>(row, ns, (g * e, e), 1.0, keys);
                f.v.load::<S>(row, ns, (g * e, e), 1.0, values);
                let next = (row + ns, block.min(end - s0 - ns));
                for i in 0..per_group * panels {
                    f.k.prefetch::<S>(next.0, next.1, (g * e, e), i, per_group * panels);
                    f.v.prefetch::<S>(next.0, next.1, (g * e, e), i, per_group * panels);
                    let p = place(i);
                    // Most panels of a strip see no key of a block where windows or documents are short.
                    if f.sight.end(p.t + p.count - 1) <= s0 || f.sight.first(b, p.t) >= s0 + ns {
                        continue;
                    }
                    let panel = Panel::new::<S>(&f.sight, b, p.t, p.count);
                    let seen = panel.seen(0..width, &(s0..s0 + ns));
                    if seen.is_empty() {
                        continue;
                    }
                    let skip = seen.start - s0;
                    panel.scores::<S>(&seen, (keys, skip), e, p.queries, scores);
                    let slope = f.sight.slope(p.head);
                    for v in 0..p.count.div_ceil(S::LANES) {
                        panel.mask::<S>(&f.sight, v, &seen, slope, scores, None);
                    }
                    panel.softmax::<S>(&seen, scores, p.maxima, p.totals, alpha);
                    if let Some(WeightDropout { mask, heads, first }) = &f.dropout {
                        let first = (b * heads + first + p.head) * f.sight.all;
                        let beside = drop.add(padded(block * width));
                        let row = |r| (first + f.sight.position(p.t + r)) * f.sight.all;
                        panel.drop_factors::<S>(&f.sight, mask, &seen, row, beside, drop);
                        panel.multiply::<S>(&seen, scores, drop);
                    }
                    let vectors = wide / S::LANES;
                    panel.to_queries::<S>(&seen, scores, (values, skip), vectors, p.sums, Some(alpha));
                }
            }
            for i in 0..per_group * panels {
                let p = place(i);
                let total = |r: usize| *p.totals.add(r);
                if let Some(lse) = f.lse {
                    let row = lse.row(b * s.heads + p.head);
                    for r in 0..p.count {
                        *row.add(p.t + r) = *p.maxima.add(r) + total(r).ln();
                    }
                }
                let columns = (p.head * e, e);
                // The sum is empty for a query that sees no key.
                let factor = |r| if total(r) == 0.0 { 0.0 } else { 1.0 / total(r) };
                f.out.store::<S>(b * s.seq + p.t, p.count, columns, factor, p.sums, wide);
            }
        }
    }
}

/// Runs a forward pass, tile by tile.
pub(super) fn run(ctx: &Ctx<'_>, f: &Forward<'_>) {
    let s = f.shape;
    if s.head_dim == 0 {
        return;
    }
    #[cfg(target_arch = "x86_64")]
    if amx::takes(ctx.engine, s) {
        return amx::forward::run(ctx, f);
    }
    let sizes = Sizes::new(ctx.rung);
    let span = Parts::new(sizes, s, false).share * sizes.panel;
    ctx.pool.run(s.batch * s.kv_heads * s.seq.div_ceil(span), &|tile, worker| {
        // SAFETY: the instruction set is available; operands are checked views; scratch is this launch's workspace.
        unsafe { dispatch(ctx.rung, Tile(f, tile, worker)) }
    });
}
