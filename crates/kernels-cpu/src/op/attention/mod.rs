//! Causal attention and its backward pass (Vaswani et al. 2017; tiles, running maxima and recomputation as in Dao et al.
//! 2022, 2023).
//!
//! Forward, for each (b, h) and s <= t: `z = scale q_t . k_s`, `lse_t = log sum_s exp z`, `p = exp(z - lse_t)`,
//! `out_t = sum_s m p v_s`, m the dropout factor or 1. Backward: `D_t = dout_t . out_t`, `dp = m (dout_t . v_s)`,
//! `dz = p (dp - D_t)`, `dq_t = scale sum_s dz k_s`, `dk_s = scale sum_t dz q_t`, `dv_s = sum_t m p dout_t`; dk and dv
//! are summed over the query heads of their group in the order of h.
//!
//! Saved for the backward pass: q, k, v, out, lse. Cost: two products forward, five backward, over the causal half; no
//! T x T matrix is stored.
//!
//! Forward work is cut into (b, g, some blocks of query rows): keys and values of a block are packed once for all query
//! heads of the group. Backward work is cut into (b, g): dk and dv stay in scratch until all query rows were seen.
//!
//! Legend: B sequences, T positions, H query heads, G key/value heads, E head width; t query row, s key row; a block is
//! [`Simd::BLOCK`] rows or columns of scores.
#![allow(unsafe_code)] // packed panels and score blocks by address

pub(crate) mod cached;
mod mask;
pub(crate) mod reference;

use super::dropout::factors;
use crate::Rung;
use crate::ctx::{Ctx, Machine, Span, padded};
use crate::operand::Mat;
use crate::panels::{pack_columns, pack_rows};
use crate::simd::math::exp;
use crate::simd::{Kernel, Simd, dispatch, load_part, store_part};
use bessemer_tensor::TensorError;
use bessemer_tensor::op::{Attention, AttentionBackward, AttentionMask, AttentionShape, DropoutMask};

/// Blocks of query rows that share a packing of keys and values, at most.
const SHARING: usize = 4;
/// Floats of packed queries and of sums that a tile keeps, about, so that they stay in an L2 cache.
const KEPT: usize = 128 << 10;

/// Blocks of query rows that share a packing of keys and values: fewer where many or wide heads share it anyway.
fn sharing(block: usize, s: &AttentionShape) -> usize {
    let each = 2 * (s.heads / s.kv_heads) * block * s.head_dim;
    (KEPT / each.max(1)).clamp(1, SHARING).min(s.seq.div_ceil(block).max(1))
}

/// MR, NR and BLOCK of a rung.
fn sizes(rung: Rung) -> (usize, usize, usize) {
    match rung {
        #[cfg(target_arch = "x86_64")]
        Rung::Avx512 => (14, 32, 112),
        #[cfg(target_arch = "x86_64")]
        Rung::Avx2 => (6, 16, 96),
        _ => (6, 8, 96),
    }
}

/// Vectors of panel `p` of `e` columns: 2, or 1 if the rest fits.
#[inline(always)]
fn vectors<S: Simd>(columns: usize, p: usize) -> usize {
    if columns - p * S::NR > S::LANES { 2 } else { 1 }
}

/// Columns of key block `s0 .. s0 + ns` that query `t` may see, when `past` keys come before the first query.
#[inline(always)]
fn visible(past: usize, t: usize, s0: usize, ns: usize) -> usize {
    (past + t + 1).saturating_sub(s0).min(ns)
}

/// Where the operands of a forward pass are, and which part of it a tile computes.
pub(crate) struct Forward<'a> {
    pub(crate) shape: &'a AttentionShape,
    pub(crate) q: &'a Mat,
    pub(crate) k: &'a Mat,
    pub(crate) v: &'a Mat,
    pub(crate) out: &'a Mat,
    pub(crate) lse: Option<&'a Mat>,
    pub(crate) dropout: Option<DropoutMask>,
    /// Keys before the first query.
    pub(crate) past: usize,
    /// Rows of k and v for each sequence.
    pub(crate) capacity: usize,
    pub(crate) scratch: Span,
}

/// Lengths of the parts of one worker's forward scratch.
struct ForwardParts {
    keys: usize,
    values: usize,
    queries: usize,
    sums: usize,
    rows: usize,
    scores: usize,
}

impl ForwardParts {
    fn new((mr, nr, block): (usize, usize, usize), s: &AttentionShape) -> ForwardParts {
        let e_whole = s.head_dim.next_multiple_of(nr);
        let rows = s.heads / s.kv_heads * sharing(block, s) * block;
        ForwardParts {
            keys: padded(block.next_multiple_of(nr) * s.head_dim),
            values: padded(block * e_whole),
            queries: padded(rows * s.head_dim),
            sums: padded(rows * e_whole),
            rows: padded(rows),
            scores: padded(mr * block + nr),
        }
    }

    fn total(&self) -> usize {
        // Twice `rows`: running maximum and sum. At the end one row of dropout factors.
        self.keys + self.values + self.queries + self.sums + 2 * self.rows + self.scores + padded(256)
    }
}

/// Scratch floats of a forward pass.
pub(crate) fn forward_workspace(machine: Machine, s: &AttentionShape) -> usize {
    machine.threads * ForwardParts::new(sizes(machine.rung), s).total()
}

struct ForwardTile<'a>(&'a Forward<'a>, usize, usize);

impl Kernel for ForwardTile<'_> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let ForwardTile(f, tile, worker) = self;
        let s = f.shape;
        let (e, per_group) = (s.head_dim, s.heads / s.kv_heads);
        let parts = ForwardParts::new((S::MR, S::NR, S::BLOCK), s);
        let base = f.scratch.at(worker * parts.total(), parts.total());
        let share = sharing(S::BLOCK, s);
        let span = share * S::BLOCK;
        let groups = s.batch * s.kv_heads;
        // Late rows see most keys: they go first, so that the short tiles fill the end.
        let strip = s.seq.div_ceil(span) - 1 - tile / groups;
        let (b, g) = (tile % groups / s.kv_heads, tile % groups % s.kv_heads);
        let (t0, t1) = (strip * span, ((strip + 1) * span).min(s.seq));
        let e_panels = e.div_ceil(S::NR);
        // SAFETY: the parts lie inside this worker's scratch; rows and columns inside the operands, whose shapes were
        // checked; out and lse of these rows and heads are written by this tile alone.
        unsafe {
            let keys = base;
            let values = keys.add(parts.keys);
            let queries = values.add(parts.values);
            let sums = queries.add(parts.queries);
            let maxima = sums.add(parts.sums);
            let totals = maxima.add(parts.rows);
            let scores = totals.add(parts.rows);
            let drop = scores.add(parts.scores);
            let q_at = |h: usize, t: usize| f.q.row(b * s.seq + t).add(h * e);
            for h in 0..per_group {
                for t in (t0..t1).step_by(S::BLOCK) {
                    let i = h * share + (t - t0) / S::BLOCK;
                    let rows = S::BLOCK.min(t1 - t);
                    let to = queries.add(i * S::BLOCK * e);
                    pack_rows::<S>(q_at(g * per_group + h, t), f.q.stride, rows, e, S::MR, to);
                    for r in 0..S::BLOCK {
                        *maxima.add(i * S::BLOCK + r) = f32::NEG_INFINITY;
                        *totals.add(i * S::BLOCK + r) = 0.0;
                    }
                }
            }
            let kv_end = f.past + t1;
            for s0 in (0..kv_end).step_by(S::BLOCK) {
                let ns = S::BLOCK.min(kv_end - s0);
                let kv = b * f.capacity + s0;
                pack_rows::<S>(f.k.row(kv).add(g * e), f.k.stride, ns, e, S::NR, keys);
                pack_columns::<S>(f.v.row(kv).add(g * e), f.v.stride, ns, e, S::NR, values);
                for h in 0..per_group {
                    for t in (t0..t1).step_by(S::BLOCK) {
                        let i = h * share + (t - t0) / S::BLOCK;
                        let rows = S::BLOCK.min(t1 - t);
                        let o = sums.add(i * S::BLOCK * e_panels * S::NR);
                        for m in 0..rows.div_ceil(S::MR) {
                            let first = t + m * S::MR;
                            let count = S::MR.min(t1 - first);
                            // Columns that the last of these rows sees.
                            let cols = visible(f.past, first + count - 1, s0, ns);
                            if cols == 0 {
                                continue;
                            }
                            let a = queries.add((i * S::BLOCK + m * S::MR) * e);
                            for p in 0..cols.div_ceil(S::NR) {
                                let c = scores.add(p * S::NR);
                                S::tile_to_block(vectors::<S>(cols, p), e, a, keys.add(p * S::NR * e), c);
                            }
                            let row = i * S::BLOCK + m * S::MR;
                            let alpha = softmax_rows::<S>(
                                scores,
                                // Rows past the end are computed as the last one is, and dropped.
                                |r| visible(f.past, first + r.min(count - 1), s0, ns),
                                cols,
                                s.scale,
                                maxima.add(row),
                                totals.add(row),
                            );
                            let place = o.add(m * e_panels * S::MR * S::NR);
                            if s0 > 0 {
                                scale_rows::<S>(place, e_panels, &alpha);
                            }
                            if let Some(mask) = &f.dropout {
                                for r in 0..count {
                                    let (hh, tt) = (g * per_group + h, first + r);
                                    let e0 = ((b * s.heads + hh) * s.seq + tt) * s.seq + s0;
                                    let seen = visible(f.past, tt, s0, ns);
                                    drop_row::<S>(mask, e0, scores.add(r * S::BLOCK), seen, drop);
                                }
                            }
                            for p in 0..e_panels {
                                S::tile_from_rows(
                                    vectors::<S>(e, p),
                                    cols,
                                    scores,
                                    values.add(p * ns * S::NR),
                                    place.add(p * S::MR * S::NR),
                                    s0 > 0,
                                );
                            }
                        }
                    }
                }
            }
            for h in 0..per_group {
                let head = g * per_group + h;
                for t in t0..t1 {
                    let i = h * share + (t - t0) / S::BLOCK;
                    let r = (t - t0) % S::BLOCK;
                    let row = i * S::BLOCK + r;
                    let total = *totals.add(row);
                    if let Some(lse) = f.lse {
                        *lse.row(b * s.heads + head).add(t) = *maxima.add(row) + total.ln();
                    }
                    let o = sums
                        .add((i * S::BLOCK * e_panels + r / S::MR * S::MR * e_panels + r % S::MR) * S::NR);
                    let inverse = S::splat(1.0 / total);
                    let to = f.out.row(b * s.seq + t).add(head * e);
                    let mut c = 0;
                    while c < e {
                        let from = o.add(c / S::NR * S::MR * S::NR + c % S::NR);
                        let n = S::LANES.min(e - c);
                        store_part::<S>(to.add(c), S::mul(S::load(from), inverse), n);
                        c += S::LANES;
                    }
                }
            }
        }
    }
}

/// More rows than any register tile has.
const ROWS: usize = 16;

/// Turns the raw scores of MR rows, `seen(r)` of them in row r, into exponentials of `scale z - max`, zeros up to `cols`,
/// with running maxima and sums. Returns the factors for what was summed before.
#[inline(always)]
unsafe fn softmax_rows<S: Simd>(
    z: *mut f32,
    seen: impl Fn(usize) -> usize,
    cols: usize,
    scale: f32,
    maxima: *mut f32,
    totals: *mut f32,
) -> [f32; ROWS] {
    // SAFETY: the caller vouches for MR rows of BLOCK scores and MR running values.
    unsafe {
        let (mut tops, mut sums, mut alpha) = ([0.0f32; ROWS], [0.0f32; ROWS], [0.0f32; ROWS]);
        for (r, top) in tops.iter_mut().enumerate().take(S::MR) {
            let (z, seen) = (z.add(r * S::BLOCK), seen(r));
            let mut best = S::splat(f32::NEG_INFINITY);
            for c in (0..seen).step_by(S::LANES) {
                let scaled = S::mul(S::load(z.add(c)), S::splat(scale));
                S::store(z.add(c), scaled);
                let n = seen - c;
                if n < S::LANES {
                    S::store_n(z.add(c + n), S::splat(f32::NEG_INFINITY), S::LANES - n);
                    best = S::max(S::load(z.add(c)), best);
                } else {
                    best = S::max(scaled, best);
                }
            }
            *top = S::hmax(best);
        }
        for r in (0..S::MR).step_by(S::LANES) {
            let n = S::LANES.min(S::MR - r);
            let old = load_part::<S>(maxima.add(r), n);
            let new = S::max(S::load(tops.as_ptr().add(r)), old);
            store_part::<S>(maxima.add(r), new, n);
            S::store(alpha.as_mut_ptr().add(r), exp::<S>(S::sub(old, new)));
        }
        for (r, sum) in sums.iter_mut().enumerate().take(S::MR) {
            let (z, seen) = (z.add(r * S::BLOCK), seen(r));
            let m = S::splat(*maxima.add(r));
            let mut all = S::splat(0.0);
            let mut c = 0;
            while c < seen {
                let p = exp::<S>(S::sub(S::load(z.add(c)), m));
                S::store(z.add(c), p);
                all = S::add(all, p);
                c += S::LANES;
            }
            while c < cols {
                S::store(z.add(c), S::splat(0.0));
                c += S::LANES;
            }
            *sum = S::sum(all);
        }
        for r in (0..S::MR).step_by(S::LANES) {
            let n = S::LANES.min(S::MR - r);
            let before = S::mul(load_part::<S>(totals.add(r), n), S::load(alpha.as_ptr().add(r)));
            store_part::<S>(totals.add(r), S::add(before, S::load(sums.as_ptr().add(r))), n);
        }
        alpha
    }
}

/// Multiplies the rows of a row of register tiles by `alpha`, where that is not 1.
#[inline(always)]
unsafe fn scale_rows<S: Simd>(tiles: *mut f32, panels: usize, alpha: &[f32; ROWS]) {
    for (r, &alpha) in alpha.iter().enumerate().take(S::MR) {
        if alpha == 1.0 {
            continue;
        }
        for p in 0..panels {
            for half in 0..2 {
                // SAFETY: the caller vouches for `panels` register tiles.
                unsafe {
                    let at = tiles.add((p * S::MR + r) * S::NR + half * S::LANES);
                    S::store(at, S::mul(S::load(at), S::splat(alpha)));
                }
            }
        }
    }
}

/// Multiplies `seen` weights by their dropout factors; the first has number `e0`.
#[inline(always)]
unsafe fn drop_row<S: Simd>(mask: &DropoutMask, e0: usize, p: *mut f32, seen: usize, buffer: *mut f32) {
    // SAFETY: the caller vouches for BLOCK weights and 256 floats of buffer, more than BLOCK and its rounding.
    unsafe {
        factors(mask, e0 as u64, seen, buffer);
        let mut c = 0;
        while c < seen {
            let n = S::LANES.min(seen - c);
            let v = S::mul(load_part::<S>(p.add(c), n), load_part::<S>(buffer.add(c), n));
            store_part::<S>(p.add(c), v, n);
            c += S::LANES;
        }
    }
}

/// Runs a forward pass, tile by tile.
pub(crate) fn run_forward(ctx: &Ctx<'_>, f: &Forward<'_>) {
    let s = f.shape;
    let block = sizes(ctx.rung).2;
    let span = block * sharing(block, s);
    if s.head_dim == 0 {
        return;
    }
    ctx.pool.run(s.batch * s.kv_heads * s.seq.div_ceil(span), &|tile, worker| {
        // SAFETY: the rung is available; operands are checked views; scratch is this launch's workspace.
        unsafe { dispatch(ctx.rung, ForwardTile(f, tile, worker)) }
    });
}

pub(crate) fn forward(ctx: &Ctx<'_>, op: &Attention) -> Result<(), TensorError> {
    let s = op.shape;
    if op.mask != AttentionMask::default() {
        return reference::forward(ctx.arena, op);
    }
    run_forward(
        ctx,
        &Forward {
            shape: &s,
            q: &ctx.f32(&op.q),
            k: &ctx.f32(&op.k),
            v: &ctx.f32(&op.v),
            out: &ctx.f32(&op.out),
            lse: Some(&ctx.f32(&op.lse)),
            dropout: op.dropout,
            past: 0,
            capacity: s.seq,
            scratch: ctx.scratch().take(forward_workspace(ctx.machine(), &s)),
        },
    );
    Ok(())
}

/// Lengths of the parts of one worker's backward scratch.
struct BackwardParts {
    /// K and V as rows of a product over e, each.
    rows: usize,
    /// K as columns of a product over s; dk and dv, each.
    columns: usize,
    /// q and dout of a block as rows (MR panels), each.
    block_rows: usize,
    /// q and dout of a block as columns, and dq, each.
    block_columns: usize,
    /// Scores and their gradients, each.
    scores: usize,
}

impl BackwardParts {
    fn new((mr, nr, block): (usize, usize, usize), s: &AttentionShape) -> BackwardParts {
        let (e, e_whole) = (s.head_dim, s.head_dim.next_multiple_of(nr));
        let blocks = s.seq.div_ceil(block);
        BackwardParts {
            rows: padded(blocks * block.next_multiple_of(nr) * e),
            columns: padded(blocks * block * e_whole),
            block_rows: padded(block.next_multiple_of(mr) * e),
            block_columns: padded(block * e_whole),
            scores: padded(block * block + nr),
        }
    }

    fn total(&self) -> usize {
        2 * self.rows
            + 3 * self.columns
            + 2 * self.block_rows
            + 3 * self.block_columns
            + 2 * self.scores
            + padded(256)
    }
}

/// Scratch floats of a backward pass.
pub(crate) fn backward_workspace(machine: Machine, s: &AttentionShape) -> usize {
    machine.threads * BackwardParts::new(sizes(machine.rung), s).total()
}

struct Backward<'a> {
    shape: &'a AttentionShape,
    q: Mat,
    k: Mat,
    v: Mat,
    out: Mat,
    lse: Mat,
    dout: Mat,
    dq: Mat,
    dk: Mat,
    dv: Mat,
    dropout: Option<DropoutMask>,
    scratch: Span,
}

struct BackwardTile<'a>(&'a Backward<'a>, usize, usize);

impl Kernel for BackwardTile<'_> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let BackwardTile(f, tile, worker) = self;
        let s = f.shape;
        let (e, per_group, seq) = (s.head_dim, s.heads / s.kv_heads, s.seq);
        let (b, g) = (tile / s.kv_heads, tile % s.kv_heads);
        let parts = BackwardParts::new((S::MR, S::NR, S::BLOCK), s);
        let base = f.scratch.at(worker * parts.total(), parts.total());
        let e_panels = e.div_ceil(S::NR);
        let (row_block, column_block) = (S::BLOCK.next_multiple_of(S::NR) * e, S::BLOCK * e_panels * S::NR);
        // SAFETY: the parts lie inside this worker's scratch; rows and columns inside the operands, whose shapes were
        // checked; the gradients of this sequence and group are written by this tile alone.
        unsafe {
            let k_rows = base;
            let v_rows = k_rows.add(parts.rows);
            let k_columns = v_rows.add(parts.rows);
            let dk = k_columns.add(parts.columns);
            let dv = dk.add(parts.columns);
            let q_rows = dv.add(parts.columns);
            let d_rows = q_rows.add(parts.block_rows);
            let q_columns = d_rows.add(parts.block_rows);
            let d_columns = q_columns.add(parts.block_columns);
            let dq = d_columns.add(parts.block_columns);
            let p = dq.add(parts.block_columns);
            let dz = p.add(parts.scores);
            let drop = dz.add(parts.scores);
            std::ptr::write_bytes(dk, 0, 2 * parts.columns);
            for (j, s0) in (0..seq).step_by(S::BLOCK).enumerate() {
                let ns = S::BLOCK.min(seq - s0);
                let (k, v) = (f.k.row(b * seq + s0).add(g * e), f.v.row(b * seq + s0).add(g * e));
                pack_rows::<S>(k, f.k.stride, ns, e, S::NR, k_rows.add(j * row_block));
                pack_rows::<S>(v, f.v.stride, ns, e, S::NR, v_rows.add(j * row_block));
                pack_columns::<S>(k, f.k.stride, ns, e, S::NR, k_columns.add(j * column_block));
            }
            for h in g * per_group..(g + 1) * per_group {
                for t0 in (0..seq).step_by(S::BLOCK) {
                    let nt = S::BLOCK.min(seq - t0);
                    let at = |m: &Mat| m.row(b * seq + t0).add(h * e);
                    pack_rows::<S>(at(&f.q), f.q.stride, nt, e, S::MR, q_rows);
                    pack_rows::<S>(at(&f.dout), f.dout.stride, nt, e, S::MR, d_rows);
                    pack_columns::<S>(at(&f.q), f.q.stride, nt, e, S::NR, q_columns);
                    pack_columns::<S>(at(&f.dout), f.dout.stride, nt, e, S::NR, d_columns);
                    for (j, s0) in (0..t0 + nt).step_by(S::BLOCK).enumerate() {
                        let ns = S::BLOCK.min(seq - s0);
                        for m in 0..nt.div_ceil(S::MR) {
                            let first = t0 + m * S::MR;
                            let count = S::MR.min(t0 + nt - first);
                            let cols = visible(0, first + count - 1, s0, ns);
                            let (zc, dc) = (p.add(m * S::MR * S::BLOCK), dz.add(m * S::MR * S::BLOCK));
                            for n in 0..cols.div_ceil(S::NR) {
                                let (vs, panel) = (vectors::<S>(cols, n), n * S::NR * e);
                                let a = m * S::MR * e;
                                let (kb, vb) = (k_rows.add(j * row_block), v_rows.add(j * row_block));
                                S::tile_to_block(vs, e, q_rows.add(a), kb.add(panel), zc.add(n * S::NR));
                                S::tile_to_block(vs, e, d_rows.add(a), vb.add(panel), dc.add(n * S::NR));
                            }
                            for r in 0..S::MR {
                                let (zr, dr) = (zc.add(r * S::BLOCK), dc.add(r * S::BLOCK));
                                let t = first + r;
                                // Rows past the end count for nothing.
                                let seen = if r < count { visible(0, t, s0, ns) } else { 0 };
                                if seen > 0 {
                                    let row = b * seq + t;
                                    let d =
                                        dot::<S>(f.dout.row(row).add(h * e), f.out.row(row).add(h * e), e);
                                    let lse = *f.lse.row(b * s.heads + h).add(t);
                                    let masked = f.dropout.as_ref().map(|mask| {
                                        let e0 = ((b * s.heads + h) * seq + t) * seq + s0;
                                        factors(mask, e0 as u64, seen, drop);
                                        drop.cast_const()
                                    });
                                    gradient_row::<S>(zr, dr, seen, s.scale, lse, d, masked);
                                }
                                // The products below read whole panels of rows and of columns.
                                let mut c = seen;
                                let end = (cols.next_multiple_of(S::MR)).max(cols.next_multiple_of(S::LANES));
                                let end = end.min(S::BLOCK);
                                while c < end {
                                    let n = S::LANES.min(end - c);
                                    S::store_n(zr.add(c), S::splat(0.0), n);
                                    S::store_n(dr.add(c), S::splat(0.0), n);
                                    c += n;
                                }
                            }
                            for n in 0..e_panels {
                                S::tile_from_rows(
                                    vectors::<S>(e, n),
                                    cols,
                                    dc,
                                    k_columns.add(j * column_block + n * ns * S::NR),
                                    dq.add((m * e_panels + n) * S::MR * S::NR),
                                    j > 0,
                                );
                            }
                        }
                        for m in 0..ns.div_ceil(S::MR) {
                            // Query rows before the first of these keys do not see them.
                            let skip = (s0 + m * S::MR).saturating_sub(t0);
                            if skip >= nt {
                                break;
                            }
                            let from = skip * S::BLOCK + m * S::MR;
                            for n in 0..e_panels {
                                let c = j * column_block + (m * e_panels + n) * S::MR * S::NR;
                                let (vs, panel) = (vectors::<S>(e, n), (n * nt + skip) * S::NR);
                                S::tile_from_columns(
                                    vs,
                                    nt - skip,
                                    p.add(from),
                                    d_columns.add(panel),
                                    dv.add(c),
                                );
                                S::tile_from_columns(
                                    vs,
                                    nt - skip,
                                    dz.add(from),
                                    q_columns.add(panel),
                                    dk.add(c),
                                );
                            }
                        }
                    }
                    unpack::<S>(dq, nt, e, at(&f.dq), f.dq.stride);
                }
            }
            for (j, s0) in (0..seq).step_by(S::BLOCK).enumerate() {
                let ns = S::BLOCK.min(seq - s0);
                let at = |m: &Mat| m.row(b * seq + s0).add(g * e);
                unpack::<S>(dk.add(j * column_block), ns, e, at(&f.dk), f.dk.stride);
                unpack::<S>(dv.add(j * column_block), ns, e, at(&f.dv), f.dv.stride);
            }
        }
    }
}

/// Raw scores and products `dout . v` of a row become `m p` and `scale dz`.
#[inline(always)]
unsafe fn gradient_row<S: Simd>(
    z: *mut f32,
    dp: *mut f32,
    seen: usize,
    scale: f32,
    lse: f32,
    d: f32,
    masked: Option<*const f32>,
) {
    let mut c = 0;
    while c < seen {
        let n = S::LANES.min(seen - c);
        // SAFETY: the caller vouches for rows of BLOCK scores, and as many factors.
        unsafe {
            let w = exp::<S>(S::sub(S::mul(S::load(z.add(c)), S::splat(scale)), S::splat(lse)));
            let mut g = S::load(dp.add(c));
            let mut kept = w;
            if let Some(factors) = masked {
                let m = load_part::<S>(factors.add(c), n);
                g = S::mul(g, m);
                kept = S::mul(w, m);
            }
            store_part::<S>(z.add(c), kept, n);
            store_part::<S>(dp.add(c), S::mul(S::mul(w, S::sub(g, S::splat(d))), S::splat(scale)), n);
        }
        c += S::LANES;
    }
}

#[inline(always)]
pub(super) unsafe fn dot<S: Simd>(a: *const f32, b: *const f32, len: usize) -> f32 {
    // SAFETY: the caller vouches for `len` elements of both.
    unsafe {
        let mut acc = S::splat(0.0);
        let mut c = 0;
        while c < len {
            let n = S::LANES.min(len - c);
            acc = S::fma(load_part::<S>(a.add(c), n), load_part::<S>(b.add(c), n), acc);
            c += S::LANES;
        }
        S::sum(acc)
    }
}

/// Writes `[rows, e]` from register tiles `[row panel][column panel][MR][NR]`.
#[inline(always)]
unsafe fn unpack<S: Simd>(tiles: *const f32, rows: usize, e: usize, to: *mut f32, ld: usize) {
    let e_panels = e.div_ceil(S::NR);
    for r in 0..rows {
        let mut c = 0;
        while c < e {
            let from = (r / S::MR * e_panels + c / S::NR) * S::MR * S::NR + r % S::MR * S::NR + c % S::NR;
            // SAFETY: element (r, c) of the tiles and of the destination.
            unsafe { store_part::<S>(to.add(r * ld + c), S::load(tiles.add(from)), S::LANES.min(e - c)) };
            c += S::LANES;
        }
    }
}

pub(crate) fn backward(ctx: &Ctx<'_>, op: &AttentionBackward) -> Result<(), TensorError> {
    let s = op.shape;
    if op.mask != AttentionMask::default() {
        return reference::backward(ctx.arena, op);
    }
    if s.head_dim == 0 || s.seq == 0 {
        return Ok(());
    }
    let f = Backward {
        shape: &s,
        q: ctx.f32(&op.q),
        k: ctx.f32(&op.k),
        v: ctx.f32(&op.v),
        out: ctx.f32(&op.out),
        lse: ctx.f32(&op.lse),
        dout: ctx.f32(&op.dout),
        dq: ctx.f32(&op.dq),
        dk: ctx.f32(&op.dk),
        dv: ctx.f32(&op.dv),
        dropout: op.dropout,
        scratch: ctx.scratch().take(backward_workspace(ctx.machine(), &s)),
    };
    ctx.pool.run(s.batch * s.kv_heads, &|tile, worker| {
        // SAFETY: the rung is available; operands are checked views; scratch is this launch's workspace.
        unsafe { dispatch(ctx.rung, BackwardTile(&f, tile, worker)) }
    });
    Ok(())
}
