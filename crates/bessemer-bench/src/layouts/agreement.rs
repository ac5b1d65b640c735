//! How well predictions order the layouts of one job.

use bessemer_units::stats::mean;
use serde_json::{Value, json};

/// Predicted and measured seconds of each layout.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Agreement {
    /// Layouts.
    layouts: usize,
    /// Spearman's rank correlation.
    spearman: f64,
    /// Measured time of the layout that is predicted fastest over that of the best one, minus 1.
    regret: f64,
    /// Mean of |predicted / measured - 1|.
    error: f64,
    /// The same after the one factor on all predictions that makes it smallest among the rows' own ratios.
    shape: f64,
}

impl Agreement {
    /// None for fewer than three layouts.
    pub(super) fn of(times: &[(f64, f64)]) -> Option<Agreement> {
        if times.len() < 3 {
            return None;
        }
        let (predicted, measured): (Vec<f64>, Vec<f64>) = times.iter().copied().unzip();
        let chosen = times.iter().min_by(|a, b| a.0.total_cmp(&b.0))?.1;
        let best = measured.iter().copied().fold(f64::INFINITY, f64::min);
        let ratios = || times.iter().map(|(predicted, measured)| predicted / measured);
        let mean = |factor: f64| {
            ratios().map(|ratio| (ratio / factor - 1.0).abs()).sum::<f64>() / times.len() as f64
        };
        Some(Agreement {
            layouts: times.len(),
            spearman: pearson(&ranks(&predicted), &ranks(&measured)),
            regret: chosen / best - 1.0,
            error: mean(1.0),
            shape: ratios().map(mean).fold(f64::INFINITY, f64::min),
        })
    }

    pub(super) fn value(&self) -> Value {
        json!({
            "layouts": self.layouts,
            "spearman": self.spearman,
            "regret": self.regret,
            "mean_error": self.error,
            "shape_error": self.shape,
        })
    }

    pub(super) fn text(&self, what: &str) -> String {
        format!(
            "{what}, {} layouts: rank correlation (Spearman) {:.3}; the layout predicted fastest is {:.1} % slower than the best \
             measured one; error {:.1} %, shape {:.1} %",
            self.layouts,
            self.spearman,
            100.0 * self.regret,
            100.0 * self.error,
            100.0 * self.shape
        )
    }
}

/// Ranks from 1; equal values share the mean of theirs.
fn ranks(values: &[f64]) -> Vec<f64> {
    let rank = |value: &f64| {
        let below = values.iter().filter(|other| *other < value).count();
        let equal = values.iter().filter(|other| *other == value).count();
        below as f64 + (equal as f64 + 1.0) / 2.0
    };
    values.iter().map(rank).collect()
}

fn pearson(a: &[f64], b: &[f64]) -> f64 {
    let (mean_a, mean_b) = (mean(a), mean(b));
    let sum =
        |f: &dyn Fn(f64, f64) -> f64| a.iter().zip(b).map(|(a, b)| f(a - mean_a, b - mean_b)).sum::<f64>();
    sum(&|a, b| a * b) / (sum(&|a, _| a * a) * sum(&|_, b| b * b)).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Spearman 1904: 1 - 6 sum d^2 / (n (n^2 - 1)) where no two values are equal; with equal ones Pearson's of mean ranks.
    #[test]
    fn ranks_are_correlated_and_the_choice_is_compared_with_the_best() {
        let agreement = |times: &[(f64, f64)]| Agreement::of(times).expect("three layouts");
        let same = agreement(&[(1.0, 10.0), (2.0, 20.0), (3.0, 30.0), (4.0, 40.0)]);
        assert_eq!((same.spearman, same.regret), (1.0, 0.0));
        assert!((same.error - 0.9).abs() < 1e-12 && same.shape < 1e-12);
        // Ranks 1 2 3 4 5 against 2 1 4 3 5: the squares of the differences are 4 together.
        let swapped = agreement(&[(1.0, 12.0), (2.0, 10.0), (3.0, 40.0), (4.0, 30.0), (5.0, 50.0)]);
        assert!((swapped.spearman - (1.0 - 6.0 * 4.0 / (5.0 * 24.0))).abs() < 1e-12);
        assert!((swapped.regret - 0.2).abs() < 1e-12);
        assert_eq!(ranks(&[3.0, 1.0, 3.0, 2.0]), [3.5, 1.0, 3.5, 2.0]);
        assert_eq!(Agreement::of(&[(1.0, 1.0), (2.0, 2.0)]), None);
    }
}
