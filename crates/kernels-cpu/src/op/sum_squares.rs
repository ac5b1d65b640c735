//! `out (+)= sum x^2` with f64 sums in a fixed order. Cost: one read.
#![allow(unsafe_code)] // rows and f64 partial sums by address

use super::tiles::{Block, block_count, blocks};
use crate::arena::Arena;
use crate::ctx::{Ctx, padded};
use crate::element::{Element, with_parameter};
use crate::operand::Mat;
use crate::simd::{Kernel, Simd, dispatch, load_part};
use bessemer_tensor::op::SumSquares;

/// Groups of rows of a block that are read side by side: the processor follows a few streams further ahead than one.
const STREAMS: usize = 4;

struct Squares<'a, T>(&'a Mat<T>, Block);

impl<T: Element> Kernel for Squares<'_, T> {
    type Out = f64;
    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> f64 {
        let Squares(x, block) = self;
        let mut sums = [0.0; STREAMS];
        let high = block.rows.len().div_ceil(STREAMS);
        for i in 0..high {
            for c in block.cols.clone().step_by(S::LANES) {
                let n = S::LANES.min(block.cols.end - c);
                for (stream, sum) in sums.iter_mut().enumerate() {
                    let r = block.rows.start + stream * high + i;
                    if r < block.rows.end {
                        // SAFETY: columns c .. c + n of row r.
                        *sum = unsafe { S::add_squares_f64(*sum, load_part::<S>(x.row(r).add(c), n)) };
                    }
                }
            }
        }
        sums.iter().sum()
    }
}

pub(crate) fn workspace(op: &SumSquares) -> usize {
    padded(2 * block_count(op.x.rows, op.x.cols))
}

/// Sums of blocks, then the sum of those in order.
pub(crate) fn run(ctx: &Ctx<'_>, op: &SumSquares) {
    with_parameter!(op.x.dtype(), T => typed::<T>(ctx, op));
}

fn typed<T: Element>(ctx: &Ctx<'_>, op: &SumSquares) {
    let (x, out) = (ctx.mat::<T>(&op.x), ctx.f32(&op.out));
    let count = block_count(x.rows, x.cols);
    let partials = ctx.scratch().take(2 * count);
    blocks(ctx, x.rows, x.cols, &|block| {
        let at = partials.at(2 * block.number, 2).cast::<f64>();
        // SAFETY: the instruction set is available; x is a checked view; each block has an element of its own in the workspace,
        // whose start is aligned to a cache line.
        unsafe { *at = dispatch(ctx.rung, Squares(&x, block)) };
    });
    let mut sum = 0.0f64;
    for i in 0..count {
        // SAFETY: a finished partial sum.
        sum += unsafe { *partials.at(2 * i, 2).cast::<f64>() };
    }
    if op.accumulate {
        sum += f64::from(out.get(0, 0));
    }
    out.set(0, 0, sum as f32);
}

pub(crate) fn reference(arena: &Arena, op: &SumSquares) {
    let (x, out) = (arena.any(&op.x), arena.f32(&op.out));
    let mut sum = 0.0f64;
    for r in 0..x.rows {
        for c in 0..x.cols {
            sum += f64::from(x.get(r, c)).powi(2);
        }
    }
    if op.accumulate {
        sum += f64::from(out.get(0, 0));
    }
    out.set(0, 0, sum as f32);
}
