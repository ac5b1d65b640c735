//! Constants from measured steps: robust least squares in the logarithms of times.
//!
//! Minimises `sum_i rho(ln(t_i / T_i) / sigma) + sum_k (x_k / width)^2` over the logarithms x of factors on the first constants, with
//! rho(r) = ln(1 + r^2) (Cauchy), by Levenberg and Marquardt's method with differences for the Jacobian. Deterministic.

use crate::{Efficiency, Job, Machine, expected_memory, step_time};

/// A measured step.
#[derive(Debug, Clone, PartialEq)]
pub struct Measurement {
    /// Number of the row in its table.
    pub row: usize,
    /// Job that ran.
    pub job: Job,
    /// On which machine.
    pub machine: Machine,
    /// Seconds.
    pub seconds: f64,
}

/// Part of a machine's memory that should stay free.
const FREE: f64 = 0.05;

impl Measurement {
    /// Whether less than 5 % of a device's memory is expected to stay free.
    pub fn crowded(&self) -> bool {
        expected_memory(&self.job) > (1.0 - FREE) * self.machine.memory
    }
}

/// Relative error of a time at which the penalty begins to flatten.
const SIGMA: f64 = 0.03;
/// Most iterations.
const ROUNDS: usize = 200;
/// Step of the differences.
const DIFFERENCE: f64 = 1e-3;

/// Fits the constants to measured steps. Their logarithms are expected to lie within `width` (a standard deviation) of those of `first`.
pub fn fit(measured: &[Measurement], first: Efficiency, width: f64) -> Efficiency {
    let count = Efficiency::CONSTANTS.len();
    let residuals = |x: &[f64]| -> Vec<f64> {
        let efficiency = first.scaled(x);
        let errors = measured.iter().map(|one| {
            let predicted = step_time(&one.job, &one.machine, &efficiency).total;
            let ratio = (predicted / one.seconds).ln() / SIGMA;
            ratio.signum() * ratio.powi(2).ln_1p().sqrt()
        });
        errors.chain(x.iter().zip(&Efficiency::CONSTANTS).map(|(value, c)| value / (width * c.1))).collect()
    };
    let norm = |values: &[f64]| values.iter().map(|value| value * value).sum::<f64>();

    let mut x = vec![0.0; count];
    let mut now = residuals(&x);
    let mut damping = 1e-2;
    for _ in 0..ROUNDS {
        let columns: Vec<Vec<f64>> = (0..count)
            .map(|k| {
                let mut moved = x.clone();
                moved[k] += DIFFERENCE;
                residuals(&moved).iter().zip(&now).map(|(to, from)| (to - from) / DIFFERENCE).collect()
            })
            .collect();
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let gradient: Vec<f64> = columns.iter().map(|column| dot(column, &now)).collect();
        let mut improved = false;
        while damping < 1e8 {
            let mut matrix: Vec<Vec<f64>> =
                columns.iter().map(|a| columns.iter().map(|b| dot(a, b)).collect()).collect();
            for (k, row) in matrix.iter_mut().enumerate() {
                row[k] *= 1.0 + damping;
            }
            let step = solve(matrix, gradient.clone());
            let next: Vec<f64> = x.iter().zip(&step).map(|(x, step)| x - step.clamp(-1.0, 1.0)).collect();
            let then = residuals(&next);
            if norm(&then) < norm(&now) {
                improved = norm(&now) - norm(&then) > 1e-7 * norm(&now);
                (x, now) = (next, then);
                damping /= 3.0;
                break;
            }
            damping *= 4.0;
        }
        if !improved {
            break;
        }
    }
    first.scaled(&x)
}

/// Solves a symmetric positive system by Cholesky's factors.
pub(crate) fn solve(mut matrix: Vec<Vec<f64>>, mut right: Vec<f64>) -> Vec<f64> {
    let n = right.len();
    for i in 0..n {
        for j in 0..=i {
            let known: f64 = (0..j).map(|k| matrix[i][k] * matrix[j][k]).sum();
            matrix[i][j] = if i == j {
                (matrix[i][i] - known).max(1e-300).sqrt()
            } else {
                (matrix[i][j] - known) / matrix[j][j]
            };
        }
    }
    for i in 0..n {
        let known: f64 = (0..i).map(|k| matrix[i][k] * right[k]).sum();
        right[i] = (right[i] - known) / matrix[i][i];
    }
    for i in (0..n).rev() {
        let known: f64 = (i + 1..n).map(|k| matrix[k][i] * right[k]).sum();
        right[i] = (right[i] - known) / matrix[i][i];
    }
    right
}
