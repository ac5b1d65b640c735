//! `out = a + b`. Backward: the gradient of both inputs is the gradient of the sum, so there is nothing to compute.
//! Cost: two reads, one write.

use crate::arena::Arena;
use bessemer_tensor::op::Add;

pub(crate) fn reference(arena: &Arena, op: &Add) {
    let (a, b, out) = (arena.f32(&op.a), arena.f32(&op.b), arena.f32(&op.out));
    for r in 0..out.rows {
        for c in 0..out.cols {
            out.set(r, c, a.get(r, c) + b.get(r, c));
        }
    }
}
