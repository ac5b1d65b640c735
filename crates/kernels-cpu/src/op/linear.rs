//! The linear map `out = f(x W^T + b) + residual` and its two backward halves
//! `dx (+)= (dy W) f'(pre)` and `dW (+)= dy^T x`, `db (+)= sum_n dy`.
//!
//! Saved for the backward pass: x, and `pre = x W^T + b` if there is an activation. Cost: 2 N I O operations each.

use super::activation::{derivative, value};
use crate::arena::Arena;
use bessemer_tensor::op::{Linear, LinearBackwardInput, LinearBackwardWeight};

pub(crate) fn forward_reference(arena: &Arena, op: &Linear) {
    let (x, w, out) = (arena.f32(&op.x), arena.f32(&op.weight), arena.f32(&op.out));
    let bias = op.bias.map(|b| arena.f32(&b));
    let residual = op.residual.map(|r| arena.f32(&r));
    for n in 0..x.rows {
        for o in 0..w.rows {
            let mut y: f64 = (0..x.cols).map(|i| f64::from(x.get(n, i)) * f64::from(w.get(o, i))).sum();
            if let Some(b) = bias {
                y += f64::from(b.get(0, o));
            }
            if let Some((kind, pre)) = op.activation {
                arena.f32(&pre).set(n, o, y as f32);
                y = value(kind, y);
            }
            if let Some(r) = residual {
                y += f64::from(r.get(n, o));
            }
            out.set(n, o, y as f32);
        }
    }
}

pub(crate) fn backward_input_reference(arena: &Arena, op: &LinearBackwardInput) {
    let (dy, w, dx) = (arena.f32(&op.dy), arena.f32(&op.weight), arena.f32(&op.dx));
    for n in 0..dy.rows {
        for i in 0..w.cols {
            let mut d: f64 = (0..w.rows).map(|o| f64::from(dy.get(n, o)) * f64::from(w.get(o, i))).sum();
            if let Some((kind, pre)) = op.activation {
                d *= derivative(kind, f64::from(arena.f32(&pre).get(n, i)));
            }
            dx.put(n, i, d as f32, op.accumulate);
        }
    }
}

pub(crate) fn backward_weight_reference(arena: &Arena, op: &LinearBackwardWeight) {
    let (x, dy, dw) = (arena.f32(&op.x), arena.f32(&op.dy), arena.f32(&op.dweight));
    for o in 0..dy.cols {
        for i in 0..x.cols {
            let d: f64 = (0..x.rows).map(|n| f64::from(dy.get(n, o)) * f64::from(x.get(n, i))).sum();
            dw.put(o, i, d as f32, op.accumulate);
        }
    }
    if let Some(db) = op.dbias {
        let db = arena.f32(&db);
        for o in 0..dy.cols {
            let d: f64 = (0..dy.rows).map(|n| f64::from(dy.get(n, o))).sum();
            db.put(0, o, d as f32, op.accumulate);
        }
    }
}
