//! Errors of predictions, as tables of them are compared.
//!
//! - absolute: mean of |predicted / measured - 1|;
//! - shape: the same after all predictions are multiplied by the one constant that makes it smallest;
//! - null: the same of the best single rate of operations per device and second, a model that knows nothing else. Shape is its fair
//!   opponent, since each has one free constant;
//! - regret: in a group of layouts of one job, the measured time of the layout that is predicted fastest over the best measured, minus 1;
//! - tau: Kendall's rank correlation of predicted and measured times in a group (pairs in order less pairs out of order, over all pairs).

use bessemer_units::stats::{mean, median};
use serde::Serialize;

/// Errors over a table.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Errors {
    /// Mean absolute error.
    pub mean: f64,
    /// Median of absolute errors.
    pub median: f64,
    /// Ninth decile of absolute errors.
    pub p90: f64,
    /// Largest absolute error.
    pub max: f64,
    /// Mean of predicted / measured - 1; below 0 where predictions are too fast.
    pub bias: f64,
    /// Mean absolute error after the best constant factor.
    pub shape: f64,
}

/// Returns the errors of `ratios` of predicted and measured times. None for none.
pub fn errors(ratios: &[f64]) -> Option<Errors> {
    if ratios.is_empty() {
        return None;
    }
    let mut absolute: Vec<f64> = ratios.iter().map(|ratio| (ratio - 1.0).abs()).collect();
    let median = median(&mut absolute);
    let quantile = |share: f64| absolute[((absolute.len() - 1) as f64 * share).round() as usize];
    Some(Errors {
        mean: mean(&absolute),
        median,
        p90: quantile(0.9),
        max: quantile(1.0),
        bias: mean(&ratios.iter().map(|ratio| ratio - 1.0).collect::<Vec<_>>()),
        shape: best_constant(ratios),
    })
}

/// The least mean of |c ratio - 1| over constants c. It is reached at the inverse of one of the ratios, because the mean is convex and
/// linear between them.
pub fn best_constant(ratios: &[f64]) -> f64 {
    let error = |c: f64| mean(&ratios.iter().map(|ratio| (c * ratio - 1.0).abs()).collect::<Vec<_>>());
    ratios.iter().map(|ratio| error(1.0 / ratio)).fold(f64::INFINITY, f64::min)
}

/// Regret and Kendall's tau of a group of (predicted, measured) times; none for fewer than two.
pub fn ranking(times: &[(f64, f64)]) -> Option<(f64, f64)> {
    let (_, chosen) = times.iter().copied().min_by(|a, b| a.0.total_cmp(&b.0))?;
    if times.len() < 2 {
        return None;
    }
    let best = times.iter().map(|&(_, measured)| measured).fold(f64::INFINITY, f64::min);
    let mut balance = 0.0;
    let mut pairs = 0.0;
    for (index, a) in times.iter().enumerate() {
        for b in &times[..index] {
            pairs += 1.0;
            let product = (a.0 - b.0) * (a.1 - b.1);
            balance += if product > 0.0 {
                1.0
            } else if product < 0.0 {
                -1.0
            } else {
                0.0
            };
        }
    }
    Some((chosen / best - 1.0, balance / pairs))
}
