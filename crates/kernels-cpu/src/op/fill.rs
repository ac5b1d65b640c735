//! `dst = value`. Cost: one write of dst.
#![allow(unsafe_code)] // rows by address

use super::tiles::blocks;
use crate::arena::Arena;
use crate::ctx::Ctx;
use bessemer_tensor::op::Fill;

pub(crate) fn run(ctx: &Ctx<'_>, op: &Fill) {
    let dst = ctx.f32(&op.dst);
    blocks(ctx, dst.rows, dst.cols, &|block| {
        for r in block.rows {
            // SAFETY: these columns of row r belong to this block alone.
            let row =
                unsafe { std::slice::from_raw_parts_mut(dst.row(r).add(block.cols.start), block.cols.len()) };
            row.fill(op.value);
        }
    });
}

pub(crate) fn reference(arena: &Arena, op: &Fill) {
    let dst = arena.f32(&op.dst);
    for r in 0..dst.rows {
        for c in 0..dst.cols {
            dst.set(r, c, op.value);
        }
    }
}
