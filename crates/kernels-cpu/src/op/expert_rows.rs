//! Rows of all choices of tokens: sorted by expert, copied, summed with weights.
//!
//! Every token reads its rows in the order of its choices, so there are no atomic sums and bits depend on no number of threads.
//! Cost: k rows of the width read and written for each token and operator.
#![allow(unsafe_code)] // rows by address

use super::shadows::check_slots;
use super::tiles::{Block, blocks};
use crate::arena::Arena;
use crate::ctx::Ctx;
use crate::element::{Element, with_element};
use crate::operand::{IndexMat, Indices, Mat};
use crate::simd::{Kernel, Simd, dispatch, load_part, store_part};
use bessemer_tensor::TensorError;
use bessemer_tensor::op::{
    AssignRows, CombineRows, CombineRowsBackward, Dispatch, DispatchBackward, NO_EXPERT, NO_ROW,
    ReceivedGroups,
};
use std::ops::Range;

/// A counting sort: one thread, because it reads k numbers of a token and writes two for each.
pub(crate) fn assign(arena: &Arena, op: &AssignRows) -> Result<(), TensorError> {
    let (experts, rows) = (arena.index_mat(&op.experts), arena.index_mat(&op.rows));
    let (sources, offsets) = (arena.index_mat(&op.sources), arena.index_mat(&op.offsets));
    let count = offsets.cols - 1;
    experts.check("assign_rows", "experts", count)?;
    let shadows = op.shadows.map(|of| (arena.index_mat(&of.slots), arena.index_mat(&of.offsets)));
    let slots = shadows.as_ref().map_or(0, |(slots, _)| slots.cols);
    let shadow = |slot: usize| shadows.as_ref().map_or(NO_EXPERT, |(slots, _)| slots.get(0, slot));
    let shadowed = |e: usize| (0..slots).any(|slot| shadow(slot) as usize == e);
    if let Some((slots, _)) = &shadows {
        check_slots("assign_rows", slots, count)?;
    }
    let kept = op.kept.map(|kept| arena.index_mat(&kept));
    let all = || (0..experts.rows).flat_map(|t| (0..experts.cols).map(move |s| (t, s)));
    let is_kept = |(t, s): &(usize, usize)| kept.as_ref().is_none_or(|kept| kept.get(*t, *s) != 0);
    let choices = || all().filter(is_kept);
    (0..offsets.cols).for_each(|e| offsets.set(0, e, 0));
    choices().for_each(|(t, s)| {
        let e = experts.get(t, s) as usize;
        offsets.set(0, e, offsets.get(0, e) + 1);
    });
    // Numbers of rows become first rows: of shadows in the order of the slots, then of the others.
    let mut next = 0;
    let mut place = |e: usize| {
        let rows = offsets.get(0, e);
        offsets.set(0, e, next);
        next += rows;
        next
    };
    if let Some((slots, ends)) = &shadows {
        ends.set(0, 0, 0);
        for slot in 0..slots.cols {
            let end = match slots.get(0, slot) {
                NO_EXPERT => ends.get(0, slot),
                e => place(e as usize),
            };
            ends.set(0, slot + 1, end);
        }
    }
    let of_shadows = shadows.as_ref().map_or(0, |(_, ends)| ends.get(0, ends.cols - 1));
    (0..count).filter(|e| !shadowed(*e)).for_each(|e| {
        place(e);
    });
    // Each first row counts up to the end of its expert, which is the first row of the next one.
    choices().for_each(|(t, s)| {
        let e = experts.get(t, s) as usize;
        let row = offsets.get(0, e);
        offsets.set(0, e, row + 1);
        rows.set(t, s, row);
        sources.set(0, row as usize, (t * experts.cols + s) as u32);
    });
    let mut first = of_shadows;
    for e in 0..count {
        let end = if shadowed(e) { first } else { offsets.get(0, e) };
        offsets.set(0, e, first);
        first = end;
    }
    offsets.set(0, count, first);
    if kept.is_some() {
        all().filter(|choice| !is_kept(choice)).for_each(|(t, s)| rows.set(t, s, NO_ROW));
        (first as usize..sources.cols).for_each(|row| sources.set(0, row, NO_ROW));
    }
    Ok(())
}

/// One number for each device and expert.
pub(crate) fn received(arena: &Arena, op: &ReceivedGroups) -> Result<(), TensorError> {
    let (offsets, groups) = (arena.index_mat(&op.offsets), arena.index_mat(&op.groups));
    let experts = (groups.cols - 1) / offsets.rows;
    let (mut group, mut end) = (0, 0u32);
    groups.set(0, 0, 0);
    for device in 0..offsets.rows {
        for e in op.first..op.first + experts {
            let (from, to) = (offsets.get(device, e), offsets.get(device, e + 1));
            let rows = to.checked_sub(from).and_then(|rows| end.checked_add(rows));
            let Some(next) = rows else {
                let (op, at) = ("received_groups", device * offsets.cols + e + 1);
                return Err(TensorError::Index { op, operand: "offsets", at, index: to, len: from as usize });
            };
            (group, end) = (group + 1, next);
            groups.set(0, group, end);
        }
    }
    Ok(())
}

fn check_sources(op: &'static str, sources: &Indices<'_>, choices: usize) -> Result<(), TensorError> {
    sources.check(op, "sources", choices, Some(NO_ROW))
}

/// Rows that are prefetched before they are read: their places are random.
const AHEAD: usize = 2;

/// # Safety
/// The processor has the instructions of S.
#[inline(always)]
unsafe fn prefetch_row<S: Simd, T: Element>(m: &Mat<T>, row: usize, cols: &Range<usize>) {
    for c in cols.clone().step_by(64 / size_of::<T>()) {
        // SAFETY: a prefetch may name any address.
        unsafe { S::prefetch(m.ptr().wrapping_add(row.wrapping_mul(m.stride) + c).cast_const().cast()) };
    }
}

struct Gather<'a, T> {
    x: &'a Mat<T>,
    sources: &'a [u32],
    choices: usize,
    out: &'a Mat<T>,
    block: Block,
}

impl<T: Element> Kernel for Gather<'_, T> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Gather { x, sources, choices, out, block } = self;
        for r in block.rows {
            let source = sources[r];
            if let Some(later) = sources.get(r + AHEAD) {
                // SAFETY: as the caller's.
                unsafe { prefetch_row::<S, T>(x, *later as usize / choices, &block.cols) };
            }
            for c in block.cols.clone().step_by(S::LANES) {
                let n = S::LANES.min(block.cols.end - c);
                // SAFETY: columns c .. c + n of row r and of the token's row, which `check_sources` has found to be there.
                unsafe {
                    let y = match source {
                        NO_ROW => S::splat(0.0),
                        source => load_part::<S>(x.row(source as usize / choices).add(c), n),
                    };
                    store_part::<S>(out.row(r).add(c), y, n);
                }
            }
        }
    }
}

pub(crate) fn dispatch_rows(ctx: &Ctx<'_>, op: &Dispatch) -> Result<(), TensorError> {
    let sources = ctx.u32(&op.sources);
    check_sources("dispatch", &sources, op.x.rows * op.choices)?;
    with_element!(op.x.dtype(), T => {
        let (x, out) = (ctx.mat::<T>(&op.x), ctx.mat::<T>(&op.out));
        blocks(ctx, out.rows, out.cols, &|block| {
            let gather = Gather { x: &x, sources: sources.0, choices: op.choices, out: &out, block };
            // SAFETY: the instruction set is available; operands are checked views; blocks are disjoint.
            unsafe { dispatch(ctx.rung, gather) }
        });
    });
    Ok(())
}

pub(crate) fn dispatch_reference(arena: &Arena, op: &Dispatch) -> Result<(), TensorError> {
    let sources = arena.u32(&op.sources);
    check_sources("dispatch", &sources, op.x.rows * op.choices)?;
    let (x, out) = (arena.any(&op.x), arena.any(&op.out));
    for (r, source) in sources.0.iter().enumerate() {
        for c in 0..out.cols {
            let value = if *source == NO_ROW { 0.0 } else { x.get(*source as usize / op.choices, c) };
            out.set(r, c, value);
        }
    }
    Ok(())
}

/// `out[t] (+)= sum_s w[t, s] x[rows[t, s]]`; without weights, `sum_s x[rows[t, s]]`.
struct Sum<'a, T> {
    x: &'a Mat<T>,
    rows: &'a IndexMat,
    weights: Option<&'a Mat>,
    out: &'a Mat<T>,
    accumulate: bool,
    block: Block,
}

impl<T: Element> Kernel for Sum<'_, T> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for t in self.block.rows.clone() {
            for s in 0..self.rows.cols {
                // SAFETY: a prefetch may name any address.
                unsafe { self.prefetch::<S>(t + AHEAD, s) };
            }
            let (mut c, end) = (self.block.cols.start, self.block.cols.end);
            // SAFETY: columns of row t and of rows that were found to be there.
            unsafe {
                while c + 4 * S::LANES <= end {
                    self.columns::<S, 4>(t, c, S::LANES);
                    c += 4 * S::LANES;
                }
                while c < end {
                    self.columns::<S, 1>(t, c, S::LANES.min(end - c));
                    c += S::LANES;
                }
            }
        }
    }
}

impl<T: Element> Sum<'_, T> {
    /// N vectors from column c on, of `n` elements each.
    ///
    /// # Safety
    /// The columns exist, also in the rows of the token; the processor has the instructions of S.
    #[inline(always)]
    unsafe fn columns<S: Simd, const N: usize>(&self, t: usize, c: usize, n: usize) {
        // SAFETY: by contract.
        unsafe {
            let mut sums = [S::splat(0.0); N];
            for s in 0..self.rows.cols {
                let row = self.rows.get(t, s);
                if row == NO_ROW {
                    continue;
                }
                let from = self.x.row(row as usize).add(c);
                let weight = self.weights.map(|w| S::splat(w.get(t, s)));
                for (v, sum) in sums.iter_mut().enumerate() {
                    let y = load_part::<S>(from.add(v * S::LANES), n);
                    *sum = match weight {
                        Some(w) => S::fma(w, y, *sum),
                        None => S::add(*sum, y),
                    };
                }
            }
            let to = self.out.row(t).add(c);
            for (v, sum) in sums.into_iter().enumerate() {
                let to = to.add(v * S::LANES);
                let sum = if self.accumulate { S::add(sum, load_part::<S>(to, n)) } else { sum };
                store_part::<S>(to, sum, n);
            }
        }
    }

    /// Prefetches the row of a choice.
    ///
    /// # Safety
    /// The processor has the instructions of S.
    #[inline(always)]
    unsafe fn prefetch<S: Simd>(&self, t: usize, s: usize) {
        if t < self.block.rows.end {
            // SAFETY: by contract.
            unsafe { prefetch_row::<S, T>(self.x, self.rows.get(t, s) as usize, &self.block.cols) };
        }
    }
}

pub(crate) fn dispatch_backward(ctx: &Ctx<'_>, op: &DispatchBackward) -> Result<(), TensorError> {
    let rows = ctx.arena.index_mat(&op.rows);
    rows.check_rows("dispatch_backward", "rows", op.dout.rows)?;
    with_element!(op.dx.dtype(), T => {
        let (x, out) = (ctx.mat::<T>(&op.dout), ctx.mat::<T>(&op.dx));
        blocks(ctx, out.rows, out.cols, &|block| {
            let sum = Sum { x: &x, rows: &rows, weights: None, out: &out, accumulate: op.accumulate, block };
            // SAFETY: the instruction set is available; operands are checked views; blocks are disjoint.
            unsafe { dispatch(ctx.rung, sum) }
        });
    });
    Ok(())
}

pub(crate) fn combine(ctx: &Ctx<'_>, op: &CombineRows) -> Result<(), TensorError> {
    let rows = ctx.arena.index_mat(&op.rows);
    rows.check_rows("combine_rows", "rows", op.x.rows)?;
    let weights = ctx.f32(&op.weights);
    with_element!(op.out.dtype(), T => {
        let (x, out) = (ctx.mat::<T>(&op.x), ctx.mat::<T>(&op.out));
        blocks(ctx, out.rows, out.cols, &|block| {
            let weights = Some(&weights);
            let sum = Sum { x: &x, rows: &rows, weights, out: &out, accumulate: false, block };
            // SAFETY: the instruction set is available; operands are checked views; blocks are disjoint.
            unsafe { dispatch(ctx.rung, sum) }
        });
    });
    Ok(())
}

fn sum_reference(
    (x, rows, out): (&crate::operand::AnyMat, &IndexMat, &crate::operand::AnyMat),
    weight: impl Fn(usize, usize) -> f64,
    accumulate: bool,
) {
    for t in 0..out.rows {
        for c in 0..out.cols {
            let there = (0..rows.cols).filter(|s| rows.get(t, *s) != NO_ROW);
            let sum: f64 = there.map(|s| weight(t, s) * f64::from(x.get(rows.get(t, s) as usize, c))).sum();
            out.put(t, c, sum as f32, accumulate);
        }
    }
}

pub(crate) fn dispatch_backward_reference(arena: &Arena, op: &DispatchBackward) -> Result<(), TensorError> {
    let rows = arena.index_mat(&op.rows);
    rows.check_rows("dispatch_backward", "rows", op.dout.rows)?;
    sum_reference((&arena.any(&op.dout), &rows, &arena.any(&op.dx)), |_, _| 1.0, op.accumulate);
    Ok(())
}

pub(crate) fn combine_reference(arena: &Arena, op: &CombineRows) -> Result<(), TensorError> {
    let (rows, weights) = (arena.index_mat(&op.rows), arena.f32(&op.weights));
    rows.check_rows("combine_rows", "rows", op.x.rows)?;
    let weight = |t: usize, s: usize| f64::from(weights.get(t, s));
    sum_reference((&arena.any(&op.x), &rows, &arena.any(&op.out)), weight, false);
    Ok(())
}

/// Gradients of some rows, and of the weights of their choices.
struct Spread<'a, T> {
    dout: &'a Mat<T>,
    x: &'a Mat<T>,
    sources: &'a [u32],
    weights: &'a Mat,
    dx: &'a Mat<T>,
    dweights: &'a Mat,
    rows: Range<usize>,
}

impl<T: Element> Kernel for Spread<'_, T> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Spread { dout, x, sources, weights, dx, dweights, rows } = self;
        let (width, choices) = (x.cols, weights.cols);
        for r in rows {
            if let Some(later) = sources.get(r + AHEAD) {
                // SAFETY: as the caller's.
                unsafe { prefetch_row::<S, T>(dout, *later as usize / choices, &(0..width)) };
            }
            let at = (sources[r] != NO_ROW)
                .then(|| (sources[r] as usize / choices, sources[r] as usize % choices));
            // SAFETY: whole rows, cut into vectors; the token is there, as `check_sources` has found.
            unsafe {
                let (weight, mut inner) =
                    (S::splat(at.map_or(0.0, |(t, s)| weights.get(t, s))), S::splat(0.0));
                for c in (0..width).step_by(S::LANES) {
                    let n = S::LANES.min(width - c);
                    let mut y = S::splat(0.0);
                    if let Some((t, _)) = at {
                        let d = load_part::<S>(dout.row(t).add(c), n);
                        inner = S::fma(d, load_part::<S>(x.row(r).add(c), n), inner);
                        y = S::mul(weight, d);
                    }
                    store_part::<S>(dx.row(r).add(c), y, n);
                }
                if let Some((t, s)) = at {
                    dweights.set(t, s, S::sum(inner));
                }
            }
        }
    }
}

/// A choice without a row has no gradient.
fn clear_dropped(rows: &IndexMat, dweights: &Mat) {
    for t in 0..rows.rows {
        (0..rows.cols).filter(|s| rows.get(t, *s) == NO_ROW).for_each(|s| dweights.set(t, s, 0.0));
    }
}

pub(crate) fn combine_backward(ctx: &Ctx<'_>, op: &CombineRowsBackward) -> Result<(), TensorError> {
    let (rows, sources) = (ctx.arena.index_mat(&op.rows), ctx.u32(&op.sources));
    rows.check_rows("combine_rows_backward", "rows", op.x.rows)?;
    check_sources("combine_rows_backward", &sources, op.weights.len())?;
    let (weights, dweights) = (ctx.f32(&op.weights), ctx.f32(&op.dweights));
    clear_dropped(&rows, &dweights);
    with_element!(op.x.dtype(), T => {
        let (dout, x, dx) = (ctx.mat::<T>(&op.dout), ctx.mat::<T>(&op.x), ctx.mat::<T>(&op.dx));
        const ROWS: usize = 32;
        ctx.pool.run(x.rows.div_ceil(ROWS), &|tile, _| {
            let spread = Spread {
                dout: &dout,
                x: &x,
                sources: sources.0,
                weights: &weights,
                dx: &dx,
                dweights: &dweights,
                rows: tile * ROWS..x.rows.min((tile + 1) * ROWS),
            };
            // SAFETY: the instruction set is available; tiles are disjoint rows, and a row is that of one choice.
            unsafe { dispatch(ctx.rung, spread) }
        });
    });
    Ok(())
}

pub(crate) fn combine_backward_reference(arena: &Arena, op: &CombineRowsBackward) -> Result<(), TensorError> {
    let (rows, sources) = (arena.index_mat(&op.rows), arena.u32(&op.sources));
    rows.check_rows("combine_rows_backward", "rows", op.x.rows)?;
    check_sources("combine_rows_backward", &sources, op.weights.len())?;
    let (weights, dweights) = (arena.f32(&op.weights), arena.f32(&op.dweights));
    clear_dropped(&rows, &dweights);
    let (dout, x, dx) = (arena.any(&op.dout), arena.any(&op.x), arena.any(&op.dx));
    for (r, source) in sources.0.iter().enumerate() {
        if *source == NO_ROW {
            (0..x.cols).for_each(|c| dx.set(r, c, 0.0));
            continue;
        }
        let (t, s) = (*source as usize / weights.cols, *source as usize % weights.cols);
        let inner: f64 = (0..x.cols).map(|c| f64::from(dout.get(t, c)) * f64::from(x.get(r, c))).sum();
        (0..x.cols).for_each(|c| dx.set(r, c, weights.get(t, s) * dout.get(t, c)));
        dweights.set(t, s, inner as f32);
    }
    Ok(())
}
