//! `dst = value`. Cost: one write of dst.

use crate::arena::Arena;
use bessemer_tensor::op::Fill;

pub(crate) fn reference(arena: &Arena, op: &Fill) {
    let dst = arena.f32(&op.dst);
    for r in 0..dst.rows {
        for c in 0..dst.cols {
            dst.set(r, c, op.value);
        }
    }
}
