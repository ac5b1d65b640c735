//! Bounds on the measures of a build: `corpus.evaluate.require`.
//!
//! | column | value |
//! |---|---|
//! | `read.documents`, `read.bytes`; the same of `kept`, `dropped`, `sampled` | counts; `sampled` of the evaluation |
//! | `kept.share` | kept documents / (kept and dropped documents) |
//! | `dropped.REASON` | share of the documents that were dropped for the reason |
//! | `score.NAME.pQ` | quantile of a score, Q = 0, 5, ..., 100 per cent |
//! | `PROFILE.passed` | share of the sample that the profile would keep |
//! | `PROFILE.MEASURE.outside` | share of the sample outside of the limits of a measure |
//! | `PROFILE.MEASURE.pQ` | quantile of a measure over the sample, Q = 0, 5, 25, 50, 75, 95, 100 per cent |

use crate::error::{Error, Result};
use crate::evaluate::{SHARES, profiles};
use crate::output::summary::{CorpusSummary, Count};
use bessemer_corpus_config::EvaluateConfig;
use bessemer_rules::{DocumentView, Predicate, Profile, Row, Value};
use std::collections::BTreeMap;
use std::path::Path;

const KEY: &str = "corpus.evaluate.require";
/// Columns that every build has, whatever it evaluates.
const COUNTS: [&str; 7] = [
    "read.documents",
    "read.bytes",
    "kept.documents",
    "kept.bytes",
    "dropped.documents",
    "dropped.bytes",
    "kept.share",
];
/// Beginnings of columns whose ends depend on the documents.
const OPEN: [&str; 2] = ["dropped.", "score."];

/// Measures of a build by column.
struct Facts(BTreeMap<String, f64>);

impl Row for Facts {
    fn value(&self, column: &str) -> Option<Value<'_>> {
        self.0.get(column).map(|value| Value::Number(*value))
    }

    fn names(&self) -> Vec<&str> {
        self.0.keys().map(String::as_str).collect()
    }
}

/// Name of the column of a quantile.
fn quantile(name: &str, share: f64) -> String {
    format!("{name}.p{:.0}", share * 100.0)
}

/// Columns of the sample.
fn columns_of_sample(profiles: &[Profile]) -> Vec<String> {
    let mut columns = vec!["sampled.documents".to_string(), "sampled.bytes".into()];
    for profile in profiles {
        let name = profile.name();
        columns.push(format!("{name}.passed"));
        for rule in profile.explain(&DocumentView::of(""), &mut bessemer_rules::Scratch::new()).rules {
            let measure = format!("{name}.{}", rule.rule);
            columns.push(format!("{measure}.outside"));
            columns.extend(SHARES.map(|share| quantile(&measure, share)));
        }
    }
    columns
}

/// Checks that the profiles can be used and that the bounds read columns that there will be.
///
/// # Errors
/// The first fault.
pub(crate) fn check(config: &EvaluateConfig) -> Result<()> {
    let wrong = |what: String| Error::Config(format!("{KEY}: {what}"));
    let profiles = profiles(config)?;
    let of_sample = match config.sample > 0.0 {
        true => columns_of_sample(&profiles),
        false => Vec::new(),
    };
    let known = || COUNTS.into_iter().chain(of_sample.iter().map(String::as_str));
    for bound in &config.require {
        let predicate = Predicate::parse(bound).map_err(|error| wrong(error.to_string()))?;
        if predicate.columns().next().is_none() {
            return Err(wrong(format!("{bound:?}: wanted a comparison with a measure of the build")));
        }
        let open: Vec<&str> =
            predicate.columns().filter(|name| OPEN.iter().any(|open| name.starts_with(open))).collect();
        let known: Vec<&str> = known().chain(open).collect();
        predicate.check_columns(known.iter().copied()).map_err(|error| match config.sample > 0.0 {
            true => wrong(error.to_string()),
            false => wrong(format!("{error}; measures of profiles need corpus.evaluate.sample above 0")),
        })?;
    }
    Ok(())
}

fn share(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

fn facts(summary: &CorpusSummary) -> Facts {
    let mut facts = BTreeMap::new();
    let count = |facts: &mut BTreeMap<String, f64>, name: &str, count: Count| {
        facts.insert(format!("{name}.documents"), count.documents as f64);
        facts.insert(format!("{name}.bytes"), count.bytes as f64);
    };
    count(&mut facts, "read", summary.read);
    count(&mut facts, "kept", summary.kept);
    count(&mut facts, "dropped", summary.dropped);
    let all = summary.kept.documents + summary.dropped.documents;
    facts.extend(share(summary.kept.documents, all).map(|share| ("kept.share".to_string(), share)));
    for (reason, dropped) in &summary.dropped_by_reason {
        facts.extend(share(dropped.documents, all).map(|share| (format!("dropped.{reason}"), share)));
    }
    for (name, score) in &summary.scores {
        let last = score.quantiles.len().saturating_sub(1).max(1) as f64;
        let quantiles = score.quantiles.iter().enumerate();
        facts.extend(
            quantiles.map(|(at, value)| (quantile(&format!("score.{name}"), at as f64 / last), *value)),
        );
    }
    let Some(evaluation) = &summary.evaluation else { return Facts(facts) };
    count(&mut facts, "sampled", evaluation.sampled);
    let sampled = evaluation.sampled.documents;
    for (profile, found) in &evaluation.profiles {
        facts.extend(share(found.passed, sampled).map(|share| (format!("{profile}.passed"), share)));
        for measure in &found.measures {
            let name = format!("{profile}.{}", measure.name);
            facts.extend(share(measure.outside, sampled).map(|share| (format!("{name}.outside"), share)));
            let quantiles = SHARES.into_iter().zip(&measure.quantiles);
            facts.extend(quantiles.map(|(share, value)| (quantile(&name, share), *value)));
        }
    }
    Facts(facts)
}

/// Errors if a bound is not true of a build for `path`: one that reads a measure without a value is not met.
pub(crate) fn met(config: &EvaluateConfig, summary: &CorpusSummary, path: &Path) -> Result<()> {
    if config.require.is_empty() {
        return Ok(());
    }
    let mut facts = facts(summary);
    let mut failed = Vec::new();
    for bound in &config.require {
        let predicate = Predicate::parse(bound).map_err(|error| Error::Config(format!("{KEY}: {error}")))?;
        for name in predicate.columns().filter(|name| is_absent_reason(name)) {
            // No document was dropped for it.
            facts.0.entry(name.to_string()).or_insert(0.0);
        }
        if predicate.holds(&facts) == Some(true) {
            continue;
        }
        let value =
            |name: &str| facts.0.get(name).map_or("no value".to_string(), |value| format!("{value:.6}"));
        let mut found: Vec<String> =
            predicate.columns().map(|name| format!("{name} = {}", value(name))).collect();
        found.dedup();
        failed.push(format!("wanted {bound}, found {}", found.join(", ")));
    }
    match failed.is_empty() {
        true => Ok(()),
        false => Err(Error::Bounds { path: path.to_path_buf(), bounds: failed.join("; ") }),
    }
}

/// Whether a column is the share of a reason rather than a count.
fn is_absent_reason(column: &str) -> bool {
    column.starts_with(OPEN[0]) && !COUNTS.contains(&column)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evaluate::{Evaluation, Measure, ProfileEvaluation};
    use crate::output::summary::ScoreSummary;

    fn summary() -> CorpusSummary {
        let count = |documents| Count { documents, bytes: documents * 10 };
        let measure = Measure {
            name: "chars".into(),
            documents: 50,
            outside: 5,
            quantiles: vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0],
            ..Measure::default()
        };
        let profile =
            ProfileEvaluation { passed: 40, measures: vec![measure], ..ProfileEvaluation::default() };
        CorpusSummary {
            read: count(100),
            kept: count(80),
            dropped: count(20),
            dropped_by_reason: [("too-short".to_string(), count(20))].into(),
            evaluation: Some(Evaluation {
                sampled: count(50),
                profiles: [("ziya2".to_string(), profile)].into(),
            }),
            scores: [(
                "quality".to_string(),
                ScoreSummary { quantiles: (0..21).map(f64::from).collect(), ..ScoreSummary::default() },
            )]
            .into(),
            ..CorpusSummary::default()
        }
    }

    #[test]
    fn bounds_read_every_measure_and_name_wanted_and_found() {
        let met = |require: &[&str]| {
            let require = require.iter().map(|bound| (*bound).to_string()).collect();
            let config = EvaluateConfig { require, ..EvaluateConfig::default() };
            super::met(&config, &summary(), Path::new("runs/x/corpus")).map_err(|error| error.to_string())
        };
        for bound in [
            "kept.documents == 80 && read.bytes == 1000 && kept.share == 0.8",
            "`dropped.too-short` == 0.2 && `dropped.long-line` == 0",
            "sampled.documents == 50 && ziya2.passed == 0.8 && ziya2.chars.outside == 0.1",
            "ziya2.chars.p5 == 2 && ziya2.chars.p95 == 6 && score.quality.p95 == 19",
        ] {
            met(&[bound]).unwrap();
        }
        let error = met(&["kept.share >= 0.5", "ziya2.passed >= 0.95", "score.other.p50 > 1"]).unwrap_err();
        for part in [
            "corpus.evaluate.require",
            "wanted ziya2.passed >= 0.95, found ziya2.passed = 0.800000",
            "wanted score.other.p50 > 1, found score.other.p50 = no value",
            "runs/x/corpus is unchanged",
        ] {
            assert!(error.contains(part), "{error} should contain {part}");
        }
        assert!(!error.contains("kept.share"), "{error}");
    }

    #[test]
    fn bounds_on_measures_that_no_build_has_are_refused_before_it() {
        let check = |sample, bound: &str| {
            let config = EvaluateConfig {
                sample,
                profiles: vec!["ziya2".into()],
                require: vec![bound.into()],
                ..EvaluateConfig::default()
            };
            super::check(&config).map_err(|error| error.to_string())
        };
        check(0.1, "ziya2.passed > 0.5 && `ziya2.chars.p95` < 9 && `dropped.a b` < 1").unwrap();
        for (sample, bound, parts) in [
            (0.1, "ziya2.pased > 0.5", vec!["did you mean \"ziya2.passed\""]),
            (0.0, "ziya2.passed > 0.5", vec!["corpus.evaluate.sample above 0"]),
            (0.1, "1 < 2", vec!["wanted a comparison with a measure"]),
            (0.1, "kept.share >", vec!["kept.share"]),
        ] {
            let error = check(sample, bound).unwrap_err();
            assert!(error.contains(KEY), "{error}");
            parts.iter().for_each(|part| assert!(error.contains(part), "{error} should contain {part}"));
        }
    }
}
