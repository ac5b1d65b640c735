//! Limits from verdicts.
//!
//! A limit is changed only if at least `least` verdicts support it and a share of at least `agreement` of the documents that it moves,
//! by their weights. New limits are found one after the other, each on what the ones before keep: the one that drops the most junk less
//! good documents, and of equal ones that with the widest gap between what it keeps and drops, in spreads of the measure.

use super::Side;
use super::sample::middle;
use serde::Serialize;

/// Most new limits.
const MOST: usize = 16;

/// A limit that drops kept documents.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NewLimit {
    /// Position of the feature in the sample.
    pub feature: usize,
    /// Side on which documents are dropped.
    pub side: Side,
    /// The last value that is kept.
    pub limit: f64,
    /// Reviewed documents that it drops and reviewers would drop.
    pub junk: usize,
    /// Reviewed documents that it drops and reviewers would keep.
    pub good: usize,
}

impl NewLimit {
    /// Whether it drops a document with these values of features.
    pub(super) fn drops(&self, values: &[Option<f64>]) -> bool {
        values.get(self.feature).copied().flatten().is_some_and(|value| match self.side {
            Side::Above => value > self.limit,
            Side::Below => value < self.limit,
        })
    }
}

/// Support that a change of a limit needs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Support {
    pub(super) least: usize,
    pub(super) agreement: f64,
}

/// A kept document with a verdict.
#[derive(Debug, Clone, Copy)]
pub(super) struct KeptRow<'a> {
    pub(super) weight: f64,
    pub(super) junk: bool,
    pub(super) values: &'a [Option<f64>],
}

/// A number of few digits in [kept, dropped) or (dropped, kept], near their middle.
pub(super) fn limit_between(kept: f64, dropped: f64) -> f64 {
    let middle = f64::midpoint(kept, dropped);
    let fits = |x: f64| if kept < dropped { (kept..dropped).contains(&x) } else { x > dropped && x <= kept };
    (0..17)
        .map(|digits| format!("{middle:.digits$e}").parse().unwrap_or(middle))
        .find(|x| fits(*x))
        .unwrap_or(kept)
}

/// New limits on the features of kept documents.
pub(super) fn learn(rows: &[KeptRow<'_>], support: Support) -> Vec<NewLimit> {
    let mut left: Vec<KeptRow<'_>> = rows.to_vec();
    let features = rows.first().map_or(0, |row| row.values.len());
    let mut found: Vec<NewLimit> = Vec::new();
    while found.len() < MOST {
        let mut best: Option<(f64, f64, NewLimit)> = None;
        for feature in 0..features {
            let mut values: Vec<(f64, KeptRow<'_>)> =
                left.iter().filter_map(|row| Some((row.values[feature]?, *row))).collect();
            let Some((_, spread)) = middle(values.iter().map(|(value, _)| *value)) else { continue };
            for side in [Side::Above, Side::Below] {
                values.sort_by(|(a, _), (b, _)| match side {
                    Side::Above => b.total_cmp(a),
                    Side::Below => a.total_cmp(b),
                });
                let (mut junk, mut all, mut of_junk, mut of_good) = (0.0, 0.0, 0, 0);
                for pair in values.windows(2) {
                    let [(value, row), (next, _)] = pair else { continue };
                    all += row.weight;
                    if row.junk {
                        junk += row.weight;
                        of_junk += 1;
                    } else {
                        of_good += 1;
                    }
                    let is_supported = of_junk >= support.least && junk >= support.agreement * all;
                    if value == next || !is_supported {
                        continue;
                    }
                    let gap = (value - next).abs() / spread;
                    let gain = 2.0 * junk - all;
                    let is_better = best
                        .as_ref()
                        .is_none_or(|(most, widest, _)| gain > *most || gain == *most && gap > *widest);
                    if is_better {
                        let limit = limit_between(*next, *value);
                        best = Some((
                            junk,
                            gap,
                            NewLimit { feature, side, limit, junk: of_junk, good: of_good },
                        ));
                    }
                }
            }
        }
        let Some((.., limit)) = best else { break };
        left.retain(|row| !limit.drops(row.values));
        found.push(limit);
    }
    found
}

/// Value and limit of a drop.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct DropLimit {
    /// Profile and title of the measure; none for a limit of `[corpus.clean]`.
    pub(super) rule: Option<(String, String)>,
    pub(super) side: Side,
    pub(super) value: f64,
    pub(super) limit: f64,
}

/// Reads the detail of a drop, as `corpus::rule` writes it.
pub(super) fn drop_limit(detail: &str) -> Option<DropLimit> {
    if let Some((start, limits)) = detail.rsplit_once(", allowed ") {
        let (profile, rule) = start.split_once(": ")?;
        let (rule, value) = rule.rsplit_once(" is ")?;
        let (min, max) = limits.split_once(" to ")?;
        let value: f64 = value.parse().ok()?;
        let min: Option<f64> = min.parse().ok();
        let max: Option<f64> = max.parse().ok();
        let below = min.filter(|min| value < *min).map(|min| (Side::Below, min));
        let (side, limit) = below.or_else(|| Some((Side::Above, max.filter(|max| value > *max)?)))?;
        return Some(DropLimit { rule: Some((profile.into(), rule.into())), side, value, limit });
    }
    let at = |words: &str, side| detail.rsplit_once(words).map(|(start, limit)| (start, limit, side));
    let (start, limit, side) = at(", at least ", Side::Below).or_else(|| at(", at most ", Side::Above))?;
    let value = start.split(' ').filter_map(|word| word.parse::<f64>().ok()).next_back()?;
    Some(DropLimit { rule: None, side, value, limit: limit.parse().ok()? })
}

/// A wider limit, from the value and verdict of dropped documents: the documents nearest to the old one are kept.
pub(super) fn widen(mut rows: Vec<(f64, bool)>, side: Side, support: Support) -> Option<(f64, usize, usize)> {
    rows.sort_by(|(a, _), (b, _)| match side {
        Side::Below => b.total_cmp(a),
        Side::Above => a.total_cmp(b),
    });
    let (mut junk, mut good) = (0, 0);
    let mut best: Option<(f64, usize, usize)> = None;
    for (at, (value, is_junk)) in rows.iter().enumerate() {
        if *is_junk {
            junk += 1;
        } else {
            good += 1;
        }
        let next = rows.get(at + 1).map(|(next, _)| *next);
        let is_supported = good >= support.least && good as f64 >= support.agreement * (good + junk) as f64;
        let gain = |good: usize, junk: usize| good as i64 - junk as i64;
        let is_better = best.is_none_or(|(_, of_good, of_junk)| gain(good, junk) > gain(of_good, of_junk));
        if next != Some(*value) && is_supported && is_better {
            best = Some((next.map_or(*value, |next| limit_between(*value, next)), good, junk));
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUPPORT: Support = Support { least: 3, agreement: 0.9 };

    #[test]
    fn a_limit_separates_junk_and_ignores_what_happens_by_chance() {
        // Feature 0 is noise, feature 1 is high for junk, feature 2 is missing.
        let values: Vec<[Option<f64>; 3]> = (0..40u32)
            .map(|i| {
                let junk = i % 5 == 0;
                let noise = f64::from(i * 17 % 40);
                [Some(noise), Some(if junk { 9.0 } else { f64::from(i % 4) }), None]
            })
            .collect();
        let rows: Vec<KeptRow<'_>> = values
            .iter()
            .enumerate()
            .map(|(i, values)| KeptRow { weight: 1.0, junk: i % 5 == 0, values })
            .collect();
        let found = learn(&rows, SUPPORT);
        assert_eq!(found, [NewLimit { feature: 1, side: Side::Above, limit: 6.0, junk: 8, good: 0 }]);
        assert!(found[0].drops(&[None, Some(6.1), None]) && !found[0].drops(&[Some(99.0), Some(6.0), None]));
        assert!(!found[0].drops(&[None, None, None]), "a value that is not defined drops nothing");
        // Without junk there is nothing to drop, however unusual it is.
        let none: Vec<KeptRow<'_>> = rows.iter().map(|row| KeptRow { junk: false, ..*row }).collect();
        assert_eq!(learn(&none, SUPPORT), []);
        // A document that stands for many others outweighs a few junk ones.
        let heavy: Vec<KeptRow<'_>> =
            rows.iter().map(|row| KeptRow { junk: row.junk && row.values[0] != Some(0.0), ..*row }).collect();
        let heavy: Vec<KeptRow<'_>> = heavy
            .iter()
            .map(|row| KeptRow { weight: if row.values[0] == Some(0.0) { 50.0 } else { 1.0 }, ..*row })
            .collect();
        assert!(learn(&heavy, SUPPORT).iter().all(|limit| limit.feature != 1), "{heavy:?}");
    }

    #[test]
    fn limits_have_few_digits_and_lie_between() {
        assert_eq!(limit_between(0.1234, 0.5678), 0.3);
        assert_eq!(limit_between(100.0, 101.0), 100.0);
        assert_eq!(limit_between(5.0, 3.0), 4.0);
        for (kept, dropped) in [(1.0, 1.0 + f64::EPSILON), (0.3, 0.300_001), (-2.0, 7.5), (3.0, -1e9)] {
            let limit = limit_between(kept, dropped);
            assert!(if kept < dropped {
                limit >= kept && limit < dropped
            } else {
                limit > dropped && limit <= kept
            });
        }
    }

    #[test]
    fn details_of_drops_are_read() {
        let of = |detail| drop_limit(detail).map(|found| (found.rule, found.side, found.value, found.limit));
        assert_eq!(of("12 bytes, at least 50"), Some((None, Side::Below, 12.0, 50.0)));
        assert_eq!(of("line 3 has 5000 characters, at most 1000"), Some((None, Side::Above, 5000.0, 1000.0)));
        let rule = Some(("gopher-quality".to_string(), "nonsymbol-words".to_string()));
        let detail = "gopher-quality: nonsymbol-words is 31, allowed 50 to 100000";
        assert_eq!(of(detail), Some((rule, Side::Below, 31.0, 50.0)));
        let detail = "fineweb: top-ngram-chars(2) is 0.31, allowed - to 0.2";
        assert_eq!(of(detail).unwrap().1, Side::Above);
        assert_eq!(of("own: quality = 0.3"), None);
        assert_eq!(of("x: y is z, allowed 1 to 2"), None);
    }

    #[test]
    fn a_limit_is_widened_to_where_junk_begins() {
        let rows = vec![(48.0, false), (40.0, false), (33.0, false), (30.0, true), (12.0, true), (5.0, true)];
        assert_eq!(widen(rows.clone(), Side::Below, SUPPORT), Some((32.0, 3, 0)));
        assert_eq!(widen(rows[3..].to_vec(), Side::Below, SUPPORT), None);
        assert_eq!(widen(rows[..3].to_vec(), Side::Below, SUPPORT), Some((33.0, 3, 0)), "all of them");
        assert_eq!(widen(rows[..2].to_vec(), Side::Below, SUPPORT), None, "too few");
    }
}
