//! Causal attention and its backward pass (Vaswani et al. 2017; tiles and recomputation as in Dao et al. 2022, 2023).
//!
//! Forward, for each (b, h) and s <= t: `z = scale q_t . k_s`, `lse_t = log sum_s exp z`, `p = exp(z - lse_t)`,
//! `out_t = sum_s m p v_s`, m the dropout factor or 1. Backward: `D_t = dout_t . out_t`, `dp = m (dout_t . v_s)`,
//! `dz = p (dp - D_t)`, `dq_t = scale sum_s dz k_s`, `dk_s = scale sum_t dz q_t`, `dv_s = sum_t m p dout_t`; dk and dv
//! are summed over the query heads of their group in the order of h.
//!
//! Saved for the backward pass: q, k, v, out, lse. Cost: two products forward, five backward, over the causal half.

use super::dropout::factor;
use crate::arena::Arena;
use bessemer_tensor::op::{Attention, AttentionBackward};

pub(crate) fn forward_reference(arena: &Arena, op: &Attention) {
    let (q, k, v) = (arena.f32(&op.q), arena.f32(&op.k), arena.f32(&op.v));
    let (out, lse_bht) = (arena.f32(&op.out), arena.f32(&op.lse));
    let s = op.shape;
    let (e, per_group) = (s.head_dim, s.heads / s.kv_heads);
    let mut z = vec![0.0f64; s.seq];
    for b in 0..s.batch {
        for h in 0..s.heads {
            let g = h / per_group;
            for t in 0..s.seq {
                for (j, z) in z[..=t].iter_mut().enumerate() {
                    let dot: f64 = (0..e)
                        .map(|i| {
                            f64::from(q.get(b * s.seq + t, h * e + i))
                                * f64::from(k.get(b * s.seq + j, g * e + i))
                        })
                        .sum();
                    *z = f64::from(s.scale) * dot;
                }
                let max = z[..=t].iter().fold(f64::NEG_INFINITY, |a, &b| a.max(b));
                let lse = max + z[..=t].iter().map(|z| (z - max).exp()).sum::<f64>().ln();
                lse_bht.set(b * s.heads + h, t, lse as f32);
                for i in 0..e {
                    let sum: f64 = (0..=t)
                        .map(|j| {
                            let m = op.dropout.map_or(1.0, |m| {
                                factor(&m, (((b * s.heads + h) * s.seq + t) * s.seq + j) as u64)
                            });
                            f64::from(m) * (z[j] - lse).exp() * f64::from(v.get(b * s.seq + j, g * e + i))
                        })
                        .sum();
                    out.set(b * s.seq + t, h * e + i, sum as f32);
                }
            }
        }
    }
}

pub(crate) fn backward_reference(arena: &Arena, op: &AttentionBackward) {
    let (q, k, v) = (arena.f32(&op.q), arena.f32(&op.k), arena.f32(&op.v));
    let (out, lse_bht, dout) = (arena.f32(&op.out), arena.f32(&op.lse), arena.f32(&op.dout));
    let (dq_m, dk_m, dv_m) = (arena.f32(&op.dq), arena.f32(&op.dk), arena.f32(&op.dv));
    let s = op.shape;
    let (e, per_group, seq) = (s.head_dim, s.heads / s.kv_heads, s.seq);
    for b in 0..s.batch {
        for g in 0..s.kv_heads {
            let mut dk = vec![0.0f64; seq * e];
            let mut dv = vec![0.0f64; seq * e];
            for h in g * per_group..(g + 1) * per_group {
                for t in 0..seq {
                    let row = b * seq + t;
                    let d: f64 = (0..e)
                        .map(|i| f64::from(dout.get(row, h * e + i)) * f64::from(out.get(row, h * e + i)))
                        .sum();
                    let mut dq = vec![0.0f64; e];
                    for j in 0..=t {
                        let kv = b * seq + j;
                        let (mut z, mut dp) = (0.0, 0.0);
                        for i in 0..e {
                            z += f64::from(q.get(row, h * e + i)) * f64::from(k.get(kv, g * e + i));
                            dp += f64::from(dout.get(row, h * e + i)) * f64::from(v.get(kv, g * e + i));
                        }
                        let lse = f64::from(lse_bht.get(b * s.heads + h, t));
                        let p = (f64::from(s.scale) * z - lse).exp();
                        let element = (((b * s.heads + h) * seq + t) * seq + j) as u64;
                        let m = f64::from(op.dropout.map_or(1.0, |m| factor(&m, element)));
                        let dz = f64::from(s.scale) * p * (m * dp - d);
                        for i in 0..e {
                            dq[i] += dz * f64::from(k.get(kv, g * e + i));
                            dk[j * e + i] += dz * f64::from(q.get(row, h * e + i));
                            dv[j * e + i] += m * p * f64::from(dout.get(row, h * e + i));
                        }
                    }
                    (0..e).for_each(|i| dq_m.set(row, h * e + i, dq[i] as f32));
                }
            }
            for t in 0..seq {
                for i in 0..e {
                    dk_m.set(b * seq + t, g * e + i, dk[t * e + i] as f32);
                    dv_m.set(b * seq + t, g * e + i, dv[t * e + i] as f32);
                }
            }
        }
    }
}
