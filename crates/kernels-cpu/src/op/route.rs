//! Gates of experts: scores, the k best, their weights, loads and the balance loss. Tokens and sequences are computed each by one
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
use bessemer_tensor::View;
use bessemer_tensor::op::{BalanceLoss, CountChoices, Gate, Route, RouteBackward, Score, TokenSpan};
use bessemer_units::DType;
use std::ops::Range;

/// Least sum by which weights are divided: sigmoids may all be 0.
const LEAST: f32 = 1e-20;

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

/// Sigmoids of the logits of some tokens, from `exp(-|z|)`, which cannot overflow.
struct Sigmoid<'a> {
    logits: &'a Mat,
    scores: &'a Mat,
    tokens: Range<usize>,
}

/// Sigmoid of z from `small = exp(-|z|)`.
fn sigmoid(z: f32, small: f32) -> f32 {
    if z < 0.0 { small / (1.0 + small) } else { 1.0 / (1.0 + small) }
}

impl Kernel for Sigmoid<'_> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Sigmoid { logits, scores, tokens } = self;
        let e = logits.cols;
        for t in tokens {
            (0..e).for_each(|i| scores.set(t, i, -logits.get(t, i).abs()));
            let s = scores.row(t);
            for c in (0..e).step_by(S::LANES) {
                let n = S::LANES.min(e - c);
                // SAFETY: columns c .. c + n of row t.
                unsafe { store_part::<S>(s.add(c), exp::<S>(load_part::<S>(s.add(c), n)), n) };
            }
            (0..e).for_each(|i| {
                let z = logits.get(t, i);
                scores.set(t, i, if z.is_nan() { z } else { sigmoid(z, scores.get(t, i)) });
            });
        }
    }
}

/// Whether expert `a` with key `x` comes before expert `b` with key `y`.
pub(super) fn precedes((a, x): (usize, f32), (b, y): (usize, f32)) -> bool {
    match (x.is_nan(), y.is_nan()) {
        (false, false) => x > y || (x == y && a < b),
        (x_nan, y_nan) => y_nan && (!x_nan || a < b),
    }
}

/// Groups among which a token may choose, a bit each: those with the largest sums of their two largest keys. All of one group.
fn kept_groups(gate: &Gate, count: usize, key: impl Fn(usize) -> f32) -> u64 {
    if gate.kept == gate.groups {
        return u64::MAX;
    }
    let each = count / gate.groups;
    let mut sums = [0.0; Gate::GROUPS];
    for (group, sum) in sums[..gate.groups].iter_mut().enumerate() {
        let mut best = [f32::NEG_INFINITY; 2];
        for key in (group * each..(group + 1) * each).map(&key) {
            if key > best[0] {
                best = [key, best[0]];
            } else if key > best[1] {
                best[1] = key;
            }
        }
        *sum = best.into_iter().take(each).sum();
    }
    let sums = &sums[..gate.groups];
    let before = |group: usize| {
        let precedes = |other: &usize| precedes((*other, sums[*other]), (group, sums[group]));
        (0..sums.len()).filter(precedes).count()
    };
    (0..sums.len()).filter(|group| before(*group) < gate.kept).fold(0, |bits, group| bits | 1 << group)
}

/// The experts of a token in the order of its choices, among those of the groups whose bits are set.
fn choose(
    key: impl Fn(usize) -> f32,
    (count, groups, kept): (usize, usize, u64),
    token: usize,
    experts: &IndexMat,
) {
    let mut last: Option<(usize, f32)> = None;
    for s in 0..experts.cols {
        let mut best: Option<(usize, f32)> = None;
        for e in 0..count {
            if groups > 1 && kept >> (e * groups / count) & 1 == 0 {
                continue;
            }
            let found = (e, key(e));
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
    let (bias, preferred) = (op.bias.map(|b| ctx.f32(&b)), op.preferred.map(|p| ctx.arena.index_mat(&p)));
    let gate = op.gate;
    // With softmax scores alone the logits have the same order, without ties that rounding makes.
    let by_logits = gate.score == Score::Softmax && bias.is_none() && gate.groups == gate.kept;
    let (count, all) = (logits.cols, u64::MAX);
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
        let sigmoids = Sigmoid { logits: &logits, scores: &probabilities, tokens: block.rows.clone() };
        // SAFETY: the instruction set is available; operands are checked views; blocks are disjoint.
        unsafe {
            match gate.score {
                Score::Softmax => dispatch(ctx.rung, softmax),
                Score::Sigmoid => dispatch(ctx.rung, sigmoids),
            }
        }
        for t in block.rows {
            let score = |e: usize| probabilities.get(t, e);
            match by_logits {
                true => choose(|e| logits.get(t, e), (count, 1, all), t, &experts),
                false => {
                    let key = |e: usize| score(e) + bias.as_ref().map_or(0.0, |bias| bias.get(0, e));
                    let kept = kept_groups(&gate, count, key);
                    choose(key, (count, gate.groups, kept), t, &experts);
                }
            }
            if let Some(preferred) = &preferred {
                choose(score, (count, 1, all), t, preferred);
            }
            let p = |s: usize| score(experts.get(t, s) as usize);
            let total = if gate.renormalise { (0..weights.cols).map(p).sum::<f32>().max(LEAST) } else { 1.0 };
            (0..weights.cols).for_each(|s| weights.set(t, s, gate.scale * (p(s) / total)));
        }
    });
}

pub(crate) fn reference(arena: &Arena, op: &Route) {
    let (logits, probabilities, weights) =
        (arena.f32(&op.logits), arena.f32(&op.probabilities), arena.f32(&op.weights));
    let (experts, lse) = (arena.index_mat(&op.experts), op.lse.map(|lse| arena.f32(&lse)));
    let gate = op.gate;
    for t in 0..logits.rows {
        let z: Vec<f64> = (0..logits.cols).map(|e| f64::from(logits.get(t, e))).collect();
        let max = z.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let total: f64 = z.iter().map(|z| (z - max).exp()).sum();
        let score = |z: &f64| match gate.score {
            Score::Softmax => (z - max).exp() / total,
            Score::Sigmoid => 1.0 / (1.0 + (-z).exp()),
        };
        let p: Vec<f64> = z.iter().map(score).collect();
        p.iter().enumerate().for_each(|(e, p)| probabilities.set(t, e, *p as f32));
        lse.iter().for_each(|all| all.set(0, t, (total.ln() + max) as f32));
        let sorted = |of: &[f32], mut list: Vec<usize>| {
            list.sort_by(|a, b| match precedes((*a, of[*a]), (*b, of[*b])) {
                true => std::cmp::Ordering::Less,
                false => std::cmp::Ordering::Greater,
            });
            list
        };
        let scores: Vec<f32> = p.iter().map(|p| *p as f32).collect();
        let keys: Vec<f32> = match (gate.score, op.bias, gate.groups == gate.kept) {
            (Score::Softmax, None, true) => (0..z.len()).map(|e| logits.get(t, e)).collect(),
            (_, bias, _) => {
                let bias = |e: usize| bias.map_or(0.0, |bias| arena.f32(&bias).get(0, e));
                scores.iter().enumerate().map(|(e, s)| s + bias(e)).collect()
            }
        };
        let each = z.len() / gate.groups;
        let group_sums: Vec<f32> = (0..gate.groups)
            .map(|g| {
                sorted(&keys, (g * each..(g + 1) * each).collect()).iter().take(2).map(|e| keys[*e]).sum()
            })
            .collect();
        let groups = sorted(&group_sums, (0..gate.groups).collect());
        let open = |e: &usize| groups[..gate.kept].contains(&(e / each));
        let order = sorted(&keys, (0..z.len()).filter(open).collect());
        let chosen = &order[..weights.cols];
        let total: f64 = match gate.renormalise {
            true => chosen.iter().map(|e| p[*e]).sum::<f64>().max(f64::from(LEAST)),
            false => 1.0,
        };
        for (s, e) in chosen.iter().enumerate() {
            experts.set(t, s, *e as u32);
            weights.set(t, s, (f64::from(gate.scale) * p[*e] / total) as f32);
        }
        if let Some(preferred) = op.preferred.map(|p| arena.index_mat(&p)) {
            let order = sorted(&scores, (0..z.len()).collect());
            order.iter().take(preferred.cols).enumerate().for_each(|(s, e)| preferred.set(t, s, *e as u32));
        }
    }
}

/// Loads of the experts for a row of counts, or of loads, each times `factor`.
fn loads<'a>(
    arena: &Arena,
    counts: &View,
    (row, per_count, factor): (usize, f64, f64),
) -> impl Fn(usize) -> f64 + use<'a> {
    let of_counts = (counts.dtype() == DType::U32).then(|| arena.index_mat(counts));
    let of_loads = (counts.dtype() == DType::F32).then(|| arena.f32(counts));
    move |e| {
        let count = of_counts.as_ref().map(|counts| per_count * f64::from(counts.get(row, e)));
        let load = of_loads.as_ref().map(|loads| f64::from(loads.get(row, e)));
        factor * count.or(load).unwrap_or(0.0)
    }
}

/// Load for each count of a sequence: 1 is the mean.
fn load_of_a_count(experts: usize, choices: usize, span: TokenSpan) -> f64 {
    experts as f64 / (choices * span.sequence) as f64
}

/// Gradient of the logits of one token, in f64.
fn backward_of(op: &RouteBackward, arena: &Arena, t: usize, dp: &mut [f64]) {
    let (p, w, dw) = (arena.f32(&op.probabilities), arena.f32(&op.weights), arena.f32(&op.dweights));
    let (experts, choices) = (arena.index_mat(&op.experts), w.cols);
    let dlogits = arena.f32(&op.dlogits);
    dp.fill(0.0);
    let score = |e: usize| f64::from(p.get(t, e));
    if let Some(balance) = &op.balance {
        let factor = f64::from(arena.f32(&balance.weight).get(0, 1));
        let per_count = load_of_a_count(dp.len(), choices, op.span);
        let row = if balance.counts.dtype() == DType::U32 { op.span.sequence_of(t) } else { 0 };
        let load = loads(arena, &balance.counts, (row, per_count, factor));
        dp.iter_mut().enumerate().for_each(|(e, dp)| *dp = load(e));
        if op.gate.score == Score::Sigmoid {
            // Of shares of the sum of all scores.
            let total: f64 = (0..dp.len()).map(score).sum();
            let inner: f64 = dp.iter().enumerate().map(|(e, dp)| score(e) * dp).sum();
            dp.iter_mut().for_each(|dp| *dp = (*dp - inner / total) / total);
        }
    }
    let expert = |s: usize| experts.get(t, s) as usize;
    let (mean, total) = match op.gate.renormalise {
        true => {
            let terms = (0..choices).map(|s| f64::from(dw.get(t, s)) * f64::from(w.get(t, s)));
            let total: f64 = (0..choices).map(|s| score(expert(s))).sum();
            (terms.sum(), total.max(f64::from(LEAST)))
        }
        false => (0.0, 1.0),
    };
    for s in 0..choices {
        dp[expert(s)] += (f64::from(op.gate.scale) * f64::from(dw.get(t, s)) - mean) / total;
    }
    if op.gate.score == Score::Sigmoid {
        for (e, dp) in dp.iter().enumerate() {
            dlogits.set(t, e, (dp * score(e) * (1.0 - score(e))) as f32);
        }
        return;
    }
    let inner: f64 = dp.iter().enumerate().map(|(e, dp)| score(e) * dp).sum();
    let z = op.z_loss.map_or(0.0, |(lse, weight)| {
        2.0 * f64::from(arena.f32(&weight).get(0, 1)) * f64::from(arena.f32(&lse).get(0, t))
    });
    for (e, dp) in dp.iter().enumerate() {
        dlogits.set(t, e, (score(e) * (dp - inner + z)) as f32);
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

/// The loss of one sequence, or of all tokens by given loads, summed in f64 in the order of tokens.
fn balance_of(arena: &Arena, op: &BalanceLoss, sequence: usize) -> f32 {
    let (p, experts) = (arena.f32(&op.probabilities), op.counts.cols);
    let by_counts = op.counts.dtype() == DType::U32;
    // The factor of all terms of counts follows their sum.
    let load = loads(arena, &op.counts, (sequence, 1.0, 1.0));
    let of = |t: usize| -> f64 {
        let score = |e: usize| f64::from(p.get(t, e));
        let sum: f64 = (0..experts).map(|e| load(e) * score(e)).sum();
        if op.normalise { sum / (0..experts).map(score).sum::<f64>() } else { sum }
    };
    let tokens = if by_counts { op.span.tokens_of(sequence, p.rows) } else { 0..p.rows };
    let sum: f64 = tokens.map(of).sum();
    match by_counts {
        true => (experts as f64 * sum / (op.choices * op.span.sequence) as f64) as f32,
        false => sum as f32,
    }
}

pub(crate) fn balance(ctx: &Ctx<'_>, op: &BalanceLoss) {
    let value = ctx.f32(&op.value);
    ctx.pool.run(op.counts.rows, &|sequence, _| value.set(0, sequence, balance_of(ctx.arena, op, sequence)));
}

pub(crate) fn balance_reference(arena: &Arena, op: &BalanceLoss) {
    let value = arena.f32(&op.value);
    (0..op.counts.rows).for_each(|sequence| value.set(0, sequence, balance_of(arena, op, sequence)));
}
