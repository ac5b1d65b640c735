//! `out = alpha a + (beta factor) b`, each product and the sum rounded to f32; and `out = x / (slack norm + eps)` with the norm's
//! square on the device. All instruction sets give the same bits. Cost: two reads (one) and one write.
#![allow(unsafe_code)] // rows by address

use super::tiles::{Block, blocks};
use crate::arena::Arena;
use crate::ctx::Ctx;
use crate::operand::Mat;
use crate::simd::{Kernel, Simd, dispatch, load_part, store_part};
use bessemer_tensor::op::{Combine, DivideByNorm};

struct Sum<'a>(&'a Mat, f32, &'a Mat, f32, &'a Mat, Block);

impl Kernel for Sum<'_> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Sum(a, alpha, b, beta, out, block) = self;
        // SAFETY: columns c .. c + n of row r of all three.
        unsafe {
            let (alpha, beta) = (S::splat(alpha), S::splat(beta));
            for r in block.rows {
                for c in block.cols.clone().step_by(S::LANES) {
                    let n = S::LANES.min(block.cols.end - c);
                    let x = S::mul(alpha, load_part::<S>(a.row(r).add(c), n));
                    let y = S::mul(beta, load_part::<S>(b.row(r).add(c), n));
                    store_part::<S>(out.row(r).add(c), S::add(x, y), n);
                }
            }
        }
    }
}

/// Factor on b, or `None` if nothing is to be written.
fn beta(op: &Combine, step: Option<Mat>) -> Option<f32> {
    step.map_or(Some([1.0]), |s| s.applied()).map(|[factor]| op.beta * factor)
}

pub(crate) fn run(ctx: &Ctx<'_>, op: &Combine) {
    let Some(beta) = beta(op, op.step.map(|s| ctx.f32(&s))) else { return };
    let (a, b, out) = (ctx.f32(&op.a), ctx.f32(&op.b), ctx.f32(&op.out));
    blocks(ctx, out.rows, out.cols, &|block| {
        // SAFETY: the instruction set is available; operands are checked views; blocks are disjoint.
        unsafe { dispatch(ctx.rung, Sum(&a, op.alpha, &b, beta, &out, block)) }
    });
}

pub(crate) fn reference(arena: &Arena, op: &Combine) {
    let Some(beta) = beta(op, op.step.map(|s| arena.f32(&s))) else { return };
    let (a, b, out) = (arena.f32(&op.a), arena.f32(&op.b), arena.f32(&op.out));
    for r in 0..out.rows {
        for c in 0..out.cols {
            out.set(r, c, op.alpha * a.get(r, c) + beta * b.get(r, c));
        }
    }
}

struct Quotient<'a>(&'a Mat, f32, &'a Mat, Block);

impl Kernel for Quotient<'_> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Quotient(x, divisor, out, block) = self;
        // SAFETY: columns c .. c + n of row r of both.
        unsafe {
            let divisor = S::splat(divisor);
            for r in block.rows {
                for c in block.cols.clone().step_by(S::LANES) {
                    let n = S::LANES.min(block.cols.end - c);
                    let quotient = S::div(load_part::<S>(x.row(r).add(c), n), divisor);
                    store_part::<S>(out.row(r).add(c), quotient, n);
                }
            }
        }
    }
}

fn divisor(op: &DivideByNorm, squares: f32) -> f32 {
    op.slack * squares.sqrt() + op.eps
}

pub(crate) fn divide_by_norm(ctx: &Ctx<'_>, op: &DivideByNorm) {
    let (x, out) = (ctx.f32(&op.x), ctx.f32(&op.out));
    let divisor = divisor(op, ctx.f32(&op.squares).get(0, 0));
    blocks(ctx, out.rows, out.cols, &|block| {
        // SAFETY: the instruction set is available; operands are checked views; blocks are disjoint.
        unsafe { dispatch(ctx.rung, Quotient(&x, divisor, &out, block)) }
    });
}

pub(crate) fn divide_by_norm_reference(arena: &Arena, op: &DivideByNorm) {
    let (x, out) = (arena.f32(&op.x), arena.f32(&op.out));
    let divisor = divisor(op, arena.f32(&op.squares).get(0, 0));
    for r in 0..out.rows {
        for c in 0..out.cols {
            out.set(r, c, x.get(r, c) / divisor);
        }
    }
}
