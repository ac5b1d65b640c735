//! One AdamW update with moments in 8 bits by blocks (Dettmers et al. 2022): of each block of 256 elements both moments are decoded,
//! parameter and moments are stepped as in [`super::adamw`], and the moments are encoded again, each with a new scale. The
//! parameter is stepped by the moments before they are encoded.
//!
//! Every operation is exactly rounded and codes are found by comparisons, so all rungs give the same bits. Cost: per element
//! 12 bytes of parameter and gradient and 4 of moments, two divisions and two looks into tables that stay in the cache. The f32
//! moments of a block exist on the stack only.
#![allow(unsafe_code)] // elements by address

use crate::arena::Arena;
use crate::ctx::Ctx;
use crate::element::{Element, with_parameter};
use crate::operand::{AnyMat, Codes, Mat};
use crate::simd::{Kernel, Simd, dispatch, load_part, store_part};
use bessemer_tensor::View;
use bessemer_tensor::op::AdamWInt8;
use bessemer_tensor::quantise::{DynamicCode, MOMENT_BLOCK, SIGNED, UNSIGNED};
use std::ops::Range;

/// Blocks of one task: 16 thousand elements.
const BLOCKS: usize = 64;

/// All elements of a view without gaps as one row.
fn flat(view: &View) -> View {
    View { rows: 1, cols: view.len(), stride: view.len(), ..*view }
}

/// A moment in 8 bits.
struct Moment {
    codes: Codes,
    scales: Mat,
    code: &'static DynamicCode,
}

impl Moment {
    #[inline(always)]
    fn decode(&self, block: usize, out: &mut [f32]) {
        // SAFETY: the elements of one block, which one task has.
        let codes = unsafe { self.codes.slice(0, block * MOMENT_BLOCK, out.len()) };
        self.code.decode(codes, self.scales.get(0, block), out);
    }

    #[inline(always)]
    fn encode(&self, block: usize, values: &[f32]) {
        // SAFETY: as above.
        let codes = unsafe { self.codes.slice(0, block * MOMENT_BLOCK, values.len()) };
        self.scales.set(0, block, self.code.encode(values, codes));
    }
}

/// The operands, each as one row.
struct Operands<P> {
    param: Mat<P>,
    master: Option<Mat>,
    grad: AnyMat,
    m: Moment,
    v: Moment,
}

impl<P: Element> Operands<P> {
    fn new(arena: &Arena, op: &AdamWInt8) -> Operands<P> {
        let moment = |codes: &View, scales: &View, code| Moment {
            codes: arena.codes(&flat(codes)),
            scales: arena.f32(scales),
            code,
        };
        Operands {
            param: arena.mat(&flat(&op.param)),
            master: op.master.map(|x| arena.f32(&flat(&x))),
            grad: arena.any(&flat(&op.grad)),
            m: moment(&op.m, &op.m_scales, &SIGNED),
            v: moment(&op.v, &op.v_scales, &UNSIGNED),
        }
    }

    fn blocks(&self) -> usize {
        self.param.cols.div_ceil(MOMENT_BLOCK)
    }
}

struct Update<'a, P> {
    op: &'a AdamWInt8,
    step: [f32; 4],
    operands: &'a Operands<P>,
    blocks: Range<usize>,
}

impl<P: Element> Kernel for Update<'_, P> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Update { op, step, operands, blocks } = self;
        let Operands { param, master, grad, m, v } = operands;
        let [factor, lr, correction1, correction2] = step;
        let (mut ms, mut vs) = ([0.0f32; MOMENT_BLOCK], [0.0f32; MOMENT_BLOCK]);
        for block in blocks {
            let first = block * MOMENT_BLOCK;
            let len = MOMENT_BLOCK.min(param.cols - first);
            let (ms, vs) = (&mut ms[..len], &mut vs[..len]);
            m.decode(block, ms);
            v.decode(block, vs);
            // SAFETY: elements first .. first + len of the one row of every operand, and of the buffers from 0 on.
            unsafe {
                let (scale, decay) = (S::splat(factor), S::splat(1.0 - lr * op.weight_decay));
                let (b1, rest1) = (S::splat(op.beta1), S::splat(1.0 - op.beta1));
                let (b2, rest2) = (S::splat(op.beta2), S::splat(1.0 - op.beta2));
                let (c1, c2) = (S::splat(correction1), S::splat(correction2));
                let (lr, eps) = (S::splat(lr), S::splat(op.eps));
                for i in (0..len).step_by(S::LANES) {
                    let (c, n) = (first + i, S::LANES.min(len - i));
                    let (m, v) = (ms.as_mut_ptr().add(i), vs.as_mut_ptr().add(i));
                    let g = S::mul(scale, grad.load::<S>(0, c, n));
                    let p = match master {
                        Some(x) => load_part::<S>(x.row(0).add(c), n),
                        None => load_part::<S>(param.row(0).add(c), n),
                    };
                    let p = S::mul(p, decay);
                    let m1 = S::add(S::mul(b1, load_part::<S>(m, n)), S::mul(rest1, g));
                    let v1 = S::add(S::mul(b2, load_part::<S>(v, n)), S::mul(S::mul(rest2, g), g));
                    let step = S::div(S::mul(lr, S::div(m1, c1)), S::add(S::sqrt(S::div(v1, c2)), eps));
                    let p = S::sub(p, step);
                    store_part::<S>(m, m1, n);
                    store_part::<S>(v, v1, n);
                    store_part::<S>(param.row(0).add(c), p, n);
                    if let Some(x) = master {
                        store_part::<S>(x.row(0).add(c), p, n);
                    }
                }
            }
            m.encode(block, ms);
            v.encode(block, vs);
        }
    }
}

pub(crate) fn run(ctx: &Ctx<'_>, op: &AdamWInt8) {
    with_parameter!(op.param.dtype(), P => typed::<P>(ctx, op));
}

fn typed<P: Element>(ctx: &Ctx<'_>, op: &AdamWInt8) {
    let Some(step) = ctx.f32(&op.step).applied() else { return };
    let operands = &Operands::<P>::new(ctx.arena, op);
    let all = operands.blocks();
    ctx.pool.run(all.div_ceil(BLOCKS), &|number, _| {
        let blocks = number * BLOCKS..((number + 1) * BLOCKS).min(all);
        // SAFETY: the rung is available; operands are checked views; tasks have blocks of their own.
        unsafe { dispatch(ctx.rung, Update { op, step, operands, blocks }) }
    });
}

pub(crate) fn reference(arena: &Arena, op: &AdamWInt8) {
    let Some(step) = arena.f32(&op.step).applied() else { return };
    let constants = [op.beta1, op.beta2, op.eps, op.weight_decay];
    with_parameter!(op.param.dtype(), P => {
        let operands = Operands::<P>::new(arena, op);
        let Operands { param, master, grad, m, v } = &operands;
        for block in 0..operands.blocks() {
            let first = block * MOMENT_BLOCK;
            let len = MOMENT_BLOCK.min(param.cols - first);
            let (mut ms, mut vs) = (vec![0.0; len], vec![0.0; len]);
            m.decode(block, &mut ms);
            v.decode(block, &mut vs);
            for i in 0..len {
                let c = first + i;
                let p = master.as_ref().map_or_else(|| param.get(0, c), |x| x.get(0, c));
                let (p, m1, v1) = super::adamw::update(constants, step, p, grad.get(0, c), ms[i], vs[i]);
                (ms[i], vs[i]) = (m1, v1);
                param.set(0, c, p);
                if let Some(x) = master {
                    x.set(0, c, p);
                }
            }
            m.encode(block, &ms);
            v.encode(block, &vs);
        }
    });
}
