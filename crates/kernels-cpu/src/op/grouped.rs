//! Products of groups of rows, each with a matrix of its own. All groups are cut into blocks, which free threads take one after another; a
//! block is a product that one thread computes with panels of its own. An element is a sum in the order of k with an engine that is chosen
//! by the whole product, so its bits depend on no number of rows, blocks or threads.
//!
//! Cost: 2 R I O operations. Each block packs its columns of the matrix once, and prefetches those that it packs next while it computes:
//! with few rows the time is that of reading the matrices.
#![allow(unsafe_code)] // first blocks of groups in the workspace

use super::gradient;
use crate::arena::Arena;
use crate::ctx::{Ctx, Machine, padded};
use crate::element::{Element, with_element};
use crate::gemm::{self, Epilogue, Factor, Gemm, Shape};
use crate::operand::Indices;
use bessemer_tensor::op::{GroupedLinear, GroupedLinearBackwardInput, GroupedLinearBackwardWeight};
use bessemer_tensor::{TensorError, View};
use std::ops::Range;

/// Blocks for each thread, about, where the shape allows: a thread on a disturbed core takes fewer.
const BLOCKS: usize = 8;
/// Rows and columns that a block keeps when work is cut smaller so that threads share it evenly.
const LEAST: (usize, usize) = (128, 512);
/// Most rows of a block.
const ROWS: usize = 2048;
/// Bytes of packed columns of a block.
const PACKED: usize = 4 << 20;
/// Whole register tiles and panels of every engine: rows, and columns.
const UNIT: (usize, usize) = (96, 64);

/// Rows of each group, and the number of matrices that the groups use cyclically.
#[derive(Clone, Copy)]
struct Groups<'a> {
    offsets: &'a [u32],
    matrices: usize,
}

impl<'a> Groups<'a> {
    fn new(
        op: &'static str,
        offsets: Indices<'a>,
        (matrices, rows): (usize, usize),
    ) -> Result<Groups<'a>, TensorError> {
        let Indices(offsets) = offsets;
        let fall = offsets.windows(2).position(|pair| pair[0] > pair[1]).map(|at| at + 1);
        let past = offsets.iter().position(|offset| *offset as usize > rows);
        if let Some(at) = fall.or(past) {
            let (operand, index, len) = ("offsets", offsets[at], rows + 1);
            return Err(TensorError::Index { op, operand, at, index, len });
        }
        Ok(Groups { offsets, matrices })
    }

    fn count(self) -> usize {
        self.offsets.len() - 1
    }

    fn rows(self, group: usize) -> Range<usize> {
        self.offsets[group] as usize..self.offsets[group + 1] as usize
    }

    /// The matrix of a group in a stack.
    fn matrix(self, stack: &View, group: usize) -> View {
        let rows = stack.rows / self.matrices;
        stack.rows(group % self.matrices * rows, rows)
    }

    /// Groups that have rows.
    fn filled(self) -> impl Iterator<Item = (usize, Range<usize>)> + use<'a> {
        (0..self.count()).map(move |group| (group, self.rows(group))).filter(|(_, rows)| !rows.is_empty())
    }

    /// Rows of the groups of a matrix that have any, in the order of the groups.
    fn of_matrix(self, number: usize) -> impl Iterator<Item = Range<usize>> + use<'a> {
        let groups = (number..self.count()).step_by(self.matrices);
        groups.map(move |group| self.rows(group)).filter(|rows| !rows.is_empty())
    }
}

/// Rows, columns and k of the product of a group.
#[derive(Debug, Clone, Copy)]
struct Dims {
    m: usize,
    n: usize,
    k: usize,
}

/// Rows and columns of a block, and blocks side by side.
#[derive(Debug, Clone, Copy)]
struct Cut {
    rows: usize,
    cols: usize,
    across: usize,
    blocks: usize,
}

/// A whole that is cut into even parts of at most `most`, and of whole units.
fn even(whole: usize, most: usize, unit: usize) -> usize {
    let units = whole.div_ceil(unit).max(1);
    unit * units.div_ceil(units.div_ceil((most / unit).max(1)))
}

/// Most columns of a block.
fn most_columns(k: usize) -> usize {
    // Six bytes of each element, of 512 k at most.
    (PACKED / (6 * k.clamp(1, 512))).max(LEAST.1)
}

impl Cut {
    /// A product that is cut into blocks of about `work` multiply-adds.
    fn new(Dims { m, n, k }: Dims, work: usize) -> Cut {
        let cells = work / k.max(1);
        let cols = even(n, (cells / m.max(1)).clamp(LEAST.1, most_columns(k)), UNIT.1);
        let rows = even(m, (cells / cols.min(n).max(1)).max(LEAST.0).min(ROWS), UNIT.0);
        let across = n.div_ceil(cols);
        Cut { rows, cols, across, blocks: m.div_ceil(rows) * across }
    }
}

/// Block of the product of a group.
struct Block {
    group: usize,
    rows: Range<usize>,
    cols: Range<usize>,
}

impl Block {
    fn of(&self, view: &View) -> View {
        view.rows(self.rows.start, self.rows.len()).columns(self.cols.start, self.cols.len())
    }
}

/// Scratch floats of products of `groups` groups with at most these dims, and of one thread of those.
fn workspace(machine: Machine, groups: usize, whole: &Shape, gradient: bool) -> (usize, usize) {
    let rows = even(whole.m, ROWS, UNIT.0).min(whole.m);
    // A gradient of few rows may have all columns.
    let least = if gradient { 1 } else { whole.k };
    let cols = even(whole.n, most_columns(least), UNIT.1).min(whole.n);
    let shape = Shape { m: rows, n: cols, ..*whole };
    let of_thread = match gradient {
        true => gradient::block_workspace(machine, &shape),
        false => gemm::block_workspace(machine, &shape),
    };
    (padded(groups + 1) + machine.threads * padded(of_thread), padded(of_thread))
}

/// Calls `work` for blocks of the products of all groups, each on one thread with surroundings of its own.
fn blocks(
    ctx: &Ctx<'_>,
    (groups, of_thread): (usize, usize),
    dims: &(dyn Fn(usize) -> Dims + Sync),
    work: &(dyn Fn(&Ctx<'_>, &Block) + Sync),
) {
    let mut scratch = ctx.scratch();
    let first = scratch.take(groups + 1);
    let own = scratch.take(ctx.pool.threads() * of_thread);
    // SAFETY: workspace of this launch, which no other thread writes.
    let first = unsafe { std::slice::from_raw_parts_mut(first.at(0, groups + 1).cast::<u32>(), groups + 1) };
    let all: usize = (0..groups).map(dims).map(|Dims { m, n, k }| m * n * k).sum();
    let share = all.div_ceil(BLOCKS * ctx.pool.threads());
    first[0] = 0;
    for group in 0..groups {
        first[group + 1] = first[group] + Cut::new(dims(group), share).blocks as u32;
    }
    let first = &*first;
    ctx.pool.run(first[groups] as usize, &|block, worker| {
        let group = first.partition_point(|first| *first as usize <= block) - 1;
        let (Dims { m, n, .. }, cut) = (dims(group), Cut::new(dims(group), share));
        let number = block - first[group] as usize;
        let (row, col) = (number / cut.across * cut.rows, number % cut.across * cut.cols);
        let (rows, cols) = (row..(row + cut.rows).min(m), col..(col + cut.cols).min(n));
        work(&ctx.alone(own.part(worker * of_thread, of_thread)), &Block { group, rows, cols });
    });
}

fn forward_workspaces(machine: Machine, op: &GroupedLinear) -> (usize, usize) {
    let (groups, (o, i)) = (op.offsets.cols - 1, (op.out.cols, op.x.cols));
    let shape = Shape {
        m: op.x.rows,
        n: o,
        k: i,
        a: op.x.dtype(),
        b: op.weight.dtype(),
        out: op.out.dtype(),
        divisible: true,
        whole: Some(o.min(i)),
    };
    workspace(machine, groups, &shape, false)
}

pub(crate) fn forward_workspace(machine: Machine, op: &GroupedLinear) -> usize {
    forward_workspaces(machine, op).0
}

pub(crate) fn forward(ctx: &Ctx<'_>, op: &GroupedLinear) -> Result<(), TensorError> {
    with_element!(op.out.dtype(), T => typed_forward::<T>(ctx, op))
}

fn typed_forward<T: Element>(ctx: &Ctx<'_>, op: &GroupedLinear) -> Result<(), TensorError> {
    let groups =
        Groups::new("grouped_linear", ctx.u32(&op.offsets), (op.weight.rows / op.out.cols, op.x.rows))?;
    let (count, k, n) = (groups.count(), op.x.cols, op.out.cols);
    let of_thread = forward_workspaces(ctx.machine(), op).1;
    let dims = |group| Dims { m: groups.rows(group).len(), n, k };
    blocks(ctx, (count, of_thread), &dims, &|ctx, block| {
        let rows = groups.rows(block.group);
        let segment = |view: &View| view.rows(rows.start, rows.len());
        let x = ctx.mat::<T>(&segment(&op.x).rows(block.rows.start, block.rows.len()));
        let weight = groups.matrix(&op.weight, block.group);
        let w = ctx.any(&weight.rows(block.cols.start, block.cols.len()));
        let out = ctx.mat::<T>(&block.of(&segment(&op.out)));
        let epilogue = Epilogue { whole: Some(n.min(k)), ..Epilogue::store(out, false) };
        gemm::run(ctx, &Gemm { k, a: Factor::rows(&x), b: Factor::rows(w), epilogue }, 0);
    });
    Ok(())
}

fn backward_input_workspaces(machine: Machine, op: &GroupedLinearBackwardInput) -> (usize, usize) {
    let (groups, (o, i)) = (op.offsets.cols - 1, (op.dy.cols, op.dx.cols));
    let shape = Shape {
        m: op.dy.rows,
        n: i,
        k: o,
        a: op.dy.dtype(),
        b: op.weight.dtype(),
        out: op.dx.dtype(),
        divisible: true,
        whole: Some(o.min(i)),
    };
    workspace(machine, groups, &shape, false)
}

pub(crate) fn backward_input_workspace(machine: Machine, op: &GroupedLinearBackwardInput) -> usize {
    backward_input_workspaces(machine, op).0
}

pub(crate) fn backward_input(ctx: &Ctx<'_>, op: &GroupedLinearBackwardInput) -> Result<(), TensorError> {
    with_element!(op.dx.dtype(), T => typed_backward_input::<T>(ctx, op))
}

fn typed_backward_input<T: Element>(
    ctx: &Ctx<'_>,
    op: &GroupedLinearBackwardInput,
) -> Result<(), TensorError> {
    let groups = Groups::new(
        "grouped_linear_backward_input",
        ctx.u32(&op.offsets),
        (op.weight.rows / op.dy.cols, op.dy.rows),
    )?;
    let (count, k, n) = (groups.count(), op.dy.cols, op.dx.cols);
    let of_thread = backward_input_workspaces(ctx.machine(), op).1;
    let dims = |group| Dims { m: groups.rows(group).len(), n, k };
    blocks(ctx, (count, of_thread), &dims, &|ctx, block| {
        let rows = groups.rows(block.group);
        let segment = |view: &View| view.rows(rows.start, rows.len());
        let dy = ctx.mat::<T>(&segment(&op.dy).rows(block.rows.start, block.rows.len()));
        let weight = groups.matrix(&op.weight, block.group);
        let w = ctx.any(&weight.columns(block.cols.start, block.cols.len()));
        let out = ctx.mat::<T>(&block.of(&segment(&op.dx)));
        let epilogue = Epilogue { whole: Some(n.min(k)), ..Epilogue::store(out, false) };
        gemm::run(ctx, &Gemm { k, a: Factor::rows(&dy), b: Factor::columns(w), epilogue }, 0);
    });
    Ok(())
}

fn backward_weight_workspaces(machine: Machine, op: &GroupedLinearBackwardWeight) -> (usize, usize) {
    let shape = Shape {
        m: op.dy.cols,
        n: op.x.cols,
        k: op.x.rows,
        a: op.dy.dtype(),
        b: op.x.dtype(),
        out: op.dweight.dtype(),
        divisible: true,
        whole: None,
    };
    workspace(machine, op.dweight.rows / op.dy.cols, &shape, true)
}

pub(crate) fn backward_weight_workspace(machine: Machine, op: &GroupedLinearBackwardWeight) -> usize {
    backward_weight_workspaces(machine, op).0
}

pub(crate) fn backward_weight(ctx: &Ctx<'_>, op: &GroupedLinearBackwardWeight) -> Result<(), TensorError> {
    with_element!(op.x.dtype(), T => typed_backward_weight::<T>(ctx, op))
}

fn typed_backward_weight<T: Element>(
    ctx: &Ctx<'_>,
    op: &GroupedLinearBackwardWeight,
) -> Result<(), TensorError> {
    let matrices = op.dweight.rows / op.dy.cols;
    let offsets = ctx.u32(&op.offsets);
    let groups = Groups::new("grouped_linear_backward_weight", offsets, (matrices, op.x.rows))?;
    let (m, n) = (op.dy.cols, op.x.cols);
    let of_thread = backward_weight_workspaces(ctx.machine(), op).1;
    let dims = |number| Dims { m, n, k: groups.of_matrix(number).map(|rows| rows.len()).sum() };
    blocks(ctx, (matrices, of_thread), &dims, &|ctx, block| {
        let out = ctx.any(&block.of(&groups.matrix(&op.dweight, block.group)));
        let mut accumulate = op.accumulate;
        // The gradient of no rows is zero.
        let none = groups.of_matrix(block.group).next().is_none().then_some(0..0);
        for rows in groups.of_matrix(block.group).chain(none) {
            let segment = |view: &View, cols: &Range<usize>| {
                ctx.mat::<T>(&view.rows(rows.start, rows.len()).columns(cols.start, cols.len()))
            };
            let (dy, x) = (segment(&op.dy, &block.rows), segment(&op.x, &block.cols));
            let factors = (rows.len(), Factor::columns(&dy), Factor::columns(&x));
            let whole = Some(m.min(n).min(rows.len()));
            gradient::product(ctx, factors, &out, accumulate, whole, 0);
            accumulate = true;
        }
    });
    Ok(())
}

pub(crate) fn forward_reference(arena: &Arena, op: &GroupedLinear) -> Result<(), TensorError> {
    let (x, out, count) = (arena.any(&op.x), arena.any(&op.out), op.weight.rows / op.out.cols);
    let groups = Groups::new("grouped_linear", arena.u32(&op.offsets), (count, op.x.rows))?;
    for (group, rows) in groups.filled() {
        let w = arena.any(&groups.matrix(&op.weight, group));
        for r in rows {
            for o in 0..out.cols {
                let y: f64 = (0..x.cols).map(|i| f64::from(x.get(r, i)) * f64::from(w.get(o, i))).sum();
                out.set(r, o, y as f32);
            }
        }
    }
    Ok(())
}

pub(crate) fn backward_input_reference(
    arena: &Arena,
    op: &GroupedLinearBackwardInput,
) -> Result<(), TensorError> {
    let (dy, dx, count) = (arena.any(&op.dy), arena.any(&op.dx), op.weight.rows / op.dy.cols);
    let groups = Groups::new("grouped_linear_backward_input", arena.u32(&op.offsets), (count, op.dy.rows))?;
    for (group, rows) in groups.filled() {
        let w = arena.any(&groups.matrix(&op.weight, group));
        for r in rows {
            for i in 0..dx.cols {
                let d: f64 = (0..dy.cols).map(|o| f64::from(dy.get(r, o)) * f64::from(w.get(o, i))).sum();
                dx.set(r, i, d as f32);
            }
        }
    }
    Ok(())
}

pub(crate) fn backward_weight_reference(
    arena: &Arena,
    op: &GroupedLinearBackwardWeight,
) -> Result<(), TensorError> {
    let (x, dy, dw) = (arena.any(&op.x), arena.any(&op.dy), arena.any(&op.dweight));
    let count = dw.rows / dy.cols;
    let groups = Groups::new("grouped_linear_backward_weight", arena.u32(&op.offsets), (count, op.x.rows))?;
    for o in 0..dw.rows {
        for i in 0..x.cols {
            let term = |r: usize| f64::from(dy.get(r, o % dy.cols)) * f64::from(x.get(r, i));
            let d: f64 = groups.of_matrix(o / dy.cols).flatten().map(term).sum();
            dw.put(o, i, d as f32, op.accumulate);
        }
    }
    Ok(())
}
