//! Softmax cross-entropy where some rows of the output projection are here and the others on other devices, `z = x W^T`
//! over the rows that are here:
//! - sums: `lse[n] = log sum_v exp z[n,v]`, `hit[n] = z[n, target]` or 0 if that row is elsewhere;
//! - with the lse and hit of all rows together: `loss[n] = lse - hit`,
//!   `dz = factor (exp(z - lse) (1 + 2 z_loss lse) - onehot(target))`, `dx = dz W` (a term of a sum), `dW (+)= dz^T x`.
//!
//! Ignored targets, as in `loss.rs`, have zeros only, and logits live only for a chunk of rows.
//! Cost: 2 N D V operations for the sums, 6 N D V for the gradients.
#![allow(unsafe_code)] // rows by address

use super::gradient;
use super::loss::{chunk_rows, put_sums, z_loss};
use crate::arena::Arena;
use crate::ctx::{Ctx, Machine, padded};
use crate::element::{Element, with_element};
use crate::gemm::{self, Epilogue, Factor, Gemm, Shape};
use crate::operand::{AnyMat, Mat};
use crate::simd::math::exp;
use crate::simd::{Kernel, Simd, dispatch, load_part, store_part};
use bessemer_tensor::op::{IGNORED, LinearCrossEntropyShard, LogitSums, LossBackward};
use bessemer_tensor::{TensorError, View};
use bessemer_units::DType;

/// Rows of a tile.
const ROWS: usize = 4;

/// Scratch floats for chunks of logits, and for the products that make them and are made from them.
fn workspace(machine: Machine, x: &View, weight: &View, dweight: Option<&View>) -> usize {
    let (d, v) = (x.cols, weight.rows);
    let rows = chunk_rows(x.rows, v, x.dtype());
    // The last chunk may be shorter, and a shorter product is cut in another way.
    let last = match x.rows % rows {
        0 => rows,
        rest => rest,
    };
    let (x, w, f32) = (x.dtype(), weight.dtype(), DType::F32);
    let size = |m, n, k, a, b, out| {
        gemm::workspace(machine, &Shape { m, n, k, a, b, out, divisible: true, whole: None })
    };
    let mut products = 0;
    for rows in [rows, last] {
        products = products.max(size(rows, v, d, x, w, f32));
        if let Some(dweight) = dweight {
            products = products.max(size(rows, d, v, f32, w, x));
            let (m, n, k, out) = (v, d, rows, dweight.dtype());
            let shape = Shape { m, n, k, a: f32, b: x, out, divisible: true, whole: None };
            products = products.max(gradient::workspace(machine, &shape));
        }
    }
    padded(rows * v) + products
}

pub(crate) fn sums_workspace(machine: Machine, op: &LogitSums) -> usize {
    workspace(machine, &op.x, &op.weight, None)
}

pub(crate) fn loss_workspace(machine: Machine, op: &LinearCrossEntropyShard) -> usize {
    op.backward.map_or(0, |b| workspace(machine, &op.x, &op.weight, Some(&b.dweight)))
}

/// The column of a target, if it is here.
fn column(target: u32, first: usize, rows: usize) -> Option<usize> {
    (target as usize).checked_sub(first).filter(|c| *c < rows)
}

/// Calls `each` with the first row, the rows of x and the logits of every chunk, and the length of workspace they fill.
fn chunks<T: Element>(ctx: &Ctx<'_>, x: &View, w: &AnyMat, each: &mut dyn FnMut(usize, Mat<T>, Mat, usize)) {
    let rows = chunk_rows(x.rows, w.rows, T::DTYPE);
    let skip = rows * w.rows;
    let logits = ctx.scratch().take(skip);
    for first in (0..x.rows).step_by(rows) {
        let count = rows.min(x.rows - first);
        let x = ctx.mat::<T>(&x.rows(first, count));
        // SAFETY: the chunk of logits is in this launch's workspace.
        let z: Mat = unsafe { Mat::new(logits.at(0, count * w.rows), count, w.rows, w.rows) };
        let epilogue = Epilogue::store(z, false);
        gemm::run(ctx, &Gemm { k: x.cols, a: Factor::rows(&x), b: Factor::rows(w), epilogue }, skip);
        each(first, x, z, skip);
    }
}

/// Log-sum-exp and target logit of some rows of logits.
struct Sums<'a> {
    logits: &'a Mat,
    /// Targets of the chunk's rows, as the next two fields.
    targets: &'a [u32],
    lse: *mut f32,
    hit: *mut f32,
    /// Row of the whole projection that column 0 belongs to.
    tensor_shard: usize,
    tile: usize,
}

impl Kernel for Sums<'_> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Sums { logits, targets, lse, hit, tensor_shard, tile } = self;
        let v = logits.cols;
        for (r, &target) in targets.iter().enumerate().skip(tile * ROWS).take(ROWS) {
            let z = logits.row(r).cast_const();
            let at = column(target, tensor_shard, v);
            // SAFETY: columns c .. c + n of row r, the target's column (below v), and the sums of row r.
            unsafe {
                *hit.add(r) = at.map_or(0.0, |c| *z.add(c));
                if target == IGNORED {
                    (*hit.add(r), *lse.add(r)) = (0.0, 0.0);
                    continue;
                }
                let whole = v / S::LANES * S::LANES;
                let mut top = S::splat(f32::NEG_INFINITY);
                for c in (0..whole).step_by(S::LANES) {
                    top = S::max(S::load(z.add(c)), top);
                }
                let mut max = S::hmax(top);
                for c in whole..v {
                    max = if *z.add(c) > max { *z.add(c) } else { max };
                }
                let m = S::splat(max);
                let mut sum = S::splat(0.0);
                for c in (0..whole).step_by(S::LANES) {
                    sum = S::add(sum, exp::<S>(S::sub(S::load(z.add(c)), m)));
                }
                let mut total = S::sum(sum);
                let mut rest = [0.0f32; 64];
                store_part::<S>(
                    rest.as_mut_ptr(),
                    exp::<S>(S::sub(load_part::<S>(z.add(whole), v - whole), m)),
                    v - whole,
                );
                for p in &rest[..v - whole] {
                    total += p;
                }
                *lse.add(r) = total.ln() + max;
            }
        }
    }
}

/// Some rows of logits become their gradients.
struct Gradients<'a> {
    logits: &'a Mat,
    /// Targets of the chunk's rows, as the next field.
    targets: &'a [u32],
    lse: *const f32,
    /// Row of the whole projection that column 0 belongs to.
    tensor_shard: usize,
    /// Factors on the gradients of the chunk's rows.
    factors: *const f32,
    z_loss: f32,
    tile: usize,
}

impl Kernel for Gradients<'_> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Gradients { logits, targets, lse, tensor_shard, factors, z_loss, tile } = self;
        let v = logits.cols;
        for (r, &target) in targets.iter().enumerate().skip(tile * ROWS).take(ROWS) {
            let z = logits.row(r);
            // SAFETY: columns c .. c + n of row r, the target's column (below v), and the lse and factor of row r.
            unsafe {
                if target == IGNORED {
                    std::ptr::write_bytes(z, 0, v);
                    continue;
                }
                let (lse, scale) = (*lse.add(r), *factors.add(r));
                let (shift, factor) = (S::splat(lse), S::splat(scale * (1.0 + 2.0 * z_loss * lse)));
                for c in (0..v).step_by(S::LANES) {
                    let n = S::LANES.min(v - c);
                    let p = exp::<S>(S::sub(load_part::<S>(z.add(c), n), shift));
                    store_part::<S>(z.add(c), S::mul(p, factor), n);
                }
                if let Some(c) = column(target, tensor_shard, v) {
                    *z.add(c) -= scale;
                }
            }
        }
    }
}

pub(crate) fn sums(ctx: &Ctx<'_>, op: &LogitSums) -> Result<(), TensorError> {
    let targets = ctx.u32(&op.targets);
    targets.check("logit_sums", "targets", op.tensor_shard.of, Some(IGNORED))?;
    with_element!(op.x.dtype(), T => typed_sums::<T>(ctx, op, targets.0));
    Ok(())
}

fn typed_sums<T: Element>(ctx: &Ctx<'_>, op: &LogitSums, targets: &[u32]) {
    let (lse, hit) = (ctx.f32(&op.lse), ctx.f32(&op.target_logit));
    chunks::<T>(ctx, &op.x, &ctx.any(&op.weight), &mut |first, _, z, _| {
        let targets = &targets[first..first + z.rows];
        ctx.pool.run(z.rows.div_ceil(ROWS), &|tile, _| {
            let [lse, hit] = [&lse, &hit].map(|m| m.row(0).wrapping_add(first));
            let sums = Sums { logits: &z, targets, lse, hit, tensor_shard: op.tensor_shard.first, tile };
            // SAFETY: the instruction set is available; tiles are disjoint rows.
            unsafe { dispatch(ctx.rung, sums) }
        });
    });
}

pub(crate) fn loss(ctx: &Ctx<'_>, op: &LinearCrossEntropyShard) -> Result<(), TensorError> {
    let targets = ctx.u32(&op.targets);
    targets.check("linear_cross_entropy_shard", "targets", op.tensor_shard.of, Some(IGNORED))?;
    losses(ctx.arena, op, targets.0);
    if let Some(b) = &op.backward {
        with_element!(op.x.dtype(), T => typed_gradients::<T>(ctx, op, b, targets.0));
    }
    Ok(())
}

/// Computes the losses, and the log-sum-exps if requested: a few operations a row.
fn losses(arena: &Arena, op: &LinearCrossEntropyShard, targets: &[u32]) {
    let (lse, hit, loss) = (arena.f32(&op.lse), arena.f32(&op.target_logit), arena.f32(&op.loss));
    let scored_lse = op.scored_lse.map(|lse| arena.f32(&lse));
    for (n, &target) in targets.iter().enumerate() {
        let scored = target != IGNORED;
        loss.set(0, n, if scored { lse.get(0, n) - hit.get(0, n) } else { 0.0 });
        if let Some(all) = &scored_lse {
            all.set(0, n, if scored { lse.get(0, n) } else { 0.0 });
        }
    }
}

fn typed_gradients<T: Element>(
    ctx: &Ctx<'_>,
    op: &LinearCrossEntropyShard,
    b: &LossBackward,
    targets: &[u32],
) {
    let (w, lse, factors) = (ctx.any(&op.weight), ctx.f32(&op.lse), ctx.f32(&b.factors));
    let z_loss = z_loss(ctx.arena, b);
    chunks::<T>(ctx, &op.x, &w, &mut |first, x, z, skip| {
        ctx.pool.run(z.rows.div_ceil(ROWS), &|tile, _| {
            let gradients = Gradients {
                logits: &z,
                targets: &targets[first..first + z.rows],
                lse: lse.row(0).wrapping_add(first).cast_const(),
                tensor_shard: op.tensor_shard.first,
                factors: factors.row(0).wrapping_add(first).cast_const(),
                z_loss,
                tile,
            };
            // SAFETY: the instruction set is available; tiles are disjoint rows.
            unsafe { dispatch(ctx.rung, gradients) }
        });
        let epilogue = Epilogue::store(ctx.mat::<T>(&b.dx.rows(first, z.rows)), false);
        gemm::run(ctx, &Gemm { k: w.rows, a: Factor::rows(&z), b: Factor::columns(w), epilogue }, skip);
        let factors = (z.rows, Factor::columns(&z), Factor::columns(&x));
        gradient::product(ctx, factors, &ctx.any(&b.dweight), b.accumulate || first > 0, None, skip);
    });
}

/// The logits of row n in f64.
fn logits<T: Element>(x: &Mat<T>, w: &AnyMat, n: usize, z: &mut [f64]) {
    for (v, z) in z.iter_mut().enumerate() {
        *z = (0..x.cols).map(|d| f64::from(x.get(n, d)) * f64::from(w.get(v, d))).sum();
    }
}

pub(crate) fn sums_reference(arena: &Arena, op: &LogitSums) -> Result<(), TensorError> {
    let targets = arena.u32(&op.targets);
    targets.check("logit_sums", "targets", op.tensor_shard.of, Some(IGNORED))?;
    with_element!(op.x.dtype(), T => typed_sums_reference::<T>(arena, op, targets.0));
    Ok(())
}

fn typed_sums_reference<T: Element>(arena: &Arena, op: &LogitSums, targets: &[u32]) {
    let (x, w) = (arena.mat::<T>(&op.x), arena.any(&op.weight));
    let (lse, hit) = (arena.f32(&op.lse), arena.f32(&op.target_logit));
    let mut z = vec![0.0f64; w.rows];
    for (n, &target) in targets.iter().enumerate() {
        logits(&x, &w, n, &mut z);
        let max = z.iter().fold(f64::NEG_INFINITY, |a, &b| a.max(b));
        let sum = max + z.iter().map(|z| (z - max).exp()).sum::<f64>().ln();
        lse.set(0, n, if target == IGNORED { 0.0 } else { sum as f32 });
        hit.set(0, n, column(target, op.tensor_shard.first, w.rows).map_or(0.0, |c| z[c] as f32));
    }
}

pub(crate) fn loss_reference(arena: &Arena, op: &LinearCrossEntropyShard) -> Result<(), TensorError> {
    let targets = arena.u32(&op.targets);
    targets.check("linear_cross_entropy_shard", "targets", op.tensor_shard.of, Some(IGNORED))?;
    losses(arena, op, targets.0);
    if let Some(b) = &op.backward {
        with_element!(op.x.dtype(), T => typed_gradients_reference::<T>(arena, op, b, targets.0));
    }
    Ok(())
}

fn typed_gradients_reference<T: Element>(
    arena: &Arena,
    op: &LinearCrossEntropyShard,
    b: &LossBackward,
    targets: &[u32],
) {
    let (x, w, lse) = (arena.mat::<T>(&op.x), arena.any(&op.weight), arena.f32(&op.lse));
    let dx = arena.mat::<T>(&b.dx);
    let mut sums = vec![0.0f64; w.rows * w.cols];
    let (factors, z_loss, mut z) = (arena.f32(&b.factors), f64::from(z_loss(arena, b)), vec![0.0f64; w.rows]);
    for (n, &target) in targets.iter().enumerate() {
        let (lse, scale) = (f64::from(lse.get(0, n)), f64::from(factors.get(0, n)));
        let pull = 1.0 + 2.0 * z_loss * lse;
        logits(&x, &w, n, &mut z);
        for (v, z) in z.iter_mut().enumerate() {
            let hit = if column(target, op.tensor_shard.first, w.rows) == Some(v) { 1.0 } else { 0.0 };
            *z = if target == IGNORED { 0.0 } else { scale * ((*z - lse).exp() * pull - hit) };
        }
        for d in 0..x.cols {
            let sum: f64 = z.iter().enumerate().map(|(v, dz)| dz * f64::from(w.get(v, d))).sum();
            dx.set(n, d, sum as f32);
        }
        for (row, dz) in sums.chunks_exact_mut(x.cols).zip(&z) {
            for (d, sum) in row.iter_mut().enumerate() {
                *sum += dz * f64::from(x.get(n, d));
            }
        }
    }
    put_sums(&arena.any(&b.dweight), &sums, b.accumulate);
}
