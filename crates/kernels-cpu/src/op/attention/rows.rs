//! Operands of attention in either type, copied to and from rows of f32 in scratch memory.
#![allow(unsafe_code)] // rows by address

use super::products::{COLUMNS, Copied};
use crate::arena::Arena;
use crate::element::Element;
#[cfg(target_arch = "x86_64")]
use crate::operand::AnyMat;
use crate::operand::Mat;
use crate::simd::{Simd, load_part, store_part};
use bessemer_tensor::View;
use bessemer_units::DType;
use half::bf16;

/// Rows that are prefetched before they are copied: those of a head are too far apart for the processor's own prefetcher.
const AHEAD: usize = 8;

/// A matrix of activations. One kernel serves both types: only copies differ.
#[derive(Clone, Copy)]
pub(super) enum Rows {
    F32(Mat<f32>),
    Bf16(Mat<bf16>),
}

impl Rows {
    pub(super) fn new(arena: &Arena, view: &View) -> Rows {
        match view.dtype() {
            DType::Bf16 => Rows::Bf16(arena.mat(view)),
            _ => Rows::F32(arena.mat(view)),
        }
    }

    pub(super) fn is_f32(&self) -> bool {
        matches!(self, Rows::F32(_))
    }

    /// Columns `col .. col + e` of `count` rows from `first` on.
    ///
    /// # Safety
    /// The rows and columns exist.
    #[cfg(target_arch = "x86_64")]
    pub(super) unsafe fn part(&self, first: usize, count: usize, (col, e): (usize, usize)) -> AnyMat {
        // SAFETY: by contract.
        unsafe {
            match self {
                Rows::F32(m) => (&Mat::new(m.row(first).add(col), count, e, m.stride)).into(),
                Rows::Bf16(m) => (&Mat::new(m.row(first).add(col), count, e, m.stride)).into(),
            }
        }
    }

    /// Copies columns `col .. col + e` of `count` rows from `first` on, times `factor`, zeros up to whole vectors after them.
    ///
    /// # Safety
    /// The rows and columns exist, and `to` has space.
    #[inline(always)]
    pub(super) unsafe fn load<S: Simd>(
        &self,
        first: usize,
        count: usize,
        (col, e): (usize, usize),
        factor: f32,
        to: Copied,
    ) {
        // SAFETY: by contract.
        unsafe {
            match self {
                Rows::F32(m) => load_rows::<S, f32>(m, first, count, (col, e), factor, to),
                Rows::Bf16(m) => load_rows::<S, bf16>(m, first, count, (col, e), factor, to),
            }
        }
    }

    /// Prefetches rows: columns `col .. col + e` of part `part` of `parts` of `count` rows from `first` on.
    ///
    /// # Safety
    /// The rows and columns exist.
    #[inline(always)]
    pub(super) unsafe fn prefetch<S: Simd>(
        &self,
        first: usize,
        count: usize,
        (col, e): (usize, usize),
        part: usize,
        parts: usize,
    ) {
        for r in count * part / parts..count * (part + 1) / parts {
            // SAFETY: by contract.
            unsafe {
                match self {
                    Rows::F32(m) => ask::<S, f32>(m, first + r, (col, e)),
                    Rows::Bf16(m) => ask::<S, bf16>(m, first + r, (col, e)),
                }
            }
        }
    }

    /// Writes `count` rows of e columns from `first` on, row r times `factor(r)`, from rows `step` floats apart that are
    /// whole vectors long.
    ///
    /// # Safety
    /// The rows and columns exist.
    #[inline(always)]
    pub(super) unsafe fn store<S: Simd>(
        &self,
        first: usize,
        count: usize,
        (col, e): (usize, usize),
        factor: impl Fn(usize) -> f32,
        from: *const f32,
        step: usize,
    ) {
        // SAFETY: by contract.
        unsafe {
            match self {
                Rows::F32(m) => store_rows::<S, f32>(m, first, count, (col, e), factor, from, step),
                Rows::Bf16(m) => store_rows::<S, bf16>(m, first, count, (col, e), factor, from, step),
            }
        }
    }

    /// Dot product of columns `col .. col + e` of row `row` with row r of a copy.
    ///
    /// # Safety
    /// The rows and the columns exist.
    #[inline(always)]
    pub(super) unsafe fn dot<S: Simd>(
        &self,
        row: usize,
        (col, e): (usize, usize),
        with: Copied,
        r: usize,
    ) -> f32 {
        let mut sum = 0.0;
        for c in (0..e).step_by(COLUMNS) {
            let (n, with) = (COLUMNS.min(e - c), with.place(r, c).cast_const());
            // SAFETY: by contract.
            sum += unsafe {
                match self {
                    Rows::F32(m) => dot::<S, f32>(m.row(row).add(col + c), with, n),
                    Rows::Bf16(m) => dot::<S, bf16>(m.row(row).add(col + c), with, n),
                }
            };
        }
        sum
    }
}

/// Prefetches columns `col .. col + e` of a row.
///
/// # Safety
/// The row and the columns exist.
#[inline(always)]
unsafe fn ask<S: Simd, T: Element>(m: &Mat<T>, row: usize, (col, e): (usize, usize)) {
    /// Bytes of a cache line.
    const LINE: usize = 64;
    let at = m.row(row).wrapping_add(col).cast::<u8>();
    for line in (0..e * size_of::<T>()).step_by(LINE) {
        // SAFETY: an address inside the row; a hint reads nothing.
        unsafe { S::prefetch(at.wrapping_add(line).cast()) };
    }
}

#[inline(always)]
unsafe fn load_rows<S: Simd, T: Element>(
    m: &Mat<T>,
    first: usize,
    count: usize,
    (col, e): (usize, usize),
    factor: f32,
    to: Copied,
) {
    for r in 0..AHEAD.min(count) {
        // SAFETY: rows that exist.
        unsafe { ask::<S, T>(m, first + r, (col, e)) };
    }
    for r in 0..count {
        // SAFETY: by the contract of `Rows::load`.
        unsafe {
            if r + AHEAD < count {
                ask::<S, T>(m, first + r + AHEAD, (col, e));
            }
            let from = m.row(first + r).add(col);
            for c in (0..e).step_by(S::LANES) {
                let v = load_part::<S>(from.add(c), S::LANES.min(e - c));
                S::store(to.place(r, c), S::mul(v, S::splat(factor)));
            }
        }
    }
}

#[inline(always)]
unsafe fn store_rows<S: Simd, T: Element>(
    m: &Mat<T>,
    first: usize,
    count: usize,
    (col, e): (usize, usize),
    factor: impl Fn(usize) -> f32,
    from: *const f32,
    step: usize,
) {
    for r in 0..count {
        // SAFETY: by the contract of `Rows::store`.
        unsafe {
            let (from, to) = (from.add(r * step), m.row(first + r).add(col));
            let factor = S::splat(factor(r));
            for c in (0..e).step_by(S::LANES) {
                store_part::<S>(to.add(c), S::mul(S::load(from.add(c)), factor), S::LANES.min(e - c));
            }
        }
    }
}

#[inline(always)]
pub(super) unsafe fn dot<S: Simd, T: Element>(a: *const T, b: *const f32, len: usize) -> f32 {
    // SAFETY: the caller vouches for `len` elements of both.
    unsafe {
        let mut acc = S::splat(0.0);
        for c in (0..len).step_by(S::LANES) {
            let n = S::LANES.min(len - c);
            acc = S::fma(load_part::<S>(a.add(c), n), load_part::<S>(b.add(c), n), acc);
        }
        S::sum(acc)
    }
}
