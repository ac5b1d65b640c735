//! Gated units `out = f(gate) up`; `dgate = dout up f'(gate)`, `dup = dout f(gate)` (Shazeer 2020).
//!
//! Saved for the backward pass: gate and up. Cost: forward two reads and one write, backward three reads, two writes.
#![allow(unsafe_code)] // rows by address

use super::activation::{derivative, value};
use super::tiles::{Block, blocks};
use crate::arena::Arena;
use crate::ctx::Ctx;
use crate::element::{Element, with_element};
use crate::operand::{Indices, Mat};
use crate::simd::math::{activate, activate_with_derivative};
use crate::simd::{Kernel, Simd, dispatch, load_part, store_part};
use bessemer_tensor::op::{ActivationKind, Gated, GatedBackward};
use bessemer_tensor::{TensorError, View};
use std::ops::Range;

struct Forward<'a, T>(ActivationKind, [&'a Mat<T>; 3], Block);

impl<T: Element> Kernel for Forward<'_, T> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Forward(kind, [gate, up, out], block) = self;
        for r in block.rows {
            for c in block.cols.clone().step_by(S::LANES) {
                let n = S::LANES.min(block.cols.end - c);
                // SAFETY: columns c .. c + n of row r of all three.
                unsafe {
                    let f = activate::<S>(kind, load_part::<S>(gate.row(r).add(c), n));
                    let y = S::mul(f, load_part::<S>(up.row(r).add(c), n));
                    store_part::<S>(out.row(r).add(c), y, n);
                }
            }
        }
    }
}

struct Backward<'a, T>(ActivationKind, [&'a Mat<T>; 5], Block);

impl<T: Element> Kernel for Backward<'_, T> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Backward(kind, [gate, up, dout, dgate, dup], block) = self;
        for r in block.rows {
            for c in block.cols.clone().step_by(S::LANES) {
                let n = S::LANES.min(block.cols.end - c);
                // SAFETY: columns c .. c + n of row r of all five; everything is read before it is written, so dgate
                // and dup may be gate and up.
                unsafe {
                    let (f, df) = activate_with_derivative::<S>(kind, load_part::<S>(gate.row(r).add(c), n));
                    let d = load_part::<S>(dout.row(r).add(c), n);
                    let u = load_part::<S>(up.row(r).add(c), n);
                    store_part::<S>(dgate.row(r).add(c), S::mul(S::mul(d, u), df), n);
                    store_part::<S>(dup.row(r).add(c), S::mul(d, f), n);
                }
            }
        }
    }
}

/// Rows that count.
fn live(op: &'static str, live: Option<Indices<'_>>, rows: usize) -> Result<Range<usize>, TensorError> {
    let Some(Indices(live)) = live else { return Ok(0..rows) };
    let last = live.len() - 1;
    let first = if last > 0 { live[0] as usize } else { 0 };
    match live[last] as usize {
        end if first <= end && end <= rows => Ok(first..end),
        _ => Err(TensorError::Index { op, operand: "live", at: last, index: live[last], len: rows + 1 }),
    }
}

pub(crate) fn forward(ctx: &Ctx<'_>, op: &Gated) -> Result<(), TensorError> {
    let rows = live("gated", op.live.as_ref().map(|live| ctx.u32(live)), op.out.rows)?;
    with_element!(op.gate.dtype(), T => typed_forward::<T>(ctx, op, rows));
    Ok(())
}

fn typed_forward<T: Element>(ctx: &Ctx<'_>, op: &Gated, rows: Range<usize>) {
    let of = |view: &View| ctx.mat::<T>(&view.rows(rows.start, rows.len()));
    let (gate, up, out) = (of(&op.gate), of(&op.up), of(&op.out));
    blocks(ctx, rows.len(), out.cols, &|block| {
        // SAFETY: the instruction set is available; operands are checked views; blocks are disjoint.
        unsafe { dispatch(ctx.rung, Forward(op.kind, [&gate, &up, &out], block)) }
    });
}

pub(crate) fn backward(ctx: &Ctx<'_>, op: &GatedBackward) -> Result<(), TensorError> {
    let rows = live("gated_backward", op.live.as_ref().map(|live| ctx.u32(live)), op.dout.rows)?;
    with_element!(op.gate.dtype(), T => typed_backward::<T>(ctx, op, rows));
    Ok(())
}

fn typed_backward<T: Element>(ctx: &Ctx<'_>, op: &GatedBackward, rows: Range<usize>) {
    let of = |view: &View| ctx.mat::<T>(&view.rows(rows.start, rows.len()));
    let (gate, up, dout) = (of(&op.gate), of(&op.up), of(&op.dout));
    let (dgate, dup) = (of(&op.dgate), of(&op.dup));
    blocks(ctx, rows.len(), dout.cols, &|block| {
        // SAFETY: as above.
        unsafe { dispatch(ctx.rung, Backward(op.kind, [&gate, &up, &dout, &dgate, &dup], block)) }
    });
}

pub(crate) fn forward_reference(arena: &Arena, op: &Gated) -> Result<(), TensorError> {
    let rows = live("gated", op.live.as_ref().map(|live| arena.u32(live)), op.out.rows)?;
    with_element!(op.gate.dtype(), T => typed_forward_reference::<T>(arena, op, rows));
    Ok(())
}

fn typed_forward_reference<T: Element>(arena: &Arena, op: &Gated, rows: Range<usize>) {
    let (gate, up, out) = (arena.mat::<T>(&op.gate), arena.mat::<T>(&op.up), arena.mat::<T>(&op.out));
    for r in rows {
        for c in 0..out.cols {
            let f = value(op.kind, f64::from(gate.get(r, c)));
            out.set(r, c, (f * f64::from(up.get(r, c))) as f32);
        }
    }
}

pub(crate) fn backward_reference(arena: &Arena, op: &GatedBackward) -> Result<(), TensorError> {
    let rows = live("gated_backward", op.live.as_ref().map(|live| arena.u32(live)), op.dout.rows)?;
    with_element!(op.gate.dtype(), T => typed_backward_reference::<T>(arena, op, rows));
    Ok(())
}

fn typed_backward_reference<T: Element>(arena: &Arena, op: &GatedBackward, rows: Range<usize>) {
    let (gate, up, dout) = (arena.mat::<T>(&op.gate), arena.mat::<T>(&op.up), arena.mat::<T>(&op.dout));
    let (dgate, dup) = (arena.mat::<T>(&op.dgate), arena.mat::<T>(&op.dup));
    for r in rows {
        for c in 0..dout.cols {
            let (g, u, d) = (f64::from(gate.get(r, c)), f64::from(up.get(r, c)), f64::from(dout.get(r, c)));
            dgate.set(r, c, (d * u * derivative(op.kind, g)) as f32);
            dup.set(r, c, (d * value(op.kind, g)) as f32);
        }
    }
}
