//! The backward pass: work is cut into (b, g, strip of keys). A strip's keys, values and their gradients stay in scratch
//! memory while all panels of queries that see it go by, head after head, the last queries first.
//!
//! The gradient of a query is summed over strips in ascending order: a strip waits, panel by panel, until the strip before
//! it has added its part. Strips are handed out in that order, so the lowest one at work never waits.
#![allow(unsafe_code)] // scratch memory and rows by address

#[cfg(target_arch = "x86_64")]
use super::amx;
use super::mask::Sight;
use super::panel::{Panel, add_rows, drop_row, fill};
use super::products::Copied;
use super::rows::Rows;
use super::{Sizes, WeightDropout};
use crate::ctx::{Ctx, Machine, Span, padded};
use crate::operand::Mat;
use crate::simd::{Kernel, Simd, dispatch};
use bessemer_tensor::op::{AttentionBackward, AttentionShape};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

/// Floats of keys, values and their gradients that a tile keeps, about, so that they stay in an L2 cache.
const KEPT: usize = 128 << 10;
/// Tiles that there should be at least, so that every thread has some, and the least keys of a strip that this may lead to.
const TILES: usize = 16;
const SHORTEST: usize = 64;
/// Strips have a multiple of so many keys.
const GRANULE: usize = 16;
/// Spins of a waiting thread before it yields.
const SPINS: u32 = 1 << 12;

/// Operands, and how the work is cut.
pub(super) struct Backward<'a> {
    pub(super) shape: &'a AttentionShape,
    pub(super) sight: Sight<'a>,
    pub(super) q: Rows,
    pub(super) k: Rows,
    pub(super) v: Rows,
    pub(super) out: Rows,
    pub(super) lse: Mat,
    pub(super) dout: Rows,
    pub(super) dq: Rows,
    pub(super) dk: Rows,
    pub(super) dv: Rows,
    pub(super) dropout: Option<WeightDropout>,
    /// Keys of a sequence.
    pub(super) keys: usize,
    /// Keys of a strip.
    pub(super) strip: usize,
    /// For each (b, g, strip): (head, panel) pairs done, counted in the order in which every strip goes through them.
    pub(super) progress: Span,
    /// Gradients of queries as f32 while strips add to them, `[b, h, t, vectors of e]`; empty if dq itself can hold them.
    pub(super) sums: Span,
    pub(super) scratch: Span,
}

/// Keys of a strip, of `keys` of a sequence: as many as the caches hold, fewer if there would be too few tiles; a multiple of
/// `granule`.
fn strip((lanes, granule): (usize, usize), s: &AttentionShape, keys: usize) -> usize {
    let held = (KEPT / (4 * s.head_dim.next_multiple_of(lanes)).max(1)).max(SHORTEST);
    let wanted = TILES.div_ceil((s.batch * s.kv_heads).max(1)).min(keys / SHORTEST);
    let strips = keys.div_ceil(held).max(wanted).max(1);
    keys.div_ceil(strips).next_multiple_of(granule)
}

/// Lengths of the parts of one worker's scratch. A block has half of BLOCK keys.
struct Parts {
    /// Keys and values, each.
    keys: usize,
    /// dk and dv, each.
    gradients: usize,
    /// Queries and dout as columns, each.
    columns: usize,
    /// Queries and dout as rows, each.
    rows: usize,
    dq: usize,
    /// Scores and their gradients, each.
    scores: usize,
    /// Dropout factors, twice.
    drop: usize,
    /// Log-sum-exp and `dout . out`, each.
    lanes: usize,
}

impl Parts {
    fn new(
        Sizes { lanes, panel: width, block }: Sizes,
        (s, strip): (&AttentionShape, usize),
        dropout: bool,
    ) -> Parts {
        let (wide, block) = (s.head_dim.next_multiple_of(lanes), block / 2);
        Parts {
            keys: Copied::len(strip, s.head_dim),
            gradients: padded(strip * wide),
            columns: padded(s.head_dim * width),
            rows: Copied::len(width, s.head_dim),
            dq: padded(width * wide),
            scores: padded(block * width),
            drop: if dropout { padded(block * width) + width * drop_row(block) } else { 0 },
            lanes: padded(width),
        }
    }

    fn total(&self) -> usize {
        2 * (self.keys + self.gradients + self.columns + self.rows + self.scores + self.lanes)
            + self.dq
            + self.drop
    }
}

/// Partition of the work and scratch memory of a pass.
struct Plan {
    /// Keys of a strip.
    strip: usize,
    /// Floats of counters, of sums for gradients of queries, and of all workers' scratch.
    spans: [usize; 3],
}

impl Plan {
    fn new(machine: Machine, (s, keys): (&AttentionShape, usize), dropout: bool, f32_sums: bool) -> Plan {
        let sizes = Sizes::new(machine.rung);
        #[cfg(target_arch = "x86_64")]
        let granule = if amx::takes(machine.engine, s) { amx::backward::BLOCK } else { GRANULE };
        #[cfg(not(target_arch = "x86_64"))]
        let granule = GRANULE;
        let strip = strip((sizes.lanes, granule), s, keys);
        #[cfg(target_arch = "x86_64")]
        let scratch = if amx::takes(machine.engine, s) {
            amx::backward::Parts::new(s, strip, dropout).total()
        } else {
            Parts::new(sizes, (s, strip), dropout).total()
        };
        #[cfg(not(target_arch = "x86_64"))]
        let scratch = Parts::new(sizes, (s, strip), dropout).total();
        let strips = keys.div_ceil(strip.max(1));
        let wide = s.head_dim.next_multiple_of(sizes.lanes);
        let sums = if strips > 1 && !f32_sums { s.batch * s.heads * s.seq * wide } else { 0 };
        let counters = padded(s.batch * s.kv_heads * strips);
        Plan { strip, spans: [counters, padded(sums), machine.threads * scratch] }
    }
}

/// Scratch floats of a backward pass.
pub(super) fn workspace(machine: Machine, op: &AttentionBackward) -> usize {
    let f32_sums = op.dq.dtype() == bessemer_units::DType::F32;
    let plan = Plan::new(machine, (&op.shape, op.shape.keys(op.k.rows)), op.dropout.is_some(), f32_sums);
    plan.spans.iter().sum()
}

/// The keys of one tile.
pub(super) struct Strip {
    tile: usize,
    pub(super) b: usize,
    pub(super) g: usize,
    pub(super) keys: Range<usize>,
}

/// A head and a panel of queries that a strip of keys processes.
pub(super) struct Item {
    pub(super) head: usize,
    /// First query.
    pub(super) t: usize,
    /// Place in the order in which every strip goes through them.
    number: u32,
}

struct Tile<'a>(&'a Backward<'a>, usize, usize);

/// Marks everything done when a tile ends, also by a panic, so that no thread waits for ever.
pub(super) struct Done<'a>(&'a AtomicU32);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(u32::MAX, Ordering::Release);
    }
}

/// Scratch of one worker.
struct Scratch {
    k: Copied,
    v: Copied,
    dk: *mut f32,
    dv: *mut f32,
    q_columns: *mut f32,
    d_columns: *mut f32,
    q_rows: Copied,
    d_rows: Copied,
    dq: *mut f32,
    p: *mut f32,
    dz: *mut f32,
    lse: *mut f32,
    d: *mut f32,
    drop: *mut f32,
}

impl Scratch {
    /// # Safety
    /// `base` holds `parts.total()` floats.
    unsafe fn new(base: *mut f32, parts: &Parts, strip: usize, width: usize) -> Scratch {
        let mut at = base;
        let mut take = |len: usize| {
            let part = at;
            // SAFETY: the parts add up to the total.
            at = unsafe { at.add(len) };
            part
        };
        Scratch {
            k: Copied::new(take(parts.keys), strip),
            v: Copied::new(take(parts.keys), strip),
            dk: take(parts.gradients),
            dv: take(parts.gradients),
            q_columns: take(parts.columns),
            d_columns: take(parts.columns),
            q_rows: Copied::new(take(parts.rows), width),
            d_rows: Copied::new(take(parts.rows), width),
            dq: take(parts.dq),
            p: take(parts.scores),
            dz: take(parts.scores),
            lse: take(parts.lanes),
            d: take(parts.lanes),
            drop: take(parts.drop),
        }
    }
}

impl Backward<'_> {
    fn strips(&self) -> usize {
        self.keys.div_ceil(self.strip)
    }

    fn progress(&self, tile: usize) -> &AtomicU32 {
        // SAFETY: an aligned float of this launch's workspace, used as a counter by everybody.
        unsafe { AtomicU32::from_ptr(self.progress.at(tile, 1).cast()) }
    }

    /// Waits until strip `number` has done `items` pairs of head and panel.
    fn wait(&self, number: usize, items: u32) {
        let mut turns = 0;
        while self.progress(number).load(Ordering::Acquire) < items {
            turns += 1;
            if turns < SPINS { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
    }

    /// Loads one panel of queries: rows and columns of q and dout, log-sum-exp, `dout . out`.
    ///
    /// # Safety
    /// The scratch is this worker's.
    #[inline(always)]
    unsafe fn bring<S: Simd>(&self, x: &Scratch, panel: &Panel, b: usize, h: usize, t: usize) {
        let s = self.shape;
        let (e, columns, row) = (s.head_dim, (h * s.head_dim, s.head_dim), b * s.seq + t);
        let (wide, width) = (e.next_multiple_of(S::LANES), S::PANEL);
        // SAFETY: rows and heads of the operands.
        unsafe {
            self.q.load::<S>(row, panel.count, columns, s.scale, x.q_rows);
            self.dout.load::<S>(row, panel.count, columns, 1.0, x.d_rows);
            panel.columns::<S>(x.q_rows, e, x.q_columns);
            panel.columns::<S>(x.d_rows, e, x.d_columns);
            fill::<S>(x.dq, width * wide, 0.0);
            // Lanes past the last query: weight 0.
            fill::<S>(x.lse, width, f32::INFINITY);
            fill::<S>(x.d, width, 0.0);
            let lse = self.lse.row(b * s.heads + h);
            for r in 0..panel.count {
                let lse = *lse.add(t + r) * std::f32::consts::LOG2_E;
                // A query that sees no key at all: weight 0.
                *x.lse.add(r) = if lse == f32::NEG_INFINITY { f32::INFINITY } else { lse };
                *x.d.add(r) = self.out.dot::<S>(row + r, columns, x.d_rows, r);
            }
        }
    }

    /// All products of one panel and the keys `s0 .. s1` of a strip.
    ///
    /// # Safety
    /// The scratch is this worker's, and holds the panel and the strip.
    #[inline(always)]
    unsafe fn block<S: Simd>(
        &self,
        x: &Scratch,
        panel: &Panel,
        (b, h, t): (usize, usize, usize),
        s0: usize,
        s1: usize,
    ) {
        let s = self.shape;
        let e = s.head_dim;
        let (wide, width) = (e.next_multiple_of(S::LANES), S::PANEL);
        let strip = panel.seen(0..width, &(s0..s1));
        let parts = strip.len().div_ceil(S::BLOCK / 2);
        for (part, key) in strip.clone().step_by(S::BLOCK / 2).enumerate() {
            // The preceding panel is processed next: it is prefetched during this one.
            if let Some(next) = t.checked_sub(width) {
                for rows in [&self.q, &self.dout, &self.out] {
                    // SAFETY: rows and columns of the operands.
                    unsafe { rows.prefetch::<S>(b * s.seq + next, width, (h * e, e), part, parts) };
                }
            }
            let keys = key..(key + S::BLOCK / 2).min(strip.end);
            let (skip, at) = (keys.start - s0, (keys.start - s0) * wide);
            // SAFETY: keys of the strip; scores of a block.
            unsafe {
                for (rows, columns, to) in [(x.k, x.q_columns, x.p), (x.v, x.d_columns, x.dz)] {
                    panel.scores::<S>(&keys, (rows, skip), e, columns, to);
                }
                let slope = self.sight.slope(h);
                for vector in 0..panel.count.div_ceil(S::LANES) {
                    panel.mask::<S>(&self.sight, vector, &keys, slope, x.p, Some(x.dz));
                }
                let drop = self.dropout.as_ref().map(|WeightDropout { mask, heads, first }| {
                    let first = (b * heads + first + h) * self.sight.all;
                    let beside = x.drop.add(padded(S::BLOCK / 2 * width));
                    let row = |r| (first + self.sight.position(t + r)) * self.sight.all;
                    panel.drop_factors::<S>(&self.sight, mask, &keys, row, beside, x.drop);
                    x.drop.cast_const()
                });
                panel.gradients::<S>(&keys, x.p, x.dz, x.lse, x.d, drop);
                let vectors = wide / S::LANES;
                let products =
                    [(x.p.cast_const(), x.d_rows, x.dv.add(at)), (x.dz.cast_const(), x.q_rows, x.dk.add(at))];
                panel.to_keys::<S>(&keys, vectors, products);
                panel.to_queries::<S>(&keys, x.dz, (x.k, skip), vectors, x.dq, None);
            }
        }
    }

    /// The strip of keys of tile `tile`.
    pub(super) fn strip_of(&self, tile: usize) -> Strip {
        let (strips, groups) = (self.strips(), self.shape.kv_heads);
        let (j, g, b) = (tile % strips, tile / strips % groups, tile / strips / groups);
        Strip { tile, b, g, keys: j * self.strip..((j + 1) * self.strip).min(self.keys) }
    }

    /// The counter of a tile.
    pub(super) fn begin(&self, tile: usize) -> Done<'_> {
        Done(self.progress(tile))
    }

    /// Panels of `width` queries that may see keys of the strip, in the order in which every strip goes through them. The first strip
    /// also goes through panels that see nothing at all.
    pub(super) fn items(&self, strip: &Strip, width: usize) -> impl Iterator<Item = Item> + use<> {
        let s = self.shape;
        let (g, per_group, panels) = (strip.g, s.heads / s.kv_heads, s.seq.div_ceil(width));
        let queries = if strip.keys.start == 0 { 0..s.seq } else { self.sight.queries(strip.b, &strip.keys) };
        let seeing = queries.start / width..queries.end.div_ceil(width);
        (0..per_group).flat_map(move |h| {
            seeing.clone().rev().map(move |p| Item {
                head: g * per_group + h,
                t: p * width,
                number: (h * panels + panels - 1 - p) as u32,
            })
        })
    }

    /// True if no query of the panel sees a key of the strip. If none sees any key at all, the first strip writes zeros, for which
    /// `dq` has space.
    ///
    /// # Safety
    /// `dq`: a row of whole vectors for each lane, this worker's.
    #[inline(always)]
    pub(super) unsafe fn unseen<S: Simd>(
        &self,
        strip: &Strip,
        item: &Item,
        panel: &Panel,
        dq: *mut f32,
    ) -> bool {
        let lanes = 0..S::PANEL;
        if !panel.seen(lanes.clone(), &strip.keys).is_empty() {
            return false;
        }
        if strip.keys.start == 0 && panel.seen(lanes, &(0..self.keys)).is_empty() {
            // SAFETY: by contract; no strip sees the panel, and this one is the first.
            unsafe { self.nothing::<S>(dq, panel, (strip.b, item.head, item.t)) };
        }
        true
    }

    /// Adds a panel's gradient from one strip to those of the preceding strips, once those are done.
    ///
    /// # Safety
    /// `dq`: rows of whole vectors for all queries of the panel.
    #[inline(always)]
    pub(super) unsafe fn finish<S: Simd>(
        &self,
        strip: &Strip,
        item: &Item,
        panel: &Panel,
        dq: *const f32,
        done: &Done<'_>,
    ) {
        let all = panel.seen(0..S::PANEL, &(0..self.keys));
        let (first, last) = (all.start >= strip.keys.start, all.end <= strip.keys.end);
        if !first {
            self.wait(strip.tile - 1, item.number + 1);
        }
        // SAFETY: by contract; the strips before have added their parts.
        unsafe { self.give::<S>(dq, panel, (strip.b, item.head, item.t), first, last) };
        done.0.store(item.number + 1, Ordering::Release);
    }

    /// Writes the gradient of a panel whose queries see no key: zeros.
    ///
    /// # Safety
    /// `dq` is this worker's; no strip sees the panel, and this one is the first.
    #[inline(always)]
    unsafe fn nothing<S: Simd>(&self, dq: *mut f32, panel: &Panel, (b, h, t): (usize, usize, usize)) {
        let (s, e) = (self.shape, self.shape.head_dim);
        let (wide, width) = (e.next_multiple_of(S::LANES), S::PANEL);
        // SAFETY: rows of dq that belong to this panel; no other thread accesses them.
        unsafe {
            fill::<S>(dq, width * wide, 0.0);
            self.dq.store::<S>(b * s.seq + t, panel.count, (h * e, e), |_| 0.0, dq, wide);
        }
    }

    /// Adds a panel's gradient from one strip to those of the preceding strips.
    ///
    /// # Safety
    /// All preceding strips have added theirs.
    #[inline(always)]
    unsafe fn give<S: Simd>(
        &self,
        from: *const f32,
        panel: &Panel,
        (b, h, t): (usize, usize, usize),
        first: bool,
        last: bool,
    ) {
        let s = self.shape;
        let (e, columns, row) = (s.head_dim, (h * s.head_dim, s.head_dim), b * s.seq + t);
        let wide = e.next_multiple_of(S::LANES);
        // SAFETY: rows of dq that belong to this panel; no other thread accesses them.
        unsafe {
            match &self.dq {
                _ if first && last => {
                    self.dq.store::<S>(row, panel.count, columns, |_| s.scale, from, wide);
                }
                Rows::F32(dq) => {
                    let to = (dq.row(row).add(columns.0), dq.stride);
                    add_rows::<S>(panel.count, e, s.scale, (from, wide), to, first);
                }
                Rows::Bf16(_) => {
                    let len = panel.count * wide;
                    let sums = self.sums.at(((b * s.heads + h) * s.seq + t) * wide, len);
                    add_rows::<S>(panel.count, wide, s.scale, (from, wide), (sums, wide), first);
                    if last {
                        self.dq.store::<S>(row, panel.count, columns, |_| 1.0, sums, wide);
                    }
                }
            }
        }
    }
}

impl Kernel for Tile<'_> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Tile(f, tile, worker) = self;
        let s = f.shape;
        let e = s.head_dim;
        let wide = e.next_multiple_of(S::LANES);
        let strip = f.strip_of(tile);
        let Strip { b, g, keys: Range { start: s0, end: s1 }, .. } = strip;
        let parts = Parts::new(Sizes::of::<S>(), (s, f.strip), f.dropout.is_some());
        let width = S::PANEL;
        let done = f.begin(tile);
        // SAFETY: the scratch is this worker's; rows and columns are inside the operands, whose shapes were checked; dk and dv
        // of this strip are written by this tile alone, dq by one strip at a time.
        unsafe {
            let x = Scratch::new(f.scratch.at(worker * parts.total(), parts.total()), &parts, f.strip, width);
            let (row, columns) = (b * f.keys + s0, (g * e, e));
            f.k.load::<S>(row, s1 - s0, columns, 1.0, x.k);
            f.v.load::<S>(row, s1 - s0, columns, 1.0, x.v);
            fill::<S>(x.dk, (s1 - s0) * wide, 0.0);
            fill::<S>(x.dv, (s1 - s0) * wide, 0.0);
            for item in f.items(&strip, width) {
                let Item { head, t, .. } = item;
                let panel = Panel::new::<S>(&f.sight, b, t, width.min(s.seq - t));
                if f.unseen::<S>(&strip, &item, &panel, x.dq) {
                    continue;
                }
                f.bring::<S>(&x, &panel, b, head, t);
                f.block::<S>(&x, &panel, (b, head, t), s0, s1);
                f.finish::<S>(&strip, &item, &panel, x.dq, &done);
            }
            f.dk.store::<S>(row, s1 - s0, columns, |_| 1.0, x.dk, wide);
            f.dv.store::<S>(row, s1 - s0, columns, |_| 1.0, x.dv, wide);
        }
    }
}

pub(super) fn run(ctx: &Ctx<'_>, op: &AttentionBackward, sight: Sight<'_>) {
    let s = op.shape;
    if s.head_dim == 0 || s.seq == 0 {
        return;
    }
    let rows = |view| Rows::new(ctx.arena, view);
    let (dq, keys) = (rows(&op.dq), s.keys(op.k.rows));
    let Plan { strip, spans: [counters, sums, scratch] } =
        Plan::new(ctx.machine(), (&s, keys), op.dropout.is_some(), dq.is_f32());
    let mut all = ctx.scratch();
    let f = Backward {
        shape: &s,
        sight,
        q: rows(&op.q),
        k: rows(&op.k),
        v: rows(&op.v),
        out: rows(&op.out),
        lse: ctx.f32(&op.lse),
        dout: rows(&op.dout),
        dq,
        dk: rows(&op.dk),
        dv: rows(&op.dv),
        dropout: op.dropout.map(|d| WeightDropout::new(&d, |view| ctx.u32(view))),
        keys,
        strip,
        progress: all.take(counters),
        sums: all.take(sums),
        scratch: all.take(scratch),
    };
    let tiles = s.batch * s.kv_heads * f.strips();
    (0..tiles).for_each(|tile| f.progress(tile).store(0, Ordering::Relaxed));
    #[cfg(target_arch = "x86_64")]
    if amx::takes(ctx.engine, &s) {
        return amx::backward::run(ctx, &f, tiles);
    }
    ctx.pool.run(tiles, &|tile, worker| {
        // SAFETY: the instruction set is available; operands are checked views; scratch is this launch's workspace.
        unsafe { dispatch(ctx.rung, Tile(&f, tile, worker)) }
    });
}
