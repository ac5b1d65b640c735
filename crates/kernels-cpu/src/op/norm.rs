//! LayerNorm (Ba et al. 2016) and RMSNorm (Zhang & Sennrich 2019) over rows, and over rows of which only some columns are here.
//!
//! Forward: `xhat = (x - mean) rstd`, `out = xhat weight + bias`, `rstd = 1/sqrt(var + eps)`; RMSNorm has mean 0 and
//! var = mean(x^2). Backward with g = dout weight: LayerNorm `dx (+)= rstd (g - mean(g) - xhat mean(g xhat))`, RMSNorm
//! `dx (+)= rstd (g - xhat mean(g xhat))`; `dweight (+)= sum_n dout xhat`, `dbias (+)= sum_n dout`.
//!
//! Where some columns are here, the normalisation and its gradients take the sums over all columns, which the operators of
//! [`super::norm_sums`] make.
//!
//! Saved for the backward pass: x, mean, rstd. Cost: forward one read and one write, backward two reads and a write.
#![allow(unsafe_code)] // rows by address

use super::column_sums::add_partials;
use super::norm_sums::{Plain, ROWS, Row, rows_of, sum_of_squares, sum_of_values, sums_of_gradients};
use crate::arena::Arena;
use crate::ctx::{Ctx, Span, padded};
use crate::element::{Element, with_element};
use crate::operand::{AnyMat, Mat};
use crate::simd::{Kernel, Simd, dispatch, load_part, store_part};
use bessemer_tensor::View;
use bessemer_tensor::op::{Norm, NormBackward, NormBackwardOfSums, NormKind, NormOfSums};

/// Sums over all columns of the rows.
#[derive(Clone, Copy)]
struct Given<V> {
    /// Sums of the values; LayerNorm only.
    sums: Option<V>,
    /// Sums of the squares of the distances from the mean.
    squares: V,
}

/// [`Norm`] of a head, or [`NormOfSums`].
pub(crate) struct Normalisation {
    norm: Norm,
    given: Option<Given<View>>,
    /// Columns of a whole row.
    width: usize,
}

impl From<&Norm> for Normalisation {
    fn from(op: &Norm) -> Normalisation {
        Normalisation { norm: *op, given: None, width: op.x.cols }
    }
}

impl From<&NormOfSums> for Normalisation {
    fn from(op: &NormOfSums) -> Normalisation {
        let NormOfSums { kind, x, sums, squares, width, weight, bias, out, mean, rstd, eps } = *op;
        let norm = Norm { kind, x, weight, bias, out, mean, rstd, eps };
        Normalisation { norm, given: Some(Given { sums, squares }), width }
    }
}

impl Normalisation {
    /// The mean of a row, from its sum.
    fn mean(&self, sum: Option<f64>) -> f64 {
        sum.filter(|_| self.norm.kind == NormKind::Layer).map_or(0.0, |sum| sum / self.width as f64)
    }

    /// The reciprocal deviation of a row, from the sum of its squares.
    fn rstd(&self, squares: f64) -> f64 {
        1.0 / (squares / self.width as f64 + f64::from(self.norm.eps)).sqrt()
    }
}

/// [`NormBackward`] of a head, or [`NormBackwardOfSums`].
pub(crate) struct NormGradients {
    norm: NormBackward,
    /// Sums over all columns, as [`NormGradientSums`] has them.
    sums: Option<View>,
    /// Columns of a whole row.
    width: usize,
}

impl From<&NormBackward> for NormGradients {
    fn from(op: &NormBackward) -> NormGradients {
        NormGradients { norm: *op, sums: None, width: op.x.cols }
    }
}

impl From<&NormBackwardOfSums> for NormGradients {
    fn from(op: &NormBackwardOfSums) -> NormGradients {
        let NormBackwardOfSums { kind, x, weight, mean, rstd, dout, sums, width, dx, .. } = *op;
        let NormBackwardOfSums { accumulate_dx, dweight, dbias, accumulate, .. } = *op;
        let norm =
            NormBackward { kind, x, weight, mean, rstd, dout, dx, accumulate_dx, dweight, dbias, accumulate };
        NormGradients { norm, sums: Some(sums), width }
    }
}

struct Forward<'a, T> {
    op: &'a Normalisation,
    x: &'a Mat<T>,
    given: Option<Given<Mat>>,
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
        let (d, layer) = (x.cols, op.norm.kind == NormKind::Layer);
        for row in rows_of(self.tile, x.rows) {
            let (from, to) = (x.row(row), out.row(row));
            // SAFETY: columns c .. c + n of a row of each operand; statistics of this row.
            unsafe {
                let (mean, rstd) = match self.given {
                    None => {
                        let mean = if layer { sum_of_values::<S, T>(from, d) / d as f32 } else { 0.0 };
                        let var = sum_of_squares::<S, T>(from, d, mean) / d as f32;
                        (mean, 1.0 / (var + op.norm.eps).sqrt())
                    }
                    Some(Given { sums, squares }) => {
                        let mean = op.mean(sums.map(|sums| f64::from(sums.get(0, row))));
                        (mean as f32, op.rstd(f64::from(squares.get(0, row))) as f32)
                    }
                };
                self.rstd.set(0, row, rstd);
                if let (Some(all), true) = (self.mean, layer) {
                    all.set(0, row, mean);
                }
                let (m, s) = (S::splat(mean), S::splat(rstd));
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

pub(crate) fn forward(ctx: &Ctx<'_>, op: &Normalisation) {
    with_element!(op.norm.x.dtype(), T => typed_forward::<T>(ctx, op));
}

fn typed_forward<T: Element>(ctx: &Ctx<'_>, op: &Normalisation) {
    let norm = &op.norm;
    let (x, out) = (ctx.mat::<T>(&norm.x), ctx.mat::<T>(&norm.out));
    let (weight, rstd) = (ctx.any(&norm.weight), ctx.f32(&norm.rstd));
    let (bias, mean) = (norm.bias.map(|b| ctx.any(&b)), norm.mean.map(|m| ctx.f32(&m)));
    let given = op.given.map(|g| Given { sums: g.sums.map(|s| ctx.f32(&s)), squares: ctx.f32(&g.squares) });
    ctx.pool.run(x.rows.div_ceil(ROWS), &|tile, _| {
        let k = Forward {
            op,
            x: &x,
            given,
            weight: &weight,
            bias: bias.as_ref(),
            out: &out,
            mean: mean.as_ref(),
            rstd: &rstd,
            tile,
        };
        // SAFETY: the instruction set is available; operands are checked views; tiles are disjoint rows.
        unsafe { dispatch(ctx.rung, k) }
    });
}

struct Backward<'a, T> {
    op: &'a NormGradients,
    x: &'a Mat<T>,
    weight: &'a AnyMat,
    mean: Option<&'a Mat>,
    rstd: &'a Mat,
    dout: &'a Mat<T>,
    sums: Option<&'a Mat>,
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
        let (d, layer, width) = (x.cols, op.norm.kind == NormKind::Layer, op.width as f32);
        let dw = self.partials.at(self.tile * d, d);
        let db = op.norm.dbias.map(|_| self.partials.at((self.tiles + self.tile) * d, d));
        // SAFETY: columns c .. c + n of a row of each operand, and of the partial rows that only this tile writes.
        unsafe {
            std::ptr::write_bytes(dw, 0, d);
            if let Some(db) = db {
                std::ptr::write_bytes(db, 0, d);
            }
            for n in rows_of(self.tile, x.rows) {
                let (m, s) = (S::splat(mean.map_or(0.0, |m| m.get(0, n))), S::splat(rstd.get(0, n)));
                let (row, to) = (Row { from: x.row(n), grad: dout.row(n), m, s }, dx.row(n));
                let (sum_g, sum_gx) = match sums {
                    Some(sums) => (sums.get(0, n), sums.get(usize::from(layer), n)),
                    None => sums_of_gradients::<S, T>(&row, weight, d),
                };
                let mean_g = S::splat(if layer { sum_g / width } else { 0.0 });
                let mean_gx = S::splat(sum_gx / width);
                for c in (0..d).step_by(S::LANES) {
                    let n = S::LANES.min(d - c);
                    let xhat = S::mul(S::sub(load_part::<S>(row.from.add(c), n), m), s);
                    let y = load_part::<S>(row.grad.add(c), n);
                    let g = S::mul(y, weight.load::<S>(0, c, n));
                    store_part::<S>(dw.add(c), S::fma(y, xhat, load_part::<S>(dw.add(c), n)), n);
                    if let Some(db) = db {
                        store_part::<S>(db.add(c), S::add(y, load_part::<S>(db.add(c), n)), n);
                    }
                    let mut v = S::mul(s, S::sub(S::sub(g, mean_g), S::mul(xhat, mean_gx)));
                    if op.norm.accumulate_dx {
                        v = S::add(v, load_part::<S>(to.add(c), n));
                    }
                    store_part::<S>(to.add(c), v, n);
                }
            }
        }
    }
}

pub(crate) fn backward_workspace(op: &NormGradients) -> usize {
    let NormBackward { x, dbias, .. } = &op.norm;
    padded(x.rows.div_ceil(ROWS) * if dbias.is_some() { 2 } else { 1 } * x.cols)
}

pub(crate) fn backward(ctx: &Ctx<'_>, op: &NormGradients) {
    with_element!(op.norm.x.dtype(), T => typed_backward::<T>(ctx, op));
}

fn typed_backward<T: Element>(ctx: &Ctx<'_>, op: &NormGradients) {
    let norm = &op.norm;
    let (x, weight, rstd) = (ctx.mat::<T>(&norm.x), ctx.any(&norm.weight), ctx.f32(&norm.rstd));
    let (dout, dx, sums) = (ctx.mat(&norm.dout), ctx.mat(&norm.dx), op.sums.map(|s| ctx.f32(&s)));
    let mean = norm.mean.filter(|_| norm.kind == NormKind::Layer).map(|m| ctx.f32(&m));
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
            sums: sums.as_ref(),
            dx: &dx,
            partials: all,
            tiles,
            tile,
        };
        // SAFETY: the instruction set is available; operands are checked views; tiles are disjoint rows.
        unsafe { dispatch(ctx.rung, k) }
    });
    add_partials(ctx, all, 0, tiles, &ctx.any(&norm.dweight), norm.accumulate);
    if let Some(db) = norm.dbias {
        add_partials(ctx, all, tiles * x.cols, tiles, &ctx.any(&db), norm.accumulate);
    }
}

pub(crate) fn forward_reference(arena: &Arena, op: &Normalisation) {
    let norm = &op.norm;
    with_element!(norm.x.dtype(), T => {
        let (x, w, out) = (arena.mat::<T>(&norm.x), arena.any(&norm.weight), arena.mat::<T>(&norm.out));
        let (bias, rstd_n) = (norm.bias.map(|b| arena.any(&b)), arena.f32(&norm.rstd));
        for n in 0..x.rows {
            let number = |view: &View| f64::from(arena.f32(view).get(0, n));
            let values = (0..x.cols).map(|c| f64::from(x.get(n, c)));
            let sum = match op.given {
                Some(Given { sums, .. }) => sums.as_ref().map(number),
                None => Some(values.clone().sum()),
            };
            let mean = op.mean(sum);
            let own = || values.map(|value| (value - mean).powi(2)).sum();
            let rstd = op.rstd(op.given.map_or_else(own, |given| number(&given.squares)));
            rstd_n.set(0, n, rstd as f32);
            if let (Some(m), NormKind::Layer) = (norm.mean, norm.kind) {
                arena.f32(&m).set(0, n, mean as f32);
            }
            for c in 0..x.cols {
                let y = (f64::from(x.get(n, c)) - mean) * rstd * f64::from(w.get(0, c));
                out.set(n, c, (y + bias.as_ref().map_or(0.0, |b| f64::from(b.get(0, c)))) as f32);
            }
        }
    });
}

pub(crate) fn backward_reference(arena: &Arena, op: &NormGradients) {
    let norm = &op.norm;
    with_element!(norm.x.dtype(), T => {
        let row = Plain::<T>::new(arena, norm.kind, [&norm.x, &norm.weight, &norm.rstd, &norm.dout], norm.mean);
        let (dx, dw, sums) = (arena.mat::<T>(&norm.dx), arena.any(&norm.dweight), op.sums.map(|s| arena.f32(&s)));
        let (layer, width) = (norm.kind == NormKind::Layer, op.width as f64);
        let (rows, cols) = (row.x.rows, row.x.cols);
        for n in 0..rows {
            let (sum_g, sum_gx) = match &sums {
                Some(s) => (f64::from(s.get(0, n)), f64::from(s.get(usize::from(layer), n))),
                None => row.sums(n),
            };
            let mean_g = if layer { sum_g / width } else { 0.0 };
            for c in 0..cols {
                let v = f64::from(row.rstd.get(0, n)) * (row.g(n, c) - mean_g - row.xhat(n, c) * (sum_gx / width));
                dx.put(n, c, v as f32, norm.accumulate_dx);
            }
        }
        for c in 0..cols {
            let sum: f64 = (0..rows).map(|n| f64::from(row.dout.get(n, c)) * row.xhat(n, c)).sum();
            dw.put(0, c, sum as f32, norm.accumulate);
            if let Some(db) = norm.dbias {
                let sum: f64 = (0..rows).map(|n| f64::from(row.dout.get(n, c))).sum();
                arena.any(&db).put(0, c, sum as f32, norm.accumulate);
            }
        }
    });
}
