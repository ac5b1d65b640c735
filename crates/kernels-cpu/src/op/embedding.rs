//! Embedding look-up `out[n] = table[ids[n]] (+ positions)` and its backward `dtable[ids[n]] += dout[n]`, rows added in
//! the order of n for every table row, so that the result does not depend on the cut. Of a table that is cut over devices,
//! rows that are elsewhere count as zeros.
//!
//! Cost: forward one read of the rows and one write, backward a read of dout and an update of the rows that occur.
#![allow(unsafe_code)] // rows by address

use crate::arena::Arena;
use crate::ctx::Ctx;
use crate::element::{Element, with_element};
use crate::operand::Mat;
use crate::simd::{Kernel, Simd, dispatch, load_part, store_part};
use bessemer_tensor::op::{Embedding, EmbeddingBackward, TablePortion};
use bessemer_tensor::{TensorError, View};

/// Rows of a forward tile.
const ROWS: usize = 64;
/// Columns of a backward tile: the rows of a table are written in pieces of four cache lines.
const COLUMNS: usize = 64;

/// A table, or the rows of one that are here.
#[derive(Clone, Copy)]
struct Table {
    rows: Mat,
    /// Number in the whole table of the first row.
    first: usize,
    /// Rows of the whole table.
    of: usize,
}

impl Table {
    fn new(rows: Mat, view: &View, portion: Option<TablePortion>) -> Table {
        let TablePortion { first, of } = portion.unwrap_or(TablePortion::whole(view));
        Table { rows, first, of }
    }

    /// Where a row of the whole table is here.
    #[inline(always)]
    fn find(&self, id: u32) -> Option<usize> {
        (id as usize).checked_sub(self.first).filter(|r| *r < self.rows.rows)
    }
}

/// `out[n] = table[ids[n]] (+ positions[at[n]])` for a range of rows.
struct LookUp<'a, T> {
    table: Table,
    ids: &'a [u32],
    learned: Option<(Mat, &'a [u32])>,
    out: &'a Mat<T>,
    first: usize,
}

impl<T: Element> Kernel for LookUp<'_, T> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for n in self.first..(self.first + ROWS).min(self.out.rows) {
            let from = self.table.find(self.ids[n]).map(|r| self.table.rows.row(r));
            let to = self.out.row(n);
            for c in (0..self.out.cols).step_by(S::LANES) {
                let w = S::LANES.min(self.out.cols - c);
                // SAFETY: columns c .. c + w of a row of each.
                unsafe {
                    let mut x = match from {
                        Some(from) => load_part::<S>(from.add(c), w),
                        None => S::splat(0.0),
                    };
                    if let Some((positions, at)) = &self.learned {
                        x = S::add(x, load_part::<S>(positions.row(at[n] as usize).add(c), w));
                    }
                    store_part::<S>(to.add(c), x, w);
                }
            }
        }
    }
}

/// `table[ids[n]] += dout[n]` in the order of n, for a range of columns.
struct Scatter<'a, T> {
    table: Table,
    ids: &'a [u32],
    dout: &'a Mat<T>,
    first: usize,
}

impl<T: Element> Kernel for Scatter<'_, T> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let end = (self.first + COLUMNS).min(self.dout.cols);
        for (n, &id) in self.ids.iter().enumerate() {
            let Some(row) = self.table.find(id) else { continue };
            let (from, to) = (self.dout.row(n), self.table.rows.row(row));
            for c in (self.first..end).step_by(S::LANES) {
                let w = S::LANES.min(end - c);
                // SAFETY: columns c .. c + w of a row of each; only this tile writes them.
                unsafe {
                    let sum = S::add(load_part::<S>(to.add(c), w), load_part::<S>(from.add(c), w));
                    store_part::<S>(to.add(c), sum, w);
                }
            }
        }
    }
}

pub(crate) fn forward(ctx: &Ctx<'_>, op: &Embedding) -> Result<(), TensorError> {
    with_element!(op.out.dtype(), T => typed_forward::<T>(ctx, op))
}

fn typed_forward<T: Element>(ctx: &Ctx<'_>, op: &Embedding) -> Result<(), TensorError> {
    let table = Table::new(ctx.f32(&op.table), &op.table, op.portion);
    let (ids, out) = (ctx.u32(&op.ids), ctx.mat::<T>(&op.out));
    ids.check("embedding", "ids", table.of, None)?;
    let learned = op.positions.map(|p| (ctx.f32(&p.table), ctx.u32(&p.positions)));
    if let Some((t, p)) = &learned {
        p.check("embedding", "positions", t.rows, None)?;
    }
    let learned = learned.map(|(t, p)| (t, p.0));
    ctx.pool.run(out.rows.div_ceil(ROWS), &|tile, _| {
        let k = LookUp { table, ids: ids.0, learned, out: &out, first: tile * ROWS };
        // SAFETY: the rung is available; operands are checked views, indices lie inside the tables.
        unsafe { dispatch(ctx.rung, k) }
    });
    Ok(())
}

pub(crate) fn backward(ctx: &Ctx<'_>, op: &EmbeddingBackward) -> Result<(), TensorError> {
    with_element!(op.dout.dtype(), T => typed_backward::<T>(ctx, op))
}

fn typed_backward<T: Element>(ctx: &Ctx<'_>, op: &EmbeddingBackward) -> Result<(), TensorError> {
    let table = Table::new(ctx.f32(&op.dtable), &op.dtable, op.portion);
    let (ids, dout) = (ctx.u32(&op.ids), ctx.mat::<T>(&op.dout));
    ids.check("embedding_backward", "ids", table.of, None)?;
    let learned =
        op.positions.map(|p| (Table::new(ctx.f32(&p.table), &p.table, None), ctx.u32(&p.positions)));
    if let Some((t, p)) = &learned {
        p.check("embedding_backward", "positions", t.of, None)?;
    }
    ctx.pool.run(dout.cols.div_ceil(COLUMNS), &|tile, _| {
        let first = tile * COLUMNS;
        // SAFETY: the rung is available; operands are checked views, indices lie inside the tables; tiles are disjoint
        // ranges of columns.
        unsafe {
            dispatch(ctx.rung, Scatter { table, ids: ids.0, dout: &dout, first });
            if let Some((table, positions)) = learned {
                dispatch(ctx.rung, Scatter { table, ids: positions.0, dout: &dout, first });
            }
        }
    });
    Ok(())
}

pub(crate) fn forward_reference(arena: &Arena, op: &Embedding) -> Result<(), TensorError> {
    with_element!(op.out.dtype(), T => typed_forward_reference::<T>(arena, op))
}

fn typed_forward_reference<T: Element>(arena: &Arena, op: &Embedding) -> Result<(), TensorError> {
    let table = Table::new(arena.f32(&op.table), &op.table, op.portion);
    let (ids, out) = (arena.u32(&op.ids), arena.mat::<T>(&op.out));
    ids.check("embedding", "ids", table.of, None)?;
    let learned = op.positions.map(|p| (arena.f32(&p.table), arena.u32(&p.positions)));
    if let Some((t, p)) = &learned {
        p.check("embedding", "positions", t.rows, None)?;
    }
    for (n, &id) in ids.0.iter().enumerate() {
        for c in 0..out.cols {
            let position = learned.map_or(0.0, |(t, p)| t.get(p.0[n] as usize, c));
            out.set(n, c, table.find(id).map_or(0.0, |r| table.rows.get(r, c)) + position);
        }
    }
    Ok(())
}

pub(crate) fn backward_reference(arena: &Arena, op: &EmbeddingBackward) -> Result<(), TensorError> {
    with_element!(op.dout.dtype(), T => typed_backward_reference::<T>(arena, op))
}

fn typed_backward_reference<T: Element>(arena: &Arena, op: &EmbeddingBackward) -> Result<(), TensorError> {
    let table = Table::new(arena.f32(&op.dtable), &op.dtable, op.portion);
    let (ids, dout) = (arena.u32(&op.ids), arena.mat::<T>(&op.dout));
    ids.check("embedding_backward", "ids", table.of, None)?;
    let learned = op.positions.map(|p| (arena.f32(&p.table), arena.u32(&p.positions)));
    if let Some((t, p)) = &learned {
        p.check("embedding_backward", "positions", t.rows, None)?;
    }
    for (n, &id) in ids.0.iter().enumerate() {
        for c in 0..dout.cols {
            if let Some(row) = table.find(id) {
                table.rows.add(row, c, dout.get(n, c));
            }
            if let Some((t, p)) = learned {
                t.add(p.0[n] as usize, c, dout.get(n, c));
            }
        }
    }
    Ok(())
}
