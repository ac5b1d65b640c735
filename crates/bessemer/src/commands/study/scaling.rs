//! `bessemer study scaling`: a scaling law from small runs, and a larger run that it predicts.

use super::trials::{Ended, Trial, Trials};
use crate::cli::{Size, StudyScalingArgs};
use crate::commands::scaling::{Fit, Runs, scientific};
use crate::console::{Console, print};
use crate::failure::Failure;
use bessemer_scaling::Allocation;
use serde_json::json;
use std::fmt::Write;
use std::time::Instant;

/// Sizes and lengths without which a law has no slope in parameters or in tokens.
const LEAST: usize = 3;

pub(super) fn run(args: &StudyScalingArgs, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    let (mut sizes, mut ratios) = (args.sizes.clone(), args.tokens_per_parameter.clone());
    sizes.sort_unstable();
    sizes.dedup();
    ratios.sort_by(f64::total_cmp);
    ratios.dedup();
    for (key, found) in [("--sizes", sizes.len()), ("--tokens-per-parameter", ratios.len())] {
        if found < LEAST {
            return Err(Failure::usage(format!(
                "{key}: wanted {LEAST} or more different values for the slope of a law, found {found}"
            )));
        }
    }
    let trials = Trials::open(&args.recipe, &args.out, console)?;
    let grid: Vec<Trial> = sizes
        .iter()
        .flat_map(|size| ratios.iter().map(|ratio| trial(&trials, *size, *ratio)))
        .collect::<Result<_, _>>()?;
    let larger =
        args.predict.map(|size| trial(&trials, size, args.predict_tokens_per_parameter)).transpose()?;
    let most = grid.iter().map(Trial::flops).fold(0.0, f64::max);
    if let Some(larger) = larger.as_ref().filter(|larger| larger.flops() <= most) {
        return Err(Failure::usage(format!(
            "--predict {}: wanted a run of more compute than all others, {} operations, found {}; a prediction within the runs shows \
             little",
            larger.name,
            scientific(most),
            scientific(larger.flops())
        )));
    }
    let all: Vec<Trial> = grid.iter().chain(&larger).cloned().collect();
    trials.warn_of_repetition(&all, console);
    let operations: f64 = grid.iter().map(Trial::flops).sum();
    console.say(&format!("{} runs of {} operations in all", grid.len(), scientific(operations)));
    let begun = Instant::now();
    let ended = trials.train(&grid, console)?;
    refuse_divergence(&grid, &ended)?;
    let law = fit(&trials, &grid, args, 0)?;
    let Some(larger) = larger else { return tell(args, &law, None, as_json, console) };
    let at = Allocation { parameters: larger.parameters as f64, tokens: larger.tokens as f64 };
    let predicted = law.fitted.fit.law.loss(at);
    let band = law.fitted.loss_interval(at);
    let shown = band.map_or(String::new(), |[low, high]| format!(" ({low:.4} to {high:.4})"));
    console.say(&format!(
        "the law says {predicted:.4}{shown} for {}: {} parameters, {} tokens, {:.1} times the compute of the largest run; now it is \
         trained",
        larger.name,
        bessemer_report::grouped(larger.parameters),
        bessemer_report::grouped(larger.tokens),
        larger.flops() / most
    ));
    let ended = trials.train(std::slice::from_ref(&larger), console)?;
    refuse_divergence(std::slice::from_ref(&larger), &ended)?;
    console.detail(&format!("the runs took {:.0} s", begun.elapsed().as_secs_f64()));
    let Some(Ended::Loss(loss)) = ended.first() else { return Ok(()) };
    let outcome =
        Outcome { predicted, band, loss: *loss, times: larger.flops() / most, name: larger.name.clone() };
    let law = fit(&trials, &all, args, 1)?;
    tell(args, &law, Some(&outcome), as_json, console)
}

/// A prediction and what came.
struct Outcome {
    name: String,
    predicted: f64,
    band: Option<[f64; 2]>,
    loss: f64,
    /// Compute over that of the largest run that was fitted.
    times: f64,
}

impl Outcome {
    /// Percent of the loss; above zero: the law said more.
    fn error(&self) -> f64 {
        100.0 * (self.predicted / self.loss - 1.0)
    }
}

fn trial(trials: &Trials<'_>, size: Size, ratio: f64) -> Result<Trial, Failure> {
    let name = format!("{}x{}-{ratio}", size.width, size.layers);
    trials.trial(name, trials.size(size)?, |parameters| ratio * parameters as f64)
}

fn refuse_divergence(trials: &[Trial], ended: &[Ended]) -> Result<(), Failure> {
    let diverged = trials.iter().zip(ended).find(|(_, ended)| matches!(ended, Ended::Diverged(_)));
    diverged.map_or(Ok(()), |(trial, _)| {
        Err(Failure::new(format!(
            "{} diverged, and a law needs the losses of all sizes; lower optim.lr, or find one that holds for all widths with \
             model.init = \"mup\" and `bessemer study lr`",
            trial.name
        )))
    })
}

fn fit(trials: &Trials<'_>, of: &[Trial], args: &StudyScalingArgs, hold_out: usize) -> Result<Fit, Failure> {
    let paths: Vec<_> = of.iter().map(|trial| trials.directory(trial)).collect();
    Fit::of(&args.fit, Runs::read(&paths)?, hold_out)
}

/// Writes scaling.json and report.html, and prints.
fn tell(
    args: &StudyScalingArgs,
    law: &Fit,
    outcome: Option<&Outcome>,
    as_json: bool,
    console: &mut Console,
) -> Result<(), Failure> {
    let mut value = law.value();
    if let Some(outcome) = outcome {
        value["prediction"] = json!({
            "run": outcome.name,
            "predicted": outcome.predicted,
            "interval": outcome.band,
            "loss": outcome.loss,
            "error_percent": outcome.error(),
            "times_the_largest_compute": outcome.times,
        });
    }
    let text = serde_json::to_string(&value)?;
    let (path, page) = (args.out.join("scaling.json"), args.out.join("report.html"));
    bessemer_durable::write(&path, (text.clone() + "\n").as_bytes())?;
    law.page().write(&page)?;
    console.say(&format!("wrote {} and {}", path.display(), page.display()));
    if as_json {
        return Ok(print(&text)?);
    }
    let mut shown = law.text();
    if let Some(outcome) = outcome {
        let band = outcome.band.map_or(String::new(), |[low, high]| format!(", 95 %: {low:.4} to {high:.4}"));
        let _ = write!(
            shown,
            "\n{}, {:.1} times the compute of the largest run that was fitted: predicted {:.4}{band}, found {:.4}, error {:+.2} %\n",
            outcome.name,
            outcome.times,
            outcome.predicted,
            outcome.loss,
            outcome.error()
        );
    }
    Ok(print(&shown)?)
}
