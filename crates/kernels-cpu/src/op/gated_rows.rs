//! Rows added with a gate for each: `out[t] = x[t] + sigmoid(gates[t]) y[t]`, or with two gates `c_0 x[t] + c_1 y[t]`, c their softmax, and
//! its gradients.
//!
//! Cost: forward two reads and one write of the width, backward two reads and one write. A row is the work of one thread.
#![allow(unsafe_code)] // rows by address

use super::tiles::{Block, blocks};
use crate::arena::Arena;
use crate::ctx::Ctx;
use crate::element::{Element, with_element};
use crate::operand::Mat;
use crate::simd::math::exp;
use crate::simd::{Kernel, Simd, dispatch, load_part, store_part};
use bessemer_tensor::op::{AddGatedRows, AddGatedRowsBackward};
use std::ops::Range;

/// `1 / (1 + exp(-x))`.
#[inline(always)]
unsafe fn sigmoid<S: Simd>(x: f32) -> S::V {
    // SAFETY: register arithmetic only.
    unsafe { S::div(S::splat(1.0), S::add(S::splat(1.0), exp::<S>(S::splat(-x)))) }
}

/// Argument of the sigmoid: with two gates their difference, as `softmax([a, b])[1] = sigmoid(b - a)`.
fn exponent(gates: &Mat, row: usize) -> f32 {
    if gates.cols == 1 { gates.get(row, 0) } else { gates.get(row, 1) - gates.get(row, 0) }
}

fn sigmoid_reference(x: f32) -> f64 {
    1.0 / (1.0 + (-f64::from(x)).exp())
}

struct Forward<'a, T> {
    x: &'a Mat<T>,
    y: &'a Mat<T>,
    gates: &'a Mat,
    out: &'a Mat<T>,
    block: Block,
}

impl<T: Element> Kernel for Forward<'_, T> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Forward { x, y, gates, out, block } = self;
        for r in block.rows {
            // SAFETY: columns c .. c + n of row r of all three; they are read before they are written, so `out` may be `x`.
            unsafe {
                let s = sigmoid::<S>(exponent(gates, r));
                let of_x = if gates.cols == 1 { S::splat(1.0) } else { S::sub(S::splat(1.0), s) };
                for c in block.cols.clone().step_by(S::LANES) {
                    let n = S::LANES.min(block.cols.end - c);
                    let first = S::mul(of_x, load_part::<S>(x.row(r).add(c), n));
                    let sum = S::fma(s, load_part::<S>(y.row(r).add(c), n), first);
                    store_part::<S>(out.row(r).add(c), sum, n);
                }
            }
        }
    }
}

pub(crate) fn forward(ctx: &Ctx<'_>, op: &AddGatedRows) {
    let gates = ctx.f32(&op.gates);
    with_element!(op.out.dtype(), T => {
        let (x, y, out) = (ctx.mat::<T>(&op.x), ctx.mat::<T>(&op.y), ctx.mat::<T>(&op.out));
        blocks(ctx, out.rows, out.cols, &|block| {
            let add = Forward { x: &x, y: &y, gates: &gates, out: &out, block };
            // SAFETY: the instruction set is available; operands are checked views; blocks are disjoint.
            unsafe { dispatch(ctx.rung, add) }
        });
    });
}

pub(crate) fn forward_reference(arena: &Arena, op: &AddGatedRows) {
    let (x, y, out) = (arena.any(&op.x), arena.any(&op.y), arena.any(&op.out));
    let gates = arena.f32(&op.gates);
    for r in 0..out.rows {
        let s = sigmoid_reference(exponent(&gates, r));
        let of_x = if gates.cols == 1 { 1.0 } else { 1.0 - s };
        let sum = |c: usize| of_x * f64::from(x.get(r, c)) + s * f64::from(y.get(r, c));
        (0..out.cols).for_each(|c| out.set(r, c, sum(c) as f32));
    }
}

struct Backward<'a, T> {
    dout: &'a Mat<T>,
    y: &'a Mat<T>,
    gates: &'a Mat,
    mixed: Option<&'a (Mat<T>, Mat<T>)>,
    dy: &'a Mat<T>,
    dgates: &'a Mat,
    rows: Range<usize>,
}

impl<T: Element> Kernel for Backward<'_, T> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Backward { dout, y, gates, mixed, dy, dgates, rows } = self;
        for r in rows {
            // SAFETY: whole rows, cut into vectors.
            unsafe {
                let (s, mut inner) = (sigmoid::<S>(exponent(gates, r)), S::splat(0.0));
                let of_x = S::sub(S::splat(1.0), s);
                for c in (0..dout.cols).step_by(S::LANES) {
                    let n = S::LANES.min(dout.cols - c);
                    let d = load_part::<S>(dout.row(r).add(c), n);
                    inner = S::fma(d, load_part::<S>(y.row(r).add(c), n), inner);
                    store_part::<S>(dy.row(r).add(c), S::mul(s, d), n);
                    if let Some((x, dx)) = mixed {
                        let x = load_part::<S>(x.row(r).add(c), n);
                        inner = S::sub(inner, S::mul(d, x));
                        store_part::<S>(dx.row(r).add(c), S::mul(of_x, d), n);
                    }
                }
                let s = S::hmax(s);
                let slope = s * (1.0 - s) * S::sum(inner);
                match mixed {
                    None => dgates.set(r, 0, slope),
                    Some(_) => [-slope, slope].into_iter().enumerate().for_each(|(g, d)| dgates.set(r, g, d)),
                }
            }
        }
    }
}

pub(crate) fn backward(ctx: &Ctx<'_>, op: &AddGatedRowsBackward) {
    const ROWS: usize = 32;
    let (gates, dgates) = (ctx.f32(&op.gates), ctx.f32(&op.dgates));
    with_element!(op.y.dtype(), T => {
        let (dout, y, dy) = (ctx.mat::<T>(&op.dout), ctx.mat::<T>(&op.y), ctx.mat::<T>(&op.dy));
        let mixed = op.mixed.map(|of| (ctx.mat::<T>(&of.x), ctx.mat::<T>(&of.dx)));
        ctx.pool.run(y.rows.div_ceil(ROWS), &|tile, _| {
            let rows = tile * ROWS..y.rows.min((tile + 1) * ROWS);
            let mixed = mixed.as_ref();
            let spread = Backward { dout: &dout, y: &y, gates: &gates, mixed, dy: &dy, dgates: &dgates, rows };
            // SAFETY: the instruction set is available; tiles are disjoint rows.
            unsafe { dispatch(ctx.rung, spread) }
        });
    });
}

pub(crate) fn backward_reference(arena: &Arena, op: &AddGatedRowsBackward) {
    let (dout, y, dy) = (arena.any(&op.dout), arena.any(&op.y), arena.any(&op.dy));
    let (gates, dgates) = (arena.f32(&op.gates), arena.f32(&op.dgates));
    for r in 0..y.rows {
        let s = sigmoid_reference(exponent(&gates, r));
        let d = |c: usize| f64::from(dout.get(r, c));
        let mut inner: f64 = (0..y.cols).map(|c| d(c) * f64::from(y.get(r, c))).sum();
        (0..y.cols).for_each(|c| dy.set(r, c, (s * d(c)) as f32));
        if let Some((x, dx)) = op.mixed.map(|of| (arena.any(&of.x), arena.any(&of.dx))) {
            inner -= (0..y.cols).map(|c| d(c) * f64::from(x.get(r, c))).sum::<f64>();
            (0..y.cols).for_each(|c| dx.set(r, c, ((1.0 - s) * d(c)) as f32));
            dgates.set(r, 0, (-s * (1.0 - s) * inner) as f32);
        }
        dgates.set(r, gates.cols - 1, (s * (1.0 - s) * inner) as f32);
    }
}
