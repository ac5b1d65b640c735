//! Rows of an adapted matrix `W + s B A` scaled to trained magnitudes m: `out = (x - bias) f + bias` with `f = m / |W + s B A|`, a factor for
//! each column of the product x; `dx = dout f`, `dm (+)= sum_n dout (x - bias) / |W + s B A|`.
//!
//! Cost: squares `2 O I (R + 1)` FLOPs and one read of W; forward one read and one write of the product, backward two reads and a write.
#![allow(unsafe_code)] // rows by address

use super::column_sums::add_partials;
use super::norm_sums::{ROWS, rows_of};
use super::tiles::{Block, blocks};
use crate::arena::Arena;
use crate::ctx::{Ctx, Span, padded};
use crate::element::{Element, with_element};
use crate::operand::{AnyMat, Mat};
use crate::simd::{Kernel, Simd, dispatch, load_part, store_part};
use bessemer_tensor::View;
use bessemer_tensor::op::{AdaptedSquares, Magnitudes, MagnitudesBackward};

/// Rows of W whose squares are formed together: a vector of A is loaded once for all of them.
const TOGETHER: usize = 4;

struct Squares<'a> {
    weight: &'a AnyMat,
    a: &'a AnyMat,
    b: &'a AnyMat,
    scale: f32,
    out: &'a Mat,
    tile: usize,
}

impl Squares<'_> {
    /// Squares of R rows from `first` on.
    ///
    /// # Safety
    /// The rows exist, and the instructions of S.
    #[inline(always)]
    unsafe fn rows<S: Simd, const R: usize>(&self, first: usize) {
        let Squares { weight, a, b, scale, out, .. } = self;
        // SAFETY: columns c .. c + n of rows of W and A.
        unsafe {
            let mut squares = [S::splat(0.0); R];
            for c in (0..weight.cols).step_by(S::LANES) {
                let n = S::LANES.min(weight.cols - c);
                let mut adapted: [S::V; R] = std::array::from_fn(|row| weight.load::<S>(first + row, c, n));
                for r in 0..a.rows {
                    let of_a = a.load::<S>(r, c, n);
                    for (row, sum) in adapted.iter_mut().enumerate() {
                        *sum = S::fma(S::splat(scale * b.get(first + row, r)), of_a, *sum);
                    }
                }
                for (sum, value) in squares.iter_mut().zip(adapted) {
                    *sum = S::fma(value, value, *sum);
                }
            }
            for (row, sum) in squares.into_iter().enumerate() {
                out.set(0, first + row, S::sum(sum));
            }
        }
    }
}

impl Kernel for Squares<'_> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let rows = rows_of(self.tile, self.weight.rows);
        let whole = rows.start + rows.len() / TOGETHER * TOGETHER;
        // SAFETY: rows of the tile.
        unsafe {
            (rows.start..whole).step_by(TOGETHER).for_each(|first| self.rows::<S, TOGETHER>(first));
            (whole..rows.end).for_each(|row| self.rows::<S, 1>(row));
        }
    }
}

pub(crate) fn squares(ctx: &Ctx<'_>, op: &AdaptedSquares) {
    let (weight, a, b, out) = (ctx.any(&op.weight), ctx.any(&op.a), ctx.any(&op.b), ctx.f32(&op.out));
    ctx.pool.run(weight.rows.div_ceil(ROWS), &|tile, _| {
        let squares = Squares { weight: &weight, a: &a, b: &b, scale: op.scale, out: &out, tile };
        // SAFETY: the instruction set is available; operands are checked views; tiles are disjoint rows.
        unsafe { dispatch(ctx.rung, squares) }
    });
}

pub(crate) fn squares_reference(arena: &Arena, op: &AdaptedSquares) {
    let (weight, a, b, out) = (arena.any(&op.weight), arena.any(&op.a), arena.any(&op.b), arena.f32(&op.out));
    for o in 0..weight.rows {
        let adapted = |i: usize| {
            let low_rank = |r: usize| f64::from(b.get(o, r)) * f64::from(a.get(r, i));
            f64::from(weight.get(o, i)) + f64::from(op.scale) * (0..a.rows).map(low_rank).sum::<f64>()
        };
        out.set(0, o, (0..weight.cols).map(|i| adapted(i).powi(2)).sum::<f64>() as f32);
    }
}

/// Numbers of the columns.
struct Columns {
    bias: Option<AnyMat>,
    magnitude: AnyMat,
    squares: Mat,
}

/// Vectors of [`Columns`].
struct Factors<V> {
    bias: V,
    /// `1 / |W + s B A|`, or 0.
    inverse: V,
    factor: V,
}

impl Columns {
    fn new(ctx: &Ctx<'_>, bias: Option<View>, magnitude: &View, squares: &View) -> Columns {
        Columns {
            bias: bias.map(|bias| ctx.any(&bias)),
            magnitude: ctx.any(magnitude),
            squares: ctx.f32(squares),
        }
    }

    fn of_arena(arena: &Arena, bias: Option<View>, magnitude: &View, squares: &View) -> Columns {
        Columns {
            bias: bias.map(|bias| arena.any(&bias)),
            magnitude: arena.any(magnitude),
            squares: arena.f32(squares),
        }
    }

    /// # Safety
    /// The columns exist, and the instructions of S.
    #[inline(always)]
    unsafe fn load<S: Simd>(&self, c: usize, n: usize) -> Factors<S::V> {
        // SAFETY: by contract.
        unsafe {
            let (zero, squares) = (S::splat(0.0), load_part::<S>(self.squares.row(0).add(c), n));
            let inverse = S::div(S::splat(1.0), S::sqrt(squares));
            let inverse = S::select_lt(zero, squares, inverse, zero);
            let bias = self.bias.as_ref().map_or(zero, |bias| bias.load::<S>(0, c, n));
            Factors { bias, inverse, factor: S::mul(self.magnitude.load::<S>(0, c, n), inverse) }
        }
    }

    fn of_column(&self, c: usize) -> Factors<f64> {
        let squares = f64::from(self.squares.get(0, c));
        let inverse = if squares > 0.0 { 1.0 / squares.sqrt() } else { 0.0 };
        let bias = self.bias.as_ref().map_or(0.0, |bias| f64::from(bias.get(0, c)));
        Factors { bias, inverse, factor: f64::from(self.magnitude.get(0, c)) * inverse }
    }
}

struct Forward<'a, T> {
    x: &'a Mat<T>,
    columns: &'a Columns,
    out: &'a Mat<T>,
    block: Block,
}

impl<T: Element> Kernel for Forward<'_, T> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Forward { x, columns, out, block } = self;
        for c in block.cols.clone().step_by(S::LANES) {
            let n = S::LANES.min(block.cols.end - c);
            // SAFETY: columns c .. c + n of the rows of the block; x is read before `out`, which may be x, is written.
            unsafe {
                let Factors { bias, factor, .. } = columns.load::<S>(c, n);
                for r in block.rows.clone() {
                    let product = S::sub(load_part::<S>(x.row(r).add(c), n), bias);
                    store_part::<S>(out.row(r).add(c), S::fma(product, factor, bias), n);
                }
            }
        }
    }
}

pub(crate) fn forward(ctx: &Ctx<'_>, op: &Magnitudes) {
    let columns = Columns::new(ctx, op.bias, &op.magnitude, &op.squares);
    with_element!(op.x.dtype(), T => {
        let (x, out) = (ctx.mat::<T>(&op.x), ctx.mat::<T>(&op.out));
        blocks(ctx, x.rows, x.cols, &|block| {
            let scaled = Forward { x: &x, columns: &columns, out: &out, block };
            // SAFETY: the instruction set is available; operands are checked views; blocks are disjoint.
            unsafe { dispatch(ctx.rung, scaled) }
        });
    });
}

pub(crate) fn forward_reference(arena: &Arena, op: &Magnitudes) {
    let (x, out) = (arena.any(&op.x), arena.any(&op.out));
    let columns = Columns::of_arena(arena, op.bias, &op.magnitude, &op.squares);
    for c in 0..x.cols {
        let Factors { bias, factor, .. } = columns.of_column(c);
        for n in 0..x.rows {
            out.set(n, c, ((f64::from(x.get(n, c)) - bias) * factor + bias) as f32);
        }
    }
}

struct Backward<'a, T> {
    dout: &'a Mat<T>,
    x: &'a Mat<T>,
    columns: &'a Columns,
    dx: &'a Mat<T>,
    partials: Span,
    tile: usize,
}

impl<T: Element> Kernel for Backward<'_, T> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Backward { dout, x, columns, dx, .. } = self;
        let sums = self.partials.at(self.tile * x.cols, x.cols);
        for c in (0..x.cols).step_by(S::LANES) {
            let n = S::LANES.min(x.cols - c);
            // SAFETY: columns c .. c + n of the rows of the tile, and of the partial row that only this tile writes; dout is read before
            // `dx`, which may be dout, is written.
            unsafe {
                let Factors { bias, inverse, factor } = columns.load::<S>(c, n);
                let mut sum = S::splat(0.0);
                for r in rows_of(self.tile, x.rows) {
                    let d = load_part::<S>(dout.row(r).add(c), n);
                    sum = S::fma(d, S::sub(load_part::<S>(x.row(r).add(c), n), bias), sum);
                    store_part::<S>(dx.row(r).add(c), S::mul(d, factor), n);
                }
                store_part::<S>(sums.add(c), S::mul(sum, inverse), n);
            }
        }
    }
}

pub(crate) fn backward_workspace(op: &MagnitudesBackward) -> usize {
    padded(op.x.rows.div_ceil(ROWS) * op.x.cols)
}

pub(crate) fn backward(ctx: &Ctx<'_>, op: &MagnitudesBackward) {
    let columns = Columns::new(ctx, op.bias, &op.magnitude, &op.squares);
    let tiles = op.x.rows.div_ceil(ROWS);
    let partials = ctx.scratch().take(backward_workspace(op));
    with_element!(op.x.dtype(), T => {
        let (dout, x, dx) = (ctx.mat::<T>(&op.dout), ctx.mat::<T>(&op.x), ctx.mat::<T>(&op.dx));
        ctx.pool.run(tiles, &|tile, _| {
            let gradients = Backward { dout: &dout, x: &x, columns: &columns, dx: &dx, partials, tile };
            // SAFETY: the instruction set is available; operands are checked views; tiles are disjoint rows.
            unsafe { dispatch(ctx.rung, gradients) }
        });
    });
    add_partials(ctx, partials, 0, tiles, &ctx.any(&op.dmagnitude), op.accumulate);
}

pub(crate) fn backward_reference(arena: &Arena, op: &MagnitudesBackward) {
    let (dout, x, dx) = (arena.any(&op.dout), arena.any(&op.x), arena.any(&op.dx));
    let columns = Columns::of_arena(arena, op.bias, &op.magnitude, &op.squares);
    for c in 0..x.cols {
        let Factors { bias, inverse, factor } = columns.of_column(c);
        let mut sum = 0.0;
        for n in 0..x.rows {
            let d = f64::from(dout.get(n, c));
            sum += d * (f64::from(x.get(n, c)) - bias);
            dx.set(n, c, (d * factor) as f32);
        }
        arena.any(&op.dmagnitude).put(0, c, (sum * inverse) as f32, op.accumulate);
    }
}
