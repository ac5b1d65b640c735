//! One AdamW update (Loshchilov & Hutter 2019), every operation rounded to f32 in this order:
//! `g = grad_scale grad; p = p (1 - lr weight_decay); m = b1 m + (1-b1) g; v = b2 v + ((1-b2) g) g;
//! p = p - (lr (m / correction1)) / (sqrt(v / correction2) + eps)`.
//!
//! Addition, multiplication, division and square root are exactly rounded on every rung and no multiply-add is fused, so
//! all rungs give the same bits. Cost: four reads and three writes of 4 bytes an element: memory speed.

use crate::arena::Arena;
use bessemer_tensor::op::AdamW;

/// One element: (p, g, m, v) to (p, m, v).
fn update(op: &AdamW, p: f32, grad: f32, m: f32, v: f32) -> (f32, f32, f32) {
    let g = op.grad_scale * grad;
    let p = p * (1.0 - op.lr * op.weight_decay);
    let m = op.beta1 * m + (1.0 - op.beta1) * g;
    let v = op.beta2 * v + (1.0 - op.beta2) * g * g;
    let p = p - op.lr * (m / op.correction1) / ((v / op.correction2).sqrt() + op.eps);
    (p, m, v)
}

pub(crate) fn reference(arena: &Arena, op: &AdamW) {
    let (param, grad) = (arena.f32(&op.param), arena.f32(&op.grad));
    let (m, v) = (arena.f32(&op.m), arena.f32(&op.v));
    let master = op.master.map(|x| arena.f32(&x));
    for r in 0..param.rows {
        for c in 0..param.cols {
            let p = master.unwrap_or(param).get(r, c);
            let (p, m_new, v_new) = update(op, p, grad.get(r, c), m.get(r, c), v.get(r, c));
            m.set(r, c, m_new);
            v.set(r, c, v_new);
            param.set(r, c, p);
            if let Some(x) = master {
                x.set(r, c, p);
            }
        }
    }
}
