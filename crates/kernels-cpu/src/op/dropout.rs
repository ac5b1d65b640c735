//! `out[e] = mask[e] x[e]`, mask = 1/(1-p) where uniform(key, e) >= p and 0 elsewhere (Srivastava et al. 2014); the
//! backward pass is the same operator on the gradient. Nothing is saved: the mask is computed again.
//!
//! Cost: one read, one write, ten Philox rounds for four elements.

use crate::arena::Arena;
use bessemer_tensor::op::{Dropout, DropoutMask};

/// Factor of element `e` (counted from the operand's first).
pub(crate) fn factor(mask: &DropoutMask, e: u64) -> f32 {
    if mask.key.uniform(mask.first + e) >= mask.p { 1.0 / (1.0 - mask.p) } else { 0.0 }
}

pub(crate) fn reference(arena: &Arena, op: &Dropout) {
    let (x, out) = (arena.f32(&op.x), arena.f32(&op.out));
    for r in 0..x.rows {
        for c in 0..x.cols {
            let e = (r * x.cols + c) as u64;
            out.set(r, c, x.get(r, c) * factor(&op.mask, e));
        }
    }
}
