//! Evaluation of what is kept: the last step of Ziya2's data factory (Gan et al. 2023, section 2.1). A sample of the kept documents is
//! evaluated by profiles of rules again, each measure is reported as a distribution, and some documents are written to a file for
//! review by people. It changes nothing in the corpus.
//!
//! A document is in the sample if a hash of its name lies below the share, so the sample depends on neither order nor threads.

use crate::error::{Error, Result};
use crate::output::summary::Count;
use crate::rule::DocumentRow;
use arrow_array::RecordBatch;
use bessemer_corpus_config::EvaluateConfig;
use bessemer_documents::{Document, Rows, head};
use bessemer_rules::{DocumentView, Profile, Scratch, Verdict};
use bessemer_score::quantile::Sketch;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Name of the file of documents for people.
pub const REVIEW_FILE: &str = "review.jsonl";
/// Seed of the sample's hash: another than that of the data card's samples.
const SEED: u64 = 0x7a69_7961;
/// Quantiles of a measure: 0, 5, 25, 50, 75, 95, 100 per cent.
pub(crate) const SHARES: [f64; 7] = [0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0];
/// Times [`crate::HEAD_BYTES`] of text that a document for people shows.
const PAGES: usize = 10;

/// The profiles of a configuration.
pub(crate) fn profiles(config: &EvaluateConfig) -> Result<Vec<Profile>> {
    let find = |name: &String| {
        Profile::find(name).map_err(|error| Error::Config(format!("corpus.evaluate.profiles: {error}")))
    };
    config.profiles.iter().map(find).collect()
}

/// Measures of the sample.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// Documents of the sample and their bytes.
    pub sampled: Count,
    /// By profile.
    pub profiles: BTreeMap<String, ProfileEvaluation>,
}

/// Measures of the sample by one profile.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ProfileEvaluation {
    /// Documents that it would keep.
    pub passed: u64,
    /// Documents that it would drop, by the first reason.
    pub dropped: BTreeMap<String, u64>,
    /// Its measures, in its order.
    pub measures: Vec<Measure>,
}

/// A measure over the sample.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Measure {
    /// Its name.
    pub name: String,
    /// Documents that have a value.
    pub documents: u64,
    /// Documents whose value is outside its limits.
    pub outside: u64,
    /// The limits.
    pub min: Option<f64>,
    /// The limits.
    pub max: Option<f64>,
    /// Quantiles 0, 5, 25, 50, 75, 95 and 100 per cent, each right to half a per cent of its value.
    pub quantiles: Vec<f64>,
}

/// A document for people.
#[derive(Serialize)]
struct Review {
    id: String,
    source: String,
    /// Reasons for which the profiles would drop it.
    reasons: Vec<String>,
    text: String,
}

/// A measure while it is counted.
struct Counted {
    measure: Measure,
    sketch: Sketch,
}

/// Evaluates documents as they are written.
pub(crate) struct Evaluator {
    /// Hashes below this are in the sample.
    below: u128,
    review: usize,
    profiles: Vec<(Profile, ProfileEvaluation, Vec<Counted>)>,
    sampled: Count,
    /// The lowest hashes of the sample.
    shown: BTreeMap<(u64, String), Review>,
    scratch: Scratch,
}

impl Evaluator {
    /// Returns none where no evaluation is configured.
    pub(crate) fn new(config: &EvaluateConfig) -> Result<Option<Evaluator>> {
        if config.sample <= 0.0 {
            return Ok(None);
        }
        let profiles =
            profiles(config)?.into_iter().map(|profile| (profile, ProfileEvaluation::default(), Vec::new()));
        Ok(Some(Evaluator {
            // 2^64 times the share; the product is exact enough, and 1 takes all.
            below: (config.sample * (1u128 << 64) as f64) as u128,
            review: config.review as usize,
            profiles: profiles.collect(),
            sampled: Count::default(),
            shown: BTreeMap::new(),
            scratch: Scratch::new(),
        }))
    }

    /// Looks at a kept document.
    pub(crate) fn take(&mut self, batch: &RecordBatch, rows: &Rows<'_>, index: usize) -> Result<()> {
        let (id, text) = (rows.id.value(index), rows.text.value(index));
        let hash = xxh3_64_with_seed(id.as_bytes(), SEED);
        if u128::from(hash) >= self.below {
            return Ok(());
        }
        self.sampled.add(text.len() as u64);
        let document = Document::of("evaluate", batch, index)?;
        let row = DocumentRow(&document);
        let mut reasons = Vec::new();
        for (profile, found, counted) in &mut self.profiles {
            let view = DocumentView { text, columns: &row };
            let outcome = profile.explain(&view, &mut self.scratch);
            match &outcome.verdict {
                Verdict::Drop(reason) => {
                    reasons.push(reason.clone());
                    *found.dropped.entry(reason.clone()).or_default() += 1;
                }
                _ => found.passed += 1,
            }
            for rule in &outcome.rules {
                let place = counted.iter().position(|counted| counted.measure.name == rule.rule);
                let place = place.unwrap_or_else(|| {
                    let measure = Measure {
                        name: rule.rule.clone(),
                        min: rule.min,
                        max: rule.max,
                        ..Measure::default()
                    };
                    counted.push(Counted { measure, sketch: Sketch::default() });
                    counted.len() - 1
                });
                let found = &mut counted[place];
                found.measure.outside += u64::from(rule.failed());
                if let Some(value) = rule.value.filter(|value| value.is_finite()) {
                    found.measure.documents += 1;
                    found.sketch.add(value);
                }
            }
        }
        self.show(hash, rows, index, reasons);
        Ok(())
    }

    fn show(&mut self, hash: u64, rows: &Rows<'_>, index: usize, reasons: Vec<String>) {
        let full = self.shown.len() >= self.review;
        if full && self.shown.last_key_value().is_none_or(|((last, _), _)| *last < hash) {
            return;
        }
        let text = rows.text.value(index);
        let end = text.floor_char_boundary(crate::HEAD_BYTES * PAGES);
        let review = Review {
            id: rows.id.value(index).into(),
            source: rows.source.value(index).into(),
            reasons,
            text: text[..end].into(),
        };
        self.shown.insert((hash, review.id.clone()), review);
        if self.shown.len() > self.review {
            self.shown.pop_last();
        }
    }

    /// What it showed, and the lines of the file for people, if there is to be one.
    pub(crate) fn finish(self) -> Result<(Evaluation, Option<String>)> {
        let mut evaluation = Evaluation { sampled: self.sampled, ..Evaluation::default() };
        for (profile, mut found, counted) in self.profiles {
            for Counted { mut measure, sketch } in counted {
                measure.quantiles = SHARES.into_iter().filter_map(|share| sketch.quantile(share)).collect();
                found.measures.push(measure);
            }
            evaluation.profiles.insert(profile.name().to_string(), found);
        }
        if self.review == 0 {
            return Ok((evaluation, None));
        }
        let mut lines = String::new();
        for review in self.shown.values() {
            let line = serde_json::to_string(review).map_err(|cause| {
                Error::plan("evaluate", format!("document {}: {cause}", head(&review.id)))
            })?;
            lines += &line;
            lines.push('\n');
        }
        Ok((evaluation, Some(lines)))
    }
}
