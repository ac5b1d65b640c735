//! Output projection and softmax cross-entropy in one: `loss[n] = lse_v(z[n,v]) - z[n, target]`, `z = x W^T`, and with
//! p = softmax(z): `dz = factor (p (1 + 2 z_loss lse) - onehot(target))`, `dx = dz W`, `dW (+)= dz^T x`. The factor of p is
//! the gradient of `loss + z_loss lse^2` (Chowdhery et al. 2022, PaLM, section 5).
//!
//! With a teacher, also its divergence and the gradient of that (`teacher.rs`).
//!
//! Rows whose target is [`IGNORED`] have loss 0 and gradient 0. Logits live only for a chunk of rows at a time. The idea
//! of making both gradients from the chunk while it is at hand is that of Hsu et al., "Liger Kernel", 2024.
//! Cost: 2 N D V operations forward, 6 N D V with gradients.
#![allow(unsafe_code)] // rows by address

use super::teacher::{AddRows, Distilling, ReferenceTeacher, piece_rows};
use super::{gradient, teacher};
use crate::arena::Arena;
use crate::ctx::{Ctx, Machine, padded};
use crate::element::{Element, with_element};
use crate::gemm::{self, Epilogue, Factor, Gemm, Shape};
use crate::operand::{AnyMat, Mat};
use crate::simd::math::exp;
use crate::simd::{Kernel, Simd, dispatch, load_part, store_part};
use bessemer_tensor::TensorError;
use bessemer_tensor::op::{IGNORED, LinearCrossEntropy, LossBackward};
use bessemer_units::DType;

/// Floats of logits of a chunk at most, for activations of 4 bytes and of 2: those leave more memory for the logits, and
/// their products are so fast that packing the weights for each chunk counts. In f32 with AVX2, 1,024 rows and 50,257 tokens,
/// three chunks instead of two cost 2 % of the time, four 7 %.
const LOGITS: [usize; 2] = [32 << 20, 64 << 20];
/// Rows of a chunk at least, so that packing the weights again for each chunk costs little, and at most, so that the
/// logits of a small vocabulary stay in a cache.
const CHUNK_ROWS: (usize, usize) = (256, 1024);
/// Rows of a tile of the softmax.
const ROWS: usize = 4;

/// Rows of a chunk: the rows cut evenly, by shape and type of the activations alone.
pub(super) fn chunk_rows(rows: usize, vocabulary: usize, activations: DType) -> usize {
    let logits = LOGITS[usize::from(activations != DType::F32)];
    let most = (logits / vocabulary.max(1)).clamp(CHUNK_ROWS.0, CHUNK_ROWS.1);
    rows.div_ceil(rows.div_ceil(most).max(1)).max(1)
}

pub(crate) fn workspace(machine: Machine, op: &LinearCrossEntropy) -> usize {
    let (d, v) = (op.x.cols, op.weight.rows);
    let rows = chunk_rows(op.x.rows, v, op.x.dtype());
    // The last chunk may be shorter, and a shorter product is cut in another way.
    let last = match op.x.rows % rows {
        0 => rows,
        rest => rest,
    };
    let (x, w, f32) = (op.x.dtype(), op.weight.dtype(), DType::F32);
    let size = |m, n, k, a, b, out| {
        gemm::workspace(machine, &Shape { m, n, k, a, b, out, divisible: true, whole: None })
    };
    let mut products = 0;
    for rows in [rows, last] {
        products = products.max(size(rows, v, d, x, w, f32));
        if let Some(b) = &op.backward {
            products = products.max(size(rows, d, v, f32, w, x));
            let (m, n, k, out) = (v, d, rows, b.dweight.dtype());
            let shape = Shape { m, n, k, a: f32, b: x, out, divisible: true, whole: None };
            products = products.max(gradient::workspace(machine, &shape));
        }
    }
    let (logits, of_teacher) = teacher::workspace(machine, op, [rows, last]);
    padded(rows * v) + logits + products.max(of_teacher)
}

/// Losses of some rows of logits, which become their gradients if requested.
struct Softmax<'a> {
    logits: &'a Mat,
    targets: &'a [u32],
    /// Losses of the chunk's rows.
    loss: *mut f32,
    /// Their log-sum-exp, if requested.
    lse: Option<*mut f32>,
    /// Factors on the gradients of the chunk's rows, and weight of the z-loss.
    backward: Option<(*const f32, f32)>,
    /// The first row, and how many.
    rows: [usize; 2],
}

impl Kernel for Softmax<'_> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Softmax { logits, targets, loss, lse: all_lse, backward, rows } = self;
        let v = logits.cols;
        for (r, &target) in targets.iter().enumerate().skip(rows[0]).take(rows[1]) {
            let z = logits.row(r);
            // SAFETY: columns c .. c + n of row r, the target (checked to be below V), and the loss, lse and factor of row r.
            unsafe {
                if target == IGNORED {
                    *loss.add(r) = 0.0;
                    if let Some(all) = all_lse {
                        *all.add(r) = 0.0;
                    }
                    std::ptr::write_bytes(z, 0, v);
                    continue;
                }
                let hit = *z.add(target as usize);
                let mut top = S::splat(f32::NEG_INFINITY);
                let mut max = f32::NEG_INFINITY;
                let whole = v / S::LANES * S::LANES;
                for c in (0..whole).step_by(S::LANES) {
                    top = S::max(S::load(z.add(c)), top);
                }
                for c in whole..v {
                    max = if *z.add(c) > max { *z.add(c) } else { max };
                }
                let top = S::hmax(top);
                let max = if top > max { top } else { max };
                let m = S::splat(max);
                let mut sum = S::splat(0.0);
                for c in (0..whole).step_by(S::LANES) {
                    let p = exp::<S>(S::sub(S::load(z.add(c)), m));
                    S::store(z.add(c), p);
                    sum = S::add(sum, p);
                }
                let mut total = S::sum(sum);
                if whole < v {
                    let n = v - whole;
                    let p = exp::<S>(S::sub(load_part::<S>(z.add(whole), n), m));
                    store_part::<S>(z.add(whole), p, n);
                    for c in whole..v {
                        total += *z.add(c);
                    }
                }
                *loss.add(r) = total.ln() + (max - hit);
                if let Some(all) = all_lse {
                    *all.add(r) = total.ln() + max;
                }
                if let Some((factors, z_loss)) = backward {
                    let (scale, lse) = (*factors.add(r), total.ln() + max);
                    let factor = S::splat(scale * (1.0 + 2.0 * z_loss * lse) / total);
                    for c in (0..v).step_by(S::LANES) {
                        let n = S::LANES.min(v - c);
                        store_part::<S>(z.add(c), S::mul(load_part::<S>(z.add(c), n), factor), n);
                    }
                    *z.add(target as usize) -= scale;
                }
            }
        }
    }
}

pub(crate) fn run(ctx: &Ctx<'_>, op: &LinearCrossEntropy) -> Result<(), TensorError> {
    with_element!(op.x.dtype(), T => typed::<T>(ctx, op))
}

fn typed<T: Element>(ctx: &Ctx<'_>, op: &LinearCrossEntropy) -> Result<(), TensorError> {
    let (w, loss) = (ctx.any(&op.weight), ctx.f32(&op.loss));
    let targets = ctx.u32(&op.targets);
    targets.check("linear_cross_entropy", "targets", w.rows, Some(IGNORED))?;
    let backward = op.backward.map(|b| (ctx.f32(&b.factors), z_loss(ctx.arena, &b)));
    let lse = op.scored_lse.map(|lse| ctx.f32(&lse));
    let rows = chunk_rows(op.x.rows, w.rows, T::DTYPE);
    let mut scratch = ctx.scratch();
    let logits = scratch.take(rows * w.rows);
    let mut skip = rows * w.rows;
    let teacher = op.teacher.map(|_| {
        let room = piece_rows(rows) * w.rows;
        skip = padded(skip) + room;
        scratch.take(room)
    });
    let teacher = teacher.and_then(|room| Distilling::new(ctx, op, room));
    for first in (0..op.x.rows).step_by(rows) {
        let count = rows.min(op.x.rows - first);
        let chunk = |view: &bessemer_tensor::View| ctx.mat::<T>(&view.rows(first, count));
        let x = chunk(&op.x);
        // SAFETY: the chunk of logits is in this launch's workspace.
        let z: Mat = unsafe { Mat::new(logits.at(0, count * w.rows), count, w.rows, w.rows) };
        let epilogue = Epilogue::store(z, false);
        gemm::run(ctx, &Gemm { k: x.cols, a: Factor::rows(&x), b: Factor::rows(w), epilogue }, skip);
        // Without a teacher, takes all rows at once.
        let piece = if teacher.is_some() { piece_rows(rows) } else { count };
        for skipped in (0..count).step_by(piece) {
            let (first, count) = (first + skipped, piece.min(count - skipped));
            let targets = &targets.0[first..first + count];
            // SAFETY: rows of the chunk.
            let z: Mat = unsafe { Mat::new(z.row(skipped), count, w.rows, w.rows) };
            let distilling = teacher.as_ref().map(|t| (t, t.logits(ctx, first, count, skip)));
            ctx.pool.run(count.div_ceil(ROWS), &|tile, _| {
                let rows = [tile * ROWS, ROWS];
                let backward = (backward.as_ref())
                    .map(|(factors, z)| (factors.row(0).wrapping_add(first).cast_const(), *z));
                // SAFETY: the instruction set is available; tiles are disjoint rows of logits, losses and divergences.
                unsafe {
                    if let Some((teacher, t)) = &distilling {
                        let factors = backward.map(|(factors, _)| factors);
                        dispatch(ctx.rung, teacher.divergence((first, targets), [&z, t], factors, rows));
                    }
                    let softmax = Softmax {
                        logits: &z,
                        targets,
                        loss: loss.row(0).wrapping_add(first),
                        lse: lse.as_ref().map(|lse| lse.row(0).wrapping_add(first)),
                        backward,
                        rows,
                    };
                    dispatch(ctx.rung, softmax);
                    if let (Some((_, added)), Some(_)) = (&distilling, backward) {
                        dispatch(ctx.rung, AddRows { to: &z, added, targets, rows });
                    }
                }
            });
        }
        if let Some(b) = &op.backward {
            let epilogue = Epilogue::store(chunk(&b.dx), false);
            gemm::run(ctx, &Gemm { k: w.rows, a: Factor::rows(&z), b: Factor::columns(w), epilogue }, skip);
            let factors = (count, Factor::columns(&z), Factor::columns(&x));
            gradient::product(ctx, factors, &ctx.any(&b.dweight), b.accumulate || first > 0, None, skip);
        }
    }
    Ok(())
}

/// Weight of the z-loss.
pub(super) fn z_loss(arena: &Arena, backward: &LossBackward) -> f32 {
    backward.z_loss.map_or(0.0, |weight| arena.f32(&weight).get(0, 0))
}

/// Adds row-major sums to a gradient, or replaces it.
pub(super) fn put_sums(to: &AnyMat, sums: &[f64], accumulate: bool) {
    for (r, row) in sums.chunks_exact(to.cols.max(1)).enumerate() {
        row.iter().enumerate().for_each(|(c, sum)| to.put(r, c, *sum as f32, accumulate));
    }
}

pub(crate) fn reference(arena: &Arena, op: &LinearCrossEntropy) -> Result<(), TensorError> {
    with_element!(op.x.dtype(), T => typed_reference::<T>(arena, op))
}

fn typed_reference<T: Element>(arena: &Arena, op: &LinearCrossEntropy) -> Result<(), TensorError> {
    let (x, w, loss) = (arena.mat::<T>(&op.x), arena.any(&op.weight), arena.f32(&op.loss));
    let targets = arena.u32(&op.targets);
    targets.check("linear_cross_entropy", "targets", w.rows, Some(IGNORED))?;
    let scored_lse = op.scored_lse.map(|lse| arena.f32(&lse));
    let grads = op.backward.map(|b| (arena.mat::<T>(&b.dx), arena.f32(&b.factors), z_loss(arena, &b)));
    let teacher = op.teacher.map(|teacher| ReferenceTeacher::new(arena, &teacher));
    // Rounded once, whatever the type.
    let mut sums = vec![0.0f64; if grads.is_some() { w.rows * w.cols } else { 0 }];
    let mut z = vec![0.0f64; w.rows];
    for (n, &target) in targets.0.iter().enumerate() {
        if target == IGNORED {
            loss.set(0, n, 0.0);
            scored_lse.iter().for_each(|all| all.set(0, n, 0.0));
            teacher.iter().for_each(|teacher| teacher.ignore(n));
            if let Some((dx, ..)) = &grads {
                (0..x.cols).for_each(|d| dx.set(n, d, 0.0));
            }
            continue;
        }
        for (v, z) in z.iter_mut().enumerate() {
            *z = (0..x.cols).map(|d| f64::from(x.get(n, d)) * f64::from(w.get(v, d))).sum();
        }
        let max = z.iter().fold(f64::NEG_INFINITY, |a, &b| a.max(b));
        let lse = max + z.iter().map(|z| (z - max).exp()).sum::<f64>().ln();
        loss.set(0, n, (lse - z[target as usize]) as f32);
        scored_lse.iter().for_each(|all| all.set(0, n, lse as f32));
        let distilled = teacher.as_ref().map(|teacher| teacher.row(n, &z));
        let Some((dx, factors, z_loss)) = &grads else { continue };
        let (scale, pull) = (f64::from(factors.get(0, n)), 1.0 + 2.0 * f64::from(*z_loss) * lse);
        for (v, z) in z.iter_mut().enumerate() {
            let hit = if v == target as usize { 1.0 } else { 0.0 };
            let added = distilled.as_ref().map_or(0.0, |added| added[v]);
            *z = scale * ((*z - lse).exp() * pull - hit + added);
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
    if let Some(b) = &op.backward {
        put_sums(&arena.any(&b.dweight), &sums, b.accumulate);
    }
    Ok(())
}
