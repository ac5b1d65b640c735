//! Metrics of tasks: one value for each document, one score over all, and its standard error.
//!
//! ```text
//! acc        1 if the choice with the largest log-likelihood is the expected one (the first among equals)
//! acc_norm   the same of log-likelihood / code points of the choice; acc_bytes: / its bytes in UTF-8
//! acc_mutual_info    the same of log-likelihood - log-likelihood without context
//! perplexity         exp(-mean of log-likelihoods)
//! word_perplexity    exp(-sum of log-likelihoods / sum of words), words between runs of blanks; byte_perplexity: / sum of bytes
//! self_contrast      mean of ROUGE-L F1 of the text, of the one written with knowledge, and of the expected one, by pairs (KoLA)
//! bits_per_byte      -sum of log-likelihoods / ln 2 / sum of bytes
//! standard error     sd / sqrt n of a mean, sd with n - 1; else the sd of 100,000 bootstrap samples (100 for BLEU, chrF and TER), drawn by the numbers
//!                    of CPython's random.Random(i), i = 0, 1, ... for each 1000 samples
//! ```

use crate::filters::pattern;
use bessemer_mersenne::PythonRandom as Random;
use bessemer_metrics::answers::f1;
use bessemer_metrics::kola::self_contrast;
use bessemer_metrics::proportion::wilson;
use bessemer_metrics::{Bleu, ChrF, CorpusMetric, Rouge, Ter};
use bessemer_units::stats;
use regex::Regex;
use serde_json::Value;

/// The kind of request that a task makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OutputType {
    MultipleChoice,
    LogLikelihood,
    Rolling,
    Generate,
}

impl OutputType {
    pub(crate) fn of(name: &str) -> Result<OutputType, String> {
        Ok(match name {
            "multiple_choice" => OutputType::MultipleChoice,
            "loglikelihood" => OutputType::LogLikelihood,
            "loglikelihood_rolling" => OutputType::Rolling,
            "generate_until" => OutputType::Generate,
            other => {
                return Err(format!(
                    "output_type {other}: wanted multiple_choice, loglikelihood, loglikelihood_rolling or generate_until"
                ));
            }
        })
    }

    fn defaults(self) -> &'static [&'static str] {
        match self {
            OutputType::MultipleChoice => &["acc", "acc_norm"],
            OutputType::LogLikelihood => &["perplexity", "acc"],
            OutputType::Rolling => &["word_perplexity", "byte_perplexity", "bits_per_byte"],
            OutputType::Generate => &["exact_match"],
        }
    }
}

/// The measure of one document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MetricKind {
    Acc,
    AccNorm,
    AccBytes,
    AccMutualInfo,
    ExactMatch,
    Perplexity,
    WordPerplexity,
    BytePerplexity,
    BitsPerByte,
    Brier,
    Mcc,
    F1,
    /// Whether the first of two choices is the more probable one (CrowS-Pairs, Nangia et al. 2020).
    PctStereotype,
    /// Share in which the first of two choices is the more probable one, less the share in which the second is (WinoBias).
    PreferenceGap,
    /// Distance of the log-likelihoods of two choices.
    LikelihoodDiff,
    /// BBQ (Parrish et al. 2022) in clear contexts.
    BbqDisambiguated,
    /// BBQ in ambiguous contexts.
    BbqAmbiguous,
    Bleu,
    ChrF,
    ChrFWords,
    Ter,
    Rouge(Rouge),
    TokenF1,
    /// Self-contrast of KoLA, as the paper defines it.
    SelfContrast,
}

/// How the values of documents become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Aggregation {
    Mean,
    Median,
    /// exp(-mean).
    Perplexity,
    /// exp(-sum / weights).
    WeightedPerplexity,
    /// -sum / weights / ln 2.
    BitsPerByte,
    /// Matthews' correlation of (gold, predicted).
    Mcc,
    /// F1 of class 1 of (gold, predicted).
    F1,
    Bleu,
    ChrF,
    ChrFWords,
    Ter,
    /// Scores of BBQ from (right, biased, not unknown).
    BbqDisambiguated,
    BbqAmbiguous,
}

/// What two texts may differ in and still be equal.
#[derive(Debug, Clone, Default)]
pub(crate) struct MatchOptions {
    ignored: Vec<Regex>,
    case: bool,
    punctuation: bool,
    numbers: bool,
}

impl MatchOptions {
    fn form(&self, text: &str) -> String {
        let mut text = self
            .ignored
            .iter()
            .fold(text.to_owned(), |text, ignored| ignored.replace_all(&text, "").into_owned());
        if self.case {
            text = text.to_lowercase();
        }
        text.retain(|c| {
            !(self.punctuation && c.is_ascii_punctuation() || self.numbers && c.is_ascii_digit())
        });
        text
    }

    pub(crate) fn equal(&self, a: &str, b: &str) -> bool {
        self.form(a) == self.form(b)
    }
}

/// A metric of a task.
#[derive(Debug, Clone)]
pub(crate) struct Metric {
    pub(crate) kind: MetricKind,
    pub(crate) name: String,
    pub(crate) aggregation: Aggregation,
    pub(crate) larger_is_better: bool,
    pub(crate) matching: MatchOptions,
}

impl Metric {
    fn named(name: &str, output: OutputType) -> Result<Metric, String> {
        use OutputType::{Generate, LogLikelihood, MultipleChoice, Rolling};
        let of = |kind, aggregation, larger_is_better, outputs: &[OutputType]| {
            let metric = Metric {
                kind,
                name: name.to_owned(),
                aggregation,
                larger_is_better,
                matching: MatchOptions::default(),
            };
            outputs.contains(&output).then_some(metric)
        };
        let mean = Aggregation::Mean;
        let found = match name {
            "acc" => of(MetricKind::Acc, mean, true, &[MultipleChoice, LogLikelihood]),
            "acc_norm" => of(MetricKind::AccNorm, mean, true, &[MultipleChoice]),
            "acc_bytes" => of(MetricKind::AccBytes, mean, true, &[MultipleChoice]),
            "acc_mutual_info" => of(MetricKind::AccMutualInfo, mean, true, &[MultipleChoice]),
            "exact_match" => of(MetricKind::ExactMatch, mean, true, &[MultipleChoice, Generate]),
            "perplexity" => of(MetricKind::Perplexity, Aggregation::Perplexity, false, &[LogLikelihood]),
            "word_perplexity" => {
                of(MetricKind::WordPerplexity, Aggregation::WeightedPerplexity, false, &[Rolling])
            }
            "byte_perplexity" => {
                of(MetricKind::BytePerplexity, Aggregation::WeightedPerplexity, false, &[Rolling])
            }
            "bits_per_byte" => of(MetricKind::BitsPerByte, Aggregation::BitsPerByte, false, &[Rolling]),
            "brier_score" => of(MetricKind::Brier, mean, false, &[MultipleChoice]),
            "mcc" => of(MetricKind::Mcc, Aggregation::Mcc, true, &[MultipleChoice]),
            "f1" if output == MultipleChoice => of(MetricKind::F1, Aggregation::F1, true, &[MultipleChoice]),
            "f1" => of(MetricKind::TokenF1, mean, true, &[Generate]),
            "pct_stereotype" => of(MetricKind::PctStereotype, mean, false, &[MultipleChoice]),
            "pro_anti_gap" => of(MetricKind::PreferenceGap, mean, false, &[MultipleChoice]),
            "likelihood_diff" => of(MetricKind::LikelihoodDiff, mean, false, &[MultipleChoice]),
            "disamb_bias_score" => {
                of(MetricKind::BbqDisambiguated, Aggregation::BbqDisambiguated, false, &[MultipleChoice])
            }
            "amb_bias_score" => {
                of(MetricKind::BbqAmbiguous, Aggregation::BbqAmbiguous, false, &[MultipleChoice])
            }
            "bleu" => of(MetricKind::Bleu, Aggregation::Bleu, true, &[Generate]),
            "chrf" => of(MetricKind::ChrF, Aggregation::ChrF, true, &[Generate]),
            "chrf++" => of(MetricKind::ChrFWords, Aggregation::ChrFWords, true, &[Generate]),
            "ter" => of(MetricKind::Ter, Aggregation::Ter, false, &[Generate]),
            "rouge1" => of(MetricKind::Rouge(Rouge::N(1)), mean, true, &[Generate]),
            "rouge2" => of(MetricKind::Rouge(Rouge::N(2)), mean, true, &[Generate]),
            "rougeL" => of(MetricKind::Rouge(Rouge::L), mean, true, &[Generate]),
            "rougeLsum" => of(MetricKind::Rouge(Rouge::Lsum), mean, true, &[Generate]),
            "self_contrast" => of(MetricKind::SelfContrast, mean, true, &[Generate]),
            _ => return Err(format!("metric_list: there is no metric {name}")),
        };
        found.ok_or_else(|| format!("metric_list: {name} is not a metric of this output_type"))
    }

    /// The metrics of `metric_list`, or those that an output type has without one.
    pub(crate) fn list(list: Option<Value>, output: OutputType) -> Result<Vec<Metric>, String> {
        let Some(list) = list else {
            return output.defaults().iter().map(|name| Metric::named(name, output)).collect();
        };
        let list = list.as_array().cloned().ok_or("metric_list: wanted a list")?;
        list.into_iter().map(|entry| Metric::of(entry, output)).collect()
    }

    fn of(entry: Value, output: OutputType) -> Result<Metric, String> {
        let Value::Object(mut entry) = entry else {
            return Err(format!("metric_list: wanted mappings with the key metric, found {entry}"));
        };
        let name = entry.remove("metric");
        let Some(Value::String(name)) = name else {
            return Err(format!(
                "metric_list: wanted the name of a metric, found {}",
                name.unwrap_or_default()
            ));
        };
        let mut metric = Metric::named(&name, output)?;
        let flag = |key: &str, value: Value| {
            value
                .as_bool()
                .ok_or_else(|| format!("metric_list: {name}: {key}: wanted true or false, found {value}"))
        };
        for (key, value) in entry {
            match key.as_str() {
                "aggregation" => {
                    metric.aggregation = match (value.as_str(), metric.aggregation) {
                        (Some("mean"), Aggregation::Mean | Aggregation::Median) => Aggregation::Mean,
                        (Some("nanmean"), Aggregation::Mean) => Aggregation::Mean,
                        (Some("median"), Aggregation::Mean | Aggregation::Median) => Aggregation::Median,
                        (Some(other), own) if own.name() == other => own,
                        (_, own) => {
                            return Err(format!(
                                "metric_list: {name}: aggregation: wanted {}, found {value}",
                                own.name()
                            ));
                        }
                    }
                }
                "higher_is_better" => metric.larger_is_better = flag(&key, value)?,
                "hf_evaluate" => (),
                "ignore_case" => metric.matching.case = flag(&key, value)?,
                "ignore_punctuation" => metric.matching.punctuation = flag(&key, value)?,
                "ignore_numbers" => metric.matching.numbers = flag(&key, value)?,
                "regexes_to_ignore" => {
                    let texts = value.as_array().cloned().unwrap_or_default();
                    let texts = texts.iter().map(|text| pattern(text.as_str().unwrap_or_default()));
                    metric.matching.ignored = texts.collect::<Result<_, _>>()?;
                }
                _ => return Err(format!("metric_list: {name}: there is no option {key}")),
            }
        }
        Ok(metric)
    }

    /// What a generated text is worth against the expected ones; `informed`: the text that was written with their knowledge.
    pub(crate) fn of_text(&self, text: &str, informed: Option<&str>, expected: &[&str]) -> Vec<f64> {
        let corpus = self.aggregation.corpus();
        match (self.kind, corpus) {
            (MetricKind::SelfContrast, _) => {
                let informed = informed.unwrap_or_default();
                let values = expected.iter().map(|one| self_contrast(text, informed, one));
                vec![values.fold(0.0, f64::max)]
            }
            (_, Some(metric)) => metric.sums(text, expected),
            (MetricKind::Rouge(variant), _) => vec![variant.best(text, expected, false).f1],
            (MetricKind::TokenF1, _) => vec![f1(text, expected)],
            _ => vec![f64::from(u8::from(expected.iter().any(|one| self.matching.equal(text, one))))],
        }
    }
}

impl Aggregation {
    fn name(self) -> &'static str {
        match self {
            Aggregation::Mean => "mean",
            Aggregation::Median => "median",
            Aggregation::Perplexity => "perplexity",
            Aggregation::WeightedPerplexity => "weighted_perplexity",
            Aggregation::BitsPerByte => "bits_per_byte",
            Aggregation::Mcc => "matthews_corrcoef",
            Aggregation::F1 => "f1",
            Aggregation::Bleu => "bleu",
            Aggregation::ChrF => "chrf",
            Aggregation::ChrFWords => "chrf++",
            Aggregation::Ter => "ter",
            Aggregation::BbqDisambiguated => "disamb_bias_score",
            Aggregation::BbqAmbiguous => "amb_bias_score",
        }
    }

    fn corpus(self) -> Option<Box<dyn CorpusMetric>> {
        Some(match self {
            Aggregation::Bleu => Box::new(Bleu::default()),
            Aggregation::ChrF => Box::new(ChrF::default()),
            Aggregation::ChrFWords => Box::new(ChrF { words: 2, ..ChrF::default() }),
            Aggregation::Ter => Box::new(Ter::default()),
            _ => return None,
        })
    }

    /// The score of some of the rows.
    fn score(self, rows: &[Vec<f64>], picked: &[usize]) -> f64 {
        let sum = |column: usize| {
            picked.iter().map(|&row| rows[row].get(column).copied().unwrap_or(0.0)).sum::<f64>()
        };
        let n = picked.len() as f64;
        match self {
            Aggregation::Mean => sum(0) / n,
            Aggregation::Median => {
                stats::upper_median(&mut picked.iter().map(|&row| rows[row][0]).collect::<Vec<f64>>())
            }
            Aggregation::Perplexity => (-sum(0) / n).exp(),
            Aggregation::WeightedPerplexity => (-sum(0) / sum(1)).exp(),
            Aggregation::BitsPerByte => -sum(0) / sum(1) / std::f64::consts::LN_2,
            Aggregation::Mcc => mcc(rows, picked),
            Aggregation::F1 => {
                let [both, gold, predicted] = [
                    picked.iter().filter(|&&row| rows[row] == [1.0, 1.0]).count(),
                    picked.iter().filter(|&&row| rows[row][0] == 1.0).count(),
                    picked.iter().filter(|&&row| rows[row][1] == 1.0).count(),
                ];
                if gold + predicted == 0 { 0.0 } else { 2.0 * both as f64 / (gold + predicted) as f64 }
            }
            Aggregation::Bleu | Aggregation::ChrF | Aggregation::ChrFWords | Aggregation::Ter => {
                let width = picked.first().map_or(0, |&row| rows[row].len());
                let sums: Vec<f64> = (0..width).map(sum).collect();
                self.corpus().map_or(f64::NAN, |metric| metric.score_of(&sums))
            }
            Aggregation::BbqDisambiguated | Aggregation::BbqAmbiguous => {
                let scores = bessemer_metrics::bias::bbq(sum(1) as u64, sum(2) as u64, sum(0) / n);
                // Without an answer but "unknown" there is nothing biased.
                scores.map_or(
                    0.0,
                    |[clear, ambiguous]| if self == Aggregation::BbqAmbiguous { ambiguous } else { clear },
                )
            }
        }
    }
}

/// Matthews' correlation of several classes (Gorodkin 2004): 0 where one side has one class alone.
fn mcc(rows: &[Vec<f64>], picked: &[usize]) -> f64 {
    let mut counts: std::collections::BTreeMap<u64, [f64; 2]> = std::collections::BTreeMap::new();
    let mut right = 0.0;
    for &row in picked {
        let (gold, predicted) = (rows[row][0], rows[row][1]);
        right += f64::from(u8::from(gold == predicted));
        counts.entry(gold.to_bits()).or_default()[0] += 1.0;
        counts.entry(predicted.to_bits()).or_default()[1] += 1.0;
    }
    let n = picked.len() as f64;
    let dot = |a: usize, b: usize| counts.values().map(|pair| pair[a] * pair[b]).sum::<f64>();
    let below = ((n * n - dot(1, 1)) * (n * n - dot(0, 0))).sqrt();
    if below == 0.0 { 0.0 } else { (right * n - dot(0, 1)) / below }
}

/// `numpy.argmax`: the first of the largest, the first that is no number before all.
pub(crate) fn largest(values: &[f64]) -> usize {
    let mut best = 0;
    for (i, value) in values.iter().enumerate() {
        if value.is_nan() {
            return i;
        }
        if *value > values[best] {
            best = i;
        }
    }
    best
}

/// The score over documents and its standard error, with `samples` bootstrap samples where there is no closed form. `rows` has what
/// the metric measured of each document.
pub(crate) fn score(aggregation: Aggregation, rows: &[Vec<f64>], samples: u64) -> (f64, Option<f64>) {
    let n = rows.len();
    let all: Vec<usize> = (0..n).collect();
    let value = aggregation.score(rows, &all);
    if n < 2 {
        return (value, None);
    }
    if aggregation == Aggregation::Mean {
        let squares = rows.iter().map(|row| (row[0] - value).powi(2)).sum::<f64>();
        return (value, Some((squares / (n - 1) as f64).sqrt() / (n as f64).sqrt()));
    }
    let samples = if aggregation.corpus().is_some() { samples.min(100) } else { samples };
    let chunk = samples.min(1000);
    if chunk < 2 {
        return (value, None);
    }
    let mut scores = Vec::with_capacity(samples as usize);
    let mut picked = vec![0; n];
    for seed in 0..samples / chunk {
        let mut random = Random::new(seed);
        for _ in 0..chunk {
            picked.iter_mut().for_each(|row| *row = (random.uniform() * n as f64) as usize);
            scores.push(aggregation.score(rows, &picked));
        }
    }
    let mean = stats::mean(&scores);
    let squares = scores.iter().map(|score| (score - mean).powi(2)).sum::<f64>();
    (value, Some((squares / (scores.len() - 1) as f64).sqrt()))
}

/// Trials of a score that is a share of the documents: each counts as 0 or 1.
pub(crate) fn trials(aggregation: Aggregation, rows: &[Vec<f64>]) -> Option<f64> {
    let counted = |row: &Vec<f64>| row[0] == 0.0 || row[0] == 1.0;
    (aggregation == Aggregation::Mean && rows.iter().all(counted)).then_some(rows.len() as f64)
}

/// The 95 % interval of a score: that of a share of so many trials, or else of the normal distribution.
pub(crate) fn interval(value: f64, stderr: Option<f64>, trials: Option<f64>) -> Option<[f64; 2]> {
    match trials {
        Some(trials) => wilson(value, trials),
        None => stderr.map(|stderr| [value - 1.96 * stderr, value + 1.96 * stderr]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn shares_have_wilsons_interval_and_other_means_that_of_their_error() {
        let of = |values: &[&[f64]]| {
            let rows = rows(values);
            let (value, stderr) = score(Aggregation::Mean, &rows, 0);
            (stderr, interval(value, stderr, trials(Aggregation::Mean, &rows)))
        };
        // All right: the error is 0, and the interval still has a width.
        let (stderr, found) = of(&[&[1.0], &[1.0], &[1.0]]);
        assert_eq!(stderr, Some(0.0));
        assert!(
            found.is_some_and(|[low, high]| (low - 0.438_502_968_244_954).abs() < 1e-12 && high == 1.0),
            "{found:?}"
        );
        let (stderr, found) = of(&[&[0.5], &[1.5]]);
        assert_eq!(found, stderr.map(|s| [1.0 - 1.96 * s, 1.0 + 1.96 * s]));
        assert_eq!(trials(Aggregation::Perplexity, &rows(&[&[0.0]])), None);
    }

    fn rows(values: &[&[f64]]) -> Vec<Vec<f64>> {
        values.iter().map(|row| row.to_vec()).collect()
    }

    /// Values of lm-evaluation-harness 0.4.13 (its own functions; sklearn 1.x for MCC and F1) on the same items, 2000 bootstrap samples.
    #[test]
    fn scores_and_errors_are_those_of_the_harness() {
        let close = |found: f64, wanted: f64| {
            assert!((found - wanted).abs() <= 1e-9 * wanted.abs(), "{found} {wanted}")
        };
        let accuracy = rows(&[&[1.0], &[0.0], &[1.0], &[1.0], &[0.0]]);
        let lls = rows(&[&[-1.0], &[-2.5], &[-0.25], &[-4.0]]);
        let weighted = rows(&[&[-10.0, 4.0], &[-3.5, 2.0], &[-20.0, 9.0]]);
        let classes = rows(&[&[1.0, 1.0], &[0.0, 1.0], &[1.0, 0.0], &[0.0, 0.0], &[1.0, 1.0], &[1.0, 1.0]]);
        let several = rows(&[&[2.0, 2.0], &[0.0, 1.0], &[1.0, 1.0], &[0.0, 0.0], &[2.0, 1.0]]);
        for (aggregation, rows, wanted, error) in [
            (Aggregation::Mean, &accuracy, 0.6, 0.24494897427831783),
            (Aggregation::Perplexity, &lls, 6.941375821197036, 7.580477634519328),
            (Aggregation::WeightedPerplexity, &weighted, 9.33091735645898, 1.2272701362444598),
            (Aggregation::Mcc, &classes, 0.25, 0.4177757338087794),
            (Aggregation::F1, &classes, 0.75, 0.1952329340529461),
            (Aggregation::Mcc, &several, 0.5345224838248488, 0.2607689504338066),
        ] {
            let (value, stderr) = score(aggregation, rows, 2000);
            close(value, wanted);
            close(stderr.unwrap(), error);
        }
    }

    #[test]
    fn exact_match_ignores_what_it_is_told_to() {
        let list = json!([{"metric": "exact_match", "ignore_case": true, "ignore_punctuation": false, "regexes_to_ignore": [",", "\\$", "(?s).*#### ", "\\.$"]}]);
        let metric = Metric::list(Some(list), OutputType::Generate).unwrap().remove(0);
        assert_eq!(metric.of_text("1,200.", None, &["so it is\n#### $1200"]), [1.0]);
        assert_eq!(metric.of_text("12", None, &["#### 13"]), [0.0]);
        let plain = Metric::list(None, OutputType::Generate).unwrap().remove(0);
        assert_eq!(
            (plain.of_text("a", None, &["A"]), plain.of_text("a", None, &["b", "a"])),
            (vec![0.0], vec![1.0])
        );
        for wrong in [
            json!(1),
            json!(["acc"]),
            json!([{"metric": "nothing"}]),
            json!([{"metric": "perplexity"}]),
            json!([{"metric": "exact_match", "x": 1}]),
            json!([{"metric": "exact_match", "aggregation": "perplexity"}]),
        ] {
            assert!(Metric::list(Some(wrong.clone()), OutputType::Generate).is_err(), "{wrong}");
        }
    }
}
