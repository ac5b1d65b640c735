//! Our own signature: the fast similarity sketch of Dahlgaard, Knudsen and Thorup ("Fast Similarity Sketching",
//! FOCS 2017, arXiv 1704.04370).
//!
//! In round i every shingle falls into one of t bins, by a hash of its own for that round, and each bin keeps the lowest
//! (round, hash). Rounds go on until no bin is empty; from round t on, round t + j fills bin j from all shingles, so
//! that they end. Each bin then holds the minimum of a random order of the set, so two sketches agree in a bin with
//! probability equal to the Jaccard similarity, as with t permutations, and the share of bins that agree is at
//! least as concentrated (their theorem 1).
//!
//! Cost: O(n + t log t) instead of O(n t): a text with more than a few hundred shingles takes a round or two.
//! Bins of one round draw without replacement: r given bins all agree with probability C(sn, r) / C(n, r), which is
//! below s^r by the factor 1 − r(r − 1)(1/s − 1) / 2n, about. `tests/planted.rs` holds the hit rates against the curve.

use bessemer_units::splitmix::{mix, nth};

/// Makes sketches of `t` values.
#[derive(Debug, Clone)]
pub struct Sketcher {
    bins: usize,
    /// One word for each of 2 t rounds.
    rounds: Vec<u64>,
}

/// Bits of the hash within a value; the round stands above them.
const HASH_BITS: u32 = 32;

impl Sketcher {
    /// Sketches of `bins` values under `seed`.
    pub fn new(bins: usize, seed: u64) -> Self {
        let bins = bins.max(1);
        Sketcher { bins, rounds: (0..2 * bins as u64).map(|round| nth(seed, round)).collect() }
    }

    /// Values of a sketch.
    pub fn bins(&self) -> usize {
        self.bins
    }

    /// The sketch of hashed shingles into `out`. Repeats change nothing. Without shingles there is none, and every
    /// value is `u64::MAX`.
    ///
    /// # Panics
    /// If `out` has another length than [`Sketcher::bins`].
    pub fn sketch(&self, shingles: &[u64], out: &mut [u64]) {
        assert_eq!(out.len(), self.bins, "one value for each bin");
        out.fill(u64::MAX);
        if shingles.is_empty() {
            return;
        }
        for (round, &word) in self.rounds.iter().enumerate() {
            let above = (round as u64) << HASH_BITS;
            let fixed = round.checked_sub(self.bins);
            for &shingle in shingles {
                let hash = mix(shingle ^ word);
                // High bits choose the bin, low bits the value: the two are independent.
                let bin = fixed.unwrap_or((((hash >> 32) * self.bins as u64) >> 32) as usize);
                let value = above | hash & u64::from(u32::MAX);
                out[bin] = out[bin].min(value);
            }
            if !out.contains(&u64::MAX) {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(from: u64, count: u64) -> Vec<u64> {
        (from..from + count).map(|i| nth(9, i)).collect()
    }

    #[test]
    fn order_and_repeats_do_not_matter() {
        let sketcher = Sketcher::new(140, 1);
        for count in [1, 2, 7, 50, 500] {
            let shingles = set(0, count);
            let mut other: Vec<u64> = shingles.iter().rev().chain(&shingles).copied().collect();
            other.rotate_left(count as usize / 2);
            let (mut a, mut b) = (vec![0; 140], vec![0; 140]);
            sketcher.sketch(&shingles, &mut a);
            sketcher.sketch(&other, &mut b);
            assert_eq!(a, b);
            assert!(!a.contains(&u64::MAX), "every bin is full, whatever the size: {count}");
        }
        let mut none = vec![0; 140];
        sketcher.sketch(&[], &mut none);
        assert_eq!(none, vec![u64::MAX; 140]);
    }

    #[test]
    fn the_share_of_equal_values_is_the_similarity() {
        // Mean over many pairs: unbiased within three standard errors; and no wider than t independent permutations.
        let sketcher = Sketcher::new(128, 7);
        for (shared, own) in [(20, 20), (100, 50), (400, 50)] {
            let s = shared as f64 / (shared + 2 * own) as f64;
            let (mut sum, mut squares) = (0.0, 0.0);
            let pairs = 400;
            for pair in 0..pairs {
                let base = pair * 10_000;
                let common = set(base, shared);
                let a: Vec<u64> = common.iter().copied().chain(set(base + 2_000, own)).collect();
                let b: Vec<u64> = common.iter().copied().chain(set(base + 4_000, own)).collect();
                let (mut x, mut y) = (vec![0; 128], vec![0; 128]);
                sketcher.sketch(&a, &mut x);
                sketcher.sketch(&b, &mut y);
                let equal = x.iter().zip(&y).filter(|(x, y)| x == y).count() as f64 / 128.0;
                sum += equal;
                squares += (equal - s).powi(2);
            }
            let independent = s * (1.0 - s) / 128.0;
            let mean = sum / pairs as f64;
            assert!((mean - s).abs() < 3.0 * (independent / pairs as f64).sqrt(), "{mean} {s}");
            assert!(squares / (pairs as f64) < 1.3 * independent, "{} {independent}", squares / pairs as f64);
        }
    }
}
