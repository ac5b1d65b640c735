//! Products of small matrices in cache, straight from rows: none of the factors is packed.
//!
//! `C[m, n] = sum_k A[m, k] B[k, n]`: elements of A are broadcast to the lanes one by one, with any strides; rows of B and C
//! are vectors.
#![allow(unsafe_code)] // matrices by address

use crate::simd::Simd;

/// Columns of a copied matrix that are contiguous: see [`Copied`].
pub(super) const COLUMNS: usize = 64;

/// A copied matrix: its columns in groups of [`COLUMNS`], rows of a group one after the other, so that the way from row to
/// row is known when the program is compiled. Whole vectors of columns are there.
#[derive(Clone, Copy)]
pub(super) struct Copied {
    at: *mut f32,
    /// Floats of a group.
    group: usize,
}

impl Copied {
    /// Floats of `rows` rows of `e` columns.
    pub(super) const fn len(rows: usize, e: usize) -> usize {
        rows * e.next_multiple_of(COLUMNS)
    }

    /// A matrix with space for `rows` rows at `at`.
    pub(super) fn new(at: *mut f32, rows: usize) -> Copied {
        Copied { at, group: rows * COLUMNS }
    }

    /// Address of an element; within a group of columns, and from row to row, addresses have constant strides.
    #[inline(always)]
    pub(super) fn place(&self, row: usize, column: usize) -> *mut f32 {
        self.at.wrapping_add(column / COLUMNS * self.group + row * COLUMNS + column % COLUMNS)
    }
}

/// Address of the element (row, depth) of the left factor: `at + row * row_step + depth * depth_step`.
#[derive(Clone, Copy)]
pub(super) struct Left {
    pub(super) at: *const f32,
    pub(super) row_step: usize,
    pub(super) depth_step: usize,
}

/// Treatment of the values of C.
#[derive(Clone, Copy)]
pub(super) enum Onto {
    /// Replaced.
    Nothing,
    /// Added to.
    Sum,
    /// Row m multiplied by element m, then added to.
    Scaled(*const f32),
}

/// First row and number of rows of each register tile when `rows` are shared out evenly: all numbers within one of each other, so
/// that no tile has too few sums to hide the latency of multiply-adds.
#[inline(always)]
pub(super) fn register_tiles<S: Simd>(rows: usize) -> impl Iterator<Item = (usize, usize)> {
    let tiles = rows.div_ceil(S::MR);
    (0..tiles).map(move |i| {
        let first = rows * i / tiles;
        (first, rows * (i + 1) / tiles - first)
    })
}

/// One register tile of M rows and N vectors.
#[inline(always)]
unsafe fn tile<S: Simd, const M: usize, const N: usize>(
    depth: usize,
    a: Left,
    mut b: *const f32,
    b_step: usize,
    c: *mut f32,
    c_step: usize,
    onto: Onto,
) {
    if M > S::MR {
        return;
    }
    // SAFETY: by the contract of `rows`.
    unsafe {
        let mut acc = [[S::splat(0.0); N]; M];
        let mut at = a.at;
        for _ in 0..depth {
            let mut bv = [S::splat(0.0); N];
            for (j, bv) in bv.iter_mut().enumerate() {
                *bv = S::load(b.add(j * S::LANES));
            }
            for (i, row) in acc.iter_mut().enumerate() {
                let av = S::splat(*at.add(i * a.row_step));
                for (x, &bv) in row.iter_mut().zip(&bv) {
                    *x = S::fma(av, bv, *x);
                }
            }
            at = at.add(a.depth_step);
            b = b.add(b_step);
        }
        for (i, row) in acc.iter().enumerate() {
            for (j, &x) in row.iter().enumerate() {
                let to = c.add(i * c_step + j * S::LANES);
                let x = match onto {
                    Onto::Nothing => x,
                    Onto::Sum => S::add(S::load(to), x),
                    Onto::Scaled(by) => S::fma(S::load(to), S::splat(*by.add(i)), x),
                };
                S::store(to, x);
            }
        }
    }
}

/// Computes up to MR rows of C, `vectors` vectors wide; `b` returns the start of a column of B.
///
/// # Safety
/// The elements of A, `depth` rows of B, `b_step` floats apart, and `rows` rows of C exist; rows of B and C in whole vectors.
#[inline(always)]
pub(super) unsafe fn rows<S: Simd>(
    rows: usize,
    vectors: usize,
    depth: usize,
    a: Left,
    b: impl Fn(usize) -> *const f32,
    b_step: usize,
    c: (*mut f32, usize),
    onto: Onto,
) {
    let pairs = vectors / 2;
    macro_rules! each {
        ($($m:literal)*) => {
            match rows {
                $($m => {
                    for j in 0..pairs {
                        let at = 2 * j * S::LANES;
                        // SAFETY: by contract.
                        unsafe { tile::<S, $m, 2>(depth, a, b(at), b_step, c.0.add(at), c.1, onto) };
                    }
                    if vectors % 2 == 1 {
                        let at = 2 * pairs * S::LANES;
                        // SAFETY: by contract.
                        unsafe { tile::<S, $m, 1>(depth, a, b(at), b_step, c.0.add(at), c.1, onto) };
                    }
                })*
                _ => unreachable!("a register tile of {rows} rows"),
            }
        };
    }
    each!(1 2 3 4 5 6 7 8 9 10 11 12 13 14);
}
