//! LayerNorm and RMSNorm over rows of which only some columns are here.
//!
//! Forward: `sums[n] = sum_d x`, `squares[n] = sum_d (x - mean)^2`; with these over all columns, `rstd = 1/sqrt(squares / width + eps)`
//! and `out = (x - mean) rstd weight + bias`. Backward with g = dout weight and `xhat = (x - mean) rstd`: `sum g` and `sum g xhat`,
//! and with these over all columns `dx (+)= rstd (g - sum g / width - xhat sum(g xhat) / width)`, `dweight (+)= sum_n dout xhat`,
//! `dbias (+)= sum_n dout`. RMSNorm has mean 0 and leaves `sum g` out.
//!
//! Saved for the backward pass: x, mean, rstd. Cost: forward three reads and one write (two for RMSNorm), backward four reads and a
//! write.
#![allow(unsafe_code)] // rows by address

use super::column_sums::add_partials;
use crate::arena::Arena;
use crate::ctx::{Ctx, Span, padded};
use crate::element::{Element, with_element};
use crate::operand::{AnyMat, Mat};
use crate::simd::{Kernel, Simd, dispatch, load_part, store_part};
use bessemer_tensor::op::{NormBackwardOfSums, NormGradientSums, NormKind, NormOfSums, RowSums, RowTerm};
use std::ops::Range;

/// Rows of a tile. Each tile of the backward pass leaves one partial row of dweight and of dbias.
const ROWS: usize = 32;

fn rows_of(tile: usize, rows: usize) -> Range<usize> {
    tile * ROWS..((tile + 1) * ROWS).min(rows)
}

struct Sums<'a, T> {
    term: RowTerm,
    x: &'a Mat<T>,
    about: Option<&'a Mat>,
    width: usize,
    out: &'a Mat,
    tile: usize,
}

impl<T: Element> Kernel for Sums<'_, T> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Sums { x, out, .. } = self;
        let d = x.cols;
        for row in rows_of(self.tile, x.rows) {
            let from = x.row(row);
            let mean = self.about.map_or(0.0, |about| about.get(0, row) / self.width as f32);
            // SAFETY: columns c .. c + n of a row of x. Whole vectors first: past the end an element is not the mean.
            let sum = unsafe {
                let (m, mut sum, mut c) = (S::splat(mean), S::splat(0.0), 0);
                while c + S::LANES <= d {
                    let y = S::sub(T::load::<S>(from.add(c)), m);
                    sum = if self.term == RowTerm::Value { S::add(sum, y) } else { S::fma(y, y, sum) };
                    c += S::LANES;
                }
                let rest = (c..d).map(|c| (*from.add(c)).to_f32() - mean);
                let term = |y: f32| if self.term == RowTerm::Value { y } else { y * y };
                S::sum(sum) + rest.map(term).sum::<f32>()
            };
            out.set(0, row, sum);
        }
    }
}

pub(crate) fn row_sums(ctx: &Ctx<'_>, op: &RowSums) {
    with_element!(op.x.dtype(), T => typed_row_sums::<T>(ctx, op));
}

fn typed_row_sums<T: Element>(ctx: &Ctx<'_>, op: &RowSums) {
    let (x, out, about) = (ctx.mat::<T>(&op.x), ctx.f32(&op.out), op.about.map(|a| ctx.f32(&a)));
    ctx.pool.run(x.rows.div_ceil(ROWS), &|tile, _| {
        let k = Sums { term: op.term, x: &x, about: about.as_ref(), width: op.width, out: &out, tile };
        // SAFETY: the rung is available; operands are checked views; tiles are disjoint rows.
        unsafe { dispatch(ctx.rung, k) }
    });
}

/// Mean and rstd of a row, from its sums.
fn statistics(op: &NormOfSums, sum: Option<f64>, squares: f64) -> (f64, f64) {
    let width = op.width as f64;
    let mean = sum.filter(|_| op.kind == NormKind::Layer).map_or(0.0, |sum| sum / width);
    (mean, 1.0 / (squares / width + f64::from(op.eps)).sqrt())
}

struct Forward<'a, T> {
    op: &'a NormOfSums,
    x: &'a Mat<T>,
    sums: Option<&'a Mat>,
    squares: &'a Mat,
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
        let Forward { op, x, weight, bias, out, .. } = self;
        let d = x.cols;
        for row in rows_of(self.tile, x.rows) {
            let sum = self.sums.map(|sums| f64::from(sums.get(0, row)));
            let (mean, rstd) = statistics(op, sum, f64::from(self.squares.get(0, row)));
            self.rstd.set(0, row, rstd as f32);
            if let (Some(all), NormKind::Layer) = (self.mean, op.kind) {
                all.set(0, row, mean as f32);
            }
            let (from, to) = (x.row(row), out.row(row));
            // SAFETY: columns c .. c + n of a row of each operand.
            unsafe {
                let (m, s) = (S::splat(mean as f32), S::splat(rstd as f32));
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

pub(crate) fn forward(ctx: &Ctx<'_>, op: &NormOfSums) {
    with_element!(op.x.dtype(), T => typed_forward::<T>(ctx, op));
}

fn typed_forward<T: Element>(ctx: &Ctx<'_>, op: &NormOfSums) {
    let (x, out) = (ctx.mat::<T>(&op.x), ctx.mat::<T>(&op.out));
    let (weight, squares, rstd) = (ctx.any(&op.weight), ctx.f32(&op.squares), ctx.f32(&op.rstd));
    let (bias, mean) = (op.bias.map(|b| ctx.any(&b)), op.mean.map(|m| ctx.f32(&m)));
    let sums = op.sums.map(|s| ctx.f32(&s));
    ctx.pool.run(x.rows.div_ceil(ROWS), &|tile, _| {
        let k = Forward {
            op,
            x: &x,
            sums: sums.as_ref(),
            squares: &squares,
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

struct GradientSums<'a, T> {
    kind: NormKind,
    x: &'a Mat<T>,
    weight: &'a AnyMat,
    mean: Option<&'a Mat>,
    rstd: &'a Mat,
    dout: &'a Mat<T>,
    sums: &'a Mat,
    tile: usize,
}

impl<T: Element> Kernel for GradientSums<'_, T> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let GradientSums { x, weight, mean, rstd, dout, sums, .. } = self;
        let (d, layer) = (x.cols, self.kind == NormKind::Layer);
        for row in rows_of(self.tile, x.rows) {
            let (from, grad) = (x.row(row), dout.row(row));
            // SAFETY: columns c .. c + n of a row of each operand. Past the end the gradient is 0.
            unsafe {
                let m = S::splat(if layer { mean.map_or(0.0, |m| m.get(0, row)) } else { 0.0 });
                let s = S::splat(rstd.get(0, row));
                let (mut sum_g, mut sum_gx) = (S::splat(0.0), S::splat(0.0));
                for c in (0..d).step_by(S::LANES) {
                    let n = S::LANES.min(d - c);
                    let xhat = S::mul(S::sub(load_part::<S>(from.add(c), n), m), s);
                    let g = S::mul(load_part::<S>(grad.add(c), n), weight.load::<S>(0, c, n));
                    sum_g = S::add(sum_g, g);
                    sum_gx = S::fma(g, xhat, sum_gx);
                }
                if layer {
                    sums.set(0, row, S::sum(sum_g));
                }
                sums.set(usize::from(layer), row, S::sum(sum_gx));
            }
        }
    }
}

pub(crate) fn gradient_sums(ctx: &Ctx<'_>, op: &NormGradientSums) {
    with_element!(op.x.dtype(), T => typed_gradient_sums::<T>(ctx, op));
}

fn typed_gradient_sums<T: Element>(ctx: &Ctx<'_>, op: &NormGradientSums) {
    let (x, weight, rstd) = (ctx.mat::<T>(&op.x), ctx.any(&op.weight), ctx.f32(&op.rstd));
    let (dout, sums, mean) = (ctx.mat::<T>(&op.dout), ctx.f32(&op.sums), op.mean.map(|m| ctx.f32(&m)));
    ctx.pool.run(x.rows.div_ceil(ROWS), &|tile, _| {
        let k = GradientSums {
            kind: op.kind,
            x: &x,
            weight: &weight,
            mean: mean.as_ref(),
            rstd: &rstd,
            dout: &dout,
            sums: &sums,
            tile,
        };
        // SAFETY: the rung is available; operands are checked views; tiles are disjoint rows.
        unsafe { dispatch(ctx.rung, k) }
    });
}

struct Backward<'a, T> {
    op: &'a NormBackwardOfSums,
    x: &'a Mat<T>,
    weight: &'a AnyMat,
    mean: Option<&'a Mat>,
    rstd: &'a Mat,
    dout: &'a Mat<T>,
    sums: &'a Mat,
    dx: &'a Mat<T>,
    partials: Span,
    tiles: usize,
    tile: usize,
}

impl<T: Element> Kernel for Backward<'_, T> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Backward { op, x, weight, mean, rstd, dout, sums, dx, .. } = self;
        let (d, layer, width) = (x.cols, op.kind == NormKind::Layer, op.width as f32);
        let dw = self.partials.at(self.tile * d, d);
        let db = op.dbias.map(|_| self.partials.at((self.tiles + self.tile) * d, d));
        // SAFETY: columns c .. c + n of a row of each operand, and of the partial rows that only this tile writes.
        unsafe {
            std::ptr::write_bytes(dw, 0, d);
            if let Some(db) = db {
                std::ptr::write_bytes(db, 0, d);
            }
            for row in rows_of(self.tile, x.rows) {
                let (from, grad, to) = (x.row(row), dout.row(row), dx.row(row));
                let m = S::splat(if layer { mean.map_or(0.0, |m| m.get(0, row)) } else { 0.0 });
                let s = S::splat(rstd.get(0, row));
                let mean_g = S::splat(if layer { sums.get(0, row) / width } else { 0.0 });
                let mean_gx = S::splat(sums.get(usize::from(layer), row) / width);
                for c in (0..d).step_by(S::LANES) {
                    let n = S::LANES.min(d - c);
                    let xhat = S::mul(S::sub(load_part::<S>(from.add(c), n), m), s);
                    let y = load_part::<S>(grad.add(c), n);
                    let g = S::mul(y, weight.load::<S>(0, c, n));
                    store_part::<S>(dw.add(c), S::fma(y, xhat, load_part::<S>(dw.add(c), n)), n);
                    if let Some(db) = db {
                        store_part::<S>(db.add(c), S::add(y, load_part::<S>(db.add(c), n)), n);
                    }
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

pub(crate) fn backward_workspace(op: &NormBackwardOfSums) -> usize {
    let rows = op.x.rows.div_ceil(ROWS) * if op.dbias.is_some() { 2 } else { 1 };
    padded(rows * op.x.cols)
}

pub(crate) fn backward(ctx: &Ctx<'_>, op: &NormBackwardOfSums) {
    with_element!(op.x.dtype(), T => typed_backward::<T>(ctx, op));
}

fn typed_backward<T: Element>(ctx: &Ctx<'_>, op: &NormBackwardOfSums) {
    let (x, weight, rstd) = (ctx.mat::<T>(&op.x), ctx.any(&op.weight), ctx.f32(&op.rstd));
    let (dout, dx, sums) = (ctx.mat(&op.dout), ctx.mat(&op.dx), ctx.f32(&op.sums));
    let mean = op.mean.map(|m| ctx.f32(&m));
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
            sums: &sums,
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

pub(crate) fn row_sums_reference(arena: &Arena, op: &RowSums) {
    with_element!(op.x.dtype(), T => {
        let (x, out) = (arena.mat::<T>(&op.x), arena.f32(&op.out));
        for n in 0..x.rows {
            let mean = op.about.map_or(0.0, |a| f64::from(arena.f32(&a).get(0, n)) / op.width as f64);
            let term = |c: usize| {
                let y = f64::from(x.get(n, c)) - mean;
                if op.term == RowTerm::Value { y } else { y * y }
            };
            out.set(0, n, (0..x.cols).map(term).sum::<f64>() as f32);
        }
    });
}

pub(crate) fn forward_reference(arena: &Arena, op: &NormOfSums) {
    with_element!(op.x.dtype(), T => {
        let (x, w, out) = (arena.mat::<T>(&op.x), arena.any(&op.weight), arena.mat::<T>(&op.out));
        let (bias, sums) = (op.bias.map(|b| arena.any(&b)), op.sums.map(|s| arena.f32(&s)));
        let (squares, rstd_n) = (arena.f32(&op.squares), arena.f32(&op.rstd));
        for n in 0..x.rows {
            let sum = sums.as_ref().map(|sums| f64::from(sums.get(0, n)));
            let (mean, rstd) = statistics(op, sum, f64::from(squares.get(0, n)));
            rstd_n.set(0, n, rstd as f32);
            if let (Some(m), NormKind::Layer) = (op.mean, op.kind) {
                arena.f32(&m).set(0, n, mean as f32);
            }
            for c in 0..x.cols {
                let y = (f64::from(x.get(n, c)) - mean) * rstd * f64::from(w.get(0, c));
                out.set(n, c, (y + bias.as_ref().map_or(0.0, |b| f64::from(b.get(0, c)))) as f32);
            }
        }
    });
}

pub(crate) fn gradient_sums_reference(arena: &Arena, op: &NormGradientSums) {
    with_element!(op.x.dtype(), T => {
        let (x, w, dout) = (arena.mat::<T>(&op.x), arena.any(&op.weight), arena.mat::<T>(&op.dout));
        let (rstd, sums) = (arena.f32(&op.rstd), arena.f32(&op.sums));
        let layer = op.kind == NormKind::Layer;
        let mean = op.mean.filter(|_| layer).map(|m| arena.f32(&m));
        for n in 0..x.rows {
            let mean = mean.as_ref().map_or(0.0, |m| f64::from(m.get(0, n)));
            let xhat = |c: usize| (f64::from(x.get(n, c)) - mean) * f64::from(rstd.get(0, n));
            let g = |c: usize| f64::from(dout.get(n, c)) * f64::from(w.get(0, c));
            if layer {
                sums.set(0, n, (0..x.cols).map(g).sum::<f64>() as f32);
            }
            sums.set(usize::from(layer), n, (0..x.cols).map(|c| g(c) * xhat(c)).sum::<f64>() as f32);
        }
    });
}

pub(crate) fn backward_reference(arena: &Arena, op: &NormBackwardOfSums) {
    with_element!(op.x.dtype(), T => typed_backward_reference::<T>(arena, op));
}

fn typed_backward_reference<T: Element>(arena: &Arena, op: &NormBackwardOfSums) {
    let (x, w) = (arena.mat::<T>(&op.x), arena.any(&op.weight));
    let (dout, dx) = (arena.mat::<T>(&op.dout), arena.mat::<T>(&op.dx));
    let (rstd, sums, dw) = (arena.f32(&op.rstd), arena.f32(&op.sums), arena.any(&op.dweight));
    let (layer, width) = (op.kind == NormKind::Layer, op.width as f64);
    let mean = op.mean.filter(|_| layer).map(|m| arena.f32(&m));
    let xhat = |n: usize, c: usize| {
        let mean = mean.as_ref().map_or(0.0, |m| f64::from(m.get(0, n)));
        (f64::from(x.get(n, c)) - mean) * f64::from(rstd.get(0, n))
    };
    for n in 0..x.rows {
        let mean_g = if layer { f64::from(sums.get(0, n)) / width } else { 0.0 };
        let mean_gx = f64::from(sums.get(usize::from(layer), n)) / width;
        for c in 0..x.cols {
            let g = f64::from(dout.get(n, c)) * f64::from(w.get(0, c));
            let v = f64::from(rstd.get(0, n)) * (g - mean_g - xhat(n, c) * mean_gx);
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
