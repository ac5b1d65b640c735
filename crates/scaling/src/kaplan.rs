//! The laws of Kaplan et al. 2020 ("Scaling laws for neural language models"), with their constants for WebText2.
//!
//! N are parameters **without embeddings**, D tokens of WebText2 in its vocabulary of 50,257, C petaflop/s-days, L nats for each token.
//! The laws of one quantity and the law of two have constants of their own in the paper; both are as printed there.
//!
//! [`fit_kaplan`] fits the law of both sizes to runs by the objective of [`crate::fit_parametric`], so that both laws are held against the same losses.

use crate::compute::{FLOPS_PER_PARAMETER_AND_TOKEN, PETAFLOP_DAY};
use crate::fit::{GRID, Point, check, points};
use crate::newton::{self, MOST, Matrix, Vector, cholesky_solve, huber};
use crate::{Allocation, ParametricLaw, ScalingError, TrainedRun};

/// Loss of a model of `parameters` trained to convergence on text without end (equation 1.1).
pub fn loss_of_parameters(parameters: f64) -> f64 {
    (8.8e13 / parameters).powf(0.076)
}

/// Loss of a large model stopped early on `tokens` of text (equation 1.2).
pub fn loss_of_tokens(tokens: f64) -> f64 {
    (5.4e13 / tokens).powf(0.095)
}

/// Loss at `days` petaflop/s-days that are spent as well as possible (equation 1.3).
pub fn loss_of_compute(days: f64) -> f64 {
    (3.1e8 / days).powf(0.050)
}

/// Loss after `steps` steps of batches far above the critical size (equation 1.6).
pub fn loss_of_steps(parameters: f64, steps: f64) -> f64 {
    (6.5e13 / parameters).powf(0.077) + (2.1e3 / steps).powf(0.76)
}

/// Critical batch in tokens at a loss: with it training takes twice the least steps and twice the least tokens (equation 1.4).
pub fn critical_batch(loss: f64) -> f64 {
    2e8 * loss.powf(-1.0 / 0.21)
}

/// How `days` petaflop/s-days are spent best: parameters without embeddings, tokens of a batch, steps, tokens (table 6 and section 6.1).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KaplanAllocation {
    /// Parameters without embeddings.
    pub parameters: f64,
    /// Tokens of a batch.
    pub batch: f64,
    /// Steps.
    pub steps: f64,
    /// Tokens of the whole training.
    pub tokens: f64,
}

/// The best allocation of `days` petaflop/s-days. Later work found more tokens and fewer parameters to be better (Hoffmann et al. 2022).
pub fn best(days: f64) -> KaplanAllocation {
    KaplanAllocation {
        parameters: 1.3e9 * days.powf(0.73),
        batch: 2.0e6 * days.powf(0.24),
        steps: 5.4e3 * days.powf(0.03),
        tokens: 2e10 * days.powf(0.27),
    }
}

/// Least steps and least compute of a training of `steps` steps in batches of `batch` tokens, at a critical batch of `critical`
/// (section 5.1): `S / (1 + critical/batch)` and `C / (1 + batch/critical)`.
pub fn least_steps_and_flops(steps: f64, flops: f64, batch: f64, critical: f64) -> (f64, f64) {
    (steps / (1.0 + critical / batch), flops / (1.0 + batch / critical))
}

/// Tokens from which a model of so many parameters without embeddings is not limited by its text (section 4.2).
pub fn tokens_without_overfitting(parameters: f64) -> f64 {
    5e3 * parameters.powf(0.74)
}

/// Loss at both sizes (equation 1.5): `L(N, D) = ((Nc / N)^(aN / aD) + Dc / D)^aD`. Unlike [`ParametricLaw`] it has no loss that no size and no text go
/// below.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KaplanLaw {
    /// Nc, parameters without embeddings.
    pub parameters: f64,
    /// Dc, tokens.
    pub tokens: f64,
    /// aN.
    pub alpha_parameters: f64,
    /// aD.
    pub alpha_tokens: f64,
}

impl KaplanLaw {
    /// The constants of table 2.
    pub const PUBLISHED: KaplanLaw =
        KaplanLaw { parameters: 6.4e13, tokens: 1.8e13, alpha_parameters: 0.076, alpha_tokens: 0.103 };

    /// Loss in nats for each token. Parameters of `at` are those without embeddings.
    pub fn loss(&self, at: Allocation) -> f64 {
        let of_size = (self.parameters / at.parameters).powf(self.alpha_parameters / self.alpha_tokens);
        (of_size + self.tokens / at.tokens).powf(self.alpha_tokens)
    }

    /// The sizes of least loss at `C = 6 N D`. With p = aN / aD the sum `(Nc / N)^p + 6 Dc N / C` is least at
    /// `N = (p Nc^p C / (6 Dc))^(1 / (p + 1))`.
    pub fn frontier(&self) -> KaplanFrontier {
        let p = self.alpha_parameters / self.alpha_tokens;
        let ln = p.ln() + p * self.parameters.ln() + PETAFLOP_DAY.ln()
            - (FLOPS_PER_PARAMETER_AND_TOKEN * self.tokens).ln();
        KaplanFrontier { parameters: (ln / (p + 1.0)).exp(), exponent: 1.0 / (p + 1.0) }
    }
}

/// Best sizes by compute: `N = N1 C^a`, C in petaflop/s-days, and `D = C / (6 N)`. Parameters are those without embeddings.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KaplanFrontier {
    /// N1.
    pub parameters: f64,
    /// a.
    pub exponent: f64,
}

impl KaplanFrontier {
    /// The frontier of table 6. It follows from training short of convergence at a batch that grows, not from equation 1.5 with one reading of the
    /// text, whose frontier has the exponent .575.
    pub const PUBLISHED: KaplanFrontier = KaplanFrontier { parameters: 1.3e9, exponent: 0.73 };

    /// The sizes at `flops` operations.
    pub fn best(&self, flops: f64) -> Allocation {
        let parameters = self.parameters * (flops / PETAFLOP_DAY).powf(self.exponent);
        Allocation { parameters, tokens: flops / (FLOPS_PER_PARAMETER_AND_TOKEN * parameters) }
    }

    /// The sizes at which these parameters are the best.
    pub fn best_for_parameters(&self, parameters: f64) -> Allocation {
        self.best(PETAFLOP_DAY * (parameters / self.parameters).powf(1.0 / self.exponent))
    }

    /// The sizes at which these tokens are the best; None where more compute never takes more text.
    pub fn best_for_tokens(&self, tokens: f64) -> Option<Allocation> {
        let of_one = PETAFLOP_DAY / (FLOPS_PER_PARAMETER_AND_TOKEN * self.parameters);
        let share = 1.0 - self.exponent;
        (share > 0.0).then(|| self.best(PETAFLOP_DAY * (tokens / of_one).powf(1.0 / share)))
    }

    /// The compute at which this frontier and a law that counts embeddings have a model of one size, and on which side of it this one has the larger
    /// models. Of several the one at most compute: where embeddings are most of a model, the frontiers may cross once more. None if they do not cross
    /// between 1e9 and 1e30 operations.
    pub fn crossing(&self, law: &ParametricLaw, embeddings: Embeddings) -> Option<Crossing> {
        let larger = |ln_flops: f64| {
            let flops = ln_flops.exp();
            embeddings.with(self.best(flops).parameters) > law.best(flops).parameters
        };
        let (least, most) = (1e9f64.ln(), 1e30f64.ln());
        let steps = 480;
        let at = |step: usize| least + (most - least) * step as f64 / steps as f64;
        let larger_beyond = larger(most);
        let step = (0..steps).rev().find(|step| larger(at(*step)) != larger_beyond)?;
        let (mut low, mut high) = (at(step), at(step + 1));
        while high - low > 1e-12 * high {
            let middle = 0.5 * (low + high);
            if larger(middle) == larger_beyond { high = middle } else { low = middle }
        }
        Some(Crossing { flops: high.exp(), larger_beyond })
    }
}

/// Where two frontiers cross.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Crossing {
    /// Compute.
    pub flops: f64,
    /// Whether Kaplan's frontier has the larger models at more compute; else at less.
    pub larger_beyond: bool,
}

/// Parameters with embeddings by those without: `N + w N^(1/3)` (the form of Pearce and Song 2024, "Reconciling Kaplan and Chinchilla scaling laws"), as
/// embeddings grow with the width and the rest with its cube.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Embeddings {
    /// w.
    pub factor: f64,
}

impl Embeddings {
    /// w of four models of Hoffmann et al. 2022 (table A9: 74M, 306M, 1.1B, 6.8B parameters) with a vocabulary of 32,000.
    pub const HOFFMANN: Embeddings = Embeddings { factor: 55_276.0 };

    /// The factor of models of these parameters without and with embeddings: the geometric mean. None without such models.
    pub fn of(models: impl Iterator<Item = [f64; 2]>) -> Option<Embeddings> {
        let (mut sum, mut count) = (0.0, 0);
        for [without, with] in models.filter(|[without, with]| with > without && *without > 0.0) {
            sum += ((with - without) / without.cbrt()).ln();
            count += 1;
        }
        (count > 0).then(|| Embeddings { factor: (sum / f64::from(count)).exp() })
    }

    /// Parameters with embeddings.
    pub fn with(&self, without: f64) -> f64 {
        without + self.factor * without.cbrt()
    }
}

/// A fitted law of both sizes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KaplanFit {
    /// The law.
    pub law: KaplanLaw,
    /// The sum of Huber's penalties at it.
    pub objective: f64,
}

/// Constants of the law.
const CONSTANTS: usize = 4;

/// Fits the law of both sizes to runs whose parameters are those without embeddings.
///
/// # Errors
/// As [`crate::fit_parametric`].
pub fn fit_kaplan(runs: &[TrainedRun]) -> Result<KaplanFit, ScalingError> {
    check(runs, CONSTANTS)?;
    let points = points(runs);
    let fits = starts(&points).into_iter().map(|start| {
        let (x, objective) = newton::descend(|x| derivatives(&points, x), start, points.len());
        KaplanFit { law: to_law(&x), objective }
    });
    let best =
        fits.filter(|fit| fit.objective.is_finite()).min_by(|a, b| a.objective.total_cmp(&b.objective));
    best.ok_or(ScalingError::NoFit { runs: runs.len() })
}

/// Constants in the order ln Nc, aN, ln Dc, aD; the fifth stands still.
fn to_law(x: &Vector) -> KaplanLaw {
    KaplanLaw { parameters: x[0].exp(), alpha_parameters: x[1], tokens: x[2].exp(), alpha_tokens: x[3] }
}

/// Objective, gradient and the Hessian of Gauss and Newton. With `u = aN (ln Nc - ln N) / aD`, `v = ln Dc - ln D` the logarithm of the loss is
/// `aD ln(e^u + e^v)`. Where the penalty is linear its curvature is replaced by slope over residual, which descends as surely (Huber 1981, section 7.8).
fn derivatives(points: &[Point], x: &Vector) -> (f64, Vector, Matrix) {
    let (mut sum, mut gradient, mut hessian) = (0.0, [0.0; MOST], [[0.0; MOST]; MOST]);
    let [ln_nc, alpha_n, ln_dc, alpha_d, _] = *x;
    for point in points {
        let n = ln_nc - point.ln_parameters;
        let (u, v) = (alpha_n * n / alpha_d, ln_dc - point.ln_tokens);
        let most = u.max(v);
        let total = most + ((u - most).exp() + (v - most).exp()).ln();
        let [p, q] = [(u - total).exp(), (v - total).exp()];
        let residual = alpha_d * total - point.ln_loss;
        let (value, first, _) = huber(residual);
        sum += value;
        let slope = [p * alpha_n, p * n, alpha_d * q, total - p * u, 0.0];
        let weight = if residual == 0.0 { 1.0 } else { first / residual };
        for i in 0..MOST {
            gradient[i] += first * slope[i];
            for j in 0..MOST {
                hessian[i][j] += weight * slope[i] * slope[j];
            }
        }
    }
    hessian[MOST - 1][MOST - 1] = 1.0;
    // Exponents that are not above 0 are no law.
    let sum = if alpha_n > 0.0 && alpha_d > 0.0 { sum } else { f64::INFINITY };
    (sum, gradient, hessian)
}

/// Constants to begin from: at each pair of exponents the least squares of `L^(1/aD) = a N^(-aN/aD) + b / D`, relative to its left side.
fn starts(points: &[Point]) -> Vec<Vector> {
    let middle = |of: fn(&Point) -> f64| points.iter().map(of).sum::<f64>() / points.len() as f64;
    let (ln_n, ln_d) = (middle(|p| p.ln_parameters), middle(|p| p.ln_tokens));
    let mut found = Vec::new();
    for alpha_n in GRID {
        for alpha_d in GRID {
            let p = alpha_n / alpha_d;
            let mut m: Matrix =
                std::array::from_fn(|i| std::array::from_fn(|j| f64::from(u8::from(i == j && i > 1))));
            let mut r = [0.0; MOST];
            for point in points {
                let left = point.ln_loss / alpha_d;
                let columns =
                    [(p * (ln_n - point.ln_parameters) - left).exp(), (ln_d - point.ln_tokens - left).exp()];
                for i in 0..2 {
                    r[i] += columns[i];
                    for j in 0..2 {
                        m[i][j] += columns[i] * columns[j];
                    }
                }
            }
            let Some(y) = cholesky_solve(&m, &r) else { continue };
            // Least squares may give a term no weight, whose logarithm is no start.
            let least = 1e-3 * y[0].abs().max(y[1].abs());
            let ln = |value: f64| value.max(least).ln();
            let start = [ln(y[0]) / p + ln_n, alpha_n, ln(y[1]) + ln_d, alpha_d, 0.0];
            if start.iter().all(|x| x.is_finite()) {
                found.push(start);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn derivatives_are_those_of_differences() {
        let runs: Vec<TrainedRun> = (0..24)
            .map(|i| {
                let at = Allocation { parameters: 1e6 * 2f64.powi(i % 6), tokens: 1e8 * 2.5f64.powi(i / 6) };
                let wrong = [4e-4, -3e-3, 2e-2, -5e-4][(i % 4) as usize];
                TrainedRun { at, loss: KaplanLaw::PUBLISHED.loss(at) * (1.0 + wrong) }
            })
            .collect();
        let points = points(&runs);
        let law = KaplanLaw::PUBLISHED;
        let x = [law.parameters.ln(), law.alpha_parameters, law.tokens.ln(), law.alpha_tokens, 0.0];
        let gradient = derivatives(&points, &x).1;
        for i in 0..CONSTANTS {
            let step = 1e-7;
            let at = |sign: f64| {
                let mut moved = x;
                moved[i] += sign * step;
                derivatives(&points, &moved).0
            };
            let slope = (at(1.0) - at(-1.0)) / (2.0 * step);
            assert!(
                (slope - gradient[i]).abs() < 1e-6 * (1.0 + gradient[i].abs()),
                "{i}: {slope} {}",
                gradient[i]
            );
        }
    }
}
