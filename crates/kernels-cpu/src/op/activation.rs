//! Element-wise non-linearities `out = f(x)` and `dx = dout f'(x)`.
//!
//! - ReLU: `max(x, 0)`, derivative 0 at 0.
//! - Squared ReLU: `max(x, 0)^2`, derivative `2 max(x, 0)` (So et al. 2021, Primer).
//! - GELU, tanh form: `x/2 (1 + tanh u)`, `u = sqrt(2/pi) (x + 0.044715 x^3)`;
//!   derivative `(1 + tanh u)/2 + x/2 (1 - tanh^2 u) sqrt(2/pi) (1 + 0.134145 x^2)` (Hendrycks & Gimpel 2016).
//! - GELU, exact: `x Phi(x)`, `Phi(x) = (1 + erf(x/sqrt 2))/2`; derivative `Phi(x) + x phi(x)`.
//! - SiLU: `x s(x)`, `s(x) = 1/(1 + exp(-x))`; derivative `s (1 + x (1 - s))` (Elfwing et al. 2017).
//!
//! Cost: forward one read and one write, backward two reads and one write.
#![allow(unsafe_code)] // rows by address

use super::tiles::{Block, blocks};
use crate::arena::Arena;
use crate::ctx::Ctx;
use crate::element::{Element, with_element};
use crate::operand::Mat;
use crate::simd::math::{activate, activate_with_derivative};
use crate::simd::{Kernel, Simd, dispatch, load_part, store_part};
use bessemer_tensor::op::{Activation, ActivationBackward, ActivationKind};
use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, PI, SQRT_2};

struct Forward<'a, T>(ActivationKind, [&'a Mat<T>; 2], Block);

impl<T: Element> Kernel for Forward<'_, T> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Forward(kind, [x, out], block) = self;
        for r in block.rows {
            for c in block.cols.clone().step_by(S::LANES) {
                let n = S::LANES.min(block.cols.end - c);
                // SAFETY: columns c .. c + n of row r of both.
                unsafe {
                    let y = activate::<S>(kind, load_part::<S>(x.row(r).add(c), n));
                    store_part::<S>(out.row(r).add(c), y, n);
                }
            }
        }
    }
}

struct Backward<'a, T>(ActivationKind, [&'a Mat<T>; 3], Block);

impl<T: Element> Kernel for Backward<'_, T> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Backward(kind, [x, dout, dx], block) = self;
        for r in block.rows {
            for c in block.cols.clone().step_by(S::LANES) {
                let n = S::LANES.min(block.cols.end - c);
                // SAFETY: columns c .. c + n of row r of all three.
                unsafe {
                    let d = activate_with_derivative::<S>(kind, load_part::<S>(x.row(r).add(c), n)).1;
                    let d = S::mul(load_part::<S>(dout.row(r).add(c), n), d);
                    store_part::<S>(dx.row(r).add(c), d, n);
                }
            }
        }
    }
}

pub(crate) fn forward(ctx: &Ctx<'_>, op: &Activation) {
    with_element!(op.x.dtype(), T => typed_forward::<T>(ctx, op));
}

fn typed_forward<T: Element>(ctx: &Ctx<'_>, op: &Activation) {
    let (x, out) = (ctx.mat::<T>(&op.x), ctx.mat::<T>(&op.out));
    blocks(ctx, x.rows, x.cols, &|block| {
        // SAFETY: the instruction set is available; operands are checked views; blocks are disjoint.
        unsafe { dispatch(ctx.rung, Forward(op.kind, [&x, &out], block)) }
    });
}

pub(crate) fn backward(ctx: &Ctx<'_>, op: &ActivationBackward) {
    with_element!(op.x.dtype(), T => typed_backward::<T>(ctx, op));
}

fn typed_backward<T: Element>(ctx: &Ctx<'_>, op: &ActivationBackward) {
    let (x, dout, dx) = (ctx.mat::<T>(&op.x), ctx.mat(&op.dout), ctx.mat(&op.dx));
    blocks(ctx, x.rows, x.cols, &|block| {
        // SAFETY: as above.
        unsafe { dispatch(ctx.rung, Backward(op.kind, [&x, &dout, &dx], block)) }
    });
}

/// erf by its series `2/sqrt(pi) exp(-x^2) sum_n 2^n x^(2n+1) / (2n+1)!!` (Abramowitz & Stegun 7.1.6): all terms have
/// one sign, so it is accurate to a few units in the last place of f64.
pub(crate) fn erf_f64(x: f64) -> f64 {
    if x.is_nan() {
        return x;
    }
    if x.abs() > 6.0 {
        return x.signum();
    }
    let (mut term, mut sum, mut n) = (x, x, 0.0);
    while term.abs() > sum.abs() * 1e-18 {
        n += 1.0;
        term *= 2.0 * x * x / (2.0 * n + 1.0);
        sum += term;
    }
    FRAC_2_SQRT_PI * (-x * x).exp() * sum
}

/// f in f64.
pub(crate) fn value(kind: ActivationKind, x: f64) -> f64 {
    match kind {
        ActivationKind::Relu => {
            if x < 0.0 {
                0.0
            } else {
                x
            }
        }
        ActivationKind::ReluSquared => x * value(ActivationKind::Relu, x),
        ActivationKind::GeluTanh => 0.5 * x * (1.0 + tanh_argument(x).tanh()),
        ActivationKind::GeluErf => 0.5 * x * (1.0 + erf_f64(x * FRAC_1_SQRT_2)),
        ActivationKind::Silu => x / (1.0 + (-x).exp()),
    }
}

fn tanh_argument(x: f64) -> f64 {
    (2.0 / PI).sqrt() * (x + 0.044715 * x * x * x)
}

/// f' in f64.
pub(crate) fn derivative(kind: ActivationKind, x: f64) -> f64 {
    match kind {
        ActivationKind::Relu => {
            if x > 0.0 {
                1.0
            } else {
                0.0 * x
            }
        }
        ActivationKind::ReluSquared => 2.0 * value(ActivationKind::Relu, x),
        ActivationKind::GeluTanh => {
            let t = tanh_argument(x).tanh();
            0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * (2.0 / PI).sqrt() * (1.0 + 3.0 * 0.044715 * x * x)
        }
        ActivationKind::GeluErf => {
            let density = (-0.5 * x * x).exp() / (SQRT_2 * PI.sqrt());
            0.5 * (1.0 + erf_f64(x * FRAC_1_SQRT_2)) + x * density
        }
        ActivationKind::Silu => {
            let s = 1.0 / (1.0 + (-x).exp());
            s * (1.0 + x * (1.0 - s))
        }
    }
}

pub(crate) fn forward_reference(arena: &Arena, op: &Activation) {
    with_element!(op.x.dtype(), T => typed_forward_reference::<T>(arena, op));
}

fn typed_forward_reference<T: Element>(arena: &Arena, op: &Activation) {
    let (x, out) = (arena.mat::<T>(&op.x), arena.mat::<T>(&op.out));
    for r in 0..x.rows {
        for c in 0..x.cols {
            out.set(r, c, value(op.kind, f64::from(x.get(r, c))) as f32);
        }
    }
}

pub(crate) fn backward_reference(arena: &Arena, op: &ActivationBackward) {
    with_element!(op.x.dtype(), T => typed_backward_reference::<T>(arena, op));
}

fn typed_backward_reference<T: Element>(arena: &Arena, op: &ActivationBackward) {
    let (x, dout, dx) = (arena.mat::<T>(&op.x), arena.mat::<T>(&op.dout), arena.mat::<T>(&op.dx));
    for r in 0..x.rows {
        for c in 0..x.cols {
            let d = f64::from(dout.get(r, c)) * derivative(op.kind, f64::from(x.get(r, c)));
            dx.set(r, c, d as f32);
        }
    }
}
