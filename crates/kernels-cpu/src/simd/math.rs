//! Exponential, activations and their derivatives, a vector at a time.
//!
//! Accuracy, measured by the tests of this folder over their whole range: `exp` within 2 units in the last place (ulp),
//! except that results below 2^-125 are 0; SiLU, both GELUs and their derivatives within 4e-7 absolute or relative,
//! whichever is larger.
#![allow(unsafe_code)] // calls into `Simd`

use super::Simd;
use bessemer_tensor::op::ActivationKind;
use std::f32::consts::LOG2_E;

/// exp(x). `x = n ln 2 + r` with |r| <= ln(2)/2 (Cody & Waite's split of ln 2 keeps r exact), a polynomial in r that
/// interpolates `(exp(r) - 1 - r)/r^2` at Chebyshev nodes (relative error 1.0e-8), and a scale of 2^n in two factors so
/// that n may be 128. Below -86.6 the result is 0, above 88.72 infinity; NaN stays NaN.
///
/// # Safety
/// Same requirements as [`Simd`].
#[inline(always)]
pub(crate) unsafe fn exp<S: Simd>(x: S::V) -> S::V {
    const LN2_HI: f32 = 0.693_359_4;
    const LN2_LO: f32 = -2.121_944_4e-4;
    const LARGEST: f32 = 88.722_84;
    const SMALLEST: f32 = -86.6;
    // SAFETY: register arithmetic only.
    unsafe {
        // With the bound first, a NaN in x comes through both comparisons.
        let y = S::min(S::splat(LARGEST), S::max(S::splat(SMALLEST), x));
        let n = S::round(S::mul(y, S::splat(LOG2_E)));
        let r = S::fma(n, S::splat(-LN2_HI), y);
        let r = S::fma(n, S::splat(-LN2_LO), r);
        let q = S::fma(S::splat(1.392_617_6e-3), r, S::splat(8.363_173e-3));
        let q = S::fma(q, r, S::splat(4.166_655_5e-2));
        let q = S::fma(q, r, S::splat(1.666_657_8e-1));
        let q = S::fma(q, r, S::splat(0.5));
        let p = S::add(S::fma(S::mul(r, r), q, r), S::splat(1.0));
        let e = S::mul(S::mul(p, S::pow2(S::sub(n, S::splat(1.0)))), S::splat(2.0));
        let e = S::select_lt(x, S::splat(SMALLEST), S::splat(0.0), e);
        S::select_lt(S::splat(LARGEST), x, S::splat(f32::INFINITY), e)
    }
}

/// 2^x for x <= 126, for softmax: [`exp2_normal`], and 0 below -125; NaN stays NaN.
///
/// # Safety
/// Same requirements as [`Simd`].
#[inline(always)]
pub(crate) unsafe fn exp2<S: Simd>(x: S::V) -> S::V {
    // SAFETY: register arithmetic only.
    unsafe { S::select_lt(x, S::splat(-125.0), S::splat(0.0), exp2_normal::<S>(x)) }
}

/// 2^x for |x| <= 125: `x = n + r` with |r| <= 1/2, a polynomial of degree 5 in r (relative error 7.5e-8, with rounding 2.5e-7), and n
/// added to the exponent. Of other numbers, and of NaN, it is any number.
#[inline(always)]
unsafe fn exp2_normal<S: Simd>(x: S::V) -> S::V {
    /// 1.5 * 2^23: adding it rounds to an integer and leaves that integer in the low bits.
    const SHIFT: f32 = 12_582_912.0;
    // SAFETY: register arithmetic only.
    unsafe {
        let shifted = S::add(x, S::splat(SHIFT));
        let r = S::sub(x, S::sub(shifted, S::splat(SHIFT)));
        let p = S::fma(S::splat(1.327_647_1e-3), r, S::splat(9.675_541e-3));
        let p = S::fma(p, r, S::splat(5.550_713e-2));
        let p = S::fma(p, r, S::splat(0.240_221_2));
        let p = S::fma(p, r, S::splat(0.693_146_94));
        let p = S::fma(p, r, S::splat(1.000_000_1));
        S::times_pow2(p, shifted)
    }
}

/// sigmoid(x) and 1 - sigmoid(x) = e sigmoid(x) with e = exp(-x), which keeps its digits where sigmoid is near 1, for
/// `x = -ln(2) t`, |t| <= 125. If t is NaN they are any numbers.
#[inline(always)]
unsafe fn sigmoid_pair<S: Simd>(t: S::V) -> (S::V, S::V) {
    // SAFETY: register arithmetic only.
    unsafe {
        let e = exp2_normal::<S>(t);
        let s = S::div(S::splat(1.0), S::add(S::splat(1.0), e));
        (s, S::mul(e, s))
    }
}

/// The normal distribution function Phi(x) and density phi(x). `Phi(-a) = erfc(z)/2` with z = a/sqrt 2 and
/// `erfc(z) = exp(-z^2) t h(t)`, t = 1/(1 + 0.3 z), h a polynomial that interpolates at Chebyshev nodes of
/// z in [0, 10] (relative error 2.5e-8).
#[inline(always)]
unsafe fn normal<S: Simd>(x: S::V) -> (S::V, S::V) {
    const H: [f32; 9] = [
        0.169_173_06,
        0.170_949_12,
        0.146_796_02,
        0.220_539_17,
        -0.106_983_36,
        0.564_514_2,
        -0.526_151_66,
        0.491_934_27,
        -0.130_770_88,
    ];
    // SAFETY: register arithmetic only.
    unsafe {
        let z = S::mul(S::abs(x), S::splat(std::f32::consts::FRAC_1_SQRT_2));
        let t = S::div(S::splat(1.0), S::fma(z, S::splat(0.3), S::splat(1.0)));
        let mut h = S::splat(H[8]);
        for &c in H[..8].iter().rev() {
            h = S::fma(h, t, S::splat(c));
        }
        let density = exp::<S>(S::mul(S::mul(x, x), S::splat(-0.5)));
        let tail = S::mul(S::mul(S::splat(0.5), density), S::mul(t, h));
        let cdf = S::select_lt(S::splat(0.0), x, S::sub(S::splat(1.0), tail), tail);
        (cdf, S::mul(density, S::splat(0.398_942_3)))
    }
}

/// Beyond this the exact GELU is x or 0 to f32 accuracy; inside, nothing overflows.
const GELU_FLAT: f32 = 16.0;
/// The same bound of the tanh GELU, at which its power of two is 2^122.7.
const GELU_TANH_FLAT: f32 = 9.9;
/// The same bound of SiLU, at which its power of two is 2^124.1.
const SILU_FLAT: f32 = 86.0;
/// 2 sqrt(2/pi): tanh(u) = 2 sigmoid(2u) - 1.
const GELU_A: f32 = 1.595_769;
const GELU_B: f32 = 0.044_715;

/// x from `-bound` on, where a function that ends in 0 has ended, and the same up to `bound`. NaN stays NaN.
#[inline(always)]
unsafe fn bounded<S: Simd>(x: S::V, bound: f32) -> (S::V, S::V) {
    // SAFETY: register arithmetic only.
    unsafe {
        let low = S::max(S::splat(-bound), x);
        (low, S::min(S::splat(bound), low))
    }
}

/// f(x).
///
/// # Safety
/// Same requirements as [`Simd`].
#[inline(always)]
pub(crate) unsafe fn activate<S: Simd>(kind: ActivationKind, x: S::V) -> S::V {
    // SAFETY: register arithmetic only.
    unsafe {
        match kind {
            ActivationKind::Relu => S::max(S::splat(0.0), x),
            ActivationKind::ReluSquared => {
                let y = S::max(S::splat(0.0), x);
                S::mul(y, y)
            }
            ActivationKind::Silu => {
                let (low, c) = bounded::<S>(x, SILU_FLAT);
                S::mul(low, sigmoid_pair::<S>(S::mul(c, S::splat(-LOG2_E))).0)
            }
            ActivationKind::GeluTanh => {
                let (low, c) = bounded::<S>(x, GELU_TANH_FLAT);
                let slope =
                    S::fma(S::mul(c, c), S::splat(-LOG2_E * GELU_A * GELU_B), S::splat(-LOG2_E * GELU_A));
                S::mul(low, sigmoid_pair::<S>(S::mul(c, slope)).0)
            }
            ActivationKind::GeluErf => {
                let (cdf, _) = normal::<S>(bounded::<S>(x, GELU_FLAT).1);
                S::mul(x, cdf)
            }
        }
    }
}

/// f(x) and f'(x).
///
/// # Safety
/// Same requirements as [`Simd`].
#[inline(always)]
pub(crate) unsafe fn activate_with_derivative<S: Simd>(kind: ActivationKind, x: S::V) -> (S::V, S::V) {
    // SAFETY: register arithmetic only.
    unsafe {
        let one = S::splat(1.0);
        match kind {
            ActivationKind::Relu => {
                let zero = S::splat(0.0);
                // 0 * x keeps a NaN.
                (S::max(zero, x), S::select_lt(zero, x, one, S::mul(zero, x)))
            }
            ActivationKind::ReluSquared => {
                let y = S::max(S::splat(0.0), x);
                (S::mul(y, y), S::add(y, y))
            }
            ActivationKind::Silu => {
                let (low, c) = bounded::<S>(x, SILU_FLAT);
                let (s, rest) = sigmoid_pair::<S>(S::mul(c, S::splat(-LOG2_E)));
                (S::mul(low, s), S::mul(s, S::fma(c, rest, one)))
            }
            ActivationKind::GeluTanh => {
                let (low, c) = bounded::<S>(x, GELU_TANH_FLAT);
                let c2 = S::mul(c, c);
                let slope = S::fma(c2, S::splat(-LOG2_E * GELU_A * GELU_B), S::splat(-LOG2_E * GELU_A));
                let du = S::fma(c2, S::splat(3.0 * GELU_A * GELU_B), S::splat(GELU_A));
                let (s, rest) = sigmoid_pair::<S>(S::mul(c, slope));
                (S::mul(low, s), S::mul(s, S::fma(S::mul(c, du), rest, one)))
            }
            ActivationKind::GeluErf => {
                let (_, c) = bounded::<S>(x, GELU_FLAT);
                let (cdf, pdf) = normal::<S>(c);
                (S::mul(x, cdf), S::fma(c, pdf, cdf))
            }
        }
    }
}
