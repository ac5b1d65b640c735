//! Bands: the curve, the choice of bands and rows, and the keys.

use bessemer_corpus_config::dedup::{MinHashConfig, Profile, ShingleBy, Signature};
use bessemer_units::splitmix::{GAMMA, mix};

/// Values that the optimiser may use where bands are 0.
const OPTIMISED_VALUES: usize = 256;

/// The values of the profile of a configuration in place, bands and rows chosen.
#[must_use]
pub fn resolved(config: &MinHashConfig) -> MinHashConfig {
    let mut config = config.clone();
    if config.profile == Profile::Fineweb {
        config.shingle = ShingleBy::DatatroveSha1;
        config.signature = Signature::Datatrove;
        (config.length, config.bands, config.rows, config.seed) = (5, 14, 8, 1);
        config.profile = Profile::Native;
    }
    if config.bands == 0 {
        (config.bands, config.rows) = optimal_bands(OPTIMISED_VALUES, config.similarity);
    }
    config
}

/// Probability that two documents of Jaccard similarity `s` share at least one of `bands` bands of `rows` values:
/// 1 − (1 − s^r)^b (Leskovec, Rajaraman, Ullman, "Mining of Massive Datasets", 3.4).
pub fn hit_probability(s: f64, bands: usize, rows: usize) -> f64 {
    1.0 - (1.0 - s.powi(rows as i32)).powi(bands as i32)
}

/// Where the curve is steepest, about: (1/b)^(1/r).
pub fn threshold(bands: usize, rows: usize) -> f64 {
    (1.0 / bands as f64).powf(1.0 / rows as f64)
}

/// Steps of the integrals.
const STEPS: usize = 500;

/// Simpson's rule.
fn integral(from: f64, to: f64, value: impl Fn(f64) -> f64) -> f64 {
    let step = (to - from) / (2 * STEPS) as f64;
    let inner: f64 =
        (1..2 * STEPS).map(|i| value(from + step * i as f64) * if i % 2 == 1 { 4.0 } else { 2.0 }).sum();
    step / 3.0 * (value(from) + inner + value(to))
}

/// (bands, rows) with bands · rows ≤ `hashes` for which the mean of false positives, ∫ P below `t`, and false
/// negatives, ∫ 1 − P above it, is smallest: the rule of datasketch and text-dedup. Ties go to fewer bands, then rows.
pub fn optimal_bands(hashes: usize, t: f64) -> (usize, usize) {
    let mut best = (f64::INFINITY, 1, hashes.max(1));
    for bands in 1..=hashes {
        for rows in 1..=hashes / bands {
            let below = integral(0.0, t, |s| hit_probability(s, bands, rows));
            let above = integral(t, 1.0, |s| 1.0 - hit_probability(s, bands, rows));
            let error = 0.5 * below + 0.5 * above;
            if error < best.0 {
                best = (error, bands, rows);
            }
        }
    }
    (best.1, best.2)
}

/// The key of band `band` with these values: two documents share the band if their keys are equal. Different bands
/// agree, and different values, with probability 2^-64 a pair.
#[inline]
pub fn band_key(band: usize, values: &[u64]) -> u64 {
    let start = mix(band as u64 ^ 0x6261_6e64);
    values.iter().fold(start, |key, &value| mix(key ^ value.wrapping_mul(GAMMA)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_curve_of_the_literature() {
        type Points = &'static [(f64, f64)];
        let rows: [(usize, usize, f64, Points); 7] = [
            (14, 8, 0.719, &[(0.5, 0.0533), (0.7, 0.5645), (0.75, 0.7716), (0.8, 0.9235), (0.85, 0.9884)]),
            (20, 13, 0.794, &[(0.5, 0.0024), (0.7, 0.1769), (0.75, 0.3818)]),
            (26, 11, 0.744, &[(0.5, 0.0126), (0.7, 0.4050), (0.8, 0.9032)]),
            (14, 9, 0.746, &[(0.7, 0.4382)]),
            (9, 13, 0.845, &[]),
            (450, 20, 0.737, &[(0.5, 0.0004), (0.7, 0.3018), (0.75, 0.7605)]),
            // What RefinedWeb's "20 buckets of 450" would be, taken by the word: it finds almost nothing.
            (20, 450, 0.9934, &[(0.85, 0.0)]),
        ];
        for (bands, per_band, steepest, points) in rows {
            assert!((threshold(bands, per_band) - steepest).abs() < 6e-4, "{bands} x {per_band}");
            for &(s, p) in points {
                assert!(
                    (hit_probability(s, bands, per_band) - p).abs() < 6e-5,
                    "{bands} x {per_band} at {s}"
                );
            }
        }
    }

    #[test]
    fn profiles_and_bands_are_resolved() {
        let fineweb = resolved(&MinHashConfig::fineweb());
        assert_eq!((fineweb.bands, fineweb.rows, fineweb.length, fineweb.seed), (14, 8, 5, 1));
        // examples/fineweb.py: HashConfig(hash_fc="sha1", precision=64), and 64 bits of SHA-1 before that key existed.
        assert_eq!((fineweb.shingle, fineweb.signature), (ShingleBy::DatatroveSha1, Signature::Datatrove));
        let chosen = resolved(&MinHashConfig { bands: 0, similarity: 0.7, ..MinHashConfig::default() });
        assert!(chosen.bands * chosen.rows <= OPTIMISED_VALUES && chosen.bands > 10);
    }

    #[test]
    fn the_optimiser_agrees_with_text_dedup() {
        assert_eq!(optimal_bands(128, 0.7), (14, 9));
        assert_eq!(optimal_bands(128, 0.8), (9, 13));
        assert_eq!(optimal_bands(240, 0.7), (24, 10));
    }

    #[test]
    fn keys_tell_bands_and_values_apart() {
        assert_eq!(band_key(3, &[1, 2]), band_key(3, &[1, 2]));
        assert_ne!(band_key(3, &[1, 2]), band_key(4, &[1, 2]));
        assert_ne!(band_key(3, &[1, 2]), band_key(3, &[2, 1]));
        assert_ne!(band_key(0, &[0]), band_key(0, &[0, 0]));
    }
}
