//! LayerNorm (Ba et al. 2016) and RMSNorm (Zhang & Sennrich 2019) over rows.
//!
//! Forward: `xhat = (x - mean) rstd`, `out = xhat weight + bias`, `rstd = 1/sqrt(var + eps)`; RMSNorm has mean 0 and
//! var = mean(x^2). Backward with g = dout weight: LayerNorm `dx (+)= rstd (g - mean(g) - xhat mean(g xhat))`, RMSNorm
//! `dx (+)= rstd (g - xhat mean(g xhat))`; `dweight (+)= sum_n dout xhat`, `dbias (+)= sum_n dout`.
//!
//! Saved for the backward pass: x, mean, rstd. Cost: forward one read and one write, backward two reads and a write.

use crate::arena::Arena;
use bessemer_tensor::op::{Norm, NormBackward, NormKind};

pub(crate) fn forward_reference(arena: &Arena, op: &Norm) {
    let (x, w, out) = (arena.f32(&op.x), arena.f32(&op.weight), arena.f32(&op.out));
    let (bias, rstd_n) = (op.bias.map(|b| arena.f32(&b)), arena.f32(&op.rstd));
    let d = x.cols as f64;
    for n in 0..x.rows {
        let mean = match op.kind {
            NormKind::Layer => (0..x.cols).map(|c| f64::from(x.get(n, c))).sum::<f64>() / d,
            NormKind::Rms => 0.0,
        };
        let var = (0..x.cols).map(|c| (f64::from(x.get(n, c)) - mean).powi(2)).sum::<f64>() / d;
        let rstd = 1.0 / (var + f64::from(op.eps)).sqrt();
        rstd_n.set(0, n, rstd as f32);
        if let (Some(m), NormKind::Layer) = (op.mean, op.kind) {
            arena.f32(&m).set(0, n, mean as f32);
        }
        for c in 0..x.cols {
            let y = (f64::from(x.get(n, c)) - mean) * rstd * f64::from(w.get(0, c));
            out.set(n, c, (y + bias.map_or(0.0, |b| f64::from(b.get(0, c)))) as f32);
        }
    }
}

pub(crate) fn backward_reference(arena: &Arena, op: &NormBackward) {
    let (x, w, dout, dx) = (arena.f32(&op.x), arena.f32(&op.weight), arena.f32(&op.dout), arena.f32(&op.dx));
    let (rstd_n, dw) = (arena.f32(&op.rstd), arena.f32(&op.dweight));
    let mean_n = op.mean.filter(|_| op.kind == NormKind::Layer).map(|m| arena.f32(&m));
    let d = x.cols as f64;
    let xhat = |n: usize, c: usize| {
        let mean = mean_n.map_or(0.0, |m| f64::from(m.get(0, n)));
        (f64::from(x.get(n, c)) - mean) * f64::from(rstd_n.get(0, n))
    };
    for n in 0..x.rows {
        let g = |c: usize| f64::from(dout.get(n, c)) * f64::from(w.get(0, c));
        let mean_g = match op.kind {
            NormKind::Layer => (0..x.cols).map(g).sum::<f64>() / d,
            NormKind::Rms => 0.0,
        };
        let mean_gx = (0..x.cols).map(|c| g(c) * xhat(n, c)).sum::<f64>() / d;
        for c in 0..x.cols {
            let v = f64::from(rstd_n.get(0, n)) * (g(c) - mean_g - xhat(n, c) * mean_gx);
            dx.put(n, c, v as f32, op.accumulate_dx);
        }
    }
    for c in 0..x.cols {
        let sum: f64 = (0..x.rows).map(|n| f64::from(dout.get(n, c)) * xhat(n, c)).sum();
        dw.put(0, c, sum as f32, op.accumulate);
    }
    if let Some(db) = op.dbias {
        let db = arena.f32(&db);
        for c in 0..x.cols {
            let sum: f64 = (0..x.rows).map(|n| f64::from(dout.get(n, c))).sum();
            db.put(0, c, sum as f32, op.accumulate);
        }
    }
}
