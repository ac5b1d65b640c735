//! Times that vary, the same way every time: a pure function of seed, rank and position.

use bessemer_units::splitmix::{nth, unit};

/// Varies every duration by a factor drawn evenly from `1 - share` to `1 + share`.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Jitter {
    /// Largest deviation, from 0 to 1; 0 varies nothing.
    pub share: f64,
    /// Another seed, another draw.
    pub seed: u64,
}

impl Jitter {
    /// The factor of instruction `index` of `rank`.
    pub fn factor(&self, rank: usize, index: usize) -> f64 {
        if self.share == 0.0 {
            return 1.0;
        }
        1.0 + self.share * (2.0 * uniform(self.seed, rank as u64, index as u64) - 1.0)
    }
}

/// A number from 0 to 1 (exclusive): the finalizer of SplitMix64 over the counters.
fn uniform(seed: u64, rank: u64, index: u64) -> f64 {
    let mut z = seed;
    for word in [rank, index] {
        z = nth(z.wrapping_add(word), 0);
    }
    unit(z)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_fill_their_range_evenly_and_repeat() {
        let jitter = Jitter { share: 0.2, seed: 7 };
        let all: Vec<f64> = (0..100).flat_map(|r| (0..100).map(move |i| jitter.factor(r, i))).collect();
        assert!(all.iter().all(|f| (0.8..1.2).contains(f)));
        let mean = bessemer_units::stats::mean(&all);
        // The mean of 10,000 even draws of width 0.4 has a deviation of 0.4 / sqrt(12 * 10,000) = 0.0012.
        assert!((mean - 1.0).abs() < 0.005, "{mean}");
        let low = all.iter().filter(|f| **f < 0.9).count();
        assert!((2200..2800).contains(&low), "{low}");
        assert_eq!(jitter.factor(3, 4), jitter.factor(3, 4));
        assert_ne!(jitter.factor(3, 4), jitter.factor(4, 3));
        assert_ne!(jitter.factor(3, 4), Jitter { seed: 8, ..jitter }.factor(3, 4));
        assert_eq!(Jitter::default().factor(3, 4), 1.0);
    }
}
