//! The linear map `out = f(x W^T + b) + residual` and its two backward halves
//! `dx (+)= (dy W) f'(pre)` and `dW (+)= dy^T x`, `db (+)= sum_n dy`.
//!
//! Saved for the backward pass: x, and `pre = x W^T + b` if there is an activation. Cost: 2 N I O operations each.
//! The products are those of [`crate::gemm`], with everything else in their epilogues; a few rows (decoding) take
//! [`super::skinny`] instead, which reads the weights once without packing them.

use super::activation::{derivative, value};
use super::{column_sums, gradient, skinny};
use crate::arena::Arena;
use crate::ctx::{Ctx, Machine};
use crate::element::{Element, with_element, with_parameter};
use crate::gemm::{self, Epilogue, Factor, Gemm, Shape};
use bessemer_tensor::op::{Linear, LinearBackwardInput, LinearBackwardWeight};

fn forward_shape(op: &Linear) -> Shape {
    Shape {
        m: op.x.rows,
        n: op.weight.rows,
        k: op.x.cols,
        a: op.x.dtype(),
        b: op.weight.dtype(),
        out: op.out.dtype(),
        divisible: true,
        whole: None,
    }
}

/// Whether [`skinny`] makes the product: always where rows must not depend on their number, since those of [`skinny`] do not.
fn is_skinny(op: &Linear) -> bool {
    op.rowwise || op.x.rows <= skinny::MAX_ROWS
}

pub(crate) fn forward_workspace(machine: Machine, op: &Linear) -> usize {
    if is_skinny(op) {
        return 0;
    }
    gemm::workspace(machine, &forward_shape(op))
}

pub(crate) fn forward(ctx: &Ctx<'_>, op: &Linear) {
    with_element!(op.out.dtype(), T => typed_forward::<T>(ctx, op));
}

fn typed_forward<T: Element>(ctx: &Ctx<'_>, op: &Linear) {
    let (x, w) = (ctx.mat::<T>(&op.x), ctx.any(&op.weight));
    let epilogue = Epilogue {
        bias: op.bias.map(|b| ctx.any(&b)),
        activation: op.activation.map(|(kind, pre)| (kind, ctx.mat(&pre))),
        residual: op.residual.map(|r| ctx.mat(&r)),
        ..Epilogue::store(ctx.mat::<T>(&op.out), false)
    };
    if is_skinny(op) {
        return with_parameter!(w.dtype, W => skinny::run(ctx, &x, &w.typed::<W>(), &epilogue));
    }
    let product = Gemm { k: x.cols, a: Factor::rows(&x), b: Factor::rows(w), epilogue };
    gemm::run(ctx, &product, 0);
}

pub(crate) fn backward_input_workspace(machine: Machine, op: &LinearBackwardInput) -> usize {
    let shape = Shape {
        m: op.dy.rows,
        n: op.weight.cols,
        k: op.dy.cols,
        a: op.dy.dtype(),
        b: op.weight.dtype(),
        out: op.dx.dtype(),
        divisible: !(op.accumulate && op.activation.is_some()),
        whole: None,
    };
    gemm::workspace(machine, &shape)
}

pub(crate) fn backward_input(ctx: &Ctx<'_>, op: &LinearBackwardInput) {
    with_element!(op.dx.dtype(), T => typed_backward_input::<T>(ctx, op));
}

fn typed_backward_input<T: Element>(ctx: &Ctx<'_>, op: &LinearBackwardInput) {
    let (dy, w) = (ctx.mat::<T>(&op.dy), ctx.any(&op.weight));
    let epilogue = Epilogue {
        derivative: op.activation.map(|(kind, pre)| (kind, ctx.mat(&pre))),
        ..Epilogue::store(ctx.mat::<T>(&op.dx), op.accumulate)
    };
    let product = Gemm { k: dy.cols, a: Factor::rows(&dy), b: Factor::columns(w), epilogue };
    gemm::run(ctx, &product, 0);
}

pub(crate) fn backward_weight_workspace(machine: Machine, op: &LinearBackwardWeight) -> usize {
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
    let product = gradient::workspace(machine, &shape);
    product.max(op.dbias.map_or(0, |_| column_sums::workspace(op.dy.rows, op.dy.cols)))
}

pub(crate) fn backward_weight(ctx: &Ctx<'_>, op: &LinearBackwardWeight) {
    with_element!(op.x.dtype(), T => typed_backward_weight::<T>(ctx, op));
}

fn typed_backward_weight<T: Element>(ctx: &Ctx<'_>, op: &LinearBackwardWeight) {
    let (x, dy) = (ctx.mat::<T>(&op.x), ctx.mat::<T>(&op.dy));
    let factors = (x.rows, Factor::columns(&dy), Factor::columns(&x));
    gradient::product(ctx, factors, &ctx.any(&op.dweight), op.accumulate, None, 0);
    if let Some(db) = op.dbias {
        column_sums::run(ctx, &dy, &ctx.any(&db), op.accumulate);
    }
}

pub(crate) fn forward_reference(arena: &Arena, op: &Linear) {
    with_element!(op.out.dtype(), T => typed_forward_reference::<T>(arena, op));
}

fn typed_forward_reference<T: Element>(arena: &Arena, op: &Linear) {
    let (x, w, out) = (arena.mat::<T>(&op.x), arena.any(&op.weight), arena.mat::<T>(&op.out));
    let bias = op.bias.map(|b| arena.any(&b));
    let residual = op.residual.map(|r| arena.mat::<T>(&r));
    for n in 0..x.rows {
        for o in 0..w.rows {
            let mut y: f64 = (0..x.cols).map(|i| f64::from(x.get(n, i)) * f64::from(w.get(o, i))).sum();
            if let Some(b) = bias {
                y += f64::from(b.get(0, o));
            }
            if let Some((kind, pre)) = op.activation {
                let pre = arena.mat::<T>(&pre);
                pre.set(n, o, y as f32);
                if T::DTYPE != bessemer_units::DType::F32 {
                    y = f64::from(pre.get(n, o));
                }
                y = value(kind, y);
            }
            if let Some(r) = residual {
                y += f64::from(r.get(n, o));
            }
            out.set(n, o, y as f32);
        }
    }
}

pub(crate) fn backward_input_reference(arena: &Arena, op: &LinearBackwardInput) {
    with_element!(op.dx.dtype(), T => typed_backward_input_reference::<T>(arena, op));
}

fn typed_backward_input_reference<T: Element>(arena: &Arena, op: &LinearBackwardInput) {
    let (dy, w, dx) = (arena.mat::<T>(&op.dy), arena.any(&op.weight), arena.mat::<T>(&op.dx));
    for n in 0..dy.rows {
        for i in 0..w.cols {
            let mut d: f64 = (0..w.rows).map(|o| f64::from(dy.get(n, o)) * f64::from(w.get(o, i))).sum();
            if let Some((kind, pre)) = op.activation {
                d *= derivative(kind, f64::from(arena.mat::<T>(&pre).get(n, i)));
            }
            dx.put(n, i, d as f32, op.accumulate);
        }
    }
}

pub(crate) fn backward_weight_reference(arena: &Arena, op: &LinearBackwardWeight) {
    with_element!(op.x.dtype(), T => typed_backward_weight_reference::<T>(arena, op));
}

fn typed_backward_weight_reference<T: Element>(arena: &Arena, op: &LinearBackwardWeight) {
    let (x, dy, dw) = (arena.mat::<T>(&op.x), arena.mat::<T>(&op.dy), arena.any(&op.dweight));
    for o in 0..dy.cols {
        for i in 0..x.cols {
            let d: f64 = (0..x.rows).map(|n| f64::from(dy.get(n, o)) * f64::from(x.get(n, i))).sum();
            dw.put(o, i, d as f32, op.accumulate);
        }
    }
    if let Some(db) = op.dbias {
        let db = arena.any(&db);
        for o in 0..dy.cols {
            let d: f64 = (0..dy.rows).map(|n| f64::from(dy.get(n, o))).sum();
            db.put(0, o, d as f32, op.accumulate);
        }
    }
}
