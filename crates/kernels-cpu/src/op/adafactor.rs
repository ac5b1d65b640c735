//! Adafactor (Shazeer & Stern 2018): row and column means of squared gradients, the direction that they give, and the
//! update. With `h = (grad_scale grad)^2 + eps`:
//! - moments: `row_i = d row_i + (1-d) mean_j h_ij`, `col_j = d col_j + (1-d) mean_i h_ij`;
//! - direction: `u_ij = grad_scale grad_ij / sqrt(row_i / mean(row)) / sqrt(col_j)`; unfactored
//!   `v = d v + (1-d) h`, `u = grad_scale grad / sqrt(v)`;
//! - update: `alpha = lr max(eps, rms(p))`, `u' = alpha / max(1, rms(u) / threshold) u`, `m = b m + (1-b) u'`,
//!   `p = p (1 - alpha weight_decay) - m`.
//!
//! Cost: two reads; one read, one write; two reads, one write (with m another read and write).
#![allow(unsafe_code)] // rows by address

use super::tiles::{Block, blocks};
use crate::arena::Arena;
use crate::ctx::Ctx;
use crate::operand::Mat;
use crate::simd::{Kernel, Simd, dispatch, load_part, store_part};
use bessemer_tensor::op::{AdafactorUpdate, FactoredDirection, FactoredMoments, MomentDirection};

/// Rows of a tile of row sums, and columns of a tile of column sums.
const ROWS: usize = 16;
const COLUMNS: usize = 64;

struct RowSquares<'a>(&'a Mat, usize);

impl Kernel for RowSquares<'_> {
    type Out = f64;
    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> f64 {
        let RowSquares(x, r) = self;
        let mut sum = 0.0;
        for c in (0..x.cols).step_by(S::LANES) {
            let n = S::LANES.min(x.cols - c);
            // SAFETY: columns c .. c + n of row r.
            sum = unsafe { S::add_squares_f64(sum, load_part::<S>(x.row(r).add(c), n)) };
        }
        sum
    }
}

/// New mean from an old one and a sum of `count` squares before scale and eps.
fn mean(op: &FactoredMoments, old: f32, sum: f64, count: usize) -> f32 {
    let scale = f64::from(op.grad_scale);
    let h = scale * scale * sum / count as f64 + f64::from(op.eps);
    (f64::from(op.decay) * f64::from(old) + (1.0 - f64::from(op.decay)) * h) as f32
}

pub(crate) fn moments(ctx: &Ctx<'_>, op: &FactoredMoments) {
    let (grad, row, col) = (ctx.f32(&op.grad), ctx.f32(&op.row), ctx.f32(&op.col));
    ctx.pool.run(grad.rows.div_ceil(ROWS), &|tile, _| {
        for r in tile * ROWS..((tile + 1) * ROWS).min(grad.rows) {
            // SAFETY: the rung is available; grad is a checked view.
            let sum = unsafe { dispatch(ctx.rung, RowSquares(&grad, r)) };
            row.set(0, r, mean(op, row.get(0, r), sum, grad.cols));
        }
    });
    ctx.pool.run(grad.cols.div_ceil(COLUMNS), &|tile, _| {
        let first = tile * COLUMNS;
        let count = COLUMNS.min(grad.cols - first);
        let mut sums = [0.0f64; COLUMNS];
        for r in 0..grad.rows {
            // SAFETY: these columns lie inside row r of grad, which is only read.
            let g = unsafe { std::slice::from_raw_parts(grad.row(r).add(first), count) };
            for (sum, g) in sums.iter_mut().zip(g) {
                *sum += f64::from(*g) * f64::from(*g);
            }
        }
        for (c, sum) in (first..first + count).zip(sums) {
            col.set(0, c, mean(op, col.get(0, c), sum, grad.rows));
        }
    });
}

pub(crate) fn moments_reference(arena: &Arena, op: &FactoredMoments) {
    let (grad, row, col) = (arena.f32(&op.grad), arena.f32(&op.row), arena.f32(&op.col));
    let square = |r, c| f64::from(grad.get(r, c)).powi(2);
    for r in 0..grad.rows {
        row.set(0, r, mean(op, row.get(0, r), (0..grad.cols).map(|c| square(r, c)).sum(), grad.cols));
    }
    for c in 0..grad.cols {
        col.set(0, c, mean(op, col.get(0, c), (0..grad.rows).map(|r| square(r, c)).sum(), grad.rows));
    }
}

fn mean_of(row: &Mat) -> f64 {
    (0..row.cols).map(|r| f64::from(row.get(0, r))).sum::<f64>() / row.cols as f64
}

/// `grad_scale / sqrt(row_i / mean(row))`.
fn row_factor(op: &FactoredDirection, row: f32, mean: f64) -> f32 {
    (f64::from(op.grad_scale) / (f64::from(row) / mean).sqrt()) as f32
}

struct Factored<'a> {
    op: &'a FactoredDirection,
    grad: &'a Mat,
    row: &'a Mat,
    col: &'a Mat,
    out: &'a Mat,
    mean: f64,
    block: Block,
}

impl Kernel for Factored<'_> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Factored { op, grad, row, col, out, mean, block } = self;
        for r in block.rows {
            // SAFETY: columns c .. c + n of row r of grad and out, and of the one row of col.
            unsafe {
                let factor = S::splat(row_factor(op, row.get(0, r), mean));
                for c in block.cols.clone().step_by(S::LANES) {
                    let n = S::LANES.min(block.cols.end - c);
                    let g = S::mul(factor, load_part::<S>(grad.row(r).add(c), n));
                    let u = S::div(g, S::sqrt(load_part::<S>(col.row(0).add(c), n)));
                    store_part::<S>(out.row(r).add(c), u, n);
                }
            }
        }
    }
}

pub(crate) fn factored(ctx: &Ctx<'_>, op: &FactoredDirection) {
    let (grad, out) = (ctx.f32(&op.grad), ctx.f32(&op.out));
    let (row, col) = (ctx.f32(&op.row), ctx.f32(&op.col));
    let mean = mean_of(&row);
    blocks(ctx, grad.rows, grad.cols, &|block| {
        let direction = Factored { op, grad: &grad, row: &row, col: &col, out: &out, mean, block };
        // SAFETY: the rung is available; operands are checked views; blocks are disjoint.
        unsafe { dispatch(ctx.rung, direction) }
    });
}

pub(crate) fn factored_reference(arena: &Arena, op: &FactoredDirection) {
    let (grad, out) = (arena.f32(&op.grad), arena.f32(&op.out));
    let (row, col) = (arena.f32(&op.row), arena.f32(&op.col));
    let mean = mean_of(&row);
    for r in 0..grad.rows {
        let factor = row_factor(op, row.get(0, r), mean);
        for c in 0..grad.cols {
            out.set(r, c, factor * grad.get(r, c) / col.get(0, c).sqrt());
        }
    }
}

struct Moment<'a>(&'a MomentDirection, &'a Mat, &'a Mat, &'a Mat, Block);

impl Kernel for Moment<'_> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Moment(op, grad, v, out, block) = self;
        // SAFETY: columns c .. c + n of row r of every operand.
        unsafe {
            let (scale, eps) = (S::splat(op.grad_scale), S::splat(op.eps));
            let (decay, rest) = (S::splat(op.decay), S::splat(1.0 - op.decay));
            for r in block.rows {
                for c in block.cols.clone().step_by(S::LANES) {
                    let n = S::LANES.min(block.cols.end - c);
                    let g = S::mul(scale, load_part::<S>(grad.row(r).add(c), n));
                    let h = S::add(S::mul(g, g), eps);
                    let old = S::mul(decay, load_part::<S>(v.row(r).add(c), n));
                    let new = S::add(old, S::mul(rest, h));
                    store_part::<S>(v.row(r).add(c), new, n);
                    store_part::<S>(out.row(r).add(c), S::div(g, S::sqrt(new)), n);
                }
            }
        }
    }
}

pub(crate) fn moment(ctx: &Ctx<'_>, op: &MomentDirection) {
    let (grad, v, out) = (ctx.f32(&op.grad), ctx.f32(&op.v), ctx.f32(&op.out));
    blocks(ctx, grad.rows, grad.cols, &|block| {
        // SAFETY: the rung is available; operands are checked views; blocks are disjoint.
        unsafe { dispatch(ctx.rung, Moment(op, &grad, &v, &out, block)) }
    });
}

pub(crate) fn moment_reference(arena: &Arena, op: &MomentDirection) {
    let (grad, v, out) = (arena.f32(&op.grad), arena.f32(&op.v), arena.f32(&op.out));
    for r in 0..grad.rows {
        for c in 0..grad.cols {
            let g = op.grad_scale * grad.get(r, c);
            let new = op.decay * v.get(r, c) + (1.0 - op.decay) * (g * g + op.eps);
            v.set(r, c, new);
            out.set(r, c, g / new.sqrt());
        }
    }
}

/// Factor on the parameter and on the direction.
fn factors(op: &AdafactorUpdate, direction_squares: f32, param_squares: Option<f32>) -> (f32, f32) {
    let rms = |squares: f32| (f64::from(squares) / op.values as f64).sqrt();
    let alpha = f64::from(op.lr) * param_squares.map_or(1.0, |s| rms(s).max(f64::from(op.eps)));
    let clip = (rms(direction_squares) / f64::from(op.threshold)).max(1.0);
    ((1.0 - alpha * f64::from(op.weight_decay)) as f32, (alpha / clip) as f32)
}

struct Update<'a> {
    param: &'a Mat,
    direction: &'a Mat,
    m: Option<&'a Mat>,
    beta: f32,
    factors: (f32, f32),
    block: Block,
}

impl Kernel for Update<'_> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Update { param, direction, m, beta, factors, block } = self;
        // SAFETY: columns c .. c + n of row r of every operand.
        unsafe {
            let (keep, factor) = (S::splat(factors.0), S::splat(factors.1));
            let (beta, rest) = (S::splat(beta), S::splat(1.0 - beta));
            for r in block.rows {
                for c in block.cols.clone().step_by(S::LANES) {
                    let n = S::LANES.min(block.cols.end - c);
                    let at = |x: &Mat| x.row(r).add(c);
                    let mut u = S::mul(factor, load_part::<S>(at(direction), n));
                    if let Some(m) = m {
                        u = S::add(S::mul(beta, load_part::<S>(at(m), n)), S::mul(rest, u));
                        store_part::<S>(at(m), u, n);
                    }
                    let p = S::mul(keep, load_part::<S>(at(param), n));
                    store_part::<S>(at(param), S::sub(p, u), n);
                }
            }
        }
    }
}

pub(crate) fn update(ctx: &Ctx<'_>, op: &AdafactorUpdate) {
    let (param, direction) = (ctx.f32(&op.param), ctx.f32(&op.direction));
    let m = op.m.map(|m| ctx.f32(&m));
    let scalar = |view: bessemer_tensor::View| ctx.f32(&view).get(0, 0);
    let factors = factors(op, scalar(op.direction_squares), op.param_squares.map(scalar));
    blocks(ctx, param.rows, param.cols, &|block| {
        let update =
            Update { param: &param, direction: &direction, m: m.as_ref(), beta: op.beta, factors, block };
        // SAFETY: the rung is available; operands are checked views; blocks are disjoint.
        unsafe { dispatch(ctx.rung, update) }
    });
}

pub(crate) fn update_reference(arena: &Arena, op: &AdafactorUpdate) {
    let (param, direction) = (arena.f32(&op.param), arena.f32(&op.direction));
    let scalar = |view: bessemer_tensor::View| arena.f32(&view).get(0, 0);
    let (keep, factor) = factors(op, scalar(op.direction_squares), op.param_squares.map(scalar));
    for r in 0..param.rows {
        for c in 0..param.cols {
            let mut u = factor * direction.get(r, c);
            if let Some(m) = op.m.map(|m| arena.f32(&m)) {
                u = op.beta * m.get(r, c) + (1.0 - op.beta) * u;
                m.set(r, c, u);
            }
            param.set(r, c, keep * param.get(r, c) - u);
        }
    }
}
