//! Attention of new positions to a cache (decoding): query i of sequence b reads cache rows
//! `b capacity .. b capacity + past + i + 1`, or the last of them within the window. No backward pass.
//!
//! Many new positions (a prompt) are computed as [`super`] computes them; a few by one pass over the keys and one over the
//! values, without copies. Cost: one read of the cache for each query head.
#![allow(unsafe_code)] // rows by address

use super::forward::{self, Forward};
use super::mask::Sight;
use super::rows::{Rows, dot};
use crate::ctx::{Ctx, Machine, Span, padded};
use crate::operand::Mat;
use crate::simd::math::exp;
use crate::simd::{Kernel, Simd, dispatch, load_part, store_part};
use bessemer_tensor::op::AttentionCached;

/// New positions from which copies are worth it.
const MANY: usize = 8;

/// More lanes than any rung has: whole vectors of scores are read.
const LANES_MOST: usize = 16;

pub(crate) fn workspace(machine: Machine, op: &AttentionCached) -> usize {
    if op.shape.seq >= MANY {
        return forward::workspace(machine, &op.shape, false);
    }
    machine.threads * padded(op.past + op.shape.seq + LANES_MOST)
}

struct Head<'a> {
    op: &'a AttentionCached,
    q: &'a Mat,
    k: &'a Mat,
    v: &'a Mat,
    out: &'a Mat,
    scores: *mut f32,
    tile: usize,
}

impl Kernel for Head<'_> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (s, sight) = (&self.op.shape, Sight::cached(self.op));
        let (e, row, h) = (s.head_dim, self.tile / s.heads, self.tile % s.heads);
        let (b, t, g) = (row / s.seq, row % s.seq, h / (s.heads / s.kv_heads));
        let first = sight.first(b, t);
        let (cache, len) = (b * self.op.capacity + first, sight.position(t) + 1 - first);
        let (z, slope) = (self.scores, sight.slope(h));
        // SAFETY: cache rows cache .. cache + len and columns of group g exist (checked shapes); `z` holds `len` scores
        // rounded up to whole vectors; only this tile writes columns of head h of this row.
        unsafe {
            let q = self.q.row(row).add(h * e);
            let mut max = f32::NEG_INFINITY;
            for j in 0..len {
                let away = (len - 1 - j) as f32;
                let x = s.scale * dot::<S, f32>(q, self.k.row(cache + j).add(g * e), e) - slope * away;
                *z.add(j) = x;
                max = if x > max { x } else { max };
            }
            S::store_n(z.add(len), S::splat(f32::NEG_INFINITY), len.next_multiple_of(S::LANES) - len);
            let mut total = S::splat(0.0);
            for j in (0..len).step_by(S::LANES) {
                let p = exp::<S>(S::sub(S::load(z.add(j)), S::splat(max)));
                S::store(z.add(j), p);
                total = S::add(total, p);
            }
            let inverse = 1.0 / S::sum(total);
            let out = self.out.row(row).add(h * e);
            for c in (0..e).step_by(S::LANES) {
                let n = S::LANES.min(e - c);
                let mut acc = S::splat(0.0);
                for j in 0..len {
                    let v = load_part::<S>(self.v.row(cache + j).add(g * e + c), n);
                    acc = S::fma(S::splat(*z.add(j)), v, acc);
                }
                store_part::<S>(out.add(c), S::mul(acc, S::splat(inverse)), n);
            }
        }
    }
}

pub(crate) fn run(ctx: &Ctx<'_>, op: &AttentionCached) {
    let s = op.shape;
    let scratch: Span = ctx.scratch().take(workspace(ctx.machine(), op));
    if s.seq >= MANY {
        let rows = |view| Rows::new(ctx.arena, view);
        let forward = Forward {
            shape: &s,
            sight: Sight::cached(op),
            q: rows(&op.q),
            k: rows(&op.k_cache),
            v: rows(&op.v_cache),
            out: rows(&op.out),
            lse: None,
            dropout: None,
            capacity: op.capacity,
            scratch,
        };
        return forward::run(ctx, &forward);
    }
    let (q, k, v, out) = (ctx.f32(&op.q), ctx.f32(&op.k_cache), ctx.f32(&op.v_cache), ctx.f32(&op.out));
    let each = padded(op.past + s.seq + LANES_MOST);
    ctx.pool.run(s.batch * s.seq * s.heads, &|tile, worker| {
        let scores = scratch.at(worker * each, each);
        let head = Head { op, q: &q, k: &k, v: &v, out: &out, scores, tile };
        // SAFETY: the rung is available; operands are checked views; each worker has scores of its own.
        unsafe { dispatch(ctx.rung, head) }
    });
}
