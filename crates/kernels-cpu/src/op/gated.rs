//! Gated units `out = f(gate) up`; `dgate = dout up f'(gate)`, `dup = dout f(gate)` (Shazeer 2020).
//!
//! Saved for the backward pass: gate and up. Cost: forward two reads and one write, backward three reads, two writes.

use super::activation::{derivative, value};
use crate::arena::Arena;
use bessemer_tensor::op::{Gated, GatedBackward};

pub(crate) fn forward_reference(arena: &Arena, op: &Gated) {
    let (gate, up, out) = (arena.f32(&op.gate), arena.f32(&op.up), arena.f32(&op.out));
    for r in 0..out.rows {
        for c in 0..out.cols {
            let f = value(op.kind, f64::from(gate.get(r, c)));
            out.set(r, c, (f * f64::from(up.get(r, c))) as f32);
        }
    }
}

pub(crate) fn backward_reference(arena: &Arena, op: &GatedBackward) {
    let (gate, up, dout) = (arena.f32(&op.gate), arena.f32(&op.up), arena.f32(&op.dout));
    let (dgate, dup) = (arena.f32(&op.dgate), arena.f32(&op.dup));
    for r in 0..dout.rows {
        for c in 0..dout.cols {
            let (g, u, d) = (f64::from(gate.get(r, c)), f64::from(up.get(r, c)), f64::from(dout.get(r, c)));
            dgate.set(r, c, (d * u * derivative(op.kind, g)) as f32);
            dup.set(r, c, (d * value(op.kind, g)) as f32);
        }
    }
}
