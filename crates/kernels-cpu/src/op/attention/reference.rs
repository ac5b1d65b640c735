//! Plain loops in f64 for every form of attention.

use super::WeightDropout;
use super::cached::{Place, check_places, place};
use super::mask::Sight;
use crate::arena::Arena;
use crate::element::{Element, with_element};
use crate::op::dropout::factor;
use bessemer_tensor::op::{Attention, AttentionBackward, AttentionCached, AttentionShape, AttentionSlots};
use bessemer_tensor::{TensorError, View};

/// `scale q . k - slope (position of q - position of k)`.
fn score(s: &AttentionShape, sight: &Sight<'_>, h: usize, t: usize, key: usize, dot: f64) -> f64 {
    let away = sight.position(t) - sight.key_position(key);
    f64::from(s.scale) * dot - f64::from(sight.slope(h)) * away as f64
}

/// Dropout factor of the weight of query t and a key, or 1.
fn kept(
    dropout: &Option<WeightDropout>,
    sight: &Sight<'_>,
    (b, h, t): (usize, usize, usize),
    key: usize,
) -> f32 {
    dropout.as_ref().map_or(1.0, |m| {
        let query = (b * m.heads + m.first + h) * sight.all + sight.position(t);
        factor(&m.mask, (query * sight.all + sight.key_position(key)) as u64)
    })
}

pub(crate) fn forward(arena: &Arena, op: &Attention) -> Result<(), TensorError> {
    with_element!(op.q.dtype(), T => forward_typed::<T>(arena, op))
}

fn forward_typed<T: Element>(arena: &Arena, op: &Attention) -> Result<(), TensorError> {
    let (q, k, v) = (arena.mat::<T>(&op.q), arena.mat::<T>(&op.k), arena.mat::<T>(&op.v));
    let (out, lse_bht) = (arena.any(&op.out), arena.f32(&op.lse));
    let s = op.shape;
    let sight = Sight::new(&s, &op.mask, op.k.rows, op.mask.documents.as_ref().map(|view| arena.u32(view)));
    sight.check("attention")?;
    let dropout = op.dropout.map(|d| WeightDropout::new(&d, |view| arena.u32(view)));
    let (e, per_group, keys) = (s.head_dim, s.heads / s.kv_heads, s.keys(op.k.rows));
    let mut z = vec![0.0f64; keys];
    for b in 0..s.batch {
        for h in 0..s.heads {
            let g = h / per_group;
            for t in 0..s.seq {
                let seen = sight.first(b, t)..sight.end(t);
                for (j, z) in z.iter_mut().enumerate().take(seen.end).skip(seen.start) {
                    let dot = (0..e)
                        .map(|i| {
                            f64::from(q.get(b * s.seq + t, h * e + i))
                                * f64::from(k.get(b * keys + j, g * e + i))
                        })
                        .sum();
                    *z = score(&s, &sight, h, t, j, dot);
                }
                let max = z[seen.clone()].iter().fold(f64::NEG_INFINITY, |a, &b| a.max(b));
                let lse = max + z[seen.clone()].iter().map(|z| (z - max).exp()).sum::<f64>().ln();
                lse_bht.set(b * s.heads + h, t, lse as f32);
                for i in 0..e {
                    let of = |j: usize| {
                        let m = f64::from(kept(&dropout, &sight, (b, h, t), j));
                        m * (z[j] - lse).exp() * f64::from(v.get(b * keys + j, g * e + i))
                    };
                    let sum: f64 = seen.clone().map(of).sum();
                    out.set(b * s.seq + t, h * e + i, sum as f32);
                }
            }
        }
    }
    Ok(())
}

pub(crate) fn backward(arena: &Arena, op: &AttentionBackward) -> Result<(), TensorError> {
    with_element!(op.q.dtype(), T => backward_typed::<T>(arena, op))
}

fn backward_typed<T: Element>(arena: &Arena, op: &AttentionBackward) -> Result<(), TensorError> {
    let (q, k, v) = (arena.mat::<T>(&op.q), arena.mat::<T>(&op.k), arena.mat::<T>(&op.v));
    let (out, lse_bht, dout) = (arena.mat::<T>(&op.out), arena.f32(&op.lse), arena.mat::<T>(&op.dout));
    let (dq_m, dk_m, dv_m) = (arena.any(&op.dq), arena.any(&op.dk), arena.any(&op.dv));
    let s = op.shape;
    let sight = Sight::new(&s, &op.mask, op.k.rows, op.mask.documents.as_ref().map(|view| arena.u32(view)));
    sight.check("attention_backward")?;
    let dropout = op.dropout.map(|d| WeightDropout::new(&d, |view| arena.u32(view)));
    let (e, per_group, seq, keys) = (s.head_dim, s.heads / s.kv_heads, s.seq, s.keys(op.k.rows));
    for b in 0..s.batch {
        for g in 0..s.kv_heads {
            let mut dk = vec![0.0f64; keys * e];
            let mut dv = vec![0.0f64; keys * e];
            for h in g * per_group..(g + 1) * per_group {
                for t in 0..seq {
                    let row = b * seq + t;
                    let d: f64 = (0..e)
                        .map(|i| f64::from(dout.get(row, h * e + i)) * f64::from(out.get(row, h * e + i)))
                        .sum();
                    let mut dq = vec![0.0f64; e];
                    for j in sight.first(b, t)..sight.end(t) {
                        let kv = b * keys + j;
                        let (mut dot, mut dp) = (0.0, 0.0);
                        for i in 0..e {
                            dot += f64::from(q.get(row, h * e + i)) * f64::from(k.get(kv, g * e + i));
                            dp += f64::from(dout.get(row, h * e + i)) * f64::from(v.get(kv, g * e + i));
                        }
                        let lse = f64::from(lse_bht.get(b * s.heads + h, t));
                        let p = (score(&s, &sight, h, t, j, dot) - lse).exp();
                        let m = f64::from(kept(&dropout, &sight, (b, h, t), j));
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
            for j in 0..keys {
                for i in 0..e {
                    dk_m.set(b * keys + j, g * e + i, dk[j * e + i] as f32);
                    dv_m.set(b * keys + j, g * e + i, dv[j * e + i] as f32);
                }
            }
        }
    }
    Ok(())
}

pub(crate) fn cached(arena: &Arena, op: &AttentionCached) {
    let (q, k, v) = (arena.f32(&op.q), arena.f32(&op.k_cache), arena.f32(&op.v_cache));
    let out = arena.f32(&op.out);
    let (s, sight) = (op.shape, Sight::cached(op));
    let (e, per_group) = (s.head_dim, s.heads / s.kv_heads);
    let mut z = vec![0.0f64; op.past + s.seq];
    for b in 0..s.batch {
        for t in 0..s.seq {
            let (row, cache) = (b * s.seq + t, b * op.capacity);
            let (first, last) = (sight.first(b, t), sight.position(t));
            for h in 0..s.heads {
                let g = h / per_group;
                for (j, z) in z.iter_mut().enumerate().take(last + 1).skip(first) {
                    let dot = (0..e)
                        .map(|i| f64::from(q.get(row, h * e + i)) * f64::from(k.get(cache + j, g * e + i)))
                        .sum();
                    *z = score(&s, &sight, h, t, j, dot);
                }
                let max = z[first..=last].iter().fold(f64::NEG_INFINITY, |a, &b| a.max(b));
                let sum: f64 = z[first..=last].iter().map(|z| (z - max).exp()).sum();
                for i in 0..e {
                    let o: f64 = (first..=last)
                        .map(|j| (z[j] - max).exp() / sum * f64::from(v.get(cache + j, g * e + i)))
                        .sum();
                    out.set(row, h * e + i, o as f32);
                }
            }
        }
    }
}

/// Appends every row to its slot, then attends from it alone.
pub(crate) fn slots(arena: &Arena, op: &AttentionSlots) -> Result<(), TensorError> {
    let places = arena.u32(&op.places).0;
    check_places(op, places)?;
    let [k, v] = [&op.k, &op.v].map(|view| arena.f32(view));
    let [keys, values] = [&op.k_cache, &op.v_cache].map(|view| arena.f32(view));
    for row in 0..op.shape.batch {
        let Place { own, .. } = place(op, places, row);
        for i in 0..k.cols {
            keys.set(own, i, k.get(row, i));
            values.set(own, i, v.get(row, i));
        }
    }
    for row in 0..op.shape.batch {
        let Place { first, own } = place(op, places, row);
        let seen =
            |view: View| View { offset: view.offset + first * view.stride, rows: own + 1 - first, ..view };
        let (k_cache, v_cache) = (seen(op.k_cache), seen(op.v_cache));
        let shape = AttentionShape { batch: 1, ..op.shape };
        let (past, capacity) = (own - first, own + 1 - first);
        let (q, out) = (op.q.rows(row, 1), op.out.rows(row, 1));
        let one = AttentionCached {
            shape,
            past,
            capacity,
            window: None,
            alibi: op.alibi,
            q,
            k_cache,
            v_cache,
            out,
        };
        cached(arena, &one);
    }
    Ok(())
}
