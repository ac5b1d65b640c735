//! The sample that people review.
//!
//! ```text
//! z_f = (value - median) / (interquartile range / 1.349)       of a measure f; other spreads where that one is 0
//! stratum of a kept document: the measure and side with the largest |z|, if that is above 3; else "usual"
//! ```
//! Of a group of junk that shares a property, a measure of this property has a large z, whatever other measures vary. Each stratum is
//! sampled evenly, and a verdict weighs documents of the stratum / verdicts in it.

use super::Side;
use crate::error::{Error, Result};
use crate::inspect::InspectFilter;
use crate::read::CorpusReader;
use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, Float64Type};
use arrow_array::{Array, RecordBatch, StringArray};
use arrow_schema::DataType;
use bessemer_dataflow::column;
use bessemer_documents::Split;
use bessemer_rules::{DocumentView, Profile, ProfileFile, Scratch, StepFile};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Kept documents that are measured, about; more are sampled by a hash of their ids first.
const MEASURED: f64 = 20_000.0;
/// Distance from the median in standard deviations beyond which a value is unusual.
const UNUSUAL: f64 = 3.0;
/// Times [`crate::HEAD_BYTES`] of text that a kept document shows.
const PAGES: usize = 10;
/// Share of the documents to review that are dropped ones, if there are enough of them.
const DROPPED_SHARE: f64 = 1.0 / 3.0;
/// Share of the kept ones to review that are usual ones.
const USUAL_SHARE: f64 = 0.25;
/// Documents of a stratum, at least: a variance needs two.
const LEAST: usize = 2;
/// Fewest measured documents of an unusual stratum of its own.
const SMALLEST: usize = 5;
/// Reasons of `[corpus.clean]` that are about the text.
pub(super) const CLEAN: [&str; 7] = [
    "too-short",
    "too-large",
    "generated",
    "numeric-table",
    "long-line",
    "long-mean-line",
    "low-alphanumeric",
];

/// Property of a kept document that a limit can be set on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Feature {
    /// A measure of a profile, without limits.
    Rule {
        /// Its title, as in `top-ngram-chars(2)`.
        title: String,
        /// The step; its kind of words is written out where it counts words.
        step: Box<StepFile>,
    },
    /// A score.
    Score {
        /// Its column.
        column: String,
    },
}

impl Feature {
    /// Name for people.
    pub fn name(&self) -> &str {
        match self {
            Feature::Rule { title, .. } => title,
            Feature::Score { column } => column,
        }
    }
}

/// Documents of which a few are reviewed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Stratum {
    /// Its name; begins with "kept" or "dropped".
    pub name: String,
    /// Documents of the corpus in it; an estimate where not every kept document was measured.
    pub documents: f64,
}

/// A document to review.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReviewDocument {
    /// Unique name.
    pub id: String,
    /// Its stratum.
    pub stratum: usize,
    /// Reason of a drop; none for a kept document.
    pub reason: Option<String>,
    /// The measured value and the limit of a drop.
    pub detail: Option<String>,
    /// Values of the features of a kept document; empty for a dropped one, whose text is not stored.
    pub values: Vec<Option<f64>>,
    /// The beginning of its text.
    #[serde(skip)]
    pub text: String,
}

/// Sample of a corpus for review.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReviewSample {
    /// Fingerprint of the corpus.
    pub corpus: String,
    /// Properties of kept documents.
    pub features: Vec<Feature>,
    /// Strata.
    pub strata: Vec<Stratum>,
    /// The documents.
    pub documents: Vec<ReviewDocument>,
}

/// Size and measures of a sample.
#[derive(Debug, Clone, PartialEq)]
pub struct ReviewOptions {
    /// Documents to review.
    pub documents: usize,
    /// Profiles whose measures become features: names or paths.
    pub profiles: Vec<String>,
    /// Seed of the sample.
    pub seed: u64,
}

/// A measured document before strata are known.
struct Measured {
    hash: u64,
    id: String,
    values: Vec<Option<f64>>,
    text: String,
}

/// Dropped documents of a reason: their number, and those with the lowest hashes.
#[derive(Default)]
struct OfReason {
    documents: u64,
    lowest: BTreeMap<u64, ReviewDocument>,
}

/// The measures of profiles, in order, without limits, each once. Those that depend on edits of other steps are left out.
fn steps(profiles: &[String]) -> Result<Vec<StepFile>> {
    fn add(file: &ProfileFile, to: &mut Vec<StepFile>) -> bessemer_rules::Result<()> {
        for step in &file.step {
            if let Some(other) = &step.profile {
                add(Profile::named(other)?.complete_file(), to)?;
            }
            let Some(rule) = step.rule.as_deref().filter(|rule| *rule != "removed-words") else { continue };
            let counts_words = bessemer_rules::MEASURES
                .iter()
                .any(|spec| spec.name == rule && spec.parameters.contains(&"words"));
            let step = StepFile {
                min: None,
                max: None,
                label: None,
                below: None,
                above: None,
                words: step.words.clone().or_else(|| counts_words.then(|| file.words.clone())),
                ..step.clone()
            };
            if !to.contains(&step) {
                to.push(step);
            }
        }
        Ok(())
    }

    let mut found = Vec::new();
    for name in profiles {
        let wrong = |error| Error::Config(format!("profile {name}: {error}"));
        add(Profile::find(name).map_err(wrong)?.complete_file(), &mut found).map_err(wrong)?;
    }
    Ok(found)
}

/// Whether a drop is about the text, by its detail.
fn is_about_text(reason: &str, detail: Option<&str>) -> bool {
    CLEAN.contains(&reason)
        || detail.is_some_and(|detail| {
            detail.contains(", allowed ") || detail.starts_with("own: ") || detail.starts_with("first: ")
        })
}

/// Value of a numeric column.
fn number(batch: &RecordBatch, name: &str, index: usize) -> Option<f64> {
    let array = batch.column_by_name(name).filter(|array| !array.is_null(index))?;
    let value = match array.data_type() {
        DataType::Float32 => f64::from(array.as_primitive::<Float32Type>().value(index)),
        DataType::Float64 => array.as_primitive::<Float64Type>().value(index),
        _ => return None,
    };
    value.is_finite().then_some(value)
}

/// Columns of numeric scores.
fn score_columns(reader: &CorpusReader) -> Result<Vec<String>> {
    let Some(schema) = reader.document_schema()? else { return Ok(Vec::new()) };
    let is_number = |name: &&String| {
        schema
            .field_with_name(name)
            .is_ok_and(|field| matches!(field.data_type(), DataType::Float32 | DataType::Float64))
    };
    Ok(reader.summary().scores.keys().filter(is_number).cloned().collect())
}

/// Value of sorted values at a share.
fn at(sorted: &[f64], share: f64) -> f64 {
    sorted.get(((sorted.len().saturating_sub(1)) as f64 * share).round() as usize).copied().unwrap_or(0.0)
}

/// Median and spread of values; no spread if all are the same.
pub(super) fn middle(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    let mut sorted: Vec<f64> = values.collect();
    if sorted.is_empty() {
        return None;
    }
    sorted.sort_by(f64::total_cmp);
    let mean = sorted.iter().sum::<f64>() / sorted.len() as f64;
    let deviation = (sorted.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / sorted.len() as f64).sqrt();
    let spreads = [
        (at(&sorted, 0.75) - at(&sorted, 0.25)) / 1.349,
        (at(&sorted, 0.95) - at(&sorted, 0.05)) / 3.29,
        deviation,
    ];
    let spread = spreads.into_iter().find(|spread| *spread > 0.0)?;
    Some((at(&sorted, 0.5), spread))
}

/// Even shares of a budget: one each in turn, up to what each can take.
fn even(most: &[usize], mut budget: usize) -> Vec<usize> {
    let mut given = vec![0; most.len()];
    while budget > 0 {
        let before = budget;
        for (given, most) in given.iter_mut().zip(most) {
            if *given < *most && budget > 0 {
                *given += 1;
                budget -= 1;
            }
        }
        if budget == before {
            break;
        }
    }
    given
}

impl ReviewSample {
    /// Draws a sample of a corpus. It is a function of the corpus and the options.
    ///
    /// # Errors
    /// A profile that is none, a damaged corpus, or the disk's refusal.
    pub fn draw(reader: &CorpusReader, options: &ReviewOptions) -> Result<ReviewSample> {
        let steps = steps(&options.profiles)?;
        let file = ProfileFile {
            name: "review".into(),
            about: String::new(),
            source: String::new(),
            words: "uax29".into(),
            step: steps.clone(),
        };
        let profile = Profile::compile(file, None).map_err(|error| Error::Config(error.to_string()))?;
        let scores = score_columns(reader)?;
        let titles = profile.explain(&DocumentView::of(""), &mut Scratch::new()).rules;
        let rules = titles
            .into_iter()
            .zip(steps)
            .map(|(found, step)| Feature::Rule { title: found.rule, step: Box::new(step) });
        let features: Vec<Feature> =
            rules.chain(scores.iter().map(|column| Feature::Score { column: column.clone() })).collect();
        let measured = measured(reader, &profile, &scores, options.seed)?;
        let dropped = dropped(reader, options)?;
        let kept = reader.summary().kept.documents as f64;

        let (mut strata, mut documents) = (Vec::new(), Vec::new());
        let of_dropped: usize = dropped.values().map(|of| of.lowest.len()).sum();
        let budget_dropped = ((options.documents as f64 * DROPPED_SHARE) as usize).min(of_dropped);
        let groups = groups(&features, measured, (options.documents - budget_dropped) / (2 * LEAST));
        let all: usize = groups.values().map(Vec::len).sum();
        let budget = (options.documents - budget_dropped).min(all);
        let usual = groups.get(USUAL).map_or(0, Vec::len);
        let for_usual = ((budget as f64 * USUAL_SHARE).ceil() as usize).min(usual);
        let others: Vec<usize> =
            groups.iter().filter(|(name, _)| *name != USUAL).map(|(_, group)| group.len()).collect();
        let mut others = even(&others, budget - for_usual).into_iter();
        let left = budget - for_usual - others.clone().sum::<usize>();
        for (name, mut group) in groups {
            let take = match name == USUAL {
                true => (for_usual + left).min(usual),
                false => others.next().unwrap_or(0),
            };
            group.sort_by_key(|one| one.hash);
            let stratum = strata.len();
            strata.push(Stratum { documents: kept * group.len() as f64 / all.max(1) as f64, name });
            documents.extend(group.into_iter().take(take).map(|one| ReviewDocument {
                id: one.id,
                stratum,
                reason: None,
                detail: None,
                values: one.values,
                text: one.text,
            }));
        }
        let most: Vec<usize> = dropped.values().map(|of| of.lowest.len()).collect();
        let given = even(&most, options.documents.saturating_sub(documents.len()));
        for ((reason, of), take) in dropped.into_iter().zip(given) {
            let stratum = strata.len();
            strata.push(Stratum { name: format!("dropped: {reason}"), documents: of.documents as f64 });
            let some = of.lowest.into_values().take(take);
            documents.extend(some.map(|document| ReviewDocument { stratum, ..document }));
        }
        Ok(ReviewSample { corpus: reader.summary().fingerprint.clone(), features, strata, documents })
    }
}

/// Name of the stratum of documents without an unusual value.
const USUAL: &str = "kept: usual";
/// Name of the stratum of unusual documents of small groups.
const OTHERS: &str = "kept: unusual in other ways";

fn measured(reader: &CorpusReader, profile: &Profile, scores: &[String], seed: u64) -> Result<Vec<Measured>> {
    let share = (MEASURED / reader.summary().kept.documents.max(1) as f64).min(1.0);
    // 2^64 times the share; 1 takes all.
    let below = (share * (1u128 << 64) as f64) as u128;
    let mut scratch = Scratch::new();
    let mut found = Vec::new();
    for batch in Split::ALL.into_iter().flat_map(|split| reader.split_batches(split)) {
        let batch = batch?;
        let text = |name: &str| column::<StringArray>("review", &batch, name);
        let (ids, texts) = (text("id")?, text("text")?);
        for index in 0..batch.num_rows() {
            let (id, text) = (ids.value(index), texts.value(index));
            let hash = xxh3_64_with_seed(id.as_bytes(), seed);
            if u128::from(hash) >= below {
                continue;
            }
            let rules = profile.explain(&DocumentView::of(text), &mut scratch).rules;
            let values = rules.into_iter().map(|rule| rule.value.filter(|value| value.is_finite()));
            let values = values.chain(scores.iter().map(|name| number(&batch, name, index))).collect();
            let end = text.floor_char_boundary(crate::HEAD_BYTES * PAGES);
            found.push(Measured { hash, id: id.into(), values, text: text[..end].into() });
        }
    }
    Ok(found)
}

/// Kept documents by stratum, at most `most` strata.
fn groups(features: &[Feature], measured: Vec<Measured>, most: usize) -> BTreeMap<String, Vec<Measured>> {
    let middles: Vec<Option<(f64, f64)>> = (0..features.len())
        .map(|feature| middle(measured.iter().filter_map(|one| one.values[feature])))
        .collect();
    let mut groups: BTreeMap<Option<(usize, Side)>, Vec<Measured>> = BTreeMap::new();
    for one in measured {
        let distances =
            one.values.iter().zip(&middles).enumerate().filter_map(|(feature, (value, middle))| {
                let ((middle, spread), value) = (middle.as_ref()?, value.as_ref()?);
                Some((feature, (value - middle) / spread))
            });
        let furthest = distances.max_by(|(_, a), (_, b)| a.abs().total_cmp(&b.abs()));
        let group = furthest
            .filter(|(_, z)| z.abs() > UNUSUAL)
            .map(|(feature, z)| (feature, if z > 0.0 { Side::Above } else { Side::Below }));
        groups.entry(group).or_default().push(one);
    }
    let mut sizes: Vec<usize> =
        groups.iter().filter(|(key, _)| key.is_some()).map(|(_, group)| group.len()).collect();
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    let least = sizes.get(most.max(1)).map_or(0, |next| next + 1).max(SMALLEST);
    let mut named: BTreeMap<String, Vec<Measured>> = BTreeMap::new();
    for (key, group) in groups {
        let name = match key {
            None => USUAL.to_string(),
            Some(_) if group.len() < least => OTHERS.to_string(),
            Some((feature, side)) => {
                let side = if side == Side::Above { "high" } else { "low" };
                format!("kept: {side} {}", features[feature].name())
            }
        };
        named.entry(name).or_default().extend(group);
    }
    named
}

/// Documents that were dropped for their text, by reason.
fn dropped(reader: &CorpusReader, options: &ReviewOptions) -> Result<BTreeMap<String, OfReason>> {
    let mut found: BTreeMap<String, OfReason> = BTreeMap::new();
    for row in reader.inspect(InspectFilter::default()) {
        let row = row?;
        let reason = row.reason.unwrap_or_default();
        if !is_about_text(&reason, row.detail.as_deref()) {
            continue;
        }
        let of = found.entry(reason.clone()).or_default();
        of.documents += 1;
        let hash = xxh3_64_with_seed(row.id.as_bytes(), options.seed);
        of.lowest.insert(
            hash,
            ReviewDocument {
                id: row.id,
                stratum: 0,
                reason: Some(reason),
                detail: row.detail,
                values: Vec::new(),
                text: row.head,
            },
        );
        if of.lowest.len() > options.documents {
            of.lowest.pop_last();
        }
    }
    // Rare reasons are one stratum, so that each has enough verdicts.
    let most = (options.documents as f64 * DROPPED_SHARE) as usize / (2 * LEAST);
    if found.len() > most.max(1) {
        let mut sizes: Vec<u64> = found.values().map(|of| of.documents).collect();
        sizes.sort_unstable_by(|a, b| b.cmp(a));
        let least = sizes[most.max(1) - 1];
        let mut frequent = BTreeMap::new();
        let mut rare = OfReason::default();
        for (reason, of) in found {
            if of.documents >= least && frequent.len() + 1 < most.max(1) {
                frequent.insert(reason, of);
            } else {
                rare.documents += of.documents;
                rare.lowest.extend(of.lowest);
            }
        }
        frequent.insert("other reasons".into(), rare);
        found = frequent;
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_shared_out_evenly() {
        assert_eq!(even(&[10, 1, 3], 9), [5, 1, 3]);
        assert_eq!(even(&[2, 2], 9), [2, 2]);
        assert_eq!(even(&[], 3), Vec::<usize>::new());
    }

    #[test]
    fn spread_falls_back_where_most_values_are_equal() {
        let (median, spread) = middle((0..100).map(f64::from)).unwrap();
        assert!((median - 50.0).abs() < 1.0 && (spread - 37.1).abs() < 1.0, "{median} {spread}");
        // 3 % of ones: neither quartiles nor 5 and 95 per cent see them.
        let (median, spread) = middle((0..100).map(|i| f64::from(u8::from(i < 3)))).unwrap();
        assert!(median == 0.0 && (1.0 / spread) > UNUSUAL, "{median} {spread}");
        assert_eq!(middle([2.0; 5].into_iter()), None);
    }

    #[test]
    fn every_step_of_a_profile_is_a_measure_with_its_kind_of_words() {
        let found = steps(&["fineweb".into(), "gopher-quality".into()]).unwrap();
        let words = found.iter().find(|step| step.rule.as_deref() == Some("nonsymbol-words")).unwrap();
        assert_eq!((words.words.as_deref(), words.min, words.max), (Some("english"), None, None));
        let times = found.iter().filter(|step| step.rule.as_deref() == Some("nonsymbol-words")).count();
        assert_eq!(times, 1, "a measure that two profiles have");
        assert!(steps(&["zyia2".into()]).unwrap_err().to_string().contains("ziya2"));
    }

    #[test]
    fn only_drops_by_the_text_are_reviewed() {
        assert!(is_about_text("too-short", Some("3 bytes, at least 20")));
        assert!(is_about_text(
            "gopher_short_doc",
            Some("gopher-quality: nonsymbol-words is 3, allowed 50 to 100000")
        ));
        assert!(is_about_text("quality > 1", Some("own: quality = 0.2")));
        assert!(!is_about_text("near-duplicate", Some("jaccard with file 0 row 12 at 0.9100")));
        assert!(!is_about_text("binary", None));
    }
}
