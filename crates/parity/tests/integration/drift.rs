//! How far parameters may be apart after a few AdamW steps whose gradients differ by rounding.
//!
//! AdamW divides by the size of the gradient itself, so a fixed bound on parameters says nothing: where an element's gradient
//! is smaller than its rounding error, rounding decides the sign of a whole step. Of 4096 such elements one or two are
//! near zero, and which of them rounding turns over differs between instruction sets. The bound is therefore one for each
//! element, in units of its own gradient.
//!
//! With g_s the clipped gradient of step s, weights a_s = (1-b1) b1^(t-s) / (1-b1^t) and c_s = (1-b2) b2^(t-s) / (1-b2^t),
//! which each sum to 1, the update of step t is
//! ```text
//! u = M / (V + eps),   M = sum a_s g_s,   V = sqrt(sum c_s g_s^2)
//! ```
//! Let each g_s differ by at most d. Then M differs by at most d, being a mean; V differs by at most d, being a norm (triangle
//! inequality); and |u| <= C = sqrt(sum a_s^2 / c_s) (Cauchy-Schwarz). Writing u' = M' / (V' + eps) for the other run,
//! ```text
//! u - u' = (M - M') / (V + eps) + u' (V' - V) / (V + eps),   so   |u - u'| <= min(2 C, (1 + C) d / (V + eps))
//! ```
//! and V >= sqrt(c_1) |g_1|, which the reference tells. A parameter moves by lr u in each step, and decay only brings two of
//! them closer, so they end at most `lr sum |u - u'|` apart, and four roundings of their own for each step.
//!
//! d is a share of the largest element of the tensor's gradient: of the first step's, every element of which is held
//! against the bound of gradients ([`Bounds::gradient`]), which allows for sums of a few hundred products in f32 on a path through
//! all layers. Later steps get as much again, since they are taken at parameters that have moved apart. Measured over all
//! layouts and portable, AVX2 and AVX-512 kernels: the first gradients are 9e-7 apart, and d = 5e-5 would do. In the
//! models of `parity_pairwise` they are at most 1e-5 apart, in weights of QK-norm: sums over all tokens and heads that cancel.

use bessemer_optim::OptimConfig;
use bessemer_parity::{Bounds, Trajectory};

/// Bound on the distance of every element of a parameter, by its gradient in the first step.
pub(crate) struct Drift {
    /// Sum of the learning rates.
    lr: f64,
    steps: f64,
    eps: f64,
    /// Factor that clipped the first gradient, and the largest one of any step.
    clip: (f64, f64),
    /// C and sqrt(c_1) of the last step, at which C is largest and c_1 smallest.
    largest_update: f64,
    first_share: f64,
    /// d as a share of the largest element.
    gradient: f64,
}

impl Drift {
    pub(crate) fn new(optim: &OptimConfig, reference: &Trajectory, bounds: &Bounds) -> Drift {
        let factor = |norm: &f64| if optim.clip > 0.0 { (optim.clip / (norm + 1e-6)).min(1.0) } else { 1.0 };
        let clips: Vec<f64> = reference.norms.iter().map(factor).collect();
        let t = reference.norms.len() as i32;
        let share = |beta: f64, s: i32| (1.0 - beta) * beta.powi(t - s) / (1.0 - beta.powi(t));
        let (a, c) = (|s| share(optim.beta1, s), |s| share(optim.beta2, s));
        Drift {
            lr: optim.lr * f64::from(t),
            steps: f64::from(t),
            eps: optim.eps,
            clip: (clips[0], clips.iter().copied().fold(0.0, f64::max)),
            largest_update: (1..=t).map(|s| a(s) * a(s) / c(s)).sum::<f64>().sqrt(),
            first_share: c(1).sqrt(),
            gradient: 2.0 * bounds.gradient,
        }
    }

    /// Of the parameters that take AdamW's step, the one whose elements are furthest beyond their bounds, in words; none if
    /// all are within.
    pub(crate) fn problem(
        &self,
        found: &Trajectory,
        reference: &Trajectory,
        steps: &dyn Fn(&str) -> bool,
    ) -> Option<String> {
        let mut worst = (1.0, None);
        for (i, ((name, a), (_, b))) in found.params.iter().zip(&reference.params).enumerate() {
            let (of, gradient) = &reference.gradients[i];
            assert_eq!((name, a.len()), (of, gradient.len()), "gradients in the order of parameters");
            if !steps(name) {
                continue;
            }
            let largest = gradient.iter().fold(0.0f64, |m, g| m.max(f64::from(g.abs())));
            let d = self.clip.1 * self.gradient * largest;
            for (at, ((a, b), g)) in a.iter().zip(b).zip(gradient).enumerate() {
                let size = self.first_share * self.clip.0 * f64::from(g.abs()) + self.eps;
                let update = ((1.0 + self.largest_update) * d / size).min(2.0 * self.largest_update);
                let rounding = 4.0 * self.steps * f64::from(f32::EPSILON / 2.0) * f64::from(b.abs());
                let apart = f64::from((a - b).abs()) / (self.lr * update + rounding);
                // NaN is as far as can be.
                if apart.is_nan() || apart > worst.0 {
                    worst = (
                        apart,
                        Some(format!("element {at} of {name}: {a:e} and {b:e}, {apart:.1} times the bound")),
                    );
                }
            }
        }
        worst.1
    }
}
