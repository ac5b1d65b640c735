//! Distillation as a part of the fused loss: with z and t the logits of student and teacher, u = z / tau and w = t / tau,
//! `divergence = tau^2 KL(softmax(w) || softmax(u)) = tau^2 (sum_v q (w - u) + lse(u) - lse(w))` with q = softmax(w), and
//! `dz += factor weight tau (softmax(u) - q)`.
//!
//! The teacher's logits live only for some rows of a chunk, and are replaced by the addend of the student's gradients.
//! Cost: 2 N D' V operations for a teacher of width D'.
#![allow(unsafe_code)] // rows by address

use crate::arena::Arena;
use crate::ctx::{Ctx, Machine, Span, padded};
use crate::gemm::{self, Epilogue, Factor, Gemm, Shape};
use crate::operand::{AnyMat, Mat};
use crate::simd::math::exp;
use crate::simd::{Kernel, Simd, load_part, store_part};
use bessemer_tensor::op::{IGNORED, LinearCrossEntropy, Teacher};
use bessemer_units::DType;

/// Rows of the teacher's logits that are made at a time: a quarter of the largest chunk of the student's.
const TEACHER_ROWS: usize = 256;

/// Rows of a chunk of `rows` that are processed at a time.
pub(super) fn piece_rows(rows: usize) -> usize {
    rows.min(TEACHER_ROWS)
}

/// Scratch floats for the teacher's logits of some rows of chunks of these sizes, and for the products that make them.
pub(super) fn workspace(machine: Machine, op: &LinearCrossEntropy, chunks: [usize; 2]) -> (usize, usize) {
    let Some(teacher) = &op.teacher else { return (0, 0) };
    let (v, d) = (teacher.weight.rows, teacher.x.cols);
    let product = |rows: usize| {
        let (a, b, out) = (DType::F32, teacher.weight.dtype(), DType::F32);
        gemm::workspace(machine, &Shape { m: rows, n: v, k: d, a, b, out, divisible: true, whole: None })
    };
    let pieces = chunks.into_iter().flat_map(|rows| [piece_rows(rows), rows % piece_rows(rows)]);
    let products = pieces.filter(|rows| *rows > 0).map(product).max().unwrap_or(0);
    (padded(piece_rows(chunks[0]) * v), products)
}

/// A teacher whose divergence has a weight.
pub(super) struct Distilling<'a> {
    op: &'a Teacher,
    weight: AnyMat,
    divergence: Mat,
    /// Weight of the divergence.
    factor: f32,
    logits: Span,
}

impl<'a> Distilling<'a> {
    /// The teacher of a loss, if there is one and its factor is not 0; divergences are 0 otherwise. `logits`: memory for its logits of some rows.
    pub(super) fn new(ctx: &Ctx<'_>, op: &'a LinearCrossEntropy, logits: Span) -> Option<Distilling<'a>> {
        let op = op.teacher.as_ref()?;
        let (factor, divergence) = (ctx.f32(&op.factor).get(0, 0), ctx.f32(&op.divergence));
        if factor == 0.0 {
            (0..divergence.cols).for_each(|n| divergence.set(0, n, 0.0));
            return None;
        }
        Some(Distilling { op, weight: ctx.any(&op.weight), divergence, factor, logits })
    }

    /// The teacher's logits of `count` rows from `first` on. `skip`: floats of the workspace that are in use.
    pub(super) fn logits(&self, ctx: &Ctx<'_>, first: usize, count: usize, skip: usize) -> Mat {
        let v = self.weight.rows;
        let x = ctx.f32(&self.op.x.rows(first, count));
        // SAFETY: the logits are in this launch's workspace.
        let t: Mat = unsafe { Mat::new(self.logits.at(0, count * v), count, v, v) };
        let epilogue = Epilogue::store(t, false);
        gemm::run(
            ctx,
            &Gemm { k: x.cols, a: Factor::rows(&x), b: Factor::rows(self.weight), epilogue },
            skip,
        );
        t
    }

    /// Computes the divergences of rows from `first` on, whose logits these are; `factors`: of the gradients of these rows, if there are any.
    pub(super) fn divergence<'b>(
        &self,
        (first, targets): (usize, &'b [u32]),
        [student, teacher]: [&'b Mat; 2],
        factors: Option<*const f32>,
        rows: [usize; 2],
    ) -> Divergence<'b> {
        Divergence {
            student,
            teacher,
            targets,
            divergence: self.divergence.row(0).wrapping_add(first),
            backward: factors.map(|factors| (factors, self.factor)),
            temperature: self.op.temperature,
            rows,
        }
    }
}

/// Divergences of some rows. The teacher's logits become the addend of the student's gradient, if requested.
pub(super) struct Divergence<'a> {
    student: &'a Mat,
    teacher: &'a Mat,
    targets: &'a [u32],
    divergence: *mut f32,
    /// Factors on the gradients of the rows, and weight of the divergence.
    backward: Option<(*const f32, f32)>,
    temperature: f32,
    /// The first, and how many.
    rows: [usize; 2],
}

/// The largest of `v` numbers; a NaN is passed over, and found by the sums.
#[inline(always)]
unsafe fn largest<S: Simd>(z: *const f32, v: usize) -> f32 {
    let whole = v / S::LANES * S::LANES;
    // SAFETY: numbers c .. c + LANES below `whole`, and those after it.
    unsafe {
        let mut top = S::splat(f32::NEG_INFINITY);
        for c in (0..whole).step_by(S::LANES) {
            top = S::max(S::load(z.add(c)), top);
        }
        (whole..v).map(|c| *z.add(c)).fold(S::hmax(top), |max, z| if z > max { z } else { max })
    }
}

impl Kernel for Divergence<'_> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Divergence { student, teacher, targets, divergence, backward, temperature, rows } = self;
        let v = student.cols;
        // SAFETY: register arithmetic only.
        let cold = unsafe { S::splat(1.0 / temperature) };
        for (r, &target) in targets.iter().enumerate().skip(rows[0]).take(rows[1]) {
            let (z, t) = (student.row(r).cast_const(), teacher.row(r));
            // SAFETY: columns c .. c + n of row r of both, and the divergence and factor of row r.
            unsafe {
                if target == IGNORED {
                    *divergence.add(r) = 0.0;
                    continue;
                }
                let (student_max, teacher_max) = (S::splat(largest::<S>(z, v)), S::splat(largest::<S>(t, v)));
                let [mut student_sum, mut teacher_sum, mut cross] = [S::splat(0.0); 3];
                for c in (0..v).step_by(S::LANES) {
                    let n = S::LANES.min(v - c);
                    let u = S::mul(S::sub(load_part::<S>(z.add(c), n), student_max), cold);
                    let w = S::mul(S::sub(load_part::<S>(t.add(c), n), teacher_max), cold);
                    let (mut p, mut q) = (exp::<S>(u), exp::<S>(w));
                    let mut term = S::mul(q, S::sub(w, u));
                    store_part::<S>(t.add(c), q, n);
                    if n < S::LANES {
                        // Lanes after the last column are no terms.
                        [p, q, term] = [p, q, term].map(|lanes| {
                            let mut part = [0.0f32; 64];
                            store_part::<S>(part.as_mut_ptr(), lanes, n);
                            S::load(part.as_ptr())
                        });
                    }
                    student_sum = S::add(student_sum, p);
                    teacher_sum = S::add(teacher_sum, q);
                    cross = S::add(cross, term);
                }
                let [student_sum, teacher_sum, cross] = [student_sum, teacher_sum, cross].map(|x| S::sum(x));
                let divided = cross / teacher_sum + (student_sum.ln() - teacher_sum.ln());
                *divergence.add(r) = temperature * temperature * divided;
                let Some((factors, weight)) = backward else { continue };
                let scale = *factors.add(r) * weight * temperature;
                let (of_student, of_teacher) =
                    (S::splat(scale / student_sum), S::splat(-scale / teacher_sum));
                for c in (0..v).step_by(S::LANES) {
                    let n = S::LANES.min(v - c);
                    let u = S::mul(S::sub(load_part::<S>(z.add(c), n), student_max), cold);
                    let q = load_part::<S>(t.add(c).cast_const(), n);
                    let added = S::fma(exp::<S>(u), of_student, S::mul(q, of_teacher));
                    store_part::<S>(t.add(c), added, n);
                }
            }
        }
    }
}

/// Adds the rows of a matrix to those of another whose target is scored.
pub(super) struct AddRows<'a> {
    pub(super) to: &'a Mat,
    pub(super) added: &'a Mat,
    pub(super) targets: &'a [u32],
    /// The first, and how many.
    pub(super) rows: [usize; 2],
}

impl Kernel for AddRows<'_> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let AddRows { to, added, targets, rows } = self;
        for (r, _) in targets.iter().enumerate().skip(rows[0]).take(rows[1]).filter(|(_, t)| **t != IGNORED) {
            let (to_row, from) = (to.row(r), added.row(r).cast_const());
            for c in (0..to.cols).step_by(S::LANES) {
                let n = S::LANES.min(to.cols - c);
                // SAFETY: columns c .. c + n of row r of both.
                unsafe {
                    let sum =
                        S::add(load_part::<S>(to_row.add(c).cast_const(), n), load_part::<S>(from.add(c), n));
                    store_part::<S>(to_row.add(c), sum, n);
                }
            }
        }
    }
}

/// The teacher of the plain form.
pub(super) struct ReferenceTeacher {
    x: Mat,
    weight: AnyMat,
    factor: f64,
    temperature: f64,
    divergence: Mat,
}

/// Log-softmax.
fn log_softmax(logits: impl Iterator<Item = f64> + Clone) -> Vec<f64> {
    let max = logits.clone().fold(f64::NEG_INFINITY, f64::max);
    let lse = max + logits.clone().map(|z| (z - max).exp()).sum::<f64>().ln();
    logits.map(|z| z - lse).collect()
}

impl ReferenceTeacher {
    pub(super) fn new(arena: &Arena, op: &Teacher) -> ReferenceTeacher {
        ReferenceTeacher {
            x: arena.f32(&op.x),
            weight: arena.any(&op.weight),
            factor: f64::from(arena.f32(&op.factor).get(0, 0)),
            temperature: f64::from(op.temperature),
            divergence: arena.f32(&op.divergence),
        }
    }

    /// Row n without a scored target.
    pub(super) fn ignore(&self, n: usize) {
        self.divergence.set(0, n, 0.0);
    }

    /// Writes the divergence of row n, whose logits of the student are z, and returns the addend of their gradient for a token of
    /// factor 1.
    pub(super) fn row(&self, n: usize, z: &[f64]) -> Vec<f64> {
        if self.factor == 0.0 {
            self.ignore(n);
            return vec![0.0; z.len()];
        }
        let (x, w, tau) = (&self.x, &self.weight, self.temperature);
        let product = |v| (0..x.cols).map(|d| f64::from(x.get(n, d)) * f64::from(w.get(v, d))).sum::<f64>();
        let teacher: Vec<f64> = (0..w.rows).map(product).collect();
        let of_teacher = log_softmax(teacher.iter().map(|t| t / tau));
        let of_student = log_softmax(z.iter().map(|z| z / tau));
        let pairs = || of_teacher.iter().zip(&of_student);
        let divergence: f64 = pairs().map(|(q, p)| q.exp() * (q - p)).sum();
        self.divergence.set(0, n, (tau * tau * divergence) as f32);
        pairs().map(|(q, p)| self.factor * tau * (p.exp() - q.exp())).collect()
    }
}
