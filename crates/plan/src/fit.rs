//! Constants from measured steps, as a Gaussian model of the logarithms of times.
//!
//! `ln t = ln f(job; x) + s(job) + e`: `f` is the closed form with the logarithms `x` of factors on the first constants, each normal with
//! the width that [`Efficiency`] lists. `s` is a Gaussian process (Rasmussen and Williams 2006, chapter 2) over the shape of a layer's
//! products, for which libraries choose kernels of their own. `e` is the deviation of a single step, with Student's distribution, so that
//! one odd measurement changes little. The most probable constants come from Gauss and Newton's method, the weights of the steps from
//! reweighting (Lange, Little and Taylor 1989). Deterministic.

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

/// Variance of `s`: a deviation of 7.5 %.
const SHAPE_VARIANCE: f64 = 0.075 * 0.075;
/// Distance over which shapes deviate alike.
const SHAPE_REACH: f64 = 0.5;
/// Distance over which tensor degrees and widths count as the same: less than a doubling.
const DEGREE_REACH: f64 = 0.25;
/// Variance of `e` for a step like any other: a deviation of 3 %.
pub(crate) const NOISE_VARIANCE: f64 = 0.03 * 0.03;
/// Degrees of freedom of Student's distribution.
const FREEDOM: f64 = 3.0;
/// Most iterations.
const ROUNDS: usize = 60;
/// Part of a step towards the solution of the linear model that is taken.
const STEP: f64 = 0.7;
/// Change of the constants, in their widths, at which iterations end.
const ENOUGH: f64 = 1e-9;

/// Position of a job among others: how its time changes with each constant, and where its layers' kernels are.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Location {
    /// Change of the logarithm of the time with each constant, for a change of its logarithm by its width.
    sensitivity: Vec<f64>,
    /// As [`shape`] returns it.
    shape: [f64; 4],
}

impl Location {
    pub(crate) fn new(job: &Job, machine: &Machine, efficiency: &Efficiency) -> Location {
        Location { sensitivity: efficiency.sensitivity(job, machine), shape: shape(job) }
    }

    /// Covariance of the logarithms of two times before anything was measured, without `e`.
    pub(crate) fn covariance(&self, other: &Location) -> f64 {
        let constants: f64 = self.sensitivity.iter().zip(&other.sensitivity).map(|(a, b)| a * b).sum();
        constants + deviation(&self.shape, &other.shape)
    }

    /// Correlation of what two jobs share by their width and tensor degree alone.
    pub(crate) fn same_degree(&self, other: &Location) -> f64 {
        near(&self.shape[1..3], &other.shape[1..3], DEGREE_REACH)
    }
}

/// Logarithms of tokens of a micro-batch, width and tensor-parallel ranks, and half of that of the length of sequences.
fn shape(job: &Job) -> [f64; 4] {
    let tokens = job.layout.micro_batch * job.seq / job.layout.context;
    [(tokens, 1.0), (job.model.width, 1.0), (job.layout.tensor, 1.0), (job.seq, 0.5)]
        .map(|(number, weight)| weight * (number as f64).ln())
}

/// Correlation of the deviations of two shapes.
fn alike(a: &[f64; 4], b: &[f64; 4]) -> f64 {
    near(a, b, SHAPE_REACH)
}

/// Covariance of `s` of two jobs.
fn deviation(a: &[f64; 4], b: &[f64; 4]) -> f64 {
    SHAPE_VARIANCE * alike(a, b)
}

/// `exp(-d^2 / (2 reach^2))` of the distance d of two points.
fn near(a: &[f64], b: &[f64], reach: f64) -> f64 {
    let squares: f64 = a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum();
    (-squares / (2.0 * reach * reach)).exp()
}

/// A step that constants were fitted to.
#[derive(Debug, Clone, PartialEq)]
struct FittedStep {
    location: Location,
    /// Element of `C^-1 y`, where C is the covariance of the fitted steps and y how far they are from the first constants.
    coefficient: f64,
    /// Its own deviation `e`, in the logarithm of its time.
    surprise: f64,
}

/// Fitted constants, and what the fitted steps tell of others.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Posterior {
    pub(crate) efficiency: Efficiency,
    steps: Vec<FittedStep>,
    /// Lower factor of C.
    factor: Vec<Vec<f64>>,
}

impl Posterior {
    /// Constants that nothing was fitted to.
    pub(crate) fn none(efficiency: Efficiency) -> Posterior {
        Posterior { efficiency, steps: Vec::new(), factor: Vec::new() }
    }

    /// Fits the constants to measured steps, from `first` on.
    pub(crate) fn fit(measured: &[Measurement], first: Efficiency) -> Posterior {
        let count = Efficiency::CONSTANTS.len();
        let mut x = vec![0.0; count];
        let mut weights = vec![1.0; measured.len()];
        let mut found = Posterior::none(first);
        for _ in 0..ROUNDS {
            let now = first.moved(&x);
            let locations: Vec<Location> =
                measured.iter().map(|step| Location::new(&step.job, &step.machine, &now)).collect();
            let known = |location: &Location| -> f64 {
                location.sensitivity.iter().zip(&x).map(|(slope, x)| slope * x).sum()
            };
            let distances: Vec<f64> = (measured.iter().zip(&locations))
                .map(|(step, location)| {
                    let predicted = step_time(&step.job, &step.machine, &now).total;
                    (step.seconds / predicted).ln() + known(location)
                })
                .collect();
            let mut covariance = matrix(&locations, Location::covariance);
            for (index, weight) in weights.iter().enumerate() {
                covariance[index][index] += NOISE_VARIANCE / weight;
            }
            let factor = cholesky(covariance);
            let coefficients = solve(&factor, distances);
            let mut change = 0.0_f64;
            for (constant, x) in x.iter_mut().enumerate() {
                let to: f64 = (locations.iter().zip(&coefficients))
                    .map(|(location, coefficient)| location.sensitivity[constant] * coefficient)
                    .sum();
                let step = STEP * (to - *x).clamp(-1.0, 1.0);
                change = change.max(step.abs());
                *x += step;
            }
            let surprises: Vec<f64> =
                (coefficients.iter().zip(&weights)).map(|(c, weight)| NOISE_VARIANCE / weight * c).collect();
            for (weight, surprise) in weights.iter_mut().zip(&surprises) {
                let to = (FREEDOM + 1.0) / (FREEDOM + surprise.powi(2) / NOISE_VARIANCE);
                change = change.max((to - *weight).abs());
                *weight = f64::midpoint(*weight, to);
            }
            let steps = locations.into_iter().zip(coefficients).zip(surprises);
            let steps = steps.map(|((location, coefficient), surprise)| FittedStep {
                location,
                coefficient,
                surprise,
            });
            found = Posterior { efficiency: first.moved(&x), steps: steps.collect(), factor };
            if change < ENOUGH {
                break;
            }
        }
        found
    }

    /// Expected deviation of the logarithm of a step's time from the closed form with the fitted constants.
    pub(crate) fn deviation(&self, job: &Job) -> f64 {
        if self.steps.is_empty() {
            return 0.0;
        }
        let at = shape(job);
        self.steps.iter().map(|step| step.coefficient * deviation(&step.location.shape, &at)).sum()
    }

    /// Covariance of the logarithms of the times of jobs, given the fitted steps, with the deviation of single steps.
    pub(crate) fn covariance(&self, jobs: &[(&Job, &Machine)]) -> Vec<Vec<f64>> {
        let locations: Vec<Location> =
            jobs.iter().map(|(job, machine)| Location::new(job, machine, &self.efficiency)).collect();
        let mut covariance = matrix(&locations, Location::covariance);
        // L^-1 k of each job, where L is the factor of C.
        let explained: Vec<Vec<f64>> = (locations.iter())
            .map(|at| {
                forward(&self.factor, self.steps.iter().map(|step| step.location.covariance(at)).collect())
            })
            .collect();
        for (a, row) in covariance.iter_mut().enumerate() {
            for (b, value) in row.iter_mut().enumerate() {
                *value -= explained[a].iter().zip(&explained[b]).map(|(a, b)| a * b).sum::<f64>();
            }
            row[a] = row[a].max(0.0) + self.noise(&locations[a]);
        }
        covariance
    }

    /// Variance of the deviation of a single step, from those of fitted steps near it.
    fn noise(&self, at: &Location) -> f64 {
        let (mut sum, mut weights) = (NOISE_VARIANCE, 1.0);
        for step in &self.steps {
            let weight = alike(&step.location.shape, &at.shape);
            sum += weight * step.surprise.powi(2);
            weights += weight;
        }
        sum / weights
    }
}

/// Symmetric matrix of a covariance of pairs.
pub(crate) fn matrix(
    locations: &[Location],
    covariance: impl Fn(&Location, &Location) -> f64,
) -> Vec<Vec<f64>> {
    locations.iter().map(|a| locations.iter().map(|b| covariance(a, b)).collect()).collect()
}

/// Lower factor L of a symmetric positive matrix, L L^T (Cholesky).
pub(crate) fn cholesky(mut matrix: Vec<Vec<f64>>) -> Vec<Vec<f64>> {
    for i in 0..matrix.len() {
        for j in 0..=i {
            let known: f64 = (0..j).map(|k| matrix[i][k] * matrix[j][k]).sum();
            matrix[i][j] = if i == j {
                (matrix[i][i] - known).max(1e-300).sqrt()
            } else {
                (matrix[i][j] - known) / matrix[j][j]
            };
        }
    }
    matrix
}

/// Solves L y = right.
fn forward(factor: &[Vec<f64>], mut right: Vec<f64>) -> Vec<f64> {
    for i in 0..factor.len() {
        let known: f64 = (0..i).map(|k| factor[i][k] * right[k]).sum();
        right[i] = (right[i] - known) / factor[i][i];
    }
    right
}

/// Solves L L^T y = right.
fn solve(factor: &[Vec<f64>], right: Vec<f64>) -> Vec<f64> {
    let mut right = forward(factor, right);
    for i in (0..factor.len()).rev() {
        let known: f64 = (i + 1..factor.len()).map(|k| factor[k][i] * right[k]).sum();
        right[i] = (right[i] - known) / factor[i][i];
    }
    right
}
