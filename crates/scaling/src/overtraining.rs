//! Training for longer than is best, and tasks (Gadre et al. 2024, "Language models scale reliably with over-training and on downstream tasks").
//!
//! ```text
//! L(C, M) = E + (a M^eta + b M^-eta) C^-eta,   C = 6 N D, M = D / N
//! Err(L)  = eps - k exp(-gamma L)
//! ```
//!
//! The first is the parametric law with one exponent `alpha = beta = 2 eta`, written in compute and tokens for each parameter:
//! `a = A 6^eta`, `b = B 6^eta`.

use crate::compute::FLOPS_PER_PARAMETER_AND_TOKEN;
use crate::{Allocation, ParametricLaw};

/// Loss by compute and tokens for each parameter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OvertrainingLaw {
    /// Loss that no compute goes below, nats for each token.
    pub e: f64,
    /// Factor of the term that grows with tokens for each parameter.
    pub a: f64,
    /// Factor of the term that falls with them.
    pub b: f64,
    /// Exponent.
    pub eta: f64,
}

impl OvertrainingLaw {
    /// The form of a parametric law whose exponents are one. None if they differ.
    pub fn of(law: &ParametricLaw) -> Option<OvertrainingLaw> {
        let eta = law.alpha / 2.0;
        let shift = eta * FLOPS_PER_PARAMETER_AND_TOKEN.ln();
        (law.alpha == law.beta).then(|| OvertrainingLaw {
            e: law.irreducible(),
            a: (law.ln_a + shift).exp(),
            b: (law.ln_b + shift).exp(),
            eta,
        })
    }

    /// Loss at `flops` and `ratio` tokens for each parameter.
    pub fn loss(&self, flops: f64, ratio: f64) -> f64 {
        let power = ratio.powf(self.eta);
        self.e + (self.a * power + self.b / power) * flops.powf(-self.eta)
    }

    /// Tokens for each parameter with the least loss, whatever the compute: `(b/a)^(1/(2 eta))`.
    pub fn best_ratio(&self) -> f64 {
        (self.b / self.a).powf(1.0 / (2.0 * self.eta))
    }

    /// Sizes at a compute and a ratio.
    pub fn allocation(flops: f64, ratio: f64) -> Allocation {
        let parameters = (flops / (FLOPS_PER_PARAMETER_AND_TOKEN * ratio)).sqrt();
        Allocation { parameters, tokens: ratio * parameters }
    }
}

/// The mean error of a set of tasks by the loss: it falls from eps, the error of guessing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TaskErrorLaw {
    /// Error where the loss says nothing any more, 0 to 1.
    pub eps: f64,
    /// How far the error falls.
    pub k: f64,
    /// How fast.
    pub gamma: f64,
}

impl TaskErrorLaw {
    /// Error at a loss.
    pub fn error(&self, loss: f64) -> f64 {
        self.eps - self.k * (-self.gamma * loss).exp()
    }

    /// The law through (loss, error) pairs by least squares: eps and k are linear at each gamma, and the sum has one minimum over gamma.
    /// None with fewer than three pairs of different losses.
    pub fn fit(pairs: &[[f64; 2]]) -> Option<TaskErrorLaw> {
        let at = |gamma: f64| {
            let n = pairs.len() as f64;
            let x: Vec<f64> = pairs.iter().map(|p| (-gamma * p[0]).exp()).collect();
            let (mx, my) = (x.iter().sum::<f64>() / n, pairs.iter().map(|p| p[1]).sum::<f64>() / n);
            let sxx: f64 = x.iter().map(|x| (x - mx).powi(2)).sum();
            let sxy: f64 = x.iter().zip(pairs).map(|(x, p)| (x - mx) * (p[1] - my)).sum();
            let slope = sxy / sxx;
            let law = TaskErrorLaw { eps: my - slope * mx, k: -slope, gamma };
            let squares: f64 = pairs.iter().map(|p| (law.error(p[0]) - p[1]).powi(2)).sum();
            (law, squares)
        };
        let mut losses: Vec<f64> = pairs.iter().map(|p| p[0]).collect();
        losses.sort_by(f64::total_cmp);
        losses.dedup();
        if losses.len() < 3 {
            return None;
        }
        let gamma = crate::search::minimum(0.01f64.ln(), 20f64.ln(), |g| at(g.exp()).1)?;
        Some(at(gamma.exp()).0)
    }
}
