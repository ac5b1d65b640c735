//! Stochastic gradient descent, every operation rounded to f32 in this order: `g = (factor scale) grad;
//! p = p (1 - lr weight_decay); m = momentum m + g; p = p - lr m`, with `nesterov` `p = p - lr (g + momentum m)`, without
//! m `p = p - lr g`. All instruction sets give the same bits. Cost: three reads and two writes of 4 bytes an element.
#![allow(unsafe_code)] // rows by address

use super::tiles::{Block, blocks};
use crate::arena::Arena;
use crate::ctx::Ctx;
use crate::operand::{AnyMat, Mat};
use crate::simd::{Kernel, Simd, dispatch, load_part, store_part};
use bessemer_tensor::op::Sgd;

struct Update<'a> {
    op: &'a Sgd,
    step: [f32; 2],
    param: &'a Mat,
    grad: &'a AnyMat,
    m: Option<&'a Mat>,
    block: Block,
}

impl Kernel for Update<'_> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Update { op, step: [factor, lr], param, grad, m, block } = self;
        // SAFETY: columns c .. c + n of row r of every operand.
        unsafe {
            let (scale, decay) = (S::splat(factor * op.scale), S::splat(1.0 - lr * op.weight_decay));
            let (lr, momentum) = (S::splat(lr), S::splat(op.momentum));
            for r in block.rows {
                for c in block.cols.clone().step_by(S::LANES) {
                    let n = S::LANES.min(block.cols.end - c);
                    let at = |x: &Mat| x.row(r).add(c);
                    let g = S::mul(scale, grad.load::<S>(r, c, n));
                    let p = S::mul(load_part::<S>(at(param), n), decay);
                    let step = match m {
                        None => g,
                        Some(m) => {
                            let m1 = S::add(S::mul(momentum, load_part::<S>(at(m), n)), g);
                            store_part::<S>(at(m), m1, n);
                            if op.nesterov { S::add(g, S::mul(momentum, m1)) } else { m1 }
                        }
                    };
                    store_part::<S>(at(param), S::sub(p, S::mul(lr, step)), n);
                }
            }
        }
    }
}

pub(crate) fn run(ctx: &Ctx<'_>, op: &Sgd) {
    let Some(step) = ctx.f32(&op.step).applied() else { return };
    let (param, grad, m) = (ctx.f32(&op.param), ctx.any(&op.grad), op.m.map(|m| ctx.f32(&m)));
    blocks(ctx, param.rows, param.cols, &|block| {
        let update = Update { op, step, param: &param, grad: &grad, m: m.as_ref(), block };
        // SAFETY: the instruction set is available; operands are checked views; blocks are disjoint.
        unsafe { dispatch(ctx.rung, update) }
    });
}

pub(crate) fn reference(arena: &Arena, op: &Sgd) {
    let Some([factor, lr]) = arena.f32(&op.step).applied() else { return };
    let (param, grad, m) = (arena.f32(&op.param), arena.any(&op.grad), op.m.map(|m| arena.f32(&m)));
    for r in 0..param.rows {
        for c in 0..param.cols {
            let g = factor * op.scale * grad.get(r, c);
            let p = param.get(r, c) * (1.0 - lr * op.weight_decay);
            let mut step = g;
            if let Some(m) = m {
                let m1 = op.momentum * m.get(r, c) + g;
                m.set(r, c, m1);
                step = if op.nesterov { g + op.momentum * m1 } else { m1 };
            }
            param.set(r, c, p - lr * step);
        }
    }
}
