//! `dst = value`. Cost: one write of dst.
#![allow(unsafe_code)] // rows by address

use super::tiles::blocks;
use crate::arena::Arena;
use crate::ctx::Ctx;
use crate::element::{Element, with_parameter};
use bessemer_tensor::op::Fill;

pub(crate) fn run(ctx: &Ctx<'_>, op: &Fill) {
    with_parameter!(op.dst.dtype(), T => typed::<T>(ctx, op));
}

fn typed<T: Element>(ctx: &Ctx<'_>, op: &Fill) {
    let dst = ctx.mat::<T>(&op.dst);
    blocks(ctx, dst.rows, dst.cols, &|block| {
        for r in block.rows {
            // SAFETY: these columns of row r belong to this block alone.
            let row =
                unsafe { std::slice::from_raw_parts_mut(dst.row(r).add(block.cols.start), block.cols.len()) };
            row.fill(T::from_f32(op.value));
        }
    });
}

pub(crate) fn reference(arena: &Arena, op: &Fill) {
    with_parameter!(op.dst.dtype(), T => {
        let dst = arena.mat::<T>(&op.dst);
        for r in 0..dst.rows {
            for c in 0..dst.cols {
                dst.set(r, c, op.value);
            }
        }
    });
}
