//! Products of groups of rows, each with a matrix of its own. Groups are computed one after the other, each as the product of its
//! rows; an element is a sum in the order of k, so its bits depend on no number of rows or threads.
//!
//! Cost: 2 R I O operations. Each group packs its matrix once.

use super::gradient;
use crate::arena::Arena;
use crate::ctx::{Ctx, Machine};
use crate::element::{Element, with_element};
use crate::gemm::{self, Epilogue, Factor, Gemm, Shape};
use crate::operand::Indices;
use bessemer_tensor::op::{GroupedLinear, GroupedLinearBackwardInput, GroupedLinearBackwardWeight};
use bessemer_tensor::{TensorError, View};

/// Matrix and rows of each group that has rows, in the order of the groups. `count`: matrices.
fn groups<'a>(
    op: &'static str,
    offsets: Indices<'a>,
    (count, rows): (usize, usize),
) -> Result<impl Iterator<Item = (usize, std::ops::Range<usize>)> + use<'a>, TensorError> {
    let Indices(offsets) = offsets;
    let fall = offsets.windows(2).position(|pair| pair[0] > pair[1]).map(|at| at + 1);
    let past = offsets.iter().position(|offset| *offset as usize > rows);
    if let Some(at) = fall.or(past) {
        let (operand, index, len) = ("offsets", offsets[at], rows + 1);
        return Err(TensorError::Index { op, operand, at, index, len });
    }
    let range = |pair: &[u32]| pair[0] as usize..pair[1] as usize;
    let of = move |(group, pair): (usize, &[u32])| (group % count, range(pair));
    Ok(offsets.windows(2).enumerate().map(of).filter(|(_, rows)| !rows.is_empty()))
}

/// A matrix of a stack of `count`.
fn matrix(stack: &View, number: usize, count: usize) -> View {
    let rows = stack.rows / count;
    stack.rows(number * rows, rows)
}

/// Floats of the largest product among groups of up to `rows` rows.
fn largest(rows: usize, of: impl Fn(usize) -> usize) -> usize {
    (0..=rows).map(of).max().unwrap_or(0)
}

pub(crate) fn forward_workspace(machine: Machine, op: &GroupedLinear) -> usize {
    let shape = |m: usize| Shape {
        m,
        n: op.out.cols,
        k: op.x.cols,
        a: op.x.dtype(),
        b: op.weight.dtype(),
        out: op.out.dtype(),
        divisible: true,
        any_rows: true,
    };
    largest(op.x.rows, |m| gemm::workspace(machine, &shape(m)))
}

pub(crate) fn forward(ctx: &Ctx<'_>, op: &GroupedLinear) -> Result<(), TensorError> {
    with_element!(op.out.dtype(), T => typed_forward::<T>(ctx, op))
}

fn typed_forward<T: Element>(ctx: &Ctx<'_>, op: &GroupedLinear) -> Result<(), TensorError> {
    let count = op.weight.rows / op.out.cols;
    for (group, rows) in groups("grouped_linear", ctx.u32(&op.offsets), (count, op.x.rows))? {
        let of = |view: &View| ctx.mat::<T>(&view.rows(rows.start, rows.len()));
        let (x, w) = (of(&op.x), ctx.any(&matrix(&op.weight, group, count)));
        let epilogue = Epilogue { any_rows: true, ..Epilogue::store(of(&op.out), false) };
        gemm::run(ctx, &Gemm { k: x.cols, a: Factor::rows(&x), b: Factor::rows(w), epilogue }, 0);
    }
    Ok(())
}

pub(crate) fn backward_input_workspace(machine: Machine, op: &GroupedLinearBackwardInput) -> usize {
    let shape = |m: usize| Shape {
        m,
        n: op.dx.cols,
        k: op.dy.cols,
        a: op.dy.dtype(),
        b: op.weight.dtype(),
        out: op.dx.dtype(),
        divisible: true,
        any_rows: true,
    };
    largest(op.dy.rows, |m| gemm::workspace(machine, &shape(m)))
}

pub(crate) fn backward_input(ctx: &Ctx<'_>, op: &GroupedLinearBackwardInput) -> Result<(), TensorError> {
    with_element!(op.dx.dtype(), T => typed_backward_input::<T>(ctx, op))
}

fn typed_backward_input<T: Element>(
    ctx: &Ctx<'_>,
    op: &GroupedLinearBackwardInput,
) -> Result<(), TensorError> {
    let count = op.weight.rows / op.dy.cols;
    for (group, rows) in groups("grouped_linear_backward_input", ctx.u32(&op.offsets), (count, op.dy.rows))? {
        let of = |view: &View| ctx.mat::<T>(&view.rows(rows.start, rows.len()));
        let (dy, w) = (of(&op.dy), ctx.any(&matrix(&op.weight, group, count)));
        let epilogue = Epilogue { any_rows: true, ..Epilogue::store(of(&op.dx), false) };
        gemm::run(ctx, &Gemm { k: dy.cols, a: Factor::rows(&dy), b: Factor::columns(w), epilogue }, 0);
    }
    Ok(())
}

pub(crate) fn backward_weight_workspace(machine: Machine, op: &GroupedLinearBackwardWeight) -> usize {
    let shape = |k: usize| Shape {
        m: op.dy.cols,
        n: op.x.cols,
        k,
        a: op.dy.dtype(),
        b: op.x.dtype(),
        out: op.dweight.dtype(),
        divisible: true,
        any_rows: false,
    };
    largest(op.x.rows, |k| gradient::workspace(machine, &shape(k)))
}

pub(crate) fn backward_weight(ctx: &Ctx<'_>, op: &GroupedLinearBackwardWeight) -> Result<(), TensorError> {
    with_element!(op.x.dtype(), T => typed_backward_weight::<T>(ctx, op))
}

fn typed_backward_weight<T: Element>(
    ctx: &Ctx<'_>,
    op: &GroupedLinearBackwardWeight,
) -> Result<(), TensorError> {
    let count = op.dweight.rows / op.dy.cols;
    let all = || groups("grouped_linear_backward_weight", ctx.u32(&op.offsets), (count, op.x.rows));
    drop(all()?);
    for number in 0..count {
        let gradient = ctx.any(&matrix(&op.dweight, number, count));
        let mut accumulate = op.accumulate;
        for (_, rows) in all()?.filter(|(group, _)| *group == number) {
            let of = |view: &View| ctx.mat::<T>(&view.rows(rows.start, rows.len()));
            let (x, dy) = (of(&op.x), of(&op.dy));
            let factors = (rows.len(), Factor::columns(&dy), Factor::columns(&x));
            gradient::product(ctx, factors, &gradient, accumulate, 0);
            accumulate = true;
        }
        if !accumulate {
            let cells = (0..gradient.rows).flat_map(|r| (0..gradient.cols).map(move |c| (r, c)));
            cells.for_each(|(r, c)| gradient.set(r, c, 0.0));
        }
    }
    Ok(())
}

pub(crate) fn forward_reference(arena: &Arena, op: &GroupedLinear) -> Result<(), TensorError> {
    let (x, out, count) = (arena.any(&op.x), arena.any(&op.out), op.weight.rows / op.out.cols);
    for (group, rows) in groups("grouped_linear", arena.u32(&op.offsets), (count, op.x.rows))? {
        let w = arena.any(&matrix(&op.weight, group, count));
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
    for (group, rows) in groups("grouped_linear_backward_input", arena.u32(&op.offsets), (count, op.dy.rows))?
    {
        let w = arena.any(&matrix(&op.weight, group, count));
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
    let mut of_matrix = vec![Vec::new(); count];
    let all = groups("grouped_linear_backward_weight", arena.u32(&op.offsets), (count, op.x.rows))?;
    all.for_each(|(group, rows)| of_matrix[group].push(rows));
    for o in 0..dw.rows {
        let groups = &of_matrix[o / dy.cols];
        for i in 0..x.cols {
            let term = |r: usize| f64::from(dy.get(r, o % dy.cols)) * f64::from(x.get(r, i));
            let d: f64 = groups.iter().cloned().flatten().map(term).sum();
            dw.put(o, i, d as f32, op.accumulate);
        }
    }
    Ok(())
}
