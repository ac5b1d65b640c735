//! `L L^T = A + shift I` and the inverse of a lower triangular matrix, in f32. Cost: n^3 / 3 operations each.
//!
//! The factor is made in block columns from the left: first every row's products with the columns before the block
//! (on the pool), then the block on the diagonal (one thread), then the rows below it (on the pool). The inverse is made
//! in stripes of columns that do not depend on each other: row i of `L M = I` gives
//! `M_i = (I_i - sum_{k<i} L_ik M_k) / L_ii`. Every element's sum is taken in one order whatever the threads.
#![allow(unsafe_code)] // rows by address

use crate::arena::Arena;
use crate::ctx::Ctx;
use crate::operand::Mat;
use crate::simd::{Kernel, Simd, dispatch, load_part, store_part};
use bessemer_tensor::op::{Cholesky, TriangularInverse};

/// Columns of a block, and rows of a tile.
const BLOCK: usize = 32;
const ROWS: usize = 8;
/// Columns of a stripe of the inverse.
const STRIPE: usize = 64;

/// Sum of products of the first `n` elements of two rows.
struct Products(*const f32, *const f32, usize);

impl Kernel for Products {
    type Out = f32;
    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> f32 {
        let Products(a, b, len) = self;
        // SAFETY: elements c .. c + n of rows of at least len.
        unsafe {
            let mut sums = [S::splat(0.0); 4];
            let mut c = 0;
            while c + 4 * S::LANES <= len {
                for (i, sum) in sums.iter_mut().enumerate() {
                    let at = c + i * S::LANES;
                    *sum = S::fma(S::load(a.add(at)), S::load(b.add(at)), *sum);
                }
                c += 4 * S::LANES;
            }
            while c < len {
                let n = S::LANES.min(len - c);
                sums[0] = S::fma(load_part::<S>(a.add(c), n), load_part::<S>(b.add(c), n), sums[0]);
                c += n;
            }
            S::sum(S::add(S::add(sums[0], sums[1]), S::add(sums[2], sums[3])))
        }
    }
}

/// `l[i, j] = a[i, j] (+ shift) - sum over k < first of l[i, k] l[j, k]`, for columns first .. last at or below the diagonal.
struct Left<'a> {
    a: &'a Mat,
    l: &'a Mat,
    shift: f32,
    rows: std::ops::Range<usize>,
    first: usize,
    last: usize,
}

impl Kernel for Left<'_> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Left { a, l, shift, rows, first, last } = self;
        for i in rows {
            for j in first..last.min(i + 1) {
                let start = a.get(i, j) + if i == j { shift } else { 0.0 };
                // SAFETY: `first` elements of rows i and j, written before this block column.
                let products = unsafe { Products(l.row(i), l.row(j), first).run::<S>() };
                l.set(i, j, start - products);
            }
        }
    }
}

/// Divides rows by the finished part of the block on the diagonal.
struct Below<'a>(&'a Mat, std::ops::Range<usize>, usize, usize);

impl Kernel for Below<'_> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Below(l, rows, first, last) = self;
        for i in rows {
            for j in first..last.min(i + 1) {
                // SAFETY: elements first .. j of rows i and j.
                let products =
                    unsafe { Products(l.row(i).add(first), l.row(j).add(first), j - first).run::<S>() };
                let rest = l.get(i, j) - products;
                l.set(i, j, if i == j { pivot(rest) } else { rest / l.get(j, j) });
            }
        }
    }
}

/// The root of a pivot; NaN unless it is positive.
fn pivot(rest: f32) -> f32 {
    if rest > 0.0 { rest.sqrt() } else { f32::NAN }
}

pub(crate) fn factor(ctx: &Ctx<'_>, op: &Cholesky) {
    let (a, l) = (ctx.f32(&op.a), ctx.f32(&op.l));
    let n = a.rows;
    for first in (0..n).step_by(BLOCK) {
        let last = (first + BLOCK).min(n);
        ctx.pool.run((n - first).div_ceil(ROWS), &|tile, _| {
            let start = first + tile * ROWS;
            let rows = start..(start + ROWS).min(n);
            // SAFETY: the rung is available; tiles write rows of their own, in columns that no tile reads.
            unsafe { dispatch(ctx.rung, Left { a: &a, l: &l, shift: op.shift, rows, first, last }) }
        });
        // SAFETY: the rung is available; nothing else runs.
        unsafe { dispatch(ctx.rung, Below(&l, first..last, first, last)) };
        ctx.pool.run((n - last).div_ceil(ROWS), &|tile, _| {
            let start = last + tile * ROWS;
            // SAFETY: the rung is available; tiles write rows of their own and read the finished block.
            unsafe { dispatch(ctx.rung, Below(&l, start..(start + ROWS).min(n), first, last)) }
        });
    }
    clear_above(&l);
}

/// Zeros above the diagonal.
fn clear_above(l: &Mat) {
    for i in 0..l.rows {
        for j in i + 1..l.cols {
            l.set(i, j, 0.0);
        }
    }
}

pub(crate) fn factor_reference(arena: &Arena, op: &Cholesky) {
    let (a, l) = (arena.f32(&op.a), arena.f32(&op.l));
    let n = a.rows;
    let mut full = vec![0.0f64; n * n];
    for i in 0..n {
        for j in 0..=i {
            let products: f64 = (0..j).map(|k| full[i * n + k] * full[j * n + k]).sum();
            let shift = if i == j { f64::from(op.shift) } else { 0.0 };
            let rest = f64::from(a.get(i, j)) + shift - products;
            full[i * n + j] = match i == j {
                true if rest > 0.0 => rest.sqrt(),
                true => f64::NAN,
                false => rest / full[j * n + j],
            };
        }
    }
    for i in 0..n {
        for j in 0..n {
            l.set(i, j, full[i * n + j] as f32);
        }
    }
}

/// Columns `first .. first + width` of the inverse.
struct Stripe<'a>(&'a Mat, &'a Mat, usize, usize);

impl Kernel for Stripe<'_> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Stripe(l, out, first, width) = self;
        // Above the stripe's own diagonal everything is zero.
        for i in 0..first {
            for c in first..first + width {
                out.set(i, c, 0.0);
            }
        }
        for i in first..l.rows {
            let diagonal = l.get(i, i);
            for start in (first..first + width).step_by(S::LANES) {
                let n = S::LANES.min(first + width - start);
                // SAFETY: columns start .. start + n of rows up to i of out, inside this stripe.
                unsafe {
                    let mut sum = S::splat(0.0);
                    for k in first..i {
                        let m = load_part::<S>(out.row(k).add(start), n);
                        sum = S::fma(S::splat(-l.get(i, k)), m, sum);
                    }
                    store_part::<S>(out.row(i).add(start), S::div(sum, S::splat(diagonal)), n);
                }
                if (start..start + n).contains(&i) {
                    out.set(i, i, 1.0 / diagonal);
                }
            }
            for c in (i + 1).max(first)..(first + width).min(out.cols) {
                out.set(i, c, 0.0);
            }
        }
    }
}

pub(crate) fn inverse(ctx: &Ctx<'_>, op: &TriangularInverse) {
    let (l, out) = (ctx.f32(&op.l), ctx.f32(&op.out));
    ctx.pool.run(l.rows.div_ceil(STRIPE), &|tile, _| {
        let first = tile * STRIPE;
        // SAFETY: the rung is available; stripes are disjoint columns of out and read no other's.
        unsafe { dispatch(ctx.rung, Stripe(&l, &out, first, STRIPE.min(l.rows - first))) }
    });
}

pub(crate) fn inverse_reference(arena: &Arena, op: &TriangularInverse) {
    let (l, out) = (arena.f32(&op.l), arena.f32(&op.out));
    let n = l.rows;
    for c in 0..n {
        let mut column = vec![0.0f64; n];
        for i in c..n {
            let sum: f64 = (c..i).map(|k| f64::from(l.get(i, k)) * column[k]).sum();
            column[i] = (if i == c { 1.0 } else { 0.0 } - sum) / f64::from(l.get(i, i));
        }
        for (i, value) in column.iter().enumerate() {
            out.set(i, c, *value as f32);
        }
    }
}
