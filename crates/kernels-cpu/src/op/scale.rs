//! `out = factor x`; the backward pass is the same operator on the gradient. Cost: one read, one write.
#![allow(unsafe_code)] // rows by address

use super::tiles::{Block, blocks};
use crate::arena::Arena;
use crate::ctx::Ctx;
use crate::element::{Element, with_element};
use crate::operand::Mat;
use crate::simd::{Kernel, Simd, dispatch, load_part, store_part};
use bessemer_tensor::op::Scale;

struct Scaled<'a, T>([&'a Mat<T>; 2], f32, Block);

impl<T: Element> Kernel for Scaled<'_, T> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Scaled([x, out], factor, block) = self;
        for r in block.rows {
            for c in block.cols.clone().step_by(S::LANES) {
                let n = S::LANES.min(block.cols.end - c);
                // SAFETY: columns c .. c + n of row r of both.
                unsafe {
                    let scaled = S::mul(S::splat(factor), load_part::<S>(x.row(r).add(c), n));
                    store_part::<S>(out.row(r).add(c), scaled, n);
                }
            }
        }
    }
}

pub(crate) fn run(ctx: &Ctx<'_>, op: &Scale) {
    with_element!(op.x.dtype(), T => typed::<T>(ctx, op));
}

fn typed<T: Element>(ctx: &Ctx<'_>, op: &Scale) {
    let (x, out) = (ctx.mat::<T>(&op.x), ctx.mat::<T>(&op.out));
    blocks(ctx, out.rows, out.cols, &|block| {
        // SAFETY: the instruction set is available; operands are checked views; blocks are disjoint.
        unsafe { dispatch(ctx.rung, Scaled([&x, &out], op.factor, block)) }
    });
}

pub(crate) fn reference(arena: &Arena, op: &Scale) {
    with_element!(op.x.dtype(), T => typed_reference::<T>(arena, op));
}

fn typed_reference<T: Element>(arena: &Arena, op: &Scale) {
    let (x, out) = (arena.mat::<T>(&op.x), arena.mat::<T>(&op.out));
    for r in 0..out.rows {
        for c in 0..out.cols {
            out.set(r, c, op.factor * x.get(r, c));
        }
    }
}
