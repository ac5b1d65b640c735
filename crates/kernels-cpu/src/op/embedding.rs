//! Embedding look-up `out[n] = table[ids[n]] (+ positions)` and its backward `dtable[ids[n]] += dout[n]`, rows added in
//! the order of n for every table row, so that the result does not depend on the cut. Of a table that is cut over devices,
//! rows that are elsewhere count as zeros.
//!
//! Cost: forward one read of the rows and one write, backward a read of dout and an update of the rows that occur.
#![allow(unsafe_code)] // rows by address

use super::loss::put_sums;
use crate::Rung;
use crate::arena::Arena;
use crate::ctx::{Ctx, Scratch, padded};
use crate::element::{Element, with_element, with_parameter};
use crate::operand::{AnyMat, Mat};
use crate::simd::{Kernel, Simd, dispatch, load_part, store_part};
use bessemer_tensor::op::{Embedding, EmbeddingBackward, VocabularyShard};
use bessemer_tensor::{TensorError, View};
use bessemer_units::DType;

/// Rows of a forward tile.
const ROWS: usize = 64;
/// Columns of a backward tile: the rows of a table are written in pieces of four cache lines.
const COLUMNS: usize = 64;

/// A table, or the rows of one that are here.
#[derive(Clone, Copy)]
struct Table {
    rows: AnyMat,
    /// Number in the whole table of the first row.
    first: usize,
    /// Rows of the whole table.
    of: usize,
}

impl Table {
    fn new(rows: AnyMat, view: &View, tensor_shard: Option<VocabularyShard>) -> Table {
        let VocabularyShard { first, of } = tensor_shard.unwrap_or(VocabularyShard::whole(view));
        Table { rows, first, of }
    }

    /// Local index of a row of the whole table; `None` if the row is not in this part.
    #[inline(always)]
    fn find(&self, id: u32) -> Option<usize> {
        (id as usize).checked_sub(self.first).filter(|r| *r < self.rows.rows)
    }
}

/// `out[n] = table[ids[n]] (+ positions[at[n]])` for a range of rows.
struct LookUp<'a, T> {
    table: Table,
    ids: &'a [u32],
    learned: Option<(AnyMat, &'a [u32])>,
    out: &'a Mat<T>,
    first: usize,
}

impl<T: Element> Kernel for LookUp<'_, T> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for n in self.first..(self.first + ROWS).min(self.out.rows) {
            let from = self.table.find(self.ids[n]);
            let to = self.out.row(n);
            for c in (0..self.out.cols).step_by(S::LANES) {
                let w = S::LANES.min(self.out.cols - c);
                // SAFETY: columns c .. c + w of a row of each.
                unsafe {
                    let mut x = match from {
                        Some(row) => self.table.rows.load::<S>(row, c, w),
                        None => S::splat(0.0),
                    };
                    if let Some((positions, at)) = &self.learned {
                        x = S::add(x, positions.load::<S>(at[n] as usize, c, w));
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
        let rows = self.table.rows.typed::<f32>();
        for (n, &id) in self.ids.iter().enumerate() {
            let Some(row) = self.table.find(id) else { continue };
            let (from, to) = (self.dout.row(n), rows.row(row));
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

/// [`Scatter`] into a table of fewer bits than f32: the rows of one id are summed in f32, in the order of n, and rounded
/// into the table once. A frequent token's gradient would stop growing otherwise.
struct Gather<'a, T, G> {
    table: Table,
    rows: Mat<G>,
    ids: &'a [u32],
    /// All n, by id and then by n.
    order: &'a [u32],
    dout: &'a Mat<T>,
    first: usize,
}

impl<T: Element, G: Element> Kernel for Gather<'_, T, G> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let end = (self.first + COLUMNS).min(self.dout.cols);
        for group in self.order.chunk_by(|a, b| self.ids[*a as usize] == self.ids[*b as usize]) {
            let Some(row) = self.table.find(self.ids[group[0] as usize]) else { continue };
            let to = self.rows.row(row);
            for c in (self.first..end).step_by(S::LANES) {
                let w = S::LANES.min(end - c);
                // SAFETY: columns c .. c + w of a row of each; only this tile writes them.
                unsafe {
                    let mut sum = S::splat(0.0);
                    for n in group {
                        sum = S::add(sum, load_part::<S>(self.dout.row(*n as usize).add(c), w));
                    }
                    store_part::<S>(to.add(c), S::add(load_part::<S>(to.add(c), w), sum), w);
                }
            }
        }
    }
}

/// Scratch floats: an order of the tokens for each table of fewer bits than f32.
pub(crate) fn backward_workspace(op: &EmbeddingBackward) -> usize {
    let narrow = |view: &View| view.dtype() != DType::F32;
    let tables =
        usize::from(narrow(&op.dtable)) + usize::from(op.positions.is_some_and(|p| narrow(&p.table)));
    tables * padded(op.ids.cols)
}

/// One table's part of the backward pass.
struct Target<'a> {
    table: Table,
    ids: &'a [u32],
    /// Order of the ids, for a table of fewer bits than f32.
    order: Option<&'a [u32]>,
}

impl<'a> Target<'a> {
    fn new(table: Table, ids: &'a [u32], scratch: &mut Scratch) -> Target<'a> {
        let order = (table.rows.dtype != DType::F32).then(|| {
            let at = scratch.take(ids.len()).at(0, ids.len()).cast::<u32>();
            // SAFETY: workspace of this launch, as many words as there are ids, that no other thread accesses.
            let order = unsafe { std::slice::from_raw_parts_mut(at, ids.len()) };
            order.iter_mut().zip(0..).for_each(|(to, n)| *to = n);
            order.sort_unstable_by_key(|n| (ids[*n as usize], *n));
            &*order
        });
        Target { table, ids, order }
    }

    /// Adds a range of columns.
    ///
    /// # Safety
    /// The instruction set is available; indices are inside the table; no other thread writes these columns.
    unsafe fn add<T: Element>(&self, rung: Rung, dout: &Mat<T>, first: usize) {
        let Target { table, ids, order } = *self;
        // SAFETY: by contract.
        match order {
            None => unsafe { dispatch(rung, Scatter { table, ids, dout, first }) },
            Some(order) => with_parameter!(table.rows.dtype, G => unsafe {
                dispatch(rung, Gather { table, rows: table.rows.typed::<G>(), ids, order, dout, first });
            }),
        }
    }
}

pub(crate) fn forward(ctx: &Ctx<'_>, op: &Embedding) -> Result<(), TensorError> {
    with_element!(op.out.dtype(), T => typed_forward::<T>(ctx, op))
}

fn typed_forward<T: Element>(ctx: &Ctx<'_>, op: &Embedding) -> Result<(), TensorError> {
    let table = Table::new(ctx.any(&op.table), &op.table, op.tensor_shard);
    let (ids, out) = (ctx.u32(&op.ids), ctx.mat::<T>(&op.out));
    ids.check("embedding", "ids", table.of, None)?;
    let learned = op.positions.map(|p| (ctx.any(&p.table), ctx.u32(&p.positions)));
    if let Some((t, p)) = &learned {
        p.check("embedding", "positions", t.rows, None)?;
    }
    let learned = learned.map(|(t, p)| (t, p.0));
    ctx.pool.run(out.rows.div_ceil(ROWS), &|tile, _| {
        let k = LookUp { table, ids: ids.0, learned, out: &out, first: tile * ROWS };
        // SAFETY: the instruction set is available; operands are checked views, indices are inside the tables.
        unsafe { dispatch(ctx.rung, k) }
    });
    Ok(())
}

pub(crate) fn backward(ctx: &Ctx<'_>, op: &EmbeddingBackward) -> Result<(), TensorError> {
    with_element!(op.dout.dtype(), T => typed_backward::<T>(ctx, op))
}

fn typed_backward<T: Element>(ctx: &Ctx<'_>, op: &EmbeddingBackward) -> Result<(), TensorError> {
    let table = Table::new(ctx.any(&op.dtable), &op.dtable, op.tensor_shard);
    let (ids, dout) = (ctx.u32(&op.ids), ctx.mat::<T>(&op.dout));
    ids.check("embedding_backward", "ids", table.of, None)?;
    let learned =
        op.positions.map(|p| (Table::new(ctx.any(&p.table), &p.table, None), ctx.u32(&p.positions)));
    if let Some((t, p)) = &learned {
        p.check("embedding_backward", "positions", t.of, None)?;
    }
    let mut scratch = ctx.scratch();
    let tokens = Target::new(table, ids.0, &mut scratch);
    let learned = learned.map(|(table, positions)| Target::new(table, positions.0, &mut scratch));
    ctx.pool.run(dout.cols.div_ceil(COLUMNS), &|tile, _| {
        for target in std::iter::once(&tokens).chain(&learned) {
            // SAFETY: the instruction set is available; operands are checked views, indices are inside the tables; tiles are disjoint
            // ranges of columns.
            unsafe { target.add(ctx.rung, &dout, tile * COLUMNS) };
        }
    });
    Ok(())
}

pub(crate) fn forward_reference(arena: &Arena, op: &Embedding) -> Result<(), TensorError> {
    with_element!(op.out.dtype(), T => typed_forward_reference::<T>(arena, op))
}

fn typed_forward_reference<T: Element>(arena: &Arena, op: &Embedding) -> Result<(), TensorError> {
    let table = Table::new(arena.any(&op.table), &op.table, op.tensor_shard);
    let (ids, out) = (arena.u32(&op.ids), arena.mat::<T>(&op.out));
    ids.check("embedding", "ids", table.of, None)?;
    let learned = op.positions.map(|p| (arena.any(&p.table), arena.u32(&p.positions)));
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
    let table = Table::new(arena.any(&op.dtable), &op.dtable, op.tensor_shard);
    let (ids, dout) = (arena.u32(&op.ids), arena.mat::<T>(&op.dout));
    ids.check("embedding_backward", "ids", table.of, None)?;
    let learned = op.positions.map(|p| (arena.any(&p.table), arena.u32(&p.positions)));
    if let Some((t, p)) = &learned {
        p.check("embedding_backward", "positions", t.rows, None)?;
    }
    let add = |table: &Table, rows: &[u32]| {
        // Summed apart, so that a table of few bits is rounded once.
        let narrow = table.rows.dtype != DType::F32;
        let mut sums = vec![0.0f64; if narrow { table.rows.rows * dout.cols } else { 0 }];
        for (n, &id) in rows.iter().enumerate() {
            let Some(row) = table.find(id) else { continue };
            for c in 0..dout.cols {
                match sums.get_mut(row * dout.cols + c) {
                    Some(sum) => *sum += f64::from(dout.get(n, c)),
                    None => table.rows.put(row, c, dout.get(n, c), true),
                }
            }
        }
        if narrow {
            put_sums(&table.rows, &sums, true);
        }
    };
    add(&table, ids.0);
    if let Some((t, p)) = learned {
        add(&Table { rows: t, first: 0, of: t.rows }, p.0);
    }
    Ok(())
}
