//! Rotary positions (Su et al. 2021) in place, pairing i with i + E/2: `(a, b) <- (a cos - b sin, b cos + a sin)`,
//! angle = position theta^(-2i/E). The backward pass is the inverse rotation. Cost: one read, one write.

use crate::arena::Arena;
use bessemer_tensor::op::Rope;

/// Cosine and sine of the angle of pair `i` at `position`, negated angle for the inverse.
pub(crate) fn rotation(op: &Rope, position: u32, i: usize, head_dim: usize) -> (f64, f64) {
    let frequency = f64::from(op.theta).powf(-2.0 * i as f64 / head_dim as f64);
    let angle = f64::from(position) * frequency;
    let (s, c) = angle.sin_cos();
    (c, if op.inverse { -s } else { s })
}

pub(crate) fn reference(arena: &Arena, op: &Rope) {
    let (x, positions) = (arena.f32(&op.x), arena.u32(&op.positions));
    let head_dim = x.cols / op.heads;
    for (n, &position) in positions.0.iter().enumerate() {
        for i in 0..head_dim / 2 {
            let (c, s) = rotation(op, position, i, head_dim);
            for h in 0..op.heads {
                let (at, bt) = (h * head_dim + i, h * head_dim + i + head_dim / 2);
                let (a, b) = (f64::from(x.get(n, at)), f64::from(x.get(n, bt)));
                x.set(n, at, (a * c - b * s) as f32);
                x.set(n, bt, (b * c + a * s) as f32);
            }
        }
    }
}
