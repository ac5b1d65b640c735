//! `out (+)= sum x^2` with f64 sums in a fixed order. Cost: one read.

use crate::arena::Arena;
use bessemer_tensor::op::SumSquares;

pub(crate) fn reference(arena: &Arena, op: &SumSquares) {
    let (x, out) = (arena.f32(&op.x), arena.f32(&op.out));
    let mut sum = 0.0f64;
    for r in 0..x.rows {
        for c in 0..x.cols {
            sum += f64::from(x.get(r, c)).powi(2);
        }
    }
    if op.accumulate {
        sum += f64::from(out.get(0, 0));
    }
    out.set(0, 0, sum as f32);
}
