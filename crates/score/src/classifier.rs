//! A classifier from two piles of text, with what it is worth on text that it has not seen.

use crate::error::{Result, ScoreError};
use crate::fasttext::{Example, FastText, TrainConfig, train};
use bessemer_metrics::calibration::{Bins, calibration_error};
use bessemer_text::hash::xxh3_seeded;

/// Label of what is wanted.
pub const POSITIVE: &str = "__label__positive";
/// Label of what is not.
pub const NEGATIVE: &str = "__label__negative";

/// How to train and judge a classifier.
#[derive(Debug, Clone, PartialEq)]
pub struct ClassifierConfig {
    /// The fastText settings.
    pub train: TrainConfig,
    /// Share of the documents that are kept out of training to judge the model, above 0 and up to 0.5.
    pub held_out: f64,
}

impl Default for ClassifierConfig {
    fn default() -> Self {
        // Smaller than fastText's own default of 100 dimensions and 2,000,000 buckets, which make a file of 800 MB.
        let train = TrainConfig { dim: 64, word_ngrams: 2, bucket: 200_000, ..TrainConfig::default() };
        ClassifierConfig { train, held_out: 0.1 }
    }
}

/// What a classifier is worth on held-out documents.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Evaluation {
    /// Held-out documents of the positive pile.
    pub positives: u64,
    /// Held-out documents of the negative pile.
    pub negatives: u64,
    /// Of what the model calls positive (probability 0.5 or more), the share that is.
    pub precision: f64,
    /// Of what is positive, the share that the model calls so.
    pub recall: f64,
    /// Harmonic mean of the two.
    pub f1: f64,
    /// Share of right calls.
    pub accuracy: f64,
    /// Probability that a positive document has a higher score than a negative one, ties counting half: the area
    /// under the ROC curve.
    pub auc: f64,
    /// Expected calibration error of the probability of being positive, over ten bins of equally many documents.
    pub calibration_error: f64,
}

/// True for the documents that are held out: a function of text and seed, so that copies of a document are on one side.
fn is_held_out(text: &str, config: &ClassifierConfig) -> bool {
    let draw = xxh3_seeded(text.as_bytes(), config.train.seed as u64) >> 11;
    (draw as f64 / (1u64 << 53) as f64) < config.held_out
}

/// Trains on both piles, interleaved by hash so that neither comes first, and judges on what was held out. The two
/// functions are called once for every pass and must give the same documents each time.
///
/// # Errors
/// Where the configuration is out of range, a pile is empty on either side of the split, or reading fails.
pub fn train_classifier<I>(
    config: &ClassifierConfig,
    positive: impl Fn() -> I,
    negative: impl Fn() -> I,
) -> Result<(FastText, Evaluation)>
where
    I: Iterator<Item = Result<String>>,
{
    if !(config.held_out > 0.0 && config.held_out <= 0.5) {
        let found = config.held_out;
        return Err(ScoreError::Config(format!(
            "held_out = {found} is out of range: wanted above 0, up to 0.5"
        )));
    }
    let sizes = [count(config, positive())?, count(config, negative())?];
    for ((trained, judged), name) in sizes.iter().zip(["positive", "negative"]) {
        if *trained == 0 || *judged == 0 {
            return Err(ScoreError::Training(format!(
                "{name} documents: {trained} for training and {judged} held out, wanted at least one of \
                 each; give more text or another held_out"
            )));
        }
    }
    let model = train(&config.train, || Interleaved {
        piles: [(POSITIVE, positive(), 0, sizes[0].0), (NEGATIVE, negative(), 0, sizes[1].0)],
        config,
    })?;
    let mut scored = Vec::new();
    for (is_positive, pile) in [(true, positive()), (false, negative())] {
        for text in pile {
            let text = text?;
            if is_held_out(&text, config) {
                scored.push((model.probability(&text, POSITIVE).unwrap_or(0.0), is_positive));
            }
        }
    }
    Ok((model, evaluate(&mut scored)))
}

fn count(config: &ClassifierConfig, pile: impl Iterator<Item = Result<String>>) -> Result<(u64, u64)> {
    let (mut trained, mut judged) = (0, 0);
    for text in pile {
        if is_held_out(&text?, config) {
            judged += 1;
        } else {
            trained += 1;
        }
    }
    Ok((trained, judged))
}

/// Both piles in proportion: the next document is from the pile of which the smaller share is done.
struct Interleaved<'c, I> {
    /// Label, documents, how many were given, how many there are.
    piles: [(&'static str, I, u64, u64); 2],
    config: &'c ClassifierConfig,
}

impl<I: Iterator<Item = Result<String>>> Iterator for Interleaved<'_, I> {
    type Item = Result<Example>;

    fn next(&mut self) -> Option<Self::Item> {
        let behind =
            |[a, b]: &[(&str, I, u64, u64); 2]| a.2 as u128 * b.3 as u128 <= b.2 as u128 * a.3 as u128;
        let first = usize::from(!behind(&self.piles));
        for at in [first, 1 - first] {
            let (label, pile, given, _) = &mut self.piles[at];
            for text in pile.by_ref() {
                match text {
                    Err(e) => return Some(Err(e)),
                    Ok(text) if is_held_out(&text, self.config) => {}
                    Ok(text) => {
                        *given += 1;
                        return Some(Ok(Example { labels: vec![(*label).to_owned()], text }));
                    }
                }
            }
        }
        None
    }
}

/// Precision, recall, AUC and calibration of (score, is positive); sorts them.
pub(crate) fn evaluate(scored: &mut [(f32, bool)]) -> Evaluation {
    scored.sort_by(|a, b| a.0.total_cmp(&b.0));
    let positives = scored.iter().filter(|s| s.1).count() as f64;
    let negatives = scored.len() as f64 - positives;
    let hits = scored.iter().filter(|s| s.1 && s.0 >= 0.5).count() as f64;
    let called = scored.iter().filter(|s| s.0 >= 0.5).count() as f64;
    // Mann and Whitney: the sum of the ranks of the positives, equal scores sharing their mean rank.
    let mut ranks = 0.0;
    let mut at = 0;
    while at < scored.len() {
        let same = scored[at..].iter().take_while(|s| s.0 == scored[at].0).count();
        let rank = at as f64 + (same as f64 + 1.0) / 2.0;
        ranks += rank * scored[at..at + same].iter().filter(|s| s.1).count() as f64;
        at += same;
    }
    let share = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
    let (precision, recall) = (share(hits, called), share(hits, positives));
    Evaluation {
        positives: positives as u64,
        negatives: negatives as u64,
        precision,
        recall,
        f1: share(2.0 * precision * recall, precision + recall),
        accuracy: share(hits + negatives - (called - hits), positives + negatives),
        auc: share(ranks - positives * (positives + 1.0) / 2.0, positives * negatives),
        calibration_error: calibration_error(
            &scored.iter().map(|(score, positive)| (f64::from(*score), *positive)).collect::<Vec<_>>(),
            Bins::EqualMass(10),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_evaluation_of_known_scores() {
        let mut scored = [(0.9, true), (0.8, false), (0.7, true), (0.2, true), (0.1, false), (0.2, false)];
        let e = evaluate(&mut scored);
        assert_eq!((e.positives, e.negatives), (3, 3));
        assert!((e.precision - 2.0 / 3.0).abs() < 1e-12 && (e.recall - 2.0 / 3.0).abs() < 1e-12);
        assert!((e.accuracy - 4.0 / 6.0).abs() < 1e-12);
        // Pairs: .9 beats 3; .7 beats 2; .2 beats .1 and ties with .2.
        assert!((e.auc - 6.5 / 9.0).abs() < 1e-12);
        // Six documents in ten bins: one in each but for the two equal scores, whose bin has mean 0.2 and half of them right.
        let wanted = (0.1 + 0.8 + 0.3 + 0.1 + 2.0 * 0.3) / 6.0;
        assert!((e.calibration_error - wanted).abs() < 1e-6, "{}", e.calibration_error);
    }

    #[test]
    fn two_piles_give_a_classifier_that_is_judged_on_other_text() {
        let pile = |words: [&str; 5], n: usize| -> Vec<String> {
            (0..n)
                .map(|i| {
                    format!(
                        "{} {} common words {} {i}",
                        words[i % 5],
                        words[(i / 5) % 5],
                        words[(i / 25) % 5]
                    )
                })
                .collect()
        };
        let good = pile(["theorem", "proof", "lemma", "therefore", "integral"], 300);
        let bad = pile(["casino", "bonus", "click", "free", "winner"], 120);
        let mut config = ClassifierConfig::default();
        (config.train.bucket, config.train.dim, config.train.lr) = (2000, 8, 0.5);
        fn read(pile: &[String]) -> impl Iterator<Item = Result<String>> + '_ {
            pile.iter().cloned().map(Ok)
        }
        let (model, e) = train_classifier(&config, || read(&good), || read(&bad)).expect("trains");
        assert!(e.auc > 0.95 && e.precision > 0.9 && e.recall > 0.9, "{e:?}");
        assert!(e.positives > 10 && e.positives < 60);
        let score = |text| model.probability(text, POSITIVE).expect("known");
        assert!(score("a lemma and its proof") > score("click for a free bonus"));
        let empty = train_classifier(&config, || read(&good), || read(&[])).expect_err("empty pile");
        assert!(empty.to_string().contains("negative documents: 0 for training"), "{empty}");
    }
}
