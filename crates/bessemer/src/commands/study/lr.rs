//! `bessemer study lr`: the best learning rate of a small model, whether it holds for wider ones, and what a batch is worth.

use super::trials::{Ended, Trial, Trials};
use crate::cli::{Size, StudyLrArgs};
use crate::commands::scaling::scientific;
use crate::console::{Console, print};
use crate::failure::Failure;
use bessemer_arch::InitChoice;
use bessemer_report::{SweepCurve, SweepPage};
use bessemer_scaling::Optimum;
use bessemer_scaling::approaches::PowerLaw;
use serde_json::json;
use std::fmt::Write;

/// Slope of the best learning rate over the width, both in logarithms, up to which it counts as the same at every width: between
/// widths that differ eight times it then moves by less than half of one of the steps of two that are usual between trials.
const SAME: f64 = 0.17;

/// Learning rates of one model and batch.
struct Sweep {
    size: Option<Size>,
    width: u64,
    batch: u64,
    trials: Vec<(f64, Trial)>,
}

/// A sweep that has run.
struct Swept {
    width: u64,
    batch: u64,
    parameters: u64,
    curve: SweepCurve,
    optimum: Option<Optimum>,
}

pub(super) fn run(args: &StudyLrArgs, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    let trials = Trials::open(&args.recipe, &args.out, console)?;
    let sweeps = sweeps(args, &trials)?;
    let all: Vec<Trial> =
        sweeps.iter().flat_map(|sweep| &sweep.trials).map(|(_, trial)| trial.clone()).collect();
    trials.warn_of_repetition(&all, console);
    let operations: f64 = all.iter().map(Trial::flops).sum();
    console.say(&format!("{} runs of {} operations in all", all.len(), scientific(operations)));
    let ended = trials.train(&all, console)?;
    let mut ended = ended.into_iter();
    let swept: Vec<Swept> = sweeps.iter().map(|sweep| sweep.end(&mut ended)).collect();
    let is_mup = trials.model(trials.recipe())?.init == InitChoice::MuP;
    let findings = findings(&swept, is_mup, operations);
    let page = SweepPage {
        setting: "learning rate".into(),
        curves: swept.iter().map(|one| one.curve.clone()).collect(),
        findings: findings.clone(),
    };
    let (path, report) = (args.out.join("lr.json"), args.out.join("report.html"));
    let text = serde_json::to_string(&json!({
        "sweeps": swept.iter().map(Swept::value).collect::<Vec<_>>(),
        "flops": operations,
        "mup": is_mup,
        "power_of_width": power(&swept, By::Width),
        "power_of_batch": power(&swept, By::Batch),
    }))?;
    bessemer_durable::write(&path, (text.clone() + "\n").as_bytes())?;
    page.write(&report)?;
    console.say(&format!("wrote {} and {}", path.display(), report.display()));
    Ok(print(&if as_json { text } else { shown(&swept, &findings) })?)
}

fn sweeps(args: &StudyLrArgs, trials: &Trials<'_>) -> Result<Vec<Sweep>, Failure> {
    let recipe = trials.recipe();
    let mut lrs = match args.lrs.is_empty() {
        true => [0.5, 1.0, 2.0, 4.0].map(|times| times * recipe.optim.lr).to_vec(),
        false => args.lrs.clone(),
    };
    lrs.sort_by(f64::total_cmp);
    lrs.dedup();
    let mut batches = args.batches.clone();
    if batches.is_empty() {
        batches.push(recipe.train.batch_tokens);
    }
    let train = &recipe.train;
    let tokens = match (args.tokens, train.tokens, train.steps) {
        (Some(tokens), ..) | (None, tokens @ 1.., _) => tokens as f64,
        (None, 0, steps @ 1..) => (steps * train.batch_tokens) as f64,
        (None, 0, 0) => train.epochs * trials.fresh as f64,
    };
    let sizes: Vec<Option<Size>> = match args.sizes.is_empty() {
        true => vec![None],
        false => args.sizes.iter().copied().map(Some).collect(),
    };
    let own = trials.model(recipe)?.width as u64;
    let mut all = Vec::new();
    for size in sizes {
        let of_size = size.map_or(Ok(Vec::new()), |size| trials.size(size))?;
        for &batch in &batches {
            let trial = |lr: &f64| {
                let name = format!("{}b{batch}-lr{lr:e}", size.map_or(String::new(), |s| label(s) + "-"));
                let keys = [format!("train.batch_tokens={batch}"), format!("optim.lr={lr:e}")];
                Ok((*lr, trials.trial(name, [of_size.clone(), keys.to_vec()].concat(), |_| tokens)?))
            };
            let trials = lrs.iter().map(trial).collect::<Result<_, Failure>>()?;
            all.push(Sweep { size, width: size.map_or(own, |size| size.width), batch, trials });
        }
    }
    Ok(all)
}

fn label(size: Size) -> String {
    format!("{}x{}", size.width, size.layers)
}

impl Sweep {
    fn end(&self, ended: &mut impl Iterator<Item = Ended>) -> Swept {
        let points: Vec<(f64, Option<f64>)> = self
            .trials
            .iter()
            .zip(ended)
            .map(|((lr, _), ended)| match ended {
                Ended::Loss(loss) => (*lr, Some(loss)),
                Ended::Diverged(_) => (*lr, None),
            })
            .collect();
        let finite: Vec<[f64; 2]> = points.iter().filter_map(|(lr, loss)| Some([*lr, (*loss)?])).collect();
        let diverged_above = points.last().is_some_and(|(_, loss)| loss.is_none());
        let optimum = Optimum::of(&finite, diverged_above);
        let best = match optimum {
            Some(Optimum::Inside { at, value }) => Some([at, value]),
            _ => None,
        };
        let model = self.size.map_or("the recipe's model".into(), label);
        Swept {
            width: self.width,
            batch: self.batch,
            parameters: self.trials.first().map_or(0, |(_, trial)| trial.parameters),
            curve: SweepCurve { name: format!("{model}, {} tokens a step", self.batch), points, best },
            optimum,
        }
    }
}

impl Swept {
    fn value(&self) -> serde_json::Value {
        json!({
            "width": self.width,
            "parameters": self.parameters,
            "batch_tokens": self.batch,
            "runs": self.curve.points.iter().map(|(lr, loss)| json!({ "lr": lr, "loss": loss })).collect::<Vec<_>>(),
            "best": self.curve.best.map(|[lr, loss]| json!({ "lr": lr, "loss": loss })),
        })
    }

    /// A sentence on where the best lies.
    fn sentence(&self) -> String {
        let name = &self.curve.name;
        match self.optimum {
            Some(Optimum::Inside { at, value }) => {
                format!("{name}: best learning rate {at:.2e}, loss {value:.4}")
            }
            Some(Optimum::AtLowest) => {
                format!("{name}: the smallest learning rate was the best; try smaller ones with --lrs")
            }
            Some(Optimum::AtHighest) => {
                format!("{name}: the largest learning rate was the best; try larger ones with --lrs")
            }
            None if self.curve.points.len() < 2 => {
                format!("{name}: a single learning rate was tried; give several with --lrs")
            }
            None => {
                format!("{name}: fewer than two runs stayed finite; try smaller learning rates with --lrs")
            }
        }
    }
}

/// Quantity that the best learning rate is compared by.
#[derive(Clone, Copy, PartialEq)]
enum By {
    /// The width, among the runs with the first batch.
    Width,
    /// The batch, among the runs with the first width.
    Batch,
}

/// The sweeps that differ in nothing else.
fn group(swept: &[Swept], by: By) -> impl Iterator<Item = (u64, &Swept)> {
    let first = swept.first().map_or((0, 0), |one| (one.width, one.batch));
    swept.iter().filter_map(move |one| match by {
        By::Width => (one.batch == first.1).then_some((one.width, one)),
        By::Batch => (one.width == first.0).then_some((one.batch, one)),
    })
}

/// The power with which the best learning rate grows, where it lies inside for two or more.
fn power(swept: &[Swept], by: By) -> Option<f64> {
    let points = group(swept, by).filter_map(|(x, one)| Some([x as f64, one.curve.best?[0]]));
    PowerLaw::fit(&points.collect::<Vec<_>>()).map(|law| law.exponent)
}

fn findings(swept: &[Swept], is_mup: bool, operations: f64) -> Vec<String> {
    let mut lines: Vec<String> = swept.iter().map(Swept::sentence).collect();
    match (power(swept, By::Width), is_mup) {
        (Some(slope), true) if slope.abs() <= SAME => lines.push(format!(
            "the best learning rate is about the same at every width (it grows with the power {slope:+.2} of it), as muP promises: use it \
             for the large model"
        )),
        (Some(slope), true) => lines.push(format!(
            "the best learning rate grows with the power {slope:+.2} of the width, and muP promises 0: try longer runs, or wider models"
        )),
        (Some(slope), false) => lines.push(format!(
            "the best learning rate grows with the power {slope:+.2} of the width; model.init = \"mup\" with model.mup_base_width makes \
             one learning rate hold for all widths"
        )),
        (None, true) => lines.push(
            "the model has init = \"mup\": its best learning rate is meant for every width; several --sizes show whether it is".into(),
        ),
        (None, false) => lines.push(
            "the learning rate holds for this width; model.init = \"mup\" with model.mup_base_width carries it to others".into(),
        ),
    }
    if let Some(slope) = power(swept, By::Batch) {
        let best = group(swept, By::Batch).filter_map(|(batch, one)| Some((batch, one.curve.best?[1])));
        if let Some((batch, loss)) = best.min_by(|a, b| a.1.total_cmp(&b.1)) {
            lines.push(format!(
                "the best learning rate grows with the power {slope:+.2} of the batch; {batch} tokens a step gave the least loss, {loss:.4}"
            ));
        }
    }
    lines.push(format!("the runs took {} operations", scientific(operations)));
    lines
}

fn shown(swept: &[Swept], findings: &[String]) -> String {
    let mut text = String::new();
    for one in swept {
        let _ = writeln!(text, "{}", one.curve.name);
        for (lr, loss) in &one.curve.points {
            let loss = loss.map_or("not finite".into(), |loss| format!("{loss:.4}"));
            let _ = writeln!(text, "  {lr:>9.2e}  {loss:>10}");
        }
    }
    text.push('\n');
    text += &findings.join("\n");
    text
}
