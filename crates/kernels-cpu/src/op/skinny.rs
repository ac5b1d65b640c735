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

/// Most rows of x that are worth it.
pub(crate) const MAX_ROWS: usize = 4;
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
        let mut y = [[0.0f32; TILE]; MAX_ROWS];
        for o in (0..count).step_by(GROUP) {
            for (n, y) in y.iter_mut().enumerate().take(x.rows) {
                // A group at the edge computes its last row several times and keeps it once.
                let rows: [*mut W; GROUP] = std::array::from_fn(|i| w.row(first + (o + i).min(count - 1)));
                // SAFETY: rows of x and w hold x.cols elements.
                let sums = unsafe { dots::<S>(x.row(n), rows, x.cols) };
                let keep = GROUP.min(count - o);
                y[o..o + keep].copy_from_slice(&sums[..keep]);
            }
        }
        for (n, y) in y.iter().enumerate().take(x.rows) {
            // SAFETY: row n and columns first .. first + count lie inside the matrices of the epilogue.
            unsafe { finish_row::<S, T>(epilogue, y.as_ptr(), n, first, count) };
        }
    }
}

#[inline(always)]
unsafe fn dots<S: Simd>(
    x: *const impl Element,
    rows: [*mut impl Element; GROUP],
    len: usize,
) -> [f32; GROUP] {
    // SAFETY: the caller vouches for `len` elements of every row.
    unsafe {
        let mut acc = [S::splat(0.0); GROUP];
        let mut k = 0;
        while k + S::LANES <= len {
            let xv = load_part::<S>(x.add(k), S::LANES);
            for (a, row) in acc.iter_mut().zip(rows) {
                *a = S::fma(xv, load_part::<S>(row.add(k), S::LANES), *a);
            }
            k += S::LANES;
        }
        if k < len {
            let xv = load_part::<S>(x.add(k), len - k);
            for (a, row) in acc.iter_mut().zip(rows) {
                *a = S::fma(xv, load_part::<S>(row.add(k), len - k), *a);
            }
        }
        let mut sums = [0.0; GROUP];
        for (s, a) in sums.iter_mut().zip(acc) {
            *s = S::sum(a);
        }
        sums
    }
}

pub(crate) fn run<T: Element, W: Element>(ctx: &Ctx<'_>, x: &Mat<T>, w: &Mat<W>, epilogue: &Epilogue<T>) {
    ctx.pool.run(w.rows.div_ceil(TILE), &|tile, _| {
        let first = tile * TILE;
        let k = Outputs { x, w, epilogue, first, count: TILE.min(w.rows - first) };
        // SAFETY: the rung is available; operands are checked views; tiles write disjoint columns.
        unsafe { dispatch(ctx.rung, k) }
    });
}
