//! Metrics of whole sets of texts: sums over segments, intervals, and whether two systems differ.

use crate::answers::{exact_match, f1};
use crate::wordnet::WordNet;
use crate::{Bleu, BleuCounts, ChrF, Meteor, Rouge, Ter, TerCounts};
use bessemer_tensor::rng::RngKey;

/// Whether a difference is as large as the one seen, rounding aside. An equal one counts (Phipson and Smyth 2010); sacrebleu counts larger ones alone, so that a
/// system differs from itself.
fn reaches(difference: f64, seen: f64) -> bool {
    difference >= seen - 1e-9 * (1.0 + seen)
}

/// A segment: a text and the references that it is held against, at least one.
pub type Segment<'a> = (&'a str, &'a [&'a str]);

/// A metric whose score of a set follows from sums over its segments.
pub trait CorpusMetric {
    /// Name of the metric.
    fn name(&self) -> String;

    /// What is summed: the same number of values for every segment.
    fn sums(&self, hypothesis: &str, references: &[&str]) -> Vec<f64>;

    /// The score of sums.
    fn score_of(&self, sums: &[f64]) -> f64;

    /// The definition that ran, for `references` references of each segment.
    fn signature_for(&self, references: usize) -> String;

    /// Whether a larger score is better.
    fn larger_is_better(&self) -> bool {
        true
    }

    /// The score of a set.
    fn corpus<'a>(&self, segments: impl IntoIterator<Item = Segment<'a>>) -> f64
    where
        Self: Sized,
    {
        let mut sums: Vec<f64> = Vec::new();
        for (hypothesis, references) in segments {
            let of = self.sums(hypothesis, references);
            sums.resize(of.len(), 0.0);
            add(&mut sums, &of);
        }
        self.score_of(&sums)
    }
}

fn add(to: &mut [f64], from: &[f64]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to += from;
    }
}

impl CorpusMetric for Bleu {
    fn name(&self) -> String {
        "BLEU".into()
    }

    fn sums(&self, hypothesis: &str, references: &[&str]) -> Vec<f64> {
        let counts = self.counts(hypothesis, references);
        let all = counts.matches.iter().chain(&counts.totals).chain([&counts.hypothesis, &counts.reference]);
        all.map(|count| *count as f64).collect()
    }

    fn score_of(&self, sums: &[f64]) -> f64 {
        let at = |i: usize| sums.get(i).map_or(0, |sum| *sum as u64);
        let counts = BleuCounts {
            matches: [0, 1, 2, 3].map(at),
            totals: [4, 5, 6, 7].map(at),
            hypothesis: at(8),
            reference: at(9),
        };
        self.score(&counts)
    }

    fn signature_for(&self, references: usize) -> String {
        self.signature(references)
    }
}

impl CorpusMetric for ChrF {
    fn name(&self) -> String {
        format!("chrF{}{}", self.beta, "+".repeat(self.words))
    }

    fn sums(&self, hypothesis: &str, references: &[&str]) -> Vec<f64> {
        self.counts(hypothesis, references).iter().flatten().map(|count| *count as f64).collect()
    }

    fn score_of(&self, sums: &[f64]) -> f64 {
        self.score(&sums.chunks_exact(3).map(|c| [c[0] as u64, c[1] as u64, c[2] as u64]).collect())
    }

    fn signature_for(&self, references: usize) -> String {
        self.signature(references)
    }
}

impl CorpusMetric for Ter {
    fn name(&self) -> String {
        "TER".into()
    }

    fn sums(&self, hypothesis: &str, references: &[&str]) -> Vec<f64> {
        let counts = self.counts(hypothesis, references);
        vec![counts.edits, counts.reference]
    }

    fn score_of(&self, sums: &[f64]) -> f64 {
        match sums {
            [edits, reference] => self.score(&TerCounts { edits: *edits, reference: *reference }),
            _ => 0.0,
        }
    }

    fn signature_for(&self, references: usize) -> String {
        self.signature(references)
    }

    fn larger_is_better(&self) -> bool {
        false
    }
}

/// A metric whose score of a set is the mean over its segments.
#[derive(Debug, Clone, PartialEq)]
pub enum MeanMetric {
    /// F of ROUGE, the best over references.
    Rouge {
        /// Variant.
        variant: Rouge,
        /// Whether words are stemmed.
        stemmed: bool,
    },
    /// METEOR, the best over references.
    Meteor {
        /// Constants.
        meteor: Meteor,
        /// Synonyms, for the third stage.
        synonyms: Option<Box<WordNet>>,
    },
    /// Whether an answer is one of the expected ones.
    ExactMatch,
    /// F1 over words of an answer.
    F1,
}

impl CorpusMetric for MeanMetric {
    fn name(&self) -> String {
        match self {
            MeanMetric::Rouge { variant, .. } => variant.name(),
            MeanMetric::Meteor { .. } => "METEOR (2007)".into(),
            MeanMetric::ExactMatch => "exact match".into(),
            MeanMetric::F1 => "F1".into(),
        }
    }

    fn sums(&self, hypothesis: &str, references: &[&str]) -> Vec<f64> {
        let value = match self {
            MeanMetric::Rouge { variant, stemmed } => variant.best(hypothesis, references, *stemmed).f1,
            MeanMetric::Meteor { meteor, synonyms } => match synonyms {
                Some(net) => meteor.best(hypothesis, references, Some(&|word| net.synonyms(word))),
                None => meteor.best(hypothesis, references, None),
            },
            MeanMetric::ExactMatch => f64::from(u8::from(exact_match(hypothesis, references))),
            MeanMetric::F1 => f1(hypothesis, references),
        };
        vec![value, 1.0]
    }

    fn score_of(&self, sums: &[f64]) -> f64 {
        match sums {
            [sum, count] if *count > 0.0 => 100.0 * sum / count,
            _ => 0.0,
        }
    }

    fn signature_for(&self, references: usize) -> String {
        let how = match self {
            MeanMetric::Rouge { stemmed, .. } => {
                format!("stem:{}|refs:best", if *stemmed { "porter-nltk" } else { "no" })
            }
            MeanMetric::Meteor { meteor, synonyms } => format!(
                "nltk|alpha:{}|beta:{}|gamma:{}|synonyms:{}|refs:best",
                meteor.alpha,
                meteor.beta,
                meteor.gamma,
                if synonyms.is_some() { "wordnet" } else { "no" }
            ),
            MeanMetric::ExactMatch | MeanMetric::F1 => "norm:squad|refs:best".into(),
        };
        format!("nrefs:{references}|{how}")
    }
}

/// Sums of each segment of a set, from which scores of samples follow without reading texts again.
#[derive(Debug, Clone, PartialEq)]
pub struct SegmentSums {
    rows: Vec<Vec<f64>>,
}

impl SegmentSums {
    /// Sums of each segment.
    pub fn of<'a>(metric: &dyn CorpusMetric, segments: impl IntoIterator<Item = Segment<'a>>) -> SegmentSums {
        SegmentSums {
            rows: segments.into_iter().map(|(text, references)| metric.sums(text, references)).collect(),
        }
    }

    /// Sums of single segments.
    pub fn rows(&self) -> &[Vec<f64>] {
        &self.rows
    }

    /// The score of the whole set.
    pub fn score(&self, metric: &dyn CorpusMetric) -> f64 {
        metric.score_of(&self.sum(0..self.rows.len()))
    }

    fn sum(&self, rows: impl Iterator<Item = usize>) -> Vec<f64> {
        let mut sums = vec![0.0; self.rows.first().map_or(0, Vec::len)];
        for row in rows {
            add(&mut sums, &self.rows[row]);
        }
        sums
    }

    /// The score of a sample of segments, drawn with replacement; the same for the same number, whatever is scored.
    fn sample(&self, metric: &dyn CorpusMetric, seed: u64, number: usize) -> f64 {
        let key = RngKey::new(seed, number as u64, "segments");
        let n = self.rows.len() as u64;
        let row = |i: u64| ((u64::from(key.block(i / 4)[(i % 4) as usize]) * n) >> 32) as usize;
        metric.score_of(&self.sum((0..n).map(row)))
    }

    /// Mean and half the width of the 95 % interval of `samples` samples (Koehn 2004), as sacrebleu states it. None without segments.
    pub fn interval(&self, metric: &dyn CorpusMetric, samples: usize, seed: u64) -> Option<[f64; 2]> {
        if self.rows.is_empty() || samples == 0 {
            return None;
        }
        let mut scores: Vec<f64> = (0..samples).map(|number| self.sample(metric, seed, number)).collect();
        scores.sort_by(f64::total_cmp);
        let mean = scores.iter().sum::<f64>() / samples as f64;
        let cut = samples / 40;
        Some([mean, (scores[samples - cut - 1] - scores[cut]) / 2.0])
    }

    /// Probability of a difference to `other` at least as large as the one seen, if there were none, by the paired bootstrap (Koehn 2004): how far the differences of
    /// samples stray from their mean.
    pub fn paired_bootstrap(
        &self,
        other: &SegmentSums,
        metric: &dyn CorpusMetric,
        samples: usize,
        seed: u64,
    ) -> f64 {
        let seen = (self.score(metric) - other.score(metric)).abs();
        let difference =
            |number: usize| (self.sample(metric, seed, number) - other.sample(metric, seed, number)).abs();
        let differences: Vec<f64> = (0..samples).map(difference).collect();
        let mean = differences.iter().sum::<f64>() / samples as f64;
        let as_large = differences.iter().filter(|d| reaches(**d - mean, seen)).count();
        (as_large + 1) as f64 / (samples + 1) as f64
    }

    /// The same by approximate randomisation (Riezler and Maxwell 2005): differences after segments have changed sides by chance.
    pub fn randomisation(
        &self,
        other: &SegmentSums,
        metric: &dyn CorpusMetric,
        trials: usize,
        seed: u64,
    ) -> f64 {
        let seen = (self.score(metric) - other.score(metric)).abs();
        let as_large = (0..trials).filter(|trial| {
            let key = RngKey::new(seed, *trial as u64, "sides");
            let width = self.rows.first().map_or(0, Vec::len);
            let mut sides = [vec![0.0; width], vec![0.0; width]];
            for (i, (a, b)) in self.rows.iter().zip(&other.rows).enumerate() {
                let word = key.block(i as u64 / 128)[i / 32 % 4];
                let side = (word >> (i % 32) & 1) as usize;
                add(&mut sides[side], a);
                add(&mut sides[1 - side], b);
            }
            reaches((metric.score_of(&sides[0]) - metric.score_of(&sides[1])).abs(), seen)
        });
        (as_large.count() + 1) as f64 / (trials + 1) as f64
    }
}
