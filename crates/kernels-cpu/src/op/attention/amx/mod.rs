//! Attention on the tile unit (Intel AMX): the products of both passes as products of packed panels, with as many bf16
//! parts as the engine of matrix products takes.
//!
//! Scores are `[key][query]`, as without tiles, so masks, maxima and sums are computed lane by lane by [`Panel`]. The
//! weights of a block of keys are split into parts as they leave the exponential. Sums of outputs and of gradients of queries are kept
//! transposed, `[element][query]`: rows of weights then are rows of operand B as they are.
//!
//! Panels of keys begin at multiples of 32 of the block, and keys that a query does not see have weight 0. So the bits of a query
//! depend on neither the queries in the same panel nor the threads.
#![allow(unsafe_code)] // packed panels by address

pub(super) mod backward;
pub(super) mod forward;
mod weights;

use super::panel::Panel;
use super::rows::Rows;
use crate::element::with_parameter;
use crate::engine::amx::pack::{PANEL, pack_halves, panel_bytes};
use crate::engine::amx::pack_factor;
use crate::engine::amx::product::{Ahead, PanelProduct};
use crate::engine::amx::tile::DEPTH;
use crate::engine::{Engine, Parts};
use crate::gemm::Factor;
use crate::operand::AnyMat;
use crate::simd::Simd;
use crate::simd::avx512::Avx512;
use bessemer_tensor::op::AttentionShape;
use std::ops::Range;

/// Queries of a panel.
const WIDTH: usize = Avx512::PANEL;
/// Narrower heads use multiply-adds: most of the tile unit's work would be discarded.
const NARROWEST: usize = 32;
/// Parts of an operand at most.
const MOST_PARTS: usize = 3;

/// True if attention is computed on the tile unit. Depends on neither lengths nor batch, so that bits do not either.
pub(super) fn takes(engine: Engine, s: &AttentionShape) -> bool {
    engine.tile_parts().is_some() && s.head_dim >= NARROWEST
}

/// bf16 parts of an operand in memory; of f32 values, `weights`.
fn parts_of(rows: &Rows, weights: usize) -> usize {
    if rows.is_f32() { weights } else { 1 }
}

/// Floats of the packed panels of `rows` rows by `k` elements of so many parts.
const fn panels_len(rows: usize, k: usize, parts: usize) -> usize {
    rows.div_ceil(PANEL) * panel_bytes(k.div_ceil(DEPTH), parts) / size_of::<f32>()
}

/// Columns `col .. col + e` of rows `first .. first + count` of an operand.
#[derive(Clone, Copy)]
struct Part<'a> {
    rows: &'a Rows,
    first: usize,
    count: usize,
    columns: (usize, usize),
}

impl Part<'_> {
    /// # Safety
    /// The rows and columns exist.
    unsafe fn matrix(&self) -> AnyMat {
        // SAFETY: by contract.
        unsafe { self.rows.part(self.first, self.count, self.columns) }
    }
}

/// Packed panels: rows of an operand, all of k.
#[derive(Clone, Copy)]
struct Packed {
    at: *mut u8,
    /// Steps of k of each panel.
    steps: usize,
    parts: usize,
}

impl Packed {
    /// Panels at `at` with `k` elements in each row.
    fn new(at: *mut f32, k: usize, parts: usize) -> Packed {
        Packed { at: at.cast(), steps: k.div_ceil(DEPTH), parts }
    }

    /// Step `step` of panel `panel`.
    fn place(&self, panel: usize, step: usize) -> *mut u8 {
        self.at.wrapping_add(panel_bytes(panel * self.steps + step, self.parts))
    }

    /// Returns the same panels from step `step` on.
    fn starting_at(&self, step: usize) -> Packed {
        Packed { at: self.place(0, step), ..*self }
    }

    /// Packs rows of an operand as rows of panels.
    ///
    /// # Safety
    /// The rows and columns exist, the panels have space; the processor has the tile unit.
    unsafe fn rows<const AS_B: bool>(&self, from: Part<'_>) {
        // SAFETY: by contract.
        unsafe {
            let factor = Factor::rows(from.matrix());
            let (k, rows) = (from.columns.1, from.count);
            pack_factor::<AS_B>(&factor, (0, rows), (0, self.steps), k, self.parts, self.at);
        }
    }

    /// Packs columns of an operand as rows of panels of operand A.
    ///
    /// # Safety
    /// Same requirements as [`Packed::rows`].
    unsafe fn columns(&self, from: Part<'_>) {
        // SAFETY: by contract.
        unsafe {
            let factor = Factor::columns(from.matrix());
            let (rows, k) = (from.columns.1, from.count);
            pack_factor::<false>(&factor, (0, rows), (0, self.steps), k, self.parts, self.at);
        }
    }

    /// Packs columns of an operand as rows of panels of operand B, k in the order of [`pack_halves`].
    ///
    /// # Safety
    /// Same requirements as [`Packed::rows`].
    unsafe fn halves(&self, from: Part<'_>) {
        let stride = panel_bytes(self.steps, self.parts);
        // SAFETY: by contract.
        unsafe {
            let matrix = from.matrix();
            with_parameter!(matrix.dtype, T => {
                let (source, shape) = ((matrix.ptr().cast::<T>().cast_const(), matrix.stride), (matrix.rows, matrix.cols));
                match self.parts {
                    1 => pack_halves::<T, 1>(source, shape, self.at, stride),
                    2 => pack_halves::<T, 2>(source, shape, self.at, stride),
                    _ => pack_halves::<T, 3>(source, shape, self.at, stride),
                }
            });
        }
    }
}

/// Computes `c (+)= a b` for one panel of each, from step `first` of both on.
///
/// # Safety
/// Tiles are configured; `steps` steps of both panels are packed, and `c` has space for whole tiles.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,bmi2")]
unsafe fn multiply(
    (a, a_panel): (&Packed, usize),
    (b, b_panel): (&Packed, usize),
    steps: Range<usize>,
    (rows, cols): (usize, usize),
    (c, c_step): (*mut f32, usize),
    accumulate: bool,
) {
    let product = PanelProduct {
        steps: steps.len(),
        a: a.place(a_panel, steps.start),
        b: b.place(b_panel, steps.start),
        c,
        c_step,
        accumulate,
        ahead: Ahead::NOTHING,
        written: Ahead::NOTHING,
    };
    // SAFETY: by contract.
    unsafe { product.run_parts(Parts { a: a.parts, b: b.parts }, rows, cols) }
}

/// Panels of `keys`, from its start on, of which a half of the queries sees a key.
fn seen_panels(panel: &Panel, half: usize, keys: &Range<usize>) -> Range<usize> {
    let lanes = half * PANEL..(half + 1) * PANEL;
    if lanes.start >= panel.count {
        return 0..0;
    }
    let seen = panel.seen(lanes, keys);
    if seen.is_empty() {
        return 0..0;
    }
    (seen.start - keys.start) / PANEL..(seen.end - keys.start).div_ceil(PANEL)
}
