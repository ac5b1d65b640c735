//! `bessemer metric self-contrast`: completions beside those that were written with the reference's knowledge (KoLA).

use super::bias::interval;
use super::{as_many, lines};
use crate::cli::MetricArgs;
use crate::console::print;
use crate::failure::Failure;
use bessemer_metrics::bootstrap::Resamples;
use bessemer_metrics::kola::self_contrast;
use serde_json::json;
use std::fmt::Write;

/// The definition that runs; the code that was published with the paper has another one.
const SIGNATURE: &str = "self-contrast|form:paper|d:rouge_l_f1|stem:no";

pub(super) fn run(args: &MetricArgs, as_json: bool) -> Result<(), Failure> {
    let [with_knowledge, references] = &args.references[..] else {
        return Err(Failure::usage(format!(
            "wanted two files after the completions (completions with access to the reference, references), \
             found {}",
            args.references.len()
        )));
    };
    let texts = lines(&args.texts)?;
    let (informed, true_ones) = (lines(with_knowledge)?, lines(references)?);
    as_many(&args.texts, &texts, [(with_knowledge, &informed), (references, &true_ones)])?;
    let rows = texts.iter().zip(&informed).zip(&true_ones);
    let scores: Vec<f64> =
        rows.map(|((text, informed), truth)| self_contrast(text, informed, truth)).collect();
    let mean = |weights: &[usize]| {
        let sum: f64 = scores.iter().zip(weights).map(|(score, weight)| score * *weight as f64).sum();
        sum / scores.len() as f64
    };
    let score = mean(&vec![1; scores.len()]);
    let draws = Resamples { units: scores.len(), samples: args.samples as usize, seed: args.seed };
    let band = draws.intervals(1, |weights| Some(vec![mean(weights)]))[0];
    if as_json {
        let each = if args.each { scores.as_slice() } else { &[] };
        let value = json!({
            "name": "self-contrast", "score": score, "interval": band, "signature": SIGNATURE, "each": each,
        });
        return Ok(print(&serde_json::to_string(&value)?)?);
    }
    let mut text = String::new();
    for score in scores.iter().filter(|_| args.each) {
        let _ = writeln!(text, "{score:.4}");
    }
    let _ = write!(text, "self-contrast = {score:.4}{}\n{SIGNATURE}", interval(band));
    Ok(print(&text)?)
}
