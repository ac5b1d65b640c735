//! The pyramid method (Nenkova and Passonneau 2004): a summary scored by the content units that several human summaries express.

/// Content units by weight: how many units exactly `i + 1` of the reference summaries express.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pyramid {
    /// Units of weight 1, 2 and so on.
    pub tiers: Vec<usize>,
}

impl Pyramid {
    /// The tiers of units with these weights, each from 1.
    pub fn of_weights(weights: &[usize]) -> Pyramid {
        let mut tiers = vec![0; weights.iter().copied().max().unwrap_or(0)];
        for weight in weights.iter().filter(|weight| **weight > 0) {
            tiers[weight - 1] += 1;
        }
        Pyramid { tiers }
    }

    /// The largest sum of weights of `units` units.
    pub fn most(&self, units: f64) -> f64 {
        let (mut left, mut sum) = (units, 0.0);
        for (below, count) in self.tiers.iter().enumerate().rev() {
            let taken = left.min(*count as f64);
            sum += taken * (below + 1) as f64;
            left -= taken;
        }
        sum
    }

    /// The score of a summary whose units have these weights (0 for a unit that no reference has), with `mean_units` units in a reference on average.
    pub fn score(&self, weights: &[usize], mean_units: f64) -> PyramidScore {
        let sum = weights.iter().sum::<usize>() as f64;
        let part = |of: f64| if of > 0.0 { sum / of } else { 0.0 };
        let (quality, coverage) = (part(self.most(weights.len() as f64)), part(self.most(mean_units)));
        PyramidScore { sum, quality, coverage, comprehensive: (quality + coverage) / 2.0 }
    }
}

/// Scores of a summary.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PyramidScore {
    /// Sum of weights.
    pub sum: f64,
    /// Against the best summary of as many units (the "original" score).
    pub quality: f64,
    /// Against the best summary of as many units as a reference has on average (the "modified" score).
    pub coverage: f64,
    /// Mean of both.
    pub comprehensive: f64,
}
