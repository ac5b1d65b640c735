//! Attention of new positions to a cache (decoding): query i of sequence b reads cache rows
//! `b capacity .. b capacity + past + i + 1`, or the last of them within the window. No backward pass.
//! With slots ([`AttentionSlots`]) each row is the next position of a sequence of its own, and is appended first.
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
use bessemer_tensor::TensorError;
use bessemer_tensor::op::{Alibi, AttentionCached, AttentionShape, AttentionSlots};

/// New positions from which copies are worth it.
const MANY: usize = 8;

/// More lanes than any instruction set has: whole vectors of scores are read.
const LANES_MOST: usize = 16;

pub(crate) fn workspace(machine: Machine, op: &AttentionCached) -> usize {
    if op.shape.seq >= MANY {
        return forward::workspace(machine, &op.shape, false);
    }
    machine.threads * scores_len(op.past + op.shape.seq)
}

pub(crate) fn slots_workspace(machine: Machine, op: &AttentionSlots) -> usize {
    machine.threads * scores_len(op.capacity)
}

/// Floats for the scores of a query that sees so many keys.
fn scores_len(keys: usize) -> usize {
    padded(keys + LANES_MOST)
}

/// One query head of one row.
struct Head<'a> {
    shape: &'a AttentionShape,
    alibi: Option<Alibi>,
    q: &'a Mat,
    k: &'a Mat,
    v: &'a Mat,
    out: &'a Mat,
    scores: *mut f32,
    row: usize,
    h: usize,
    /// Cache rows that the query sees: the last of them is its own position.
    first: usize,
    len: usize,
}

impl Kernel for Head<'_> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Head { shape: s, row, h, first: cache, len, .. } = self;
        let (e, g) = (s.head_dim, h / (s.heads / s.kv_heads));
        let (z, slope) = (self.scores, self.alibi.map_or(0.0, |a| a.slope(h)));
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
    let (each, sight) = (scores_len(op.past + s.seq), Sight::cached(op));
    ctx.pool.run(s.batch * s.seq * s.heads, &|tile, worker| {
        let scores = scratch.at(worker * each, each);
        let (row, h) = (tile / s.heads, tile % s.heads);
        let (b, t) = (row / s.seq, row % s.seq);
        let seen = sight.first(b, t);
        let (first, len) = (b * op.capacity + seen, sight.position(t) + 1 - seen);
        let (shape, alibi) = (&op.shape, op.alibi);
        let head = Head { shape, alibi, q: &q, k: &k, v: &v, out: &out, scores, row, h, first, len };
        // SAFETY: the instruction set is available; operands are checked views; each worker has scores of its own.
        unsafe { dispatch(ctx.rung, head) }
    });
}

/// Cache rows of a row of [`AttentionSlots`].
#[derive(Clone, Copy)]
pub(super) struct Place {
    /// First cache row that it sees.
    pub(super) first: usize,
    /// Cache row of its own position.
    pub(super) own: usize,
}

/// Returns the place of row `row`.
pub(super) fn place(op: &AttentionSlots, places: &[u32], row: usize) -> Place {
    let at = row * AttentionSlots::PLACE;
    let [slot, start, position] = [places[at], places[at + 1], places[at + 2]].map(|x| x as usize);
    let first = start.max((position + 1).saturating_sub(op.window.unwrap_or(usize::MAX)));
    Place { first: slot * op.capacity + first, own: slot * op.capacity + position }
}

/// Errors unless every row has a slot of the cache and a position in it, and sees no later position.
pub(super) fn check_places(op: &AttentionSlots, places: &[u32]) -> Result<(), TensorError> {
    for (row, place) in places.chunks_exact(AttentionSlots::PLACE).enumerate() {
        let [slot, start, position] = [place[0], place[1], place[2]].map(|x| x as usize);
        if slot >= op.slots() || position >= op.capacity || start > position {
            return Err(TensorError::Shape {
                op: "attention_slots",
                operand: "places",
                wanted: format!(
                    "slot, first visible position and position in {} slots of {} positions",
                    op.slots(),
                    op.capacity
                ),
                found: format!("{slot}, {start} and {position} in row {row}"),
            });
        }
    }
    Ok(())
}

pub(crate) fn run_slots(ctx: &Ctx<'_>, op: &AttentionSlots) -> Result<(), TensorError> {
    let s = op.shape;
    let places = ctx.u32(&op.places).0;
    check_places(op, places)?;
    let scratch: Span = ctx.scratch().take(slots_workspace(ctx.machine(), op));
    let [q, k, v, out] = [&op.q, &op.k, &op.v, &op.out].map(|view| ctx.f32(view));
    let [keys, values] = [&op.k_cache, &op.v_cache].map(|view| ctx.f32(view));
    for row in 0..s.batch {
        let Place { own, .. } = place(op, places, row);
        for (new, cache) in [(&k, &keys), (&v, &values)] {
            // SAFETY: rows of equal length (checked shapes) of two operands that do not overlap (checked); nothing else runs.
            unsafe { std::ptr::copy_nonoverlapping(new.row(row), cache.row(own), new.cols) };
        }
    }
    let each = scores_len(op.capacity);
    ctx.pool.run(s.batch * s.heads, &|tile, worker| {
        let scores = scratch.at(worker * each, each);
        let (row, h) = (tile / s.heads, tile % s.heads);
        let Place { first, own } = place(op, places, row);
        let (shape, alibi, len) = (&op.shape, op.alibi, own + 1 - first);
        let head = Head { shape, alibi, q: &q, k: &keys, v: &values, out: &out, scores, row, h, first, len };
        // SAFETY: the instruction set is available; operands are checked views; each worker has scores of its own.
        unsafe { dispatch(ctx.rung, head) }
    });
    Ok(())
}
