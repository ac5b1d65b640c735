//! Intervals by the bootstrap (Efron 1979): how a figure varies over samples of its units, drawn with replacement.

use bessemer_tensor::rng::RngKey;

/// Part of the samples that an interval leaves out at each end: it holds 95 %.
const TAIL: f64 = 0.025;

/// Samples with replacement of units such as texts, prompts or items.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resamples {
    /// Units, and units drawn for each sample.
    pub units: usize,
    /// Samples; of 0 there are no intervals.
    pub samples: usize,
    /// Seed of the draws.
    pub seed: u64,
}

impl Resamples {
    /// How often each unit is in a sample.
    pub fn weights(&self, number: usize) -> Vec<usize> {
        let key = RngKey::new(self.seed, number as u64, "items");
        let n = self.units as u64;
        let mut weights = vec![0; self.units];
        for i in 0..n {
            weights[((u64::from(key.block(i / 4)[(i % 4) as usize]) * n) >> 32) as usize] += 1;
        }
        weights
    }

    /// For each of `values` figures the interval that holds 95 % of the samples in which it is finite; none if a tenth of the samples are not. `of`: the
    /// figures of a sample, by how often each unit is in it.
    pub fn intervals(
        &self,
        values: usize,
        of: impl Fn(&[usize]) -> Option<Vec<f64>>,
    ) -> Vec<Option<[f64; 2]>> {
        let mut found: Vec<Vec<f64>> = vec![Vec::new(); values];
        for figures in (0..self.samples).filter_map(|number| of(&self.weights(number))) {
            for (all, figure) in found.iter_mut().zip(figures) {
                if figure.is_finite() {
                    all.push(figure);
                }
            }
        }
        let interval = |mut all: Vec<f64>| {
            all.sort_by(f64::total_cmp);
            let enough = self.samples > 0 && 10 * all.len() >= 9 * self.samples;
            let cut = (TAIL * all.len() as f64) as usize;
            enough.then(|| [all[cut], all[all.len() - 1 - cut]])
        };
        found.into_iter().map(interval).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The mean of n units with variance v has about the interval of the normal distribution, +- 1.96 sqrt(v / n).
    #[test]
    fn the_interval_of_a_mean_is_that_of_the_normal_distribution() {
        let units = 400;
        let all = Resamples { units, samples: 4000, seed: 3 };
        let mean = |weights: &[usize]| {
            let sum: usize = weights.iter().enumerate().map(|(i, weight)| weight * (i % 2)).sum();
            Some(vec![sum as f64 / units as f64])
        };
        assert_eq!(all.weights(5).iter().sum::<usize>(), units);
        let [low, high] = all.intervals(1, mean)[0].unwrap();
        let half = 1.96 * (0.25f64 / units as f64).sqrt();
        assert!((low - (0.5 - half)).abs() < 0.006 && (high - (0.5 + half)).abs() < 0.006, "{low} {high}");
        assert_eq!(all.intervals(1, mean), all.intervals(1, mean));
        let none = |_: &[usize]| Some(vec![f64::NAN]);
        assert_eq!(all.intervals(1, none), [None]);
        assert_eq!(Resamples { samples: 0, ..all }.intervals(1, mean), [None]);
    }
}
