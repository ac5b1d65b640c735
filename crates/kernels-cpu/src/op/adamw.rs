//! One AdamW update (Loshchilov & Hutter 2019), every operation rounded to f32 in this order:
//! `g = factor grad; p = p (1 - lr weight_decay); m = b1 m + (1-b1) g; v = b2 v + ((1-b2) g) g;
//! p = p - (lr (m / correction1)) / (sqrt(v / correction2) + eps)`.
//!
//! Addition, multiplication, division and square root are exactly rounded on every instruction set and no multiply-add is fused, so
//! all instruction sets give the same bits. A parameter of fewer bits is its f32 master, rounded. Cost: four reads and three writes of
//! 4 bytes an element: memory speed.
#![allow(unsafe_code)] // rows by address

use super::tiles::{Block, blocks};
use crate::arena::Arena;
use crate::ctx::Ctx;
use crate::element::{Element, with_parameter};
use crate::operand::{AnyMat, Mat};
use crate::simd::{Kernel, Simd, dispatch, load_part, store_part};
use bessemer_tensor::op::AdamW;

/// One update of vectors of elements.
pub(super) struct Step<S: Simd> {
    factor: S::V,
    decay: S::V,
    betas: [S::V; 2],
    rests: [S::V; 2],
    corrections: [S::V; 2],
    lr: S::V,
    eps: S::V,
}

impl<S: Simd> Step<S> {
    /// `constants`: beta1, beta2, eps, weight decay; `step`: factor, lr and both corrections.
    ///
    /// # Safety
    /// Same requirements as [`Simd`].
    #[inline(always)]
    pub(super) unsafe fn new(constants: [f32; 4], step: [f32; 4]) -> Step<S> {
        let [beta1, beta2, eps, weight_decay] = constants;
        let [factor, lr, correction1, correction2] = step;
        // SAFETY: register arithmetic only.
        unsafe {
            Step {
                factor: S::splat(factor),
                decay: S::splat(1.0 - lr * weight_decay),
                betas: [S::splat(beta1), S::splat(beta2)],
                rests: [S::splat(1.0 - beta1), S::splat(1.0 - beta2)],
                corrections: [S::splat(correction1), S::splat(correction2)],
                lr: S::splat(lr),
                eps: S::splat(eps),
            }
        }
    }

    /// Parameter and moments after the update.
    ///
    /// # Safety
    /// Same requirements as [`Simd`].
    #[inline(always)]
    pub(super) unsafe fn apply(&self, p: S::V, grad: S::V, m: S::V, v: S::V) -> (S::V, S::V, S::V) {
        let ([b1, b2], [rest1, rest2], [c1, c2]) = (self.betas, self.rests, self.corrections);
        // SAFETY: register arithmetic only.
        unsafe {
            let g = S::mul(self.factor, grad);
            let p = S::mul(p, self.decay);
            let m = S::add(S::mul(b1, m), S::mul(rest1, g));
            let v = S::add(S::mul(b2, v), S::mul(S::mul(rest2, g), g));
            let step = S::div(S::mul(self.lr, S::div(m, c1)), S::add(S::sqrt(S::div(v, c2)), self.eps));
            (S::sub(p, step), m, v)
        }
    }
}

struct Update<'a, P> {
    op: &'a AdamW,
    step: [f32; 4],
    param: &'a Mat<P>,
    master: Option<&'a Mat>,
    grad: &'a AnyMat,
    m: &'a Mat,
    v: &'a Mat,
    block: Block,
}

impl<P: Element> Kernel for Update<'_, P> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Update { op, step, param, master, grad, m, v, block } = self;
        let constants = [op.beta1, op.beta2, op.eps, op.weight_decay];
        // SAFETY: columns c .. c + n of row r of every operand.
        unsafe {
            let step = Step::<S>::new(constants, step);
            for r in block.rows {
                for c in block.cols.clone().step_by(S::LANES) {
                    let n = S::LANES.min(block.cols.end - c);
                    let at = |x: &Mat| x.row(r).add(c);
                    let p = match master {
                        Some(x) => load_part::<S>(at(x), n),
                        None => load_part::<S>(param.row(r).add(c), n),
                    };
                    let grad = grad.load::<S>(r, c, n);
                    let (p, m1, v1) = step.apply(p, grad, load_part::<S>(at(m), n), load_part::<S>(at(v), n));
                    store_part::<S>(at(m), m1, n);
                    store_part::<S>(at(v), v1, n);
                    store_part::<S>(param.row(r).add(c), p, n);
                    if let Some(x) = master {
                        store_part::<S>(at(x), p, n);
                    }
                }
            }
        }
    }
}

pub(crate) fn run(ctx: &Ctx<'_>, op: &AdamW) {
    with_parameter!(op.param.dtype(), P => typed::<P>(ctx, op));
}

fn typed<P: Element>(ctx: &Ctx<'_>, op: &AdamW) {
    let Some(step) = ctx.f32(&op.step).applied() else { return };
    let (param, grad) = (ctx.mat::<P>(&op.param), ctx.any(&op.grad));
    let (m, v, master) = (ctx.f32(&op.m), ctx.f32(&op.v), op.master.map(|x| ctx.f32(&x)));
    blocks(ctx, param.rows, param.cols, &|block| {
        let master = master.as_ref();
        let update = Update { op, step, param: &param, master, grad: &grad, m: &m, v: &v, block };
        // SAFETY: the instruction set is available; operands are checked views; blocks are disjoint.
        unsafe { dispatch(ctx.rung, update) }
    });
}

/// One element: (p, g, m, v) to (p, m, v). `constants`: beta1, beta2, eps, weight decay.
pub(super) fn update(
    constants: [f32; 4],
    step: [f32; 4],
    p: f32,
    grad: f32,
    m: f32,
    v: f32,
) -> (f32, f32, f32) {
    let [beta1, beta2, eps, weight_decay] = constants;
    let [factor, lr, correction1, correction2] = step;
    let g = factor * grad;
    let p = p * (1.0 - lr * weight_decay);
    let m = beta1 * m + (1.0 - beta1) * g;
    let v = beta2 * v + (1.0 - beta2) * g * g;
    let p = p - lr * (m / correction1) / ((v / correction2).sqrt() + eps);
    (p, m, v)
}

pub(crate) fn reference(arena: &Arena, op: &AdamW) {
    let Some(step) = arena.f32(&op.step).applied() else { return };
    let (param, grad) = (arena.any(&op.param), arena.any(&op.grad));
    let (m, v) = (arena.f32(&op.m), arena.f32(&op.v));
    let master = op.master.map(|x| arena.f32(&x));
    let constants = [op.beta1, op.beta2, op.eps, op.weight_decay];
    for r in 0..param.rows {
        for c in 0..param.cols {
            let p = master.map_or_else(|| param.get(r, c), |x| x.get(r, c));
            let (p, m_new, v_new) = update(constants, step, p, grad.get(r, c), m.get(r, c), v.get(r, c));
            m.set(r, c, m_new);
            v.set(r, c, v_new);
            param.set(r, c, p);
            if let Some(x) = master {
                x.set(r, c, p);
            }
        }
    }
}
