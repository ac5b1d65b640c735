//! `out[c] (+)= sum_r x[r, c]`: gradients of biases. Blocks of rows are summed into partial rows in the workspace, which
//! are then added in order: two levels, so the rounding error grows with the square root of the rows at most, and the
//! order depends on the shape alone.
#![allow(unsafe_code)] // rows by address

use crate::ctx::{Ctx, Span};
use crate::element::Element;
use crate::operand::{AnyMat, Mat};
use crate::simd::{Kernel, Simd, dispatch, load_part};
use std::ops::Range;

/// Rows of a block.
pub(crate) const BLOCK: usize = 128;
/// Vectors of columns that a block sums at a time: rows are far apart in memory, so whole lines and more are read of each.
const VECTORS: usize = 8;
/// Columns of a tile of the second level.
const COLUMNS: usize = 256;

/// Scratch floats.
pub(crate) fn workspace(rows: usize, cols: usize) -> usize {
    crate::ctx::padded(rows.div_ceil(BLOCK) * cols)
}

/// Sums of the rows of one block, into its partial row.
struct Block<'a, T>(&'a Mat<T>, Span, usize);

impl<T: Element> Kernel for Block<'_, T> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Block(x, partials, block) = self;
        let to = partials.at(block * x.cols, x.cols);
        let rows = block * BLOCK..((block + 1) * BLOCK).min(x.rows);
        let mut c = 0;
        while c < x.cols {
            // SAFETY: columns of rows of x, and of the partial row that only this tile writes.
            unsafe {
                if c + VECTORS * S::LANES <= x.cols {
                    for (v, sum) in
                        sums::<S, T, VECTORS>(x, rows.clone(), c, S::LANES).into_iter().enumerate()
                    {
                        S::store(to.add(c + v * S::LANES), sum);
                    }
                    c += VECTORS * S::LANES;
                } else {
                    let n = S::LANES.min(x.cols - c);
                    let [sum] = sums::<S, T, 1>(x, rows.clone(), c, n);
                    S::store_n(to.add(c), sum, n);
                    c += n;
                }
            }
        }
    }
}

/// Sums over rows of V vectors of `n` columns each, side by side from column `c` on.
///
/// # Safety
/// The rows and columns exist.
#[inline(always)]
unsafe fn sums<S: Simd, T: Element, const V: usize>(
    x: &Mat<T>,
    rows: Range<usize>,
    c: usize,
    n: usize,
) -> [S::V; V] {
    // SAFETY: by contract.
    unsafe {
        let mut sums = [S::splat(0.0); V];
        for r in rows {
            for (v, sum) in sums.iter_mut().enumerate() {
                *sum = S::add(*sum, load_part::<S>(x.row(r).add(c + v * S::LANES), n));
            }
        }
        sums
    }
}

/// Adds `blocks` partial rows of `out.cols` floats, the first at `first`, into `out`, in order.
pub(crate) fn add_partials(
    ctx: &Ctx<'_>,
    partials: Span,
    first: usize,
    blocks: usize,
    out: &AnyMat,
    accumulate: bool,
) {
    let cols = out.cols;
    ctx.pool.run(cols.div_ceil(COLUMNS), &|tile, _| {
        for c in tile * COLUMNS..((tile + 1) * COLUMNS).min(cols) {
            let mut sum = 0.0f32;
            for b in 0..blocks {
                // SAFETY: a finished partial sum, one of `blocks` rows of `cols`.
                sum += unsafe { *partials.at(first + b * cols + c, 1) };
            }
            out.put(0, c, sum, accumulate);
        }
    });
}

pub(crate) fn run<T: Element>(ctx: &Ctx<'_>, x: &Mat<T>, out: &AnyMat, accumulate: bool) {
    let blocks = x.rows.div_ceil(BLOCK);
    let partials = ctx.scratch().take(blocks * x.cols);
    ctx.pool.run(blocks, &|block, _| {
        // SAFETY: the instruction set is available; x is a checked view; each block writes its own partial row.
        unsafe { dispatch(ctx.rung, Block(x, partials, block)) }
    });
    add_partials(ctx, partials, 0, blocks, out, accumulate);
}
