//! `out = sum a b` with f64 sums in a fixed order. Cost: two reads.
#![allow(unsafe_code)] // rows and f64 partial sums by address

use super::tiles::{block_count, blocks};
use crate::arena::Arena;
use crate::ctx::{Ctx, padded};
use bessemer_tensor::op::Dot;

/// Sums side by side, so that additions need not wait for each other.
const LANES: usize = 8;

fn dot(a: &[f32], b: &[f32]) -> f64 {
    let mut sums = [0.0f64; LANES];
    let (a_whole, b_whole) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let rest = a_whole.remainder().iter().zip(b_whole.remainder());
    let rest: f64 = rest.map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
    for (a, b) in a_whole.zip(b_whole) {
        for (sum, (a, b)) in sums.iter_mut().zip(a.iter().zip(b)) {
            *sum += f64::from(*a) * f64::from(*b);
        }
    }
    sums.iter().sum::<f64>() + rest
}

pub(crate) fn workspace(op: &Dot) -> usize {
    padded(2 * block_count(op.a.rows, op.a.cols))
}

/// Sums of blocks, then the sum of those in order.
pub(crate) fn run(ctx: &Ctx<'_>, op: &Dot) {
    let (a, b) = (ctx.f32(&op.a), ctx.f32(&op.b));
    let count = block_count(a.rows, a.cols);
    let partials = ctx.scratch().take(2 * count);
    blocks(ctx, a.rows, a.cols, &|block| {
        let mut sum = 0.0;
        for r in block.rows.clone() {
            // SAFETY: these columns are inside row r of both operands, which are only read.
            let row = |x: &crate::operand::Mat| unsafe {
                std::slice::from_raw_parts(x.row(r).add(block.cols.start), block.cols.len())
            };
            sum += dot(row(&a), row(&b));
        }
        // SAFETY: each block has an element of its own in the workspace, whose start is aligned to a cache line.
        unsafe { *partials.at(2 * block.number, 2).cast::<f64>() = sum };
    });
    // SAFETY: finished partial sums.
    let sum: f64 = (0..count).map(|i| unsafe { *partials.at(2 * i, 2).cast::<f64>() }).sum();
    ctx.f32(&op.out).set(0, 0, sum as f32);
}

pub(crate) fn reference(arena: &Arena, op: &Dot) {
    let (a, b) = (arena.f32(&op.a), arena.f32(&op.b));
    let cells = (0..a.rows).flat_map(|r| (0..a.cols).map(move |c| (r, c)));
    let sum: f64 = cells.map(|(r, c)| f64::from(a.get(r, c)) * f64::from(b.get(r, c))).sum();
    arena.f32(&op.out).set(0, 0, sum as f32);
}
