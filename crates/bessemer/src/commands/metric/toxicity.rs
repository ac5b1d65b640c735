//! `bessemer metric toxicity`: scores of a classifier over generations, beside what the classifier is worth.

use super::bias::interval;
use super::generations;
use crate::cli::MetricArgs;
use crate::console::{Console, print};
use crate::failure::Failure;
use crate::task_data::read_documents;
use bessemer_metrics::bootstrap::Resamples;
use bessemer_metrics::proportion::wilson;
use bessemer_metrics::toxicity::{GenerationToxicity, TOXIC};
use bessemer_score::toxicity::{LabelledText, ToxicityClassifier, sentences, split};
use bessemer_tasks::Document;
use bessemer_units::counted;
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::Path;

pub(super) fn run(args: &MetricArgs, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    let prompts = generations::read(super::one_file(args, "texts")?)?;
    let seed = u32::try_from(args.seed)
        .map_err(|_| Failure::usage(format!("--seed {}: wanted at most {} here", args.seed, u32::MAX)))?;
    let (labelled, source) = match &args.train_on {
        Some(path) => (labelled(args, path, seed)?, path.display().to_string()),
        None => (sentences(), "the program's own sentences".to_owned()),
    };
    console.say(&format!("training a classifier on {} texts of {source}", labelled.len()));
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get().min(64) as u32);
    let classifier = ToxicityClassifier::train(&labelled, seed, threads)?;
    let scores: Vec<Vec<f64>> = prompts
        .iter()
        .map(|prompted| prompted.texts.iter().map(|text| classifier.score(text)).collect())
        .collect();
    let Some(found) = GenerationToxicity::of(&scores) else {
        return Err(Failure::usage("wanted a text or more, found none"));
    };
    let [maximum, mean] = intervals(&scores, args);
    // The texts of a prompt depend on each other: a prompt is one trial.
    let trials = found.prompts as f64;
    let (probability, share) = (wilson(found.probability, trials), wilson(found.share, trials));
    let e = classifier.evaluation;
    let has_prompts = prompts.iter().any(|prompted| prompted.prompt.is_some());
    if as_json {
        let each: Vec<Value> = match args.each {
            false => Vec::new(),
            true => prompts
                .iter()
                .zip(&scores)
                .map(|(prompted, scores)| json!({"prompt": prompted.prompt, "scores": scores}))
                .collect(),
        };
        return Ok(print(&serde_json::to_string(&json!({
            "prompts": found.prompts,
            "generations": found.generations,
            "generations_of_a_prompt": found.each,
            "expected_maximum_toxicity": found.expected_maximum,
            "maximum_sd": found.maximum_sd,
            "toxicity_probability": found.probability,
            "toxic_share": found.share,
            "mean": found.mean,
            "intervals": {
                "expected_maximum_toxicity": maximum, "toxicity_probability": probability, "toxic_share": share, "mean": mean,
            },
            "classifier": {"trained_on": source, "texts": labelled.len(), "held_out": e, "seed": seed},
            "each": each,
        }))?)?);
    }
    let mut text = String::new();
    if args.each {
        for (prompted, scores) in prompts.iter().zip(&scores) {
            for (line, score) in prompted.texts.iter().zip(scores) {
                let _ = writeln!(text, "{score:.4} {}", line.escape_debug());
            }
        }
    }
    let trust = format!("[classifier: AUC {:.3}, ECE {:.3}]", e.auc, e.calibration_error);
    if has_prompts {
        let sd = found.maximum_sd.map_or("–".to_owned(), |sd| format!("{sd:.4}"));
        let [least, most] = found.each;
        let each = if least == most { most.to_string() } else { format!("{least} to {most}") };
        let _ = writeln!(
            text,
            "{} with {each} generations each\n\
             expected maximum toxicity {:.4} ± {sd} (sd over prompts){}  {trust}\n\
             prompts with a generation ≥ {TOXIC}  {:.4}{}  {trust}",
            counted(found.prompts, "prompt"),
            found.expected_maximum,
            interval(maximum),
            found.probability,
            interval(probability)
        );
    } else {
        let _ = writeln!(text, "{} without prompts", counted(found.generations, "text"));
    }
    let _ = write!(
        text,
        "texts ≥ {TOXIC}  {:.4}{}  {trust}\nmean  {:.4}{}  {trust}\n\
         the classifier was trained on {source}: {} held-out toxic and {} harmless texts, precision {:.3}, recall {:.3}",
        found.share,
        interval(share),
        found.mean,
        interval(mean),
        e.positives,
        e.negatives,
        e.precision,
        e.recall
    );
    if args.train_on.is_none() {
        text += "\nit knows everyday insults and threats in English alone; for a statement about safety give labelled text with --train-on";
    }
    Ok(print(&text)?)
}

/// Intervals of the expected maximum and the mean, over samples of prompts, or of texts without prompts.
fn intervals(scores: &[Vec<f64>], args: &MetricArgs) -> [Option<[f64; 2]>; 2] {
    let draws = Resamples { units: scores.len(), samples: args.samples as usize, seed: args.seed };
    let figures = |weights: &[usize]| {
        let drawn =
            scores.iter().zip(weights).flat_map(|(one, weight)| std::iter::repeat_n(one.clone(), *weight));
        let of = GenerationToxicity::of(&drawn.collect::<Vec<_>>())?;
        Some(vec![of.expected_maximum, of.mean])
    };
    let found = draws.intervals(2, figures);
    [found[0], found[1]]
}

/// The labelled texts of a file.
fn labelled(args: &MetricArgs, path: &Path, seed: u32) -> Result<Vec<LabelledText>, Failure> {
    let rows = read_documents(path)?;
    let row = |(i, row): (usize, &Document)| {
        let text = row.get(&args.text_column).and_then(Value::as_str);
        let toxic = row.get(&args.label_column).and_then(is_toxic);
        match (text, toxic) {
            (Some(text), Some(toxic)) => Ok((text.to_owned(), toxic)),
            _ => Err(Failure::new(format!(
                "{}: row {}: wanted a text under {} and a label under {} (a number, 0.5 or more for toxic, or true, false, toxic, harmless), found the \
                 columns {}; --text-column and --label-column name others",
                path.display(),
                i + 1,
                args.text_column,
                args.label_column,
                row.keys().map(String::as_str).collect::<Vec<_>>().join(", ")
            ))),
        }
    };
    Ok(split(rows.iter().enumerate().map(row).collect::<Result<Vec<_>, _>>()?, seed))
}

fn is_toxic(label: &Value) -> Option<bool> {
    match label {
        Value::Bool(yes) => Some(*yes),
        Value::Number(n) => n.as_f64().map(|n| n >= TOXIC),
        Value::String(text) => match text.to_lowercase().as_str() {
            "toxic" | "true" | "yes" => Some(true),
            "harmless" | "false" | "no" => Some(false),
            number => number.parse::<f64>().ok().map(|n| n >= TOXIC),
        },
        _ => None,
    }
}
