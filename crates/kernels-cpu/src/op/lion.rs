//! One Lion update (Chen et al. 2023), every operation rounded to f32 in this order: `g = factor grad;
//! p = p (1 - lr weight_decay); p = p - lr sign(b1 m + (1-b1) g); m = b2 m + (1-b2) g`. All instruction sets give the same bits.
//! Cost: three reads and two writes of 4 bytes an element.
#![allow(unsafe_code)] // rows by address

use super::tiles::{Block, blocks};
use crate::arena::Arena;
use crate::ctx::Ctx;
use crate::operand::{AnyMat, Mat};
use crate::simd::{Kernel, Simd, dispatch, load_part, store_part};
use bessemer_tensor::op::Lion;

struct Update<'a> {
    op: &'a Lion,
    step: [f32; 2],
    param: &'a Mat,
    grad: &'a AnyMat,
    m: &'a Mat,
    block: Block,
}

impl Kernel for Update<'_> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Update { op, step: [factor, lr], param, grad, m, block } = self;
        // SAFETY: columns c .. c + n of row r of every operand.
        unsafe {
            let (scale, decay) = (S::splat(factor), S::splat(1.0 - lr * op.weight_decay));
            let (b1, rest1) = (S::splat(op.beta1), S::splat(1.0 - op.beta1));
            let (b2, rest2) = (S::splat(op.beta2), S::splat(1.0 - op.beta2));
            let (zero, up, down) = (S::splat(0.0), S::splat(lr), S::splat(-lr));
            for r in block.rows {
                for c in block.cols.clone().step_by(S::LANES) {
                    let n = S::LANES.min(block.cols.end - c);
                    let at = |x: &Mat| x.row(r).add(c);
                    let g = S::mul(scale, grad.load::<S>(r, c, n));
                    let p = S::mul(load_part::<S>(at(param), n), decay);
                    let m0 = load_part::<S>(at(m), n);
                    let aim = S::add(S::mul(b1, m0), S::mul(rest1, g));
                    let step = S::select_lt(zero, aim, up, S::select_lt(aim, zero, down, zero));
                    store_part::<S>(at(param), S::sub(p, step), n);
                    store_part::<S>(at(m), S::add(S::mul(b2, m0), S::mul(rest2, g)), n);
                }
            }
        }
    }
}

pub(crate) fn run(ctx: &Ctx<'_>, op: &Lion) {
    let Some(step) = ctx.f32(&op.step).applied() else { return };
    let (param, grad, m) = (ctx.f32(&op.param), ctx.any(&op.grad), ctx.f32(&op.m));
    blocks(ctx, param.rows, param.cols, &|block| {
        let update = Update { op, step, param: &param, grad: &grad, m: &m, block };
        // SAFETY: the instruction set is available; operands are checked views; blocks are disjoint.
        unsafe { dispatch(ctx.rung, update) }
    });
}

pub(crate) fn reference(arena: &Arena, op: &Lion) {
    let Some([factor, lr]) = arena.f32(&op.step).applied() else { return };
    let (param, grad, m) = (arena.f32(&op.param), arena.any(&op.grad), arena.f32(&op.m));
    for r in 0..param.rows {
        for c in 0..param.cols {
            let g = factor * grad.get(r, c);
            let p = param.get(r, c) * (1.0 - lr * op.weight_decay);
            let aim = op.beta1 * m.get(r, c) + (1.0 - op.beta1) * g;
            let step = match aim {
                a if a > 0.0 => lr,
                a if a < 0.0 => -lr,
                _ => 0.0,
            };
            param.set(r, c, p - step);
            m.set(r, c, op.beta2 * m.get(r, c) + (1.0 - op.beta2) * g);
        }
    }
}
