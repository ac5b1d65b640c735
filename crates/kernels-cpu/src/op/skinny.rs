//! The product of a few rows with a weight matrix, `out[n, o] = x[n] . w[o]`: decoding reads every weight once, so it runs
//! at memory speed and packing would only cost. Each thread takes tiles of outputs.
//!
//! Every element is one dot product in lanes, whatever the number of rows.
#![allow(unsafe_code)] // rows by address

use crate::ctx::Ctx;
use crate::element::Element;
use crate::gemm::{Epilogue, finish_row};
use crate::operand::Mat;
use crate::simd::{Kernel, Simd, dispatch, load_part};

/// Most rows of x for which it is faster than a packed product.
pub(crate) const MAX_ROWS: usize = 4;
/// Rows of x that share one read of a tile's weights from the nearest cache.
const ROWS: usize = 2;
/// Outputs of a tile.
const TILE: usize = 64;
/// Outputs at a time: independent sums that hide the latency of the additions.
const GROUP: usize = 4;

struct Outputs<'a, T, W> {
    x: &'a Mat<T>,
    w: &'a Mat<W>,
    epilogue: &'a Epilogue<T>,
    first: usize,
    count: usize,
}

impl<T: Element, W: Element> Kernel for Outputs<'_, T, W> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Outputs { x, w, epilogue, first, count } = self;
        for n in (0..x.rows).step_by(ROWS) {
            let mut y = [[0.0f32; TILE]; ROWS];
            // A pair or a group at the edge computes its last row several times and keeps it once.
            let xs: [*mut T; ROWS] = std::array::from_fn(|i| x.row((n + i).min(x.rows - 1)));
            for o in (0..count).step_by(GROUP) {
                let rows: [*mut W; GROUP] = std::array::from_fn(|i| w.row(first + (o + i).min(count - 1)));
                let keep = GROUP.min(count - o);
                // SAFETY: rows of x and w hold x.cols elements.
                unsafe {
                    if n + 1 < x.rows {
                        let sums = dots::<S, ROWS>(xs, rows, x.cols);
                        y.iter_mut().zip(sums).for_each(|(y, s)| y[o..o + keep].copy_from_slice(&s[..keep]));
                    } else {
                        let [sums] = dots::<S, 1>([xs[0]], rows, x.cols);
                        y[0][o..o + keep].copy_from_slice(&sums[..keep]);
                    }
                }
            }
            for (i, y) in y.iter().enumerate().take(x.rows - n) {
                // SAFETY: row n + i and columns first .. first + count are inside the matrices of the epilogue.
                unsafe { finish_row::<S, T>(epilogue, y.as_ptr(), n + i, first, count) };
            }
        }
    }
}

/// Dot products of N rows of x with a group of rows of w. The sums of a row do not depend on N.
#[inline(always)]
unsafe fn dots<S: Simd, const N: usize>(
    xs: [*mut impl Element; N],
    rows: [*mut impl Element; GROUP],
    len: usize,
) -> [[f32; GROUP]; N] {
    // SAFETY: the caller vouches for `len` elements of every row.
    unsafe {
        let mut acc = [[S::splat(0.0); GROUP]; N];
        let whole = len - len % S::LANES;
        for k in (0..whole).step_by(S::LANES) {
            add::<S, N>(&mut acc, xs, rows, k, S::LANES);
        }
        if whole < len {
            add::<S, N>(&mut acc, xs, rows, whole, len - whole);
        }
        let mut sums = [[0.0; GROUP]; N];
        for (s, a) in sums.iter_mut().flatten().zip(acc.into_iter().flatten()) {
            *s = S::sum(a);
        }
        sums
    }
}

/// Adds the products of elements k .. k + n, at most a vector of them.
///
/// # Safety
/// The elements exist; the processor has the instructions of S.
#[inline(always)]
unsafe fn add<S: Simd, const N: usize>(
    acc: &mut [[S::V; GROUP]; N],
    xs: [*mut impl Element; N],
    rows: [*mut impl Element; GROUP],
    k: usize,
    n: usize,
) {
    // SAFETY: by contract.
    unsafe {
        let ws = rows.map(|row| load_part::<S>(row.add(k), n));
        for (acc, x) in acc.iter_mut().zip(xs) {
            let xv = load_part::<S>(x.add(k), n);
            for (a, w) in acc.iter_mut().zip(ws) {
                *a = S::fma(xv, w, *a);
            }
        }
    }
}

pub(crate) fn run<T: Element, W: Element>(ctx: &Ctx<'_>, x: &Mat<T>, w: &Mat<W>, epilogue: &Epilogue<T>) {
    ctx.pool.run(w.rows.div_ceil(TILE), &|tile, _| {
        let first = tile * TILE;
        let k = Outputs { x, w, epilogue, first, count: TILE.min(w.rows - first) };
        // SAFETY: the instruction set is available; operands are checked views; tiles write disjoint columns.
        unsafe { dispatch(ctx.rung, k) }
    });
}
