//! `out = a + b`. Backward: the gradient of both inputs is the gradient of the sum, so there is nothing to compute.
//! Cost: two reads, one write.
#![allow(unsafe_code)] // rows by address

use super::tiles::{Block, blocks};
use crate::arena::Arena;
use crate::ctx::Ctx;
use crate::element::{Element, with_parameter};
use crate::operand::Mat;
use crate::simd::{Kernel, Simd, dispatch, load_part, store_part};
use bessemer_tensor::op::Add;

struct Sum<'a, T>([&'a Mat<T>; 3], Block);

impl<T: Element> Kernel for Sum<'_, T> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Sum([a, b, out], block) = self;
        for r in block.rows {
            for c in block.cols.clone().step_by(S::LANES) {
                let n = S::LANES.min(block.cols.end - c);
                // SAFETY: columns c .. c + n of row r of all three.
                unsafe {
                    let sum = S::add(load_part::<S>(a.row(r).add(c), n), load_part::<S>(b.row(r).add(c), n));
                    store_part::<S>(out.row(r).add(c), sum, n);
                }
            }
        }
    }
}

pub(crate) fn run(ctx: &Ctx<'_>, op: &Add) {
    with_parameter!(op.out.dtype(), T => typed::<T>(ctx, op));
}

fn typed<T: Element>(ctx: &Ctx<'_>, op: &Add) {
    let (a, b, out) = (ctx.mat::<T>(&op.a), ctx.mat(&op.b), ctx.mat(&op.out));
    blocks(ctx, out.rows, out.cols, &|block| {
        // SAFETY: the instruction set is available; operands are checked views; blocks are disjoint.
        unsafe { dispatch(ctx.rung, Sum([&a, &b, &out], block)) }
    });
}

pub(crate) fn reference(arena: &Arena, op: &Add) {
    with_parameter!(op.out.dtype(), T => typed_reference::<T>(arena, op));
}

fn typed_reference<T: Element>(arena: &Arena, op: &Add) {
    let (a, b, out) = (arena.mat::<T>(&op.a), arena.mat::<T>(&op.b), arena.mat::<T>(&op.out));
    for r in 0..out.rows {
        for c in 0..out.cols {
            out.set(r, c, a.get(r, c) + b.get(r, c));
        }
    }
}
