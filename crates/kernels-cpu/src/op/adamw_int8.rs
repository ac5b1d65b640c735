//! One AdamW update with moments in 8 bits by blocks (Dettmers et al. 2022): of each block of 256 elements both moments are decoded,
//! parameter and moments are stepped as in [`super::adamw`], and the moments are encoded again, each with a new scale. The
//! parameter is stepped by the moments before they are encoded.
//!
//! Every operation of the update is exactly rounded and codes are those of the reference ([`super::dynamic_code`]), so all instruction sets give the
//! same bits. Cost: per element 12 bytes of parameter and gradient and 4 of codes; three divisions, a square root, two lookups in
//! tables that stay in the cache and about 60 operations of the encoders. The f32 moments of a block exist on the stack only. The last block, if
//! it is not whole, is updated by the reference.
#![allow(unsafe_code)] // elements by address

use super::adamw::Step;
use super::dynamic_code::{Extremes, FIRST, SECOND, VectorCode};
use crate::arena::Arena;
use crate::ctx::Ctx;
use crate::element::{Element, with_parameter};
use crate::operand::{AnyMat, Codes, Mat};
use crate::simd::{Kernel, Simd, dispatch};
use bessemer_tensor::View;
use bessemer_tensor::op::AdamWInt8;
use bessemer_tensor::quantise::{MOMENT_BLOCK, SIGNED, UNSIGNED};
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
    code: &'static VectorCode,
}

impl Moment {
    /// The codes of the first `n` values of a block.
    ///
    /// # Safety
    /// No other thread accesses the block.
    #[expect(clippy::mut_from_ref, reason = "as `Codes::slice`")]
    #[inline(always)]
    unsafe fn codes(&self, block: usize, n: usize) -> &mut [u8] {
        // SAFETY: by contract.
        unsafe { self.codes.slice(0, block * MOMENT_BLOCK, n) }
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
            m: moment(&op.m, &op.m_scales, &FIRST),
            v: moment(&op.v, &op.v_scales, &SECOND),
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
        // SAFETY: one task has these blocks.
        unsafe {
            let vectors = Step::<S>::new(constants(op), step);
            for block in blocks {
                if (block + 1) * MOMENT_BLOCK > operands.param.cols {
                    plain_block(op, step, operands, block);
                } else {
                    with_parameter!(operands.grad.dtype, G => {
                        whole_block::<S, P, G>(&vectors, operands, &operands.grad.typed::<G>(), block);
                    });
                }
            }
        }
    }
}

/// Updates a whole block.
///
/// # Safety
/// Same requirements as [`Simd`]; no other thread accesses the block.
#[inline(always)]
unsafe fn whole_block<S: Simd, P: Element, G: Element>(
    step: &Step<S>,
    operands: &Operands<P>,
    grad: &Mat<G>,
    block: usize,
) {
    let Operands { param, master, m, v, .. } = operands;
    let (mut ms, mut vs) = ([0.0f32; MOMENT_BLOCK], [0.0f32; MOMENT_BLOCK]);
    let (m_scale, v_scale) = (m.scales.get(0, block), v.scales.get(0, block));
    let (m_values, v_values) = (m.code.values(m_scale), v.code.values(v_scale));
    let first = block * MOMENT_BLOCK;
    // SAFETY: elements of one block of the one row of every operand; vectors divide a block.
    unsafe {
        let (m_codes, v_codes) = (m.codes(block, MOMENT_BLOCK), v.codes(block, MOMENT_BLOCK));
        let (param, grad) = (param.row(0).add(first), grad.row(0).add(first));
        let master = master.as_ref().map(|x| x.row(0).add(first));
        let (m_scale, v_scale) = (S::splat(m_scale), S::splat(v_scale));
        let (mut m_extremes, mut v_extremes) = (Extremes::<S>::new(), Extremes::<S>::new());
        for i in (0..MOMENT_BLOCK).step_by(S::LANES) {
            let p = match master {
                Some(x) => S::load(x.add(i)),
                None => P::load::<S>(param.add(i)),
            };
            let m0 = S::mul(S::look_up(m_values, m_codes.as_ptr().add(i)), m_scale);
            let v0 = S::mul(S::look_up(v_values, v_codes.as_ptr().add(i)), v_scale);
            let (p, m1, v1) = step.apply(p, G::load::<S>(grad.add(i)), m0, v0);
            P::store::<S>(param.add(i), p);
            if let Some(x) = master {
                S::store(x.add(i), p);
            }
            S::store(ms.as_mut_ptr().add(i), m1);
            S::store(vs.as_mut_ptr().add(i), v1);
            m_extremes.see(m1);
            v_extremes.see(v1);
        }
        m.scales.set(0, block, m.code.encode(&ms, &m_extremes, m_codes));
        v.scales.set(0, block, v.code.encode(&vs, &v_extremes, v_codes));
    }
}

/// Updates any block, an element at a time.
///
/// # Safety
/// No other thread accesses the block.
unsafe fn plain_block<P: Element>(op: &AdamWInt8, step: [f32; 4], operands: &Operands<P>, block: usize) {
    let Operands { param, master, grad, m, v } = operands;
    let first = block * MOMENT_BLOCK;
    let len = MOMENT_BLOCK.min(param.cols - first);
    let (mut ms, mut vs) = ([0.0; MOMENT_BLOCK], [0.0; MOMENT_BLOCK]);
    let (ms, vs) = (&mut ms[..len], &mut vs[..len]);
    // SAFETY: by contract.
    let (m_codes, v_codes) = unsafe { (m.codes(block, len), v.codes(block, len)) };
    SIGNED.decode(m_codes, m.scales.get(0, block), ms);
    UNSIGNED.decode(v_codes, v.scales.get(0, block), vs);
    for i in 0..len {
        let c = first + i;
        let p = master.as_ref().map_or_else(|| param.get(0, c), |x| x.get(0, c));
        let (p, m1, v1) = super::adamw::update(constants(op), step, p, grad.get(0, c), ms[i], vs[i]);
        (ms[i], vs[i]) = (m1, v1);
        param.set(0, c, p);
        if let Some(x) = master {
            x.set(0, c, p);
        }
    }
    m.scales.set(0, block, SIGNED.encode(ms, m_codes));
    v.scales.set(0, block, UNSIGNED.encode(vs, v_codes));
}

/// beta1, beta2, eps, weight decay.
fn constants(op: &AdamWInt8) -> [f32; 4] {
    [op.beta1, op.beta2, op.eps, op.weight_decay]
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
        // SAFETY: the instruction set is available; operands are checked views; tasks have blocks of their own.
        unsafe { dispatch(ctx.rung, Update { op, step, operands, blocks }) }
    });
}

pub(crate) fn reference(arena: &Arena, op: &AdamWInt8) {
    let Some(step) = arena.f32(&op.step).applied() else { return };
    with_parameter!(op.param.dtype(), P => {
        let operands = Operands::<P>::new(arena, op);
        for block in 0..operands.blocks() {
            // SAFETY: this thread has all blocks.
            unsafe { plain_block(op, step, &operands, block) };
        }
    });
}
