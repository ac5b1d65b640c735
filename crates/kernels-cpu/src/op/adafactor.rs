//! Adafactor (Shazeer & Stern 2018): row and column means of squared gradients, the direction that they give, and the
//! update. With `h = (factor grad)^2 + eps`:
//! - moments: `row_i = d row_i + (1-d) mean_j h_ij`, `col_j = d col_j + (1-d) mean_i h_ij`;
//! - direction: `u_ij = factor grad_ij / sqrt(row_i / mean(row)) / sqrt(col_j)`; unfactored
//!   `v = d v + (1-d) h`, `u = factor grad / sqrt(v)`;
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

/// New mean from an old one and a sum of `count` squares before factor and eps.
fn mean(op: &FactoredMoments, step: [f32; 2], old: f32, sum: f64, count: usize) -> f32 {
    let [factor, decay] = step.map(f64::from);
    let h = factor * factor * sum / count as f64 + f64::from(op.eps);
    (decay * f64::from(old) + (1.0 - decay) * h) as f32
}

pub(crate) fn moments(ctx: &Ctx<'_>, op: &FactoredMoments) {
    let Some(step) = ctx.f32(&op.step).applied() else { return };
    let (grad, row, col) = (ctx.f32(&op.grad), ctx.f32(&op.row), ctx.f32(&op.col));
    ctx.pool.run(grad.rows.div_ceil(ROWS), &|tile, _| {
        for r in tile * ROWS..((tile + 1) * ROWS).min(grad.rows) {
            // SAFETY: the instruction set is available; grad is a checked view.
            let sum = unsafe { dispatch(ctx.rung, RowSquares(&grad, r)) };
            row.set(0, r, mean(op, step, row.get(0, r), sum, grad.cols));
        }
    });
    ctx.pool.run(grad.cols.div_ceil(COLUMNS), &|tile, _| {
        let first = tile * COLUMNS;
        let count = COLUMNS.min(grad.cols - first);
        let mut sums = [0.0f64; COLUMNS];
        for r in 0..grad.rows {
            // SAFETY: these columns are inside row r of grad, which is only read.
            let g = unsafe { std::slice::from_raw_parts(grad.row(r).add(first), count) };
            for (sum, g) in sums.iter_mut().zip(g) {
                *sum += f64::from(*g) * f64::from(*g);
            }
        }
        for (c, sum) in (first..first + count).zip(sums) {
            col.set(0, c, mean(op, step, col.get(0, c), sum, grad.rows));
        }
    });
}

pub(crate) fn moments_reference(arena: &Arena, op: &FactoredMoments) {
    let Some(step) = arena.f32(&op.step).applied() else { return };
    let (grad, row, col) = (arena.f32(&op.grad), arena.f32(&op.row), arena.f32(&op.col));
    let square = |r, c| f64::from(grad.get(r, c)).powi(2);
    for r in 0..grad.rows {
        let sum = (0..grad.cols).map(|c| square(r, c)).sum();
        row.set(0, r, mean(op, step, row.get(0, r), sum, grad.cols));
    }
    for c in 0..grad.cols {
        let sum = (0..grad.rows).map(|r| square(r, c)).sum();
        col.set(0, c, mean(op, step, col.get(0, c), sum, grad.rows));
    }
}

fn mean_of(row: &Mat) -> f64 {
    (0..row.cols).map(|r| f64::from(row.get(0, r))).sum::<f64>() / row.cols as f64
}

/// `factor / sqrt(row_i / mean(row))`.
fn row_factor(factor: f32, row: f32, mean: f64) -> f32 {
    (f64::from(factor) / (f64::from(row) / mean).sqrt()) as f32
}

struct Factored<'a> {
    factor: f32,
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
        let Factored { factor, grad, row, col, out, mean, block } = self;
        for r in block.rows {
            // SAFETY: columns c .. c + n of row r of grad and out, and of the one row of col.
            unsafe {
                let factor = S::splat(row_factor(factor, row.get(0, r), mean));
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
    let Some([factor]) = ctx.f32(&op.step).applied() else { return };
    let (grad, out) = (ctx.f32(&op.grad), ctx.f32(&op.out));
    let (row, col) = (ctx.f32(&op.row), ctx.f32(&op.col));
    let mean = mean_of(&row);
    blocks(ctx, grad.rows, grad.cols, &|block| {
        let direction = Factored { factor, grad: &grad, row: &row, col: &col, out: &out, mean, block };
        // SAFETY: the instruction set is available; operands are checked views; blocks are disjoint.
        unsafe { dispatch(ctx.rung, direction) }
    });
}

pub(crate) fn factored_reference(arena: &Arena, op: &FactoredDirection) {
    let Some([scale]) = arena.f32(&op.step).applied() else { return };
    let (grad, out) = (arena.f32(&op.grad), arena.f32(&op.out));
    let (row, col) = (arena.f32(&op.row), arena.f32(&op.col));
    let mean = mean_of(&row);
    for r in 0..grad.rows {
        let factor = row_factor(scale, row.get(0, r), mean);
        for c in 0..grad.cols {
            out.set(r, c, factor * grad.get(r, c) / col.get(0, c).sqrt());
        }
    }
}

struct Moment<'a> {
    op: &'a MomentDirection,
    step: [f32; 2],
    grad: &'a Mat,
    v: &'a Mat,
    out: &'a Mat,
    block: Block,
}

impl Kernel for Moment<'_> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Moment { op, step: [factor, decay], grad, v, out, block } = self;
        // SAFETY: columns c .. c + n of row r of every operand.
        unsafe {
            let (scale, eps) = (S::splat(factor), S::splat(op.eps));
            let (decay, rest) = (S::splat(decay), S::splat(1.0 - decay));
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
    let Some(step) = ctx.f32(&op.step).applied() else { return };
    let (grad, v, out) = (ctx.f32(&op.grad), ctx.f32(&op.v), ctx.f32(&op.out));
    blocks(ctx, grad.rows, grad.cols, &|block| {
        let direction = Moment { op, step, grad: &grad, v: &v, out: &out, block };
        // SAFETY: the instruction set is available; operands are checked views; blocks are disjoint.
        unsafe { dispatch(ctx.rung, direction) }
    });
}

pub(crate) fn moment_reference(arena: &Arena, op: &MomentDirection) {
    let Some([factor, decay]) = arena.f32(&op.step).applied() else { return };
    let (grad, v, out) = (arena.f32(&op.grad), arena.f32(&op.v), arena.f32(&op.out));
    for r in 0..grad.rows {
        for c in 0..grad.cols {
            let g = factor * grad.get(r, c);
            let new = decay * v.get(r, c) + (1.0 - decay) * (g * g + op.eps);
            v.set(r, c, new);
            out.set(r, c, g / new.sqrt());
        }
    }
}

/// Factor on the parameter and on the direction.
fn factors(op: &AdafactorUpdate, lr: f32, direction_squares: f32, param_squares: Option<f32>) -> (f32, f32) {
    let rms = |squares: f32| (f64::from(squares) / op.values as f64).sqrt();
    let alpha = f64::from(lr) * param_squares.map_or(1.0, |s| rms(s).max(f64::from(op.eps)));
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
    let Some([lr]) = ctx.f32(&op.step).applied() else { return };
    let (param, direction) = (ctx.f32(&op.param), ctx.f32(&op.direction));
    let m = op.m.map(|m| ctx.f32(&m));
    let scalar = |view: bessemer_tensor::View| ctx.f32(&view).get(0, 0);
    let factors = factors(op, lr, scalar(op.direction_squares), op.param_squares.map(scalar));
    blocks(ctx, param.rows, param.cols, &|block| {
        let update =
            Update { param: &param, direction: &direction, m: m.as_ref(), beta: op.beta, factors, block };
        // SAFETY: the instruction set is available; operands are checked views; blocks are disjoint.
        unsafe { dispatch(ctx.rung, update) }
    });
}

pub(crate) fn update_reference(arena: &Arena, op: &AdafactorUpdate) {
    let Some([lr]) = arena.f32(&op.step).applied() else { return };
    let (param, direction) = (arena.f32(&op.param), arena.f32(&op.direction));
    let scalar = |view: bessemer_tensor::View| arena.f32(&view).get(0, 0);
    let (keep, factor) = factors(op, lr, scalar(op.direction_squares), op.param_squares.map(scalar));
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
