//! LayerNorm (Ba et al. 2016) and RMSNorm (Zhang & Sennrich 2019) over rows.
//!
//! Forward: `xhat = (x - mean) rstd`, `out = xhat weight + bias`, `rstd = 1/sqrt(var + eps)`; RMSNorm has mean 0 and
//! var = mean(x^2). Backward with g = dout weight: LayerNorm `dx (+)= rstd (g - mean(g) - xhat mean(g xhat))`, RMSNorm
//! `dx (+)= rstd (g - xhat mean(g xhat))`; `dweight (+)= sum_n dout xhat`, `dbias (+)= sum_n dout`.
//!
//! Saved for the backward pass: x, mean, rstd. Cost: forward one read and one write, backward two reads and a write.
#![allow(unsafe_code)] // rows by address

use super::column_sums::add_partials;
use crate::arena::Arena;
use crate::ctx::{Ctx, Span, padded};
use crate::element::{Element, with_element};
use crate::operand::{AnyMat, Mat};
use crate::simd::{Kernel, Simd, dispatch, load_part, store_part};
use bessemer_tensor::op::{Norm, NormBackward, NormKind};

/// Rows of a tile. Each tile of the backward pass leaves one partial row of dweight and of dbias.
const ROWS: usize = 32;

struct Forward<'a, T> {
    kind: NormKind,
    eps: f32,
    x: &'a Mat<T>,
    weight: &'a AnyMat,
    bias: Option<&'a AnyMat>,
    out: &'a Mat<T>,
    mean: Option<&'a Mat>,
    rstd: &'a Mat,
    tile: usize,
}

impl<T: Element> Kernel for Forward<'_, T> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Forward { x, weight, bias, out, .. } = self;
        let d = x.cols;
        for row in self.tile * ROWS..((self.tile + 1) * ROWS).min(x.rows) {
            let from = x.row(row);
            // SAFETY: columns c .. c + n of a row of each operand; statistics of this row.
            unsafe {
                let mut mean = 0.0;
                if self.kind == NormKind::Layer {
                    let mut sum = S::splat(0.0);
                    for c in (0..d).step_by(S::LANES) {
                        sum = S::add(sum, load_part::<S>(from.add(c), S::LANES.min(d - c)));
                    }
                    mean = S::sum(sum) / d as f32;
                }
                let m = S::splat(mean);
                let mut squares = S::splat(0.0);
                let mut c = 0;
                while c + S::LANES <= d {
                    let y = S::sub(T::load::<S>(from.add(c)), m);
                    squares = S::fma(y, y, squares);
                    c += S::LANES;
                }
                let mut var = S::sum(squares);
                while c < d {
                    let y = (*from.add(c)).to_f32() - mean;
                    var += y * y;
                    c += 1;
                }
                let rstd = 1.0 / (var / d as f32 + self.eps).sqrt();
                self.rstd.set(0, row, rstd);
                if let (Some(all), NormKind::Layer) = (self.mean, self.kind) {
                    all.set(0, row, mean);
                }
                let (s, to) = (S::splat(rstd), out.row(row));
                for c in (0..d).step_by(S::LANES) {
                    let n = S::LANES.min(d - c);
                    let xhat = S::mul(S::sub(load_part::<S>(from.add(c), n), m), s);
                    let w = weight.load::<S>(0, c, n);
                    let y = match bias {
                        Some(b) => S::fma(xhat, w, b.load::<S>(0, c, n)),
                        None => S::mul(xhat, w),
                    };
                    store_part::<S>(to.add(c), y, n);
                }
            }
        }
    }
}

pub(crate) fn forward(ctx: &Ctx<'_>, op: &Norm) {
    with_element!(op.x.dtype(), T => typed_forward::<T>(ctx, op));
}

fn typed_forward<T: Element>(ctx: &Ctx<'_>, op: &Norm) {
    let (x, out) = (ctx.mat::<T>(&op.x), ctx.mat::<T>(&op.out));
    let (weight, rstd) = (ctx.any(&op.weight), ctx.f32(&op.rstd));
    let (bias, mean) = (op.bias.map(|b| ctx.any(&b)), op.mean.map(|m| ctx.f32(&m)));
    ctx.pool.run(x.rows.div_ceil(ROWS), &|tile, _| {
        let k = Forward {
            kind: op.kind,
            eps: op.eps,
            x: &x,
            weight: &weight,
            bias: bias.as_ref(),
            out: &out,
            mean: mean.as_ref(),
            rstd: &rstd,
            tile,
        };
        // SAFETY: the rung is available; operands are checked views; tiles are disjoint rows.
        unsafe { dispatch(ctx.rung, k) }
    });
}

struct Backward<'a, T> {
    op: &'a NormBackward,
    x: &'a Mat<T>,
    weight: &'a AnyMat,
    mean: Option<&'a Mat>,
    rstd: &'a Mat,
    dout: &'a Mat<T>,
    dx: &'a Mat<T>,
    partials: Span,
    tiles: usize,
    tile: usize,
}

impl<T: Element> Kernel for Backward<'_, T> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Backward { op, x, weight, mean, rstd, dout, dx, .. } = self;
        let (d, layer) = (x.cols, op.kind == NormKind::Layer);
        let dw = self.partials.at(self.tile * d, d);
        let db = op.dbias.map(|_| self.partials.at((self.tiles + self.tile) * d, d));
        // SAFETY: columns c .. c + n of a row of each operand, and of the partial rows that only this tile writes.
        unsafe {
            std::ptr::write_bytes(dw, 0, d);
            if let Some(db) = db {
                std::ptr::write_bytes(db, 0, d);
            }
            for row in self.tile * ROWS..((self.tile + 1) * ROWS).min(x.rows) {
                let (from, grad, to) = (x.row(row), dout.row(row), dx.row(row));
                let m = S::splat(if layer { mean.map_or(0.0, |m| m.get(0, row)) } else { 0.0 });
                let s = S::splat(rstd.get(0, row));
                let (mut sum_g, mut sum_gx) = (S::splat(0.0), S::splat(0.0));
                for c in (0..d).step_by(S::LANES) {
                    let n = S::LANES.min(d - c);
                    let xhat = S::mul(S::sub(load_part::<S>(from.add(c), n), m), s);
                    let y = load_part::<S>(grad.add(c), n);
                    // Past the end y is 0, and so is g.
                    let g = S::mul(y, weight.load::<S>(0, c, n));
                    sum_g = S::add(sum_g, g);
                    sum_gx = S::fma(g, xhat, sum_gx);
                    store_part::<S>(dw.add(c), S::fma(y, xhat, load_part::<S>(dw.add(c), n)), n);
                    if let Some(db) = db {
                        store_part::<S>(db.add(c), S::add(y, load_part::<S>(db.add(c), n)), n);
                    }
                }
                let mean_g = S::splat(if layer { S::sum(sum_g) / d as f32 } else { 0.0 });
                let mean_gx = S::splat(S::sum(sum_gx) / d as f32);
                for c in (0..d).step_by(S::LANES) {
                    let n = S::LANES.min(d - c);
                    let xhat = S::mul(S::sub(load_part::<S>(from.add(c), n), m), s);
                    let g = S::mul(load_part::<S>(grad.add(c), n), weight.load::<S>(0, c, n));
                    let mut v = S::mul(s, S::sub(S::sub(g, mean_g), S::mul(xhat, mean_gx)));
                    if op.accumulate_dx {
                        v = S::add(v, load_part::<S>(to.add(c), n));
                    }
                    store_part::<S>(to.add(c), v, n);
                }
            }
        }
    }
}

pub(crate) fn backward_workspace(op: &NormBackward) -> usize {
    let rows = op.x.rows.div_ceil(ROWS) * if op.dbias.is_some() { 2 } else { 1 };
    padded(rows * op.x.cols)
}

pub(crate) fn backward(ctx: &Ctx<'_>, op: &NormBackward) {
    with_element!(op.x.dtype(), T => typed_backward::<T>(ctx, op));
}

fn typed_backward<T: Element>(ctx: &Ctx<'_>, op: &NormBackward) {
    let (x, weight, rstd) = (ctx.mat::<T>(&op.x), ctx.any(&op.weight), ctx.f32(&op.rstd));
    let (dout, dx, mean) = (ctx.mat(&op.dout), ctx.mat(&op.dx), op.mean.map(|m| ctx.f32(&m)));
    let tiles = x.rows.div_ceil(ROWS);
    let mut scratch = ctx.scratch();
    let all = scratch.take(backward_workspace(op));
    ctx.pool.run(tiles, &|tile, _| {
        let k = Backward {
            op,
            x: &x,
            weight: &weight,
            mean: mean.as_ref(),
            rstd: &rstd,
            dout: &dout,
            dx: &dx,
            partials: all,
            tiles,
            tile,
        };
        // SAFETY: the rung is available; operands are checked views; tiles are disjoint rows.
        unsafe { dispatch(ctx.rung, k) }
    });
    add_partials(ctx, all, 0, tiles, &ctx.any(&op.dweight), op.accumulate);
    if let Some(db) = op.dbias {
        add_partials(ctx, all, tiles * x.cols, tiles, &ctx.any(&db), op.accumulate);
    }
}

pub(crate) fn forward_reference(arena: &Arena, op: &Norm) {
    with_element!(op.x.dtype(), T => typed_forward_reference::<T>(arena, op));
}

fn typed_forward_reference<T: Element>(arena: &Arena, op: &Norm) {
    let (x, w, out) = (arena.mat::<T>(&op.x), arena.any(&op.weight), arena.mat::<T>(&op.out));
    let (bias, rstd_n) = (op.bias.map(|b| arena.any(&b)), arena.f32(&op.rstd));
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
    with_element!(op.x.dtype(), T => typed_backward_reference::<T>(arena, op));
}

fn typed_backward_reference<T: Element>(arena: &Arena, op: &NormBackward) {
    let (x, w) = (arena.mat::<T>(&op.x), arena.any(&op.weight));
    let (dout, dx) = (arena.mat::<T>(&op.dout), arena.mat::<T>(&op.dx));
    let (rstd_n, dw) = (arena.f32(&op.rstd), arena.any(&op.dweight));
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
        let db = arena.any(&db);
        for c in 0..x.cols {
            let sum: f64 = (0..x.rows).map(|n| f64::from(dout.get(n, c))).sum();
            db.put(0, c, sum as f32, op.accumulate);
        }
    }
}
