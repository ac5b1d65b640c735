//! Attention of new positions to a cache (decoding): query i of sequence b reads cache rows
//! `b capacity .. b capacity + past + i + 1`. No backward pass.
//!
//! Cost: one read of the cache for each group of query heads.

use crate::arena::Arena;
use bessemer_tensor::op::AttentionCached;

pub(crate) fn reference(arena: &Arena, op: &AttentionCached) {
    let (q, k, v) = (arena.f32(&op.q), arena.f32(&op.k_cache), arena.f32(&op.v_cache));
    let out = arena.f32(&op.out);
    let s = op.shape;
    let (e, per_group) = (s.head_dim, s.heads / s.kv_heads);
    let mut z = vec![0.0f64; op.past + s.seq];
    for b in 0..s.batch {
        for t in 0..s.seq {
            let (row, first, len) = (b * s.seq + t, b * op.capacity, op.past + t + 1);
            for h in 0..s.heads {
                let g = h / per_group;
                for (j, z) in z[..len].iter_mut().enumerate() {
                    let dot: f64 = (0..e)
                        .map(|i| f64::from(q.get(row, h * e + i)) * f64::from(k.get(first + j, g * e + i)))
                        .sum();
                    *z = f64::from(s.scale) * dot;
                }
                let max = z[..len].iter().fold(f64::NEG_INFINITY, |a, &b| a.max(b));
                let sum: f64 = z[..len].iter().map(|z| (z - max).exp()).sum();
                for i in 0..e {
                    let o: f64 = (0..len)
                        .map(|j| (z[j] - max).exp() / sum * f64::from(v.get(first + j, g * e + i)))
                        .sum();
                    out.set(row, h * e + i, o as f32);
                }
            }
        }
    }
}
