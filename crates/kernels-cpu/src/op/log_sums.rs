//! Sums of a loss over parts of the vocabulary, from those of the parts: `lse = m + log sum_r exp(lse_r - m)` with m the largest of
//! them, `target = sum_r target_r`, in f64 and in the order of the parts, so the bits depend on nothing else.
//! Cost: an exponential a part and token.

use super::tiles::blocks;
use crate::arena::Arena;
use crate::ctx::Ctx;
use crate::operand::Mat;
use bessemer_tensor::op::CombineLogSums;

/// Log-sum-exp and target logit of one token.
fn combined(parts: &Mat, token: usize) -> (f32, f32) {
    let of = |row: usize| f64::from(parts.get(row, token));
    let rows = || (0..parts.rows).step_by(2);
    let most = rows().map(of).fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = rows().map(|row| (of(row) - most).exp()).sum();
    let target: f64 = rows().map(|row| of(row + 1)).sum();
    ((most + sum.ln()) as f32, target as f32)
}

pub(crate) fn run(ctx: &Ctx<'_>, op: &CombineLogSums) {
    let (parts, lse, target) = (ctx.f32(&op.parts), ctx.f32(&op.lse), ctx.f32(&op.target_logit));
    blocks(ctx, 1, parts.cols, &|block| {
        for token in block.cols {
            let sums = combined(&parts, token);
            lse.set(0, token, sums.0);
            target.set(0, token, sums.1);
        }
    });
}

pub(crate) fn reference(arena: &Arena, op: &CombineLogSums) {
    let (parts, lse, target) = (arena.f32(&op.parts), arena.f32(&op.lse), arena.f32(&op.target_logit));
    for token in 0..parts.cols {
        let all: Vec<f64> = (0..parts.rows).map(|row| f64::from(parts.get(row, token))).collect();
        let most = all.iter().step_by(2).copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = all.iter().step_by(2).map(|lse| (lse - most).exp()).sum();
        lse.set(0, token, (most + sum.ln()) as f32);
        target.set(0, token, all.iter().skip(1).step_by(2).sum::<f64>() as f32);
    }
}
