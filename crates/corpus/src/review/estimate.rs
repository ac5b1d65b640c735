//! Precision and recall of filters from a stratified sample.
//!
//! ```text
//! w_i = N_h / n_h        documents of the stratum of i / verdicts in it
//! R = sum w y / sum w x  precision: x = dropped, y = dropped and junk; recall: x = junk, y the same
//! var R = sum_h N_h^2 (1 - n_h / N_h) s_h^2 / n_h / (sum w x)^2        s_h^2: variance of y - R x in the stratum
//! ```
//! (Cochran 1977, section 6.) The interval is R +- 1.96 standard errors, within 0 and 1.

use serde::Serialize;

/// A share with its 95 % interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Estimate {
    /// The share.
    pub value: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// Quality of the filters; junk is what the reviewers would drop.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct FilterQuality {
    /// Share of the dropped documents that are junk; none without dropped documents.
    pub precision: Option<Estimate>,
    /// Share of the junk that is dropped; none without junk.
    pub recall: Option<Estimate>,
    /// Share of the kept documents that are junk.
    pub junk_among_kept: Option<Estimate>,
    /// Share of the documents that are kept.
    pub kept: Option<Estimate>,
}

/// A reviewed document.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Row {
    pub(super) stratum: usize,
    pub(super) junk: bool,
    pub(super) dropped: bool,
}

/// A ratio of sums over documents; `sizes`: documents by stratum.
fn ratio(
    rows: &[Row],
    sizes: &[f64],
    of: impl Fn(&Row) -> bool,
    among: impl Fn(&Row) -> bool,
) -> Option<Estimate> {
    let mut reviewed = vec![0.0f64; sizes.len()];
    rows.iter().for_each(|row| reviewed[row.stratum] += 1.0);
    let number = |yes: bool| f64::from(u8::from(yes));
    let weight = |row: &Row| sizes[row.stratum] / reviewed[row.stratum];
    let (mut top, mut bottom) = (0.0, 0.0);
    for row in rows {
        top += weight(row) * number(among(row) && of(row));
        bottom += weight(row) * number(among(row));
    }
    if bottom <= 0.0 {
        return None;
    }
    let value = top / bottom;
    let mut variance = 0.0;
    for (stratum, (&size, &n)) in sizes.iter().zip(&reviewed).enumerate() {
        if n < 2.0 {
            continue;
        }
        let residuals: Vec<f64> = rows
            .iter()
            .filter(|row| row.stratum == stratum)
            .map(|row| number(among(row) && of(row)) - value * number(among(row)))
            .collect();
        let mean = residuals.iter().sum::<f64>() / n;
        let spread = residuals.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (n - 1.0);
        variance += size * size * (1.0 - (n / size).min(1.0)) * spread / n;
    }
    let half = 1.96 * variance.sqrt() / bottom;
    Some(Estimate { value, low: (value - half).max(0.0), high: (value + half).min(1.0) })
}

impl FilterQuality {
    pub(super) fn of(rows: &[Row], sizes: &[f64]) -> FilterQuality {
        FilterQuality {
            precision: ratio(rows, sizes, |row| row.junk, |row| row.dropped),
            recall: ratio(rows, sizes, |row| row.dropped, |row| row.junk),
            junk_among_kept: ratio(rows, sizes, |row| row.junk, |row| !row.dropped),
            kept: ratio(rows, sizes, |row| !row.dropped, |_| true),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(stratum: usize, junk: bool, dropped: bool) -> Row {
        Row { stratum, junk, dropped }
    }

    #[test]
    fn ratios_weigh_strata_by_their_documents() {
        // 100 dropped documents, 4 reviewed, 3 of them junk; 1000 kept ones, 5 reviewed, 1 junk.
        let dropped = [true, true, true, false].map(|junk| row(0, junk, true));
        let kept = [true, false, false, false, false].map(|junk| row(1, junk, false));
        let rows = [&dropped[..], &kept[..]].concat();
        let found = FilterQuality::of(&rows, &[100.0, 1000.0]);
        let value = |estimate: Option<Estimate>| estimate.unwrap().value;
        assert!((value(found.precision) - 0.75).abs() < 1e-12);
        assert!((value(found.recall) - 75.0 / 275.0).abs() < 1e-12);
        assert!((value(found.junk_among_kept) - 0.2).abs() < 1e-12);
        assert!((value(found.kept) - 1000.0 / 1100.0).abs() < 1e-12);
        // One stratum: the formula of a mean with n - 1 and the correction for a finite population.
        let error = (0.96 * 0.25 / 4.0f64).sqrt();
        let precision = found.precision.unwrap();
        assert!((precision.low - (0.75 - 1.96 * error)).abs() < 1e-12, "{precision:?}");
        assert_eq!(precision.high, 1.0);
        assert_eq!(FilterQuality::of(&kept, &[100.0, 1000.0]).precision, None);
    }

    /// Of many samples of a population with a known recall, about 95 % have an interval that holds it.
    #[test]
    fn intervals_hold_the_true_value_as_often_as_they_claim() {
        // Strata of 300 dropped (240 junk), 200 unusual kept (80 junk), 3000 usual kept (150 junk): recall 240 / 470.
        let strata = [(300usize, 240usize, true), (200, 80, false), (3000, 150, false)];
        let sizes: Vec<f64> = strata.iter().map(|(size, ..)| *size as f64).collect();
        let mut random = bessemer_units::splitmix::SplitMix64(5);
        let (mut held, trials) = (0, 400);
        for _ in 0..trials {
            let mut rows = Vec::new();
            for (stratum, &(size, junk, dropped)) in strata.iter().enumerate() {
                let mut all: Vec<usize> = (0..size).collect();
                for drawn in 0..100 {
                    let other = drawn + random.index(size - drawn);
                    all.swap(drawn, other);
                    rows.push(row(stratum, all[drawn] < junk, dropped));
                }
            }
            let recall = FilterQuality::of(&rows, &sizes).recall.unwrap();
            held += usize::from((recall.low..=recall.high).contains(&(240.0 / 470.0)));
        }
        // 0.95 less four deviations of 400 trials, and what the normal approximation may lose.
        assert!(held * 100 >= trials * 90, "{held} of {trials}");
    }
}
