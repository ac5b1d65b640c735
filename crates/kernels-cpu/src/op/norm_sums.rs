//! Sums over the local columns of each row, for a normalisation whose rows are split over several ranks: `sum x`, `sum (x - mean)^2`, and in
//! the backward pass `sum g` and `sum g xhat`; g and xhat as in [`super::norm`], which makes the same sums of whole rows.
//!
//! Cost: one read of each operand.
#![allow(unsafe_code)] // rows by address

use crate::arena::Arena;
use crate::ctx::Ctx;
use crate::element::{Element, with_element};
use crate::operand::{AnyMat, Mat};
use crate::simd::{Kernel, Simd, dispatch, load_part};
use bessemer_tensor::View;
use bessemer_tensor::op::{NormGradientSums, NormKind, RowSums, RowTerm};
use std::ops::Range;

/// Rows of a tile. Each tile of the backward pass leaves one partial row of dweight and of dbias.
pub(super) const ROWS: usize = 32;

pub(super) fn rows_of(tile: usize, rows: usize) -> Range<usize> {
    tile * ROWS..((tile + 1) * ROWS).min(rows)
}

/// The sum of a row.
///
/// # Safety
/// `d` elements at `from`, and the instructions of S.
#[inline(always)]
pub(super) unsafe fn sum_of_values<S: Simd, T: Element>(from: *const T, d: usize) -> f32 {
    // SAFETY: by contract.
    unsafe {
        let mut sum = S::splat(0.0);
        for c in (0..d).step_by(S::LANES) {
            sum = S::add(sum, load_part::<S>(from.add(c), S::LANES.min(d - c)));
        }
        S::sum(sum)
    }
}

/// The sum of the squares of a row's distances from a mean.
///
/// # Safety
/// Same requirements as [`sum_of_values`].
#[inline(always)]
pub(super) unsafe fn sum_of_squares<S: Simd, T: Element>(from: *const T, d: usize, mean: f32) -> f32 {
    // SAFETY: by contract. Whole vectors first: past the end an element is not the mean.
    unsafe {
        let (m, mut squares, mut c) = (S::splat(mean), S::splat(0.0), 0);
        while c + S::LANES <= d {
            let y = S::sub(T::load::<S>(from.add(c)), m);
            squares = S::fma(y, y, squares);
            c += S::LANES;
        }
        let mut sum = S::sum(squares);
        while c < d {
            let y = (*from.add(c)).to_f32() - mean;
            sum += y * y;
            c += 1;
        }
        sum
    }
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
        for row in rows_of(self.tile, x.rows) {
            let mean = self.about.map_or(0.0, |about| about.get(0, row) / self.width as f32);
            // SAFETY: a row of x.
            let sum = unsafe {
                match self.term {
                    RowTerm::Value => sum_of_values::<S, T>(x.row(row), x.cols),
                    RowTerm::Square => sum_of_squares::<S, T>(x.row(row), x.cols, mean),
                }
            };
            out.set(0, row, sum);
        }
    }
}

pub(crate) fn row_sums(ctx: &Ctx<'_>, op: &RowSums) {
    with_element!(op.x.dtype(), T => {
        let (x, out, about) = (ctx.mat::<T>(&op.x), ctx.f32(&op.out), op.about.map(|a| ctx.f32(&a)));
        ctx.pool.run(x.rows.div_ceil(ROWS), &|tile, _| {
            let k = Sums { term: op.term, x: &x, about: about.as_ref(), width: op.width, out: &out, tile };
            // SAFETY: the instruction set is available; operands are checked views; tiles are disjoint rows.
            unsafe { dispatch(ctx.rung, k) }
        });
    });
}

/// A row in the backward pass: x, dout, mean and rstd.
pub(super) struct Row<T, V> {
    pub(super) from: *const T,
    pub(super) grad: *const T,
    pub(super) m: V,
    pub(super) s: V,
}

/// `sum g` and `sum g xhat` over the `d` columns of a row.
///
/// # Safety
/// `d` elements at both addresses, and the instructions of S.
#[inline(always)]
pub(super) unsafe fn sums_of_gradients<S: Simd, T: Element>(
    row: &Row<T, S::V>,
    weight: &AnyMat,
    d: usize,
) -> (f32, f32) {
    // SAFETY: by contract. Past the end the gradient is 0.
    unsafe {
        let (mut sum_g, mut sum_gx) = (S::splat(0.0), S::splat(0.0));
        for c in (0..d).step_by(S::LANES) {
            let n = S::LANES.min(d - c);
            let xhat = S::mul(S::sub(load_part::<S>(row.from.add(c), n), row.m), row.s);
            let g = S::mul(load_part::<S>(row.grad.add(c), n), weight.load::<S>(0, c, n));
            sum_g = S::add(sum_g, g);
            sum_gx = S::fma(g, xhat, sum_gx);
        }
        (S::sum(sum_g), S::sum(sum_gx))
    }
}

struct GradientSums<'a, T> {
    layer: bool,
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
        let GradientSums { layer, x, weight, mean, rstd, dout, sums, .. } = self;
        for n in rows_of(self.tile, x.rows) {
            // SAFETY: a row of each operand.
            let (sum_g, sum_gx) = unsafe {
                let m = S::splat(mean.map_or(0.0, |m| m.get(0, n)));
                let row = Row { from: x.row(n), grad: dout.row(n), m, s: S::splat(rstd.get(0, n)) };
                sums_of_gradients::<S, T>(&row, weight, x.cols)
            };
            if layer {
                sums.set(0, n, sum_g);
            }
            sums.set(usize::from(layer), n, sum_gx);
        }
    }
}

pub(crate) fn gradient_sums(ctx: &Ctx<'_>, op: &NormGradientSums) {
    with_element!(op.x.dtype(), T => {
        let (x, weight, rstd) = (ctx.mat::<T>(&op.x), ctx.any(&op.weight), ctx.f32(&op.rstd));
        let (dout, sums, layer) = (ctx.mat::<T>(&op.dout), ctx.f32(&op.sums), op.kind == NormKind::Layer);
        let mean = op.mean.filter(|_| layer).map(|m| ctx.f32(&m));
        let (mean, weight) = (mean.as_ref(), &weight);
        ctx.pool.run(x.rows.div_ceil(ROWS), &|tile, _| {
            let k =
                GradientSums { layer, x: &x, weight, mean, rstd: &rstd, dout: &dout, sums: &sums, tile };
            // SAFETY: the instruction set is available; operands are checked views; tiles are disjoint rows.
            unsafe { dispatch(ctx.rung, k) }
        });
    });
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

/// The normalised element and the gradient before the weight.
pub(super) struct Plain<T> {
    pub(super) x: Mat<T>,
    weight: AnyMat,
    mean: Option<Mat>,
    pub(super) rstd: Mat,
    pub(super) dout: Mat<T>,
}

impl<T: Element> Plain<T> {
    pub(super) fn new(
        arena: &Arena,
        kind: NormKind,
        [x, weight, rstd, dout]: [&View; 4],
        mean: Option<View>,
    ) -> Plain<T> {
        let mean = mean.filter(|_| kind == NormKind::Layer).map(|m| arena.f32(&m));
        let (x, dout) = (arena.mat(x), arena.mat(dout));
        Plain { x, weight: arena.any(weight), mean, rstd: arena.f32(rstd), dout }
    }

    pub(super) fn xhat(&self, n: usize, c: usize) -> f64 {
        let mean = self.mean.map_or(0.0, |m| f64::from(m.get(0, n)));
        (f64::from(self.x.get(n, c)) - mean) * f64::from(self.rstd.get(0, n))
    }

    pub(super) fn g(&self, n: usize, c: usize) -> f64 {
        f64::from(self.dout.get(n, c)) * f64::from(self.weight.get(0, c))
    }

    /// `sum g` and `sum g xhat` of a row.
    pub(super) fn sums(&self, n: usize) -> (f64, f64) {
        let columns = || 0..self.x.cols;
        (columns().map(|c| self.g(n, c)).sum(), columns().map(|c| self.g(n, c) * self.xhat(n, c)).sum())
    }
}

pub(crate) fn gradient_sums_reference(arena: &Arena, op: &NormGradientSums) {
    with_element!(op.x.dtype(), T => {
        let row = Plain::<T>::new(arena, op.kind, [&op.x, &op.weight, &op.rstd, &op.dout], op.mean);
        let (sums, layer) = (arena.f32(&op.sums), op.kind == NormKind::Layer);
        for n in 0..row.x.rows {
            let (sum_g, sum_gx) = row.sums(n);
            if layer {
                sums.set(0, n, sum_g as f32);
            }
            sums.set(usize::from(layer), n, sum_gx as f32);
        }
    });
}
