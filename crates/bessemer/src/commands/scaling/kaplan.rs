//! The law of Kaplan et al. 2020 in `bessemer scaling fit` and `advise`, each beside Chinchilla's.

use super::advise::{DAY, budget};
use super::runs::{NamedRun, Runs, WITHOUT_EMBEDDING};
use super::{Fit, law_value, scientific};
use crate::cli::{ScalingAdviseArgs, ScalingFitArgs};
use crate::console::print;
use crate::failure::Failure;
use bessemer_report::{grouped, number};
use bessemer_scaling::kaplan::{
    self, Crossing, Embeddings, KaplanFit, KaplanFrontier, KaplanLaw, fit_kaplan,
};
use bessemer_scaling::{Allocation, ParametricLaw, TrainedRun};
use serde_json::{Value, json};
use std::fmt::Write;

/// Where the frontiers of both laws cross, as a sentence.
fn crossing_text(crossing: Option<Crossing>, frontier: &KaplanFrontier) -> String {
    let Some(Crossing { flops, larger_beyond }) = crossing else {
        return "the laws do not advise one size at any compute from 1e9 to 1e30".into();
    };
    format!(
        "both laws advise {} parameters without embeddings at {}; at more compute Kaplan's models are the {}",
        scientific(frontier.best(flops).parameters),
        scientific(flops),
        if larger_beyond { "larger ones" } else { "smaller ones" }
    )
}

fn crossing_value(crossing: Option<Crossing>) -> Option<Value> {
    crossing.map(|crossing| json!({ "flops": crossing.flops, "larger_beyond": crossing.larger_beyond }))
}

fn allocation_value(at: Allocation, embeddings: Embeddings) -> Value {
    json!({
        "parameters_without_embedding": at.parameters,
        "parameters": embeddings.with(at.parameters),
        "tokens": at.tokens,
    })
}

/// `bessemer scaling advise --law kaplan`: the frontier of the paper, beside the corrected law of Chinchilla.
pub(super) fn advise(args: &ScalingAdviseArgs, as_json: bool) -> Result<(), Failure> {
    for (option, given) in [("--unique", args.unique), ("--used", args.used)] {
        if given.is_some() {
            return Err(Failure::usage(format!(
                "{option}: wanted a law with embeddings, found --law kaplan; leave {option} out, or take --law besiroglu"
            )));
        }
    }
    let machine = args.devices.map(|_| bessemer_planner::machine(&args.machine)).transpose()?;
    let budget = budget(args, machine.as_ref())?;
    let frontier = KaplanFrontier::PUBLISHED;
    let found = match (budget.parameters, budget.tokens, budget.flops) {
        (Some(parameters), Some(tokens), _) => Some(Allocation { parameters, tokens }),
        (Some(parameters), None, _) => Some(frontier.best_for_parameters(parameters)),
        (None, Some(tokens), _) => frontier.best_for_tokens(tokens),
        (None, None, flops) => flops.map(|flops| frontier.best(flops)),
    };
    let at = found.ok_or_else(|| {
        Failure::usage(
            "wanted --compute, --tokens, --parameters, or --days with --devices, found none of them",
        )
    })?;
    let loss = KaplanLaw::PUBLISHED.loss(at);
    let batch = kaplan::best(at.flops() / bessemer_scaling::compute::PETAFLOP_DAY).batch;
    let law = ParametricLaw::BESIROGLU;
    let other = law.best(at.flops());
    let crossing = frontier.crossing(&law, Embeddings::HOFFMANN);
    let days = budget.rate.map(|rate| at.flops() / rate / DAY);
    if as_json {
        let value = json!({
            "law": { "source": "Kaplan et al. 2020" },
            "flops": at.flops(),
            "sizes": allocation_value(at, Embeddings::HOFFMANN),
            "loss": loss,
            "batch_tokens": batch,
            "steps": at.tokens / batch,
            "days": days,
            "besiroglu": { "parameters": other.parameters, "tokens": other.tokens, "constants": law_value(&law) },
            "crossing": crossing_value(crossing),
        });
        return Ok(print(&serde_json::to_string(&value)?)?);
    }
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "{name:<16}{value}");
    };
    line("law", "Kaplan et al. 2020".into());
    line(
        "compute",
        format!("{} floating-point operations (6 N D, N without embeddings)", scientific(at.flops())),
    );
    line(
        "parameters",
        format!(
            "{} without embeddings, about {} with those of Chinchilla's models",
            grouped(at.parameters as u64),
            scientific(Embeddings::HOFFMANN.with(at.parameters))
        ),
    );
    line(
        "tokens",
        format!("{} ({} for each parameter)", grouped(at.tokens as u64), number(at.tokens / at.parameters)),
    );
    line("loss", format!("{loss:.3} nats for each token of WebText2"));
    line(
        "batch",
        format!("about {} tokens, {} steps", scientific(batch), grouped((at.tokens / batch) as u64)),
    );
    if let Some(days) = days {
        line("time", format!("{} days", number(days)));
    }
    line(
        "besiroglu",
        format!(
            "{} parameters with embeddings, {} tokens ({} for each parameter) at this compute",
            scientific(other.parameters),
            scientific(other.tokens),
            number(other.tokens / other.parameters)
        ),
    );
    line("crossing", crossing_text(crossing, &frontier));
    line(
        "assumed",
        "learning rates decayed over one length for all runs, and small models; besiroglu is the better advice for a training of its own length".into(),
    );
    Ok(print(&text)?)
}

/// `bessemer scaling fit --law kaplan`: both laws fitted to the same runs.
pub(super) fn fit(args: &ScalingFitArgs, read: Runs, as_json: bool) -> Result<(), Failure> {
    if let Some(out) = &args.out {
        return Err(Failure::usage(format!(
            "--out {}: wanted --law chinchilla, whose fit the page shows, found --law kaplan",
            out.display()
        )));
    }
    let comparison = Comparison::of(args, read)?;
    let text = if as_json { serde_json::to_string(&comparison.value())? } else { comparison.text() };
    Ok(print(&text)?)
}

/// Both laws fitted to the same runs.
struct Comparison {
    chinchilla: Fit,
    kaplan: KaplanFit,
    embeddings: Embeddings,
}

impl Comparison {
    fn of(args: &ScalingFitArgs, read: Runs) -> Result<Comparison, Failure> {
        for named in &read.runs {
            if named.without_embedding.is_none() {
                return Err(Failure::usage(format!(
                    "{}: wanted the column {WITHOUT_EMBEDDING}, which the law of Kaplan et al. 2020 counts, found none; add it, or take --law chinchilla",
                    named.name
                )));
            }
        }
        let models =
            read.runs.iter().filter_map(|named| Some([named.without_embedding?, named.run.at.parameters]));
        let embeddings = Embeddings::of(models).ok_or_else(|| {
            Failure::usage(format!(
                "{WITHOUT_EMBEDDING}: wanted fewer than parameters, found as many in every run"
            ))
        })?;
        let chinchilla = Fit::of(&args.fit, read, args.hold_out)?;
        let points: Vec<TrainedRun> =
            chinchilla.read.runs[..chinchilla.kept].iter().filter_map(without).collect();
        let kaplan = fit_kaplan(&points).map_err(|cause| Failure::new(cause.to_string()))?;
        Ok(Comparison { chinchilla, kaplan, embeddings })
    }

    /// Relative error of Kaplan's law at a run, percent.
    fn error(&self, named: &NamedRun) -> f64 {
        without(named).map_or(f64::NAN, |run| 100.0 * (self.kaplan.law.loss(run.at) / run.loss - 1.0))
    }

    fn mean_error(&self) -> f64 {
        let fitted = &self.chinchilla.read.runs[..self.chinchilla.kept];
        fitted.iter().map(|named| self.error(named).abs()).sum::<f64>() / fitted.len() as f64
    }

    fn crossing(&self) -> Option<Crossing> {
        self.kaplan.law.frontier().crossing(&self.chinchilla.fitted.fit.law, self.embeddings)
    }

    fn figures(&self) -> [(&'static str, f64); 5] {
        let law = &self.kaplan.law;
        [
            ("Nc", law.parameters),
            ("aN", law.alpha_parameters),
            ("Dc", law.tokens),
            ("aD", law.alpha_tokens),
            ("exponent of parameters by compute", law.frontier().exponent),
        ]
    }

    fn text(&self) -> String {
        let Comparison { chinchilla, kaplan, embeddings } = self;
        let (law, frontier) = (&chinchilla.fitted.fit.law, kaplan.law.frontier());
        let mut text = format!(
            "L(N, D) = ((Nc / N)^(aN / aD) + Dc / D)^aD in nats for each token, N without embeddings, fitted to {} runs; mean error {:.2} %, \
             Chinchilla's law {:.2} %\n",
            chinchilla.kept,
            self.mean_error(),
            chinchilla.mean_error()
        );
        for (name, value) in self.figures() {
            let _ = writeln!(text, "  {name:<36}{:>12}", number(value));
        }
        let _ = writeln!(text, "  {:<36}{:>12}", "the same of Chinchilla's law", number(law.exponents().0));
        text += "\n  without embeddings         tokens     loss   kaplan  chinchilla\n";
        for (row, named) in chinchilla.read.runs.iter().enumerate() {
            let _ = writeln!(
                text,
                "  {:>18} {:>14}  {:>7.4} {:>+6.2} %    {:>+6.2} %  {}{}",
                grouped(named.without_embedding.unwrap_or_default() as u64),
                grouped(named.run.at.tokens as u64),
                named.run.loss,
                self.error(named),
                chinchilla.error(&named.run),
                if row < chinchilla.kept { "" } else { "held out  " },
                named.name
            );
        }
        text += "\nbest sizes by compute\n";
        for (flops, note) in chinchilla.budgets() {
            let (ours, other) = (frontier.best(flops), law.best(flops));
            let _ = writeln!(
                text,
                "  {}: kaplan {} parameters ({} with embeddings), {} tokens, loss {:.3}; chinchilla {} with embeddings, {} tokens, loss {:.3}{note}",
                scientific(flops),
                scientific(ours.parameters),
                scientific(embeddings.with(ours.parameters)),
                scientific(ours.tokens),
                kaplan.law.loss(ours),
                scientific(other.parameters),
                scientific(other.tokens),
                law.loss(other)
            );
        }
        let _ = writeln!(text, "{}", crossing_text(self.crossing(), &frontier));
        text
    }

    fn value(&self) -> Value {
        let Comparison { chinchilla, kaplan, embeddings } = self;
        let runs: Vec<Value> = chinchilla
            .read
            .runs
            .iter()
            .map(|named| json!({ "name": named.name, "error_percent": self.error(named) }))
            .collect();
        let best: Vec<Value> = chinchilla
            .budgets()
            .iter()
            .map(|(flops, _)| {
                let ours = kaplan.law.frontier().best(*flops);
                json!({ "flops": flops, "sizes": allocation_value(ours, *embeddings), "loss": kaplan.law.loss(ours) })
            })
            .collect();
        let figures: serde_json::Map<String, Value> =
            self.figures().iter().map(|(name, value)| (name.replace(' ', "_"), json!(value))).collect();
        json!({
            "kaplan": {
                "figures": figures,
                "objective": kaplan.objective,
                "mean_error_percent": self.mean_error(),
                "runs": runs,
                "best": best,
            },
            "chinchilla": chinchilla.value(),
            "crossing": crossing_value(self.crossing()),
        })
    }
}

/// A run by its parameters without embeddings.
fn without(named: &NamedRun) -> Option<TrainedRun> {
    let at = Allocation { parameters: named.without_embedding?, ..named.run.at };
    Some(TrainedRun { at, ..named.run })
}
