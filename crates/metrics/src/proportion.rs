//! Intervals of proportions, such as the share of right answers.
//!
//! ```text
//! n trials, share p, z = 1.96 (Wilson 1927)
//! (p + z^2 / 2n  +-  z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n)
//! ```
//! `p +- 1.96 stderr` is not used: it leaves [0, 1], and has no width where all answers or none are right.

/// The 0.975 quantile of the normal distribution.
const Z: f64 = 1.959_963_984_540_054;

/// The 95 % interval of a share of `trials` trials. `trials` need not be whole, as the effective number of a weighted mean is not. `None` without
/// trials.
pub fn wilson(share: f64, trials: f64) -> Option<[f64; 2]> {
    if !(0.0..=1.0).contains(&share) || trials.is_nan() || trials <= 0.0 {
        return None;
    }
    let z2n = Z * Z / trials;
    let middle = share + z2n / 2.0;
    let half = Z * (share * (1.0 - share) / trials + z2n / (4.0 * trials)).sqrt();
    let bound = |x: f64| (x / (1.0 + z2n)).clamp(0.0, 1.0);
    // Rounding leaves a little of the bound that is 0 or 1 exactly.
    let low = if share == 0.0 { 0.0 } else { bound(middle - half) };
    let high = if share == 1.0 { 1.0 } else { bound(middle + half) };
    Some([low, high])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `scipy.stats.binomtest(k, n).proportion_ci(method="wilson")`, SciPy 1.
    #[test]
    fn intervals_are_those_of_scipy() {
        let cases = [
            (8, 10, 0.490_162_471_536_641_8, 0.943_317_848_545_624_8),
            (0, 1, 0.0, 0.793_450_685_622_762_6),
            (0, 100, 0.0, 0.036_993_498_206_985_68),
            (100, 100, 0.963_006_501_793_014_3, 1.0),
            (1, 3, 0.061_491_944_720_396_26, 0.792_340_399_197_952_3),
            (371, 1000, 0.341_606_326_344_111, 0.401_380_977_345_162_26),
        ];
        for (right, trials, low, high) in cases {
            let found = wilson(f64::from(right) / f64::from(trials), f64::from(trials)).unwrap();
            assert!(
                (found[0] - low).abs() < 1e-12 && (found[1] - high).abs() < 1e-12,
                "{right}/{trials} {found:?}"
            );
        }
        assert_eq!([wilson(0.5, 0.0), wilson(f64::NAN, 3.0), wilson(1.1, 3.0)], [None; 3]);
    }
}
