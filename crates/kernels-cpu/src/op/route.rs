//! Gates of experts: softmax, the k best, their weights, loads and the balance loss. Tokens and sequences are computed each by one
//! thread, so bits depend on no number of threads.
//!
//! Cost: an exponential and k comparisons for each logit forward, a few operations backward; logits of a token stay in a cache.
#![allow(unsafe_code)] // rows by address

use super::tiles::blocks;
use crate::arena::Arena;
use crate::ctx::Ctx;
use crate::operand::{IndexMat, Mat};
use crate::simd::math::exp;
use crate::simd::{Kernel, Simd, dispatch, load_part, store_part};
use bessemer_tensor::TensorError;
use bessemer_tensor::op::{BalanceLoss, CountChoices, Route, RouteBackward, TokenSpan};
use std::ops::Range;

/// Probabilities and log-sum-exps of some tokens.
struct Softmax<'a> {
    logits: &'a Mat,
    probabilities: &'a Mat,
    lse: Option<&'a Mat>,
    tokens: Range<usize>,
}

impl Kernel for Softmax<'_> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Softmax { logits, probabilities, lse, tokens } = self;
        let e = logits.cols;
        for t in tokens {
            let max = (0..e).map(|i| logits.get(t, i)).fold(f32::NEG_INFINITY, f32::max);
            let (z, p, mut total) = (logits.row(t), probabilities.row(t), 0.0);
            for c in (0..e).step_by(S::LANES) {
                let n = S::LANES.min(e - c);
                // SAFETY: columns c .. c + n of row t of both.
                unsafe {
                    let y = exp::<S>(S::sub(load_part::<S>(z.add(c), n), S::splat(max)));
                    store_part::<S>(p.add(c), y, n);
                }
                total += (c..c + n).map(|i| probabilities.get(t, i)).sum::<f32>();
            }
            for c in (0..e).step_by(S::LANES) {
                let n = S::LANES.min(e - c);
                // SAFETY: as above.
                unsafe {
                    let y = S::div(load_part::<S>(p.add(c), n), S::splat(total));
                    store_part::<S>(p.add(c), y, n);
                }
            }
            lse.iter().for_each(|all| all.set(0, t, total.ln() + max));
        }
    }
}

/// Whether expert `a` with logit `x` comes before expert `b` with logit `y`.
fn precedes((a, x): (usize, f32), (b, y): (usize, f32)) -> bool {
    match (x.is_nan(), y.is_nan()) {
        (false, false) => x > y || (x == y && a < b),
        (x_nan, y_nan) => y_nan && (!x_nan || a < b),
    }
}

/// The experts of a token in the order of its choices.
fn choose(logits: &Mat, token: usize, experts: &IndexMat) {
    let mut last: Option<(usize, f32)> = None;
    for s in 0..experts.cols {
        let mut best: Option<(usize, f32)> = None;
        for e in 0..logits.cols {
            let found = (e, logits.get(token, e));
            let left = last.is_none_or(|last| precedes(last, found));
            if left && best.is_none_or(|best| precedes(found, best)) {
                best = Some(found);
            }
        }
        last = best.or(last);
        experts.set(token, s, last.map_or(0, |last| last.0) as u32);
    }
}

pub(crate) fn run(ctx: &Ctx<'_>, op: &Route) {
    let (logits, probabilities, weights) =
        (ctx.f32(&op.logits), ctx.f32(&op.probabilities), ctx.f32(&op.weights));
    let (experts, lse) = (ctx.arena.index_mat(&op.experts), op.lse.map(|lse| ctx.f32(&lse)));
    blocks(ctx, logits.rows, logits.cols, &|block| {
        // A block has whole rows unless a row is longer than a block: then its first part has the row.
        if block.cols.start > 0 {
            return;
        }
        let softmax = Softmax {
            logits: &logits,
            probabilities: &probabilities,
            lse: lse.as_ref(),
            tokens: block.rows.clone(),
        };
        // SAFETY: the rung is available; operands are checked views; blocks are disjoint.
        unsafe { dispatch(ctx.rung, softmax) };
        for t in block.rows {
            choose(&logits, t, &experts);
            let p = |s: usize| probabilities.get(t, experts.get(t, s) as usize);
            let total = if op.renormalise { (0..weights.cols).map(p).sum() } else { 1.0 };
            (0..weights.cols).for_each(|s| weights.set(t, s, p(s) / total));
        }
    });
}

pub(crate) fn reference(arena: &Arena, op: &Route) {
    let (logits, probabilities, weights) =
        (arena.f32(&op.logits), arena.f32(&op.probabilities), arena.f32(&op.weights));
    let (experts, lse) = (arena.index_mat(&op.experts), op.lse.map(|lse| arena.f32(&lse)));
    for t in 0..logits.rows {
        let z: Vec<f64> = (0..logits.cols).map(|e| f64::from(logits.get(t, e))).collect();
        let max = z.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let total: f64 = z.iter().map(|z| (z - max).exp()).sum();
        let p: Vec<f64> = z.iter().map(|z| (z - max).exp() / total).collect();
        p.iter().enumerate().for_each(|(e, p)| probabilities.set(t, e, *p as f32));
        lse.iter().for_each(|all| all.set(0, t, (total.ln() + max) as f32));
        let mut order: Vec<usize> = (0..z.len()).collect();
        order.sort_by(|a, b| match precedes((*a, logits.get(t, *a)), (*b, logits.get(t, *b))) {
            true => std::cmp::Ordering::Less,
            false => std::cmp::Ordering::Greater,
        });
        let chosen = &order[..weights.cols];
        let total: f64 = if op.renormalise { chosen.iter().map(|e| p[*e]).sum() } else { 1.0 };
        for (s, e) in chosen.iter().enumerate() {
            experts.set(t, s, *e as u32);
            weights.set(t, s, (p[*e] / total) as f32);
        }
    }
}

/// Gradient of the logits of one token, in f64.
fn backward_of(op: &RouteBackward, arena: &Arena, t: usize, dp: &mut [f64]) {
    let (p, w, dw) = (arena.f32(&op.probabilities), arena.f32(&op.weights), arena.f32(&op.dweights));
    let (experts, choices) = (arena.index_mat(&op.experts), w.cols);
    let dlogits = arena.f32(&op.dlogits);
    dp.fill(0.0);
    if let Some(balance) = &op.balance {
        let counts = arena.index_mat(&balance.counts);
        let factor = f64::from(arena.f32(&balance.weight).get(0, 1));
        let scale = factor * dp.len() as f64 / (choices * op.span.sequence) as f64;
        let sequence = op.span.sequence_of(t);
        dp.iter_mut().enumerate().for_each(|(e, dp)| *dp = scale * f64::from(counts.get(sequence, e)));
    }
    let expert = |s: usize| experts.get(t, s) as usize;
    let (mean, total) = match op.renormalise {
        true => {
            let terms = (0..choices).map(|s| f64::from(dw.get(t, s)) * f64::from(w.get(t, s)));
            (terms.sum(), (0..choices).map(|s| f64::from(p.get(t, expert(s)))).sum())
        }
        false => (0.0, 1.0),
    };
    for s in 0..choices {
        dp[expert(s)] += (f64::from(dw.get(t, s)) - mean) / total;
    }
    let inner: f64 = dp.iter().enumerate().map(|(e, dp)| f64::from(p.get(t, e)) * dp).sum();
    let z = op.z_loss.map_or(0.0, |(lse, weight)| {
        2.0 * f64::from(arena.f32(&weight).get(0, 1)) * f64::from(arena.f32(&lse).get(0, t))
    });
    for (e, dp) in dp.iter().enumerate() {
        dlogits.set(t, e, (f64::from(p.get(t, e)) * (dp - inner + z)) as f32);
    }
}

/// Floats of a thread's row of f64.
fn row_floats(op: &RouteBackward) -> usize {
    (2 * op.probabilities.cols).next_multiple_of(16)
}

pub(crate) fn backward_workspace(threads: usize, op: &RouteBackward) -> usize {
    threads * row_floats(op)
}

pub(crate) fn backward(ctx: &Ctx<'_>, op: &RouteBackward) -> Result<(), TensorError> {
    let (tokens, e) = (op.probabilities.rows, op.probabilities.cols);
    ctx.arena.index_mat(&op.experts).check("route_backward", "experts", e)?;
    let floats = row_floats(op);
    let rows = ctx.scratch().take(ctx.pool.threads() * floats);
    const TOKENS: usize = 64;
    ctx.pool.run(tokens.div_ceil(TOKENS), &|tile, worker| {
        // SAFETY: each worker has a row of the workspace of its own, aligned to a cache line.
        let dp = unsafe { std::slice::from_raw_parts_mut(rows.at(worker * floats, floats).cast::<f64>(), e) };
        let last = tokens.min((tile + 1) * TOKENS);
        (tile * TOKENS..last).for_each(|t| backward_of(op, ctx.arena, t, dp));
    });
    Ok(())
}

pub(crate) fn backward_reference(arena: &Arena, op: &RouteBackward) -> Result<(), TensorError> {
    arena.index_mat(&op.experts).check("route_backward", "experts", op.probabilities.cols)?;
    let mut dp = vec![0.0; op.probabilities.cols];
    (0..op.probabilities.rows).for_each(|t| backward_of(op, arena, t, &mut dp));
    Ok(())
}

/// Choices of each expert by the tokens of a sequence.
fn count(experts: &IndexMat, counts: &IndexMat, span: TokenSpan, sequence: usize) {
    (0..counts.cols).for_each(|e| counts.set(sequence, e, 0));
    for t in span.tokens_of(sequence, experts.rows) {
        for s in 0..experts.cols {
            let e = experts.get(t, s) as usize;
            counts.set(sequence, e, counts.get(sequence, e) + 1);
        }
    }
}

pub(crate) fn count_choices(ctx: &Ctx<'_>, op: &CountChoices) -> Result<(), TensorError> {
    let (experts, counts) = (ctx.arena.index_mat(&op.experts), ctx.arena.index_mat(&op.counts));
    experts.check("count_choices", "experts", counts.cols)?;
    ctx.pool.run(counts.rows, &|sequence, _| count(&experts, &counts, op.span, sequence));
    Ok(())
}

pub(crate) fn count_choices_reference(arena: &Arena, op: &CountChoices) -> Result<(), TensorError> {
    let (experts, counts) = (arena.index_mat(&op.experts), arena.index_mat(&op.counts));
    experts.check("count_choices", "experts", counts.cols)?;
    (0..counts.rows).for_each(|sequence| count(&experts, &counts, op.span, sequence));
    Ok(())
}

/// The loss of one sequence, summed in f64 in the order of tokens.
fn balance_of(probabilities: &Mat, counts: &IndexMat, op: &BalanceLoss, sequence: usize) -> f32 {
    let of = |t: usize| -> f64 {
        let term = |e: usize| f64::from(counts.get(sequence, e)) * f64::from(probabilities.get(t, e));
        (0..counts.cols).map(term).sum()
    };
    let sum: f64 = op.span.tokens_of(sequence, probabilities.rows).map(of).sum();
    (counts.cols as f64 * sum / (op.choices * op.span.sequence) as f64) as f32
}

pub(crate) fn balance(ctx: &Ctx<'_>, op: &BalanceLoss) {
    let (p, counts, value) =
        (ctx.f32(&op.probabilities), ctx.arena.index_mat(&op.counts), ctx.f32(&op.value));
    ctx.pool.run(counts.rows, &|sequence, _| value.set(0, sequence, balance_of(&p, &counts, op, sequence)));
}

pub(crate) fn balance_reference(arena: &Arena, op: &BalanceLoss) {
    let (p, counts, value) =
        (arena.f32(&op.probabilities), arena.index_mat(&op.counts), arena.f32(&op.value));
    for sequence in 0..counts.rows {
        value.set(0, sequence, balance_of(&p, &counts, op, sequence));
    }
}
