//! `L L^T = A + shift I` and the inverse of a lower triangular matrix, in f32. Cost: n^3 / 3 operations each.
//!
//! The factor is made in block columns from the left: first every row's products with the columns before the block
//! (on the pool), then the block on the diagonal (one thread), then the rows below it (on the pool). The inverse is made
//! in stripes of columns that do not depend on each other: row i of `L M = I` gives
//! `M_i = (I_i - sum_{k<i} L_ik M_k) / L_ii`. Every element's sum is taken in one order whatever the threads.
//!
//! Nearly all of the work is products with finished elements, and a processor can only do as many as it loads operands: so
//! they are made in tiles of several rows and columns at once, whose sums stay in registers, over stretches of k whose
//! operands stay in the first caches.
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
/// Rows and columns (of the factor) or vectors of columns (of the inverse) of a register tile: eight sums, enough to hide
/// the latency of a multiply-add, with their operands in the sixteen registers of AVX2.
const TILE: (usize, usize) = (4, 2);
/// Products of a stretch: 32 rows of the factor are 64 KiB.
const FACTOR_K: usize = 512;
/// Rows of a stretch of the inverse: 32 KiB of a stripe.
const INVERSE_K: usize = 128;

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

impl Left<'_> {
    /// Takes the products of columns `k` off a tile of R rows from `i` and C columns from `j`; the first stretch begins with a.
    #[inline(always)]
    unsafe fn tile<S: Simd, const R: usize, const C: usize>(
        &self,
        (i, j): (usize, usize),
        k: std::ops::Range<usize>,
    ) {
        let l = self.l;
        let mut sums = [[0.0f32; C]; R];
        // SAFETY: columns before the block of rows i .. i + R and j .. j + C, finished before.
        unsafe {
            let mut acc = [[S::splat(0.0); C]; R];
            let mut c = k.start;
            while c < k.end {
                let n = S::LANES.min(k.end - c);
                let columns: [S::V; C] = std::array::from_fn(|x| load_part::<S>(l.row(j + x).add(c), n));
                for (r, acc) in acc.iter_mut().enumerate() {
                    let row = load_part::<S>(l.row(i + r).add(c), n);
                    for (sum, column) in acc.iter_mut().zip(&columns) {
                        *sum = S::fma(row, *column, *sum);
                    }
                }
                c += n;
            }
            for (sums, acc) in sums.iter_mut().zip(acc) {
                for (sum, acc) in sums.iter_mut().zip(acc) {
                    *sum = S::sum(acc);
                }
            }
        }
        for (r, sums) in sums.iter().enumerate() {
            for (c, sum) in sums.iter().enumerate() {
                let (i, j) = (i + r, j + c);
                if j > i {
                    continue;
                }
                let before = match k.start {
                    0 => self.a.get(i, j) + if i == j { self.shift } else { 0.0 },
                    _ => l.get(i, j),
                };
                l.set(i, j, before - sum);
            }
        }
    }

    /// All columns of the block for R rows from `i`.
    #[inline(always)]
    unsafe fn rows<S: Simd, const R: usize>(&self, i: usize, k: std::ops::Range<usize>) {
        let mut j = self.first;
        while j < self.last.min(i + R) {
            // SAFETY: as `tile`; all of these rows and columns are within the matrix.
            unsafe {
                if j + TILE.1 <= self.last {
                    self.tile::<S, R, { TILE.1 }>((i, j), k.clone());
                    j += TILE.1;
                } else {
                    self.tile::<S, R, 1>((i, j), k.clone());
                    j += 1;
                }
            }
        }
    }
}

impl Kernel for Left<'_> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let mut start = 0;
        loop {
            let k = start..(start + FACTOR_K).min(self.first);
            let mut i = self.rows.start;
            while i < self.rows.end {
                // SAFETY: rows of this tile.
                unsafe {
                    if i + TILE.0 <= self.rows.end {
                        self.rows::<S, { TILE.0 }>(i, k.clone());
                        i += TILE.0;
                    } else {
                        self.rows::<S, 1>(i, k.clone());
                        i += 1;
                    }
                }
            }
            start = k.end;
            if start >= self.first {
                break;
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
            // SAFETY: the instruction set is available; tiles write rows of their own, in columns that no tile reads.
            unsafe { dispatch(ctx.rung, Left { a: &a, l: &l, shift: op.shift, rows, first, last }) }
        });
        // SAFETY: the instruction set is available; no other tile runs.
        unsafe { dispatch(ctx.rung, Below(&l, first..last, first, last)) };
        ctx.pool.run((n - last).div_ceil(ROWS), &|tile, _| {
            let start = last + tile * ROWS;
            // SAFETY: the instruction set is available; tiles write rows of their own and read the finished block.
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
struct Stripe<'a> {
    l: &'a Mat,
    out: &'a Mat,
    first: usize,
    width: usize,
}

impl Stripe<'_> {
    /// Subtracts the products with rows `k` of the inverse from R rows from `i`, in C vectors of columns from `start` of which the last has
    /// `n` elements. The first stretch begins with zero.
    #[inline(always)]
    unsafe fn tile<S: Simd, const R: usize, const C: usize>(
        &self,
        i: usize,
        (start, n): (usize, usize),
        k: std::ops::Range<usize>,
    ) {
        let (l, out) = (self.l, self.out);
        let lanes = |x: usize| if x + 1 == C { n } else { S::LANES };
        // SAFETY: these columns of rows k, which are finished, and of rows i .. i + R, which only this stripe has.
        unsafe {
            let mut acc = [[S::splat(0.0); C]; R];
            if k.start > self.first {
                for (r, acc) in acc.iter_mut().enumerate() {
                    for (x, sum) in acc.iter_mut().enumerate() {
                        *sum = load_part::<S>(out.row(i + r).add(start + x * S::LANES), lanes(x));
                    }
                }
            }
            for k in k {
                let at = out.row(k).add(start);
                let row: [S::V; C] = std::array::from_fn(|x| load_part::<S>(at.add(x * S::LANES), lanes(x)));
                for (r, acc) in acc.iter_mut().enumerate() {
                    let factor = S::splat(-l.get(i + r, k));
                    for (sum, m) in acc.iter_mut().zip(&row) {
                        *sum = S::fma(factor, *m, *sum);
                    }
                }
            }
            for (r, acc) in acc.iter().enumerate() {
                for (x, sum) in acc.iter().enumerate() {
                    store_part::<S>(out.row(i + r).add(start + x * S::LANES), *sum, lanes(x));
                }
            }
        }
    }

    /// All columns of the stripe for R rows from `i`.
    #[inline(always)]
    unsafe fn rows<S: Simd, const R: usize>(&self, i: usize, k: std::ops::Range<usize>) {
        let end = self.first + self.width;
        let mut start = self.first;
        while start < end {
            // SAFETY: as `tile`; columns of this stripe.
            unsafe {
                if start + TILE.1 * S::LANES <= end {
                    self.tile::<S, R, { TILE.1 }>(i, (start, S::LANES), k.clone());
                    start += TILE.1 * S::LANES;
                } else {
                    let n = S::LANES.min(end - start);
                    self.tile::<S, R, 1>(i, (start, n), k.clone());
                    start += n;
                }
            }
        }
    }

    /// Applies the products with the finished rows above a block to the rows of the block.
    #[inline(always)]
    unsafe fn above<S: Simd>(&self, rows: std::ops::Range<usize>) {
        let mut start = self.first;
        while start < rows.start {
            let k = start..(start + INVERSE_K).min(rows.start);
            let mut i = rows.start;
            while i < rows.end {
                // SAFETY: rows of this block.
                unsafe {
                    if i + TILE.0 <= rows.end {
                        self.rows::<S, { TILE.0 }>(i, k.clone());
                        i += TILE.0;
                    } else {
                        self.rows::<S, 1>(i, k.clone());
                        i += 1;
                    }
                }
            }
            start = k.end;
        }
    }
}

impl Kernel for Stripe<'_> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Stripe { l, out, first, width } = self;
        // Above the stripe's own diagonal everything is zero.
        for i in 0..first {
            for c in first..first + width {
                out.set(i, c, 0.0);
            }
        }
        for block in (first..l.rows).step_by(BLOCK) {
            let rows = block..(block + BLOCK).min(l.rows);
            // SAFETY: rows above the block are finished.
            unsafe { self.above::<S>(rows.clone()) };
            for i in rows {
                let diagonal = l.get(i, i);
                for start in (first..first + width).step_by(S::LANES) {
                    let n = S::LANES.min(first + width - start);
                    // SAFETY: columns start .. start + n of rows up to i of out, inside this stripe.
                    unsafe {
                        let at = out.row(i).add(start);
                        let mut sum = if block > first { load_part::<S>(at, n) } else { S::splat(0.0) };
                        for k in block..i {
                            let m = load_part::<S>(out.row(k).add(start), n);
                            sum = S::fma(S::splat(-l.get(i, k)), m, sum);
                        }
                        store_part::<S>(at, S::div(sum, S::splat(diagonal)), n);
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
}

pub(crate) fn inverse(ctx: &Ctx<'_>, op: &TriangularInverse) {
    let (l, out) = (ctx.f32(&op.l), ctx.f32(&op.out));
    ctx.pool.run(l.rows.div_ceil(STRIPE), &|tile, _| {
        let first = tile * STRIPE;
        // SAFETY: the instruction set is available; stripes are disjoint columns of out, and each reads only its own.
        unsafe { dispatch(ctx.rung, Stripe { l: &l, out: &out, first, width: STRIPE.min(l.rows - first) }) }
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
