//! `bessemer scaling advise`.

use super::runs::Runs;
use super::{Fitted, SHARE, law_value, scientific, shape};
use crate::cli::{PublishedLaw, ScalingAdviseArgs};
use crate::console::{Console, print};
use crate::failure::Failure;
use bessemer_plan::Machine;
use bessemer_report::{grouped, number};
use bessemer_scaling::compute::Budget;
use bessemer_scaling::{Allocation, ParametricLaw, RepetitionLaw, batch};
use serde_json::{Value, json};
use std::fmt::Write;

pub(super) const DAY: f64 = 86_400.0;

pub(super) fn run(args: &ScalingAdviseArgs, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    let Some(published) = published(args.law) else { return super::kaplan::advise(args, as_json) };
    let advice = Advice::of(args, published)?;
    console.detail(&format!("law: {:?}", advice.basis.law));
    let text = if as_json { serde_json::to_string(&advice.value(args))? } else { advice.text(args) };
    Ok(print(&text)?)
}

/// Sizes of model and text, with the quantities derived from them.
struct Advice {
    basis: Basis,
    at: Allocation,
    loss: f64,
    machine: Option<Machine>,
    days: Option<f64>,
    price: Option<(f64, String)>,
    assumptions: Vec<String>,
}

/// Compute of the points of Hoffmann et al. 2022, as Besiroglu et al. 2024 read them.
const HOFFMANN_FLOPS: [f64; 2] = [1.4e18, 1.3e22];

impl Advice {
    fn of(args: &ScalingAdviseArgs, published: Published) -> Result<Advice, Failure> {
        let basis = Basis::of(args, published)?;
        let law = basis.law;
        let machine = args.devices.map(|_| bessemer_planner::machine(&args.machine)).transpose()?;
        let budget = budget(args, machine.as_ref())?;
        let rate = budget.rate;
        let mut assumptions = Vec::new();
        let at = sizes(args, &law, &budget, &mut assumptions)?;
        let repetition =
            |unique: f64| RepetitionLaw { fresh: law, ..RepetitionLaw::MUENNIGHOFF }.loss(at, unique);
        let loss = args.unique.map_or_else(|| law.loss(at), repetition);
        if let Some(range) = basis.range.filter(|range| at.flops() > range[1] || at.flops() < range[0]) {
            assumptions.push(format!(
                "the law was fitted to runs of {} to {} operations; this is beyond them",
                scientific(range[0]),
                scientific(range[1])
            ));
        }
        if let Some(machine) = &machine {
            assumptions.push(format!(
                "{} devices of {} at {:.0} % of their {:.0} TFLOP/s; bessemer plan predicts that share for a recipe",
                args.devices.unwrap_or(0),
                machine.name,
                100.0 * args.mfu,
                machine.matrix_flops / 1e12
            ));
        }
        if !(batch::DEEPSEEK_FLOPS[0]..=batch::DEEPSEEK_FLOPS[1]).contains(&at.flops()) {
            assumptions
                .push("batch and learning rate: beyond the runs of DeepSeek LLM, whose fit they are".into());
        }
        let days = rate.map(|rate| at.flops() / rate / DAY);
        let price = machine.as_ref().zip(days).and_then(|(machine, days)| {
            let cost = machine.cost.as_ref()?;
            let hours = days * 24.0 * args.devices? as f64;
            Some((hours * cost.price_per_hour?, cost.currency.clone()))
        });
        Ok(Advice { basis, at, loss, machine, days, price, assumptions })
    }

    fn interval(&self) -> Option<[f64; 2]> {
        self.basis.fitted.as_ref().and_then(|fitted| fitted.samples.loss(SHARE, self.at))
    }

    fn text(&self, args: &ScalingAdviseArgs) -> String {
        let at = self.at;
        let mut text = String::new();
        let mut line = |name: &str, value: String| {
            let _ = writeln!(text, "{name:<16}{value}");
        };
        line("law", self.basis.source.clone());
        line("compute", format!("{} floating-point operations (6 N D)", scientific(at.flops())));
        line("parameters", format!("{} with embeddings", grouped(at.parameters as u64)));
        if let Some(model) = shape::nearest(at.parameters, args.vocabulary as usize) {
            let embedding = model.vocab_size * model.width * if model.tied_embeddings { 1 } else { 2 };
            line(
                "for example",
                format!(
                    "model.architecture = \"llama\", layers = {}, width = {}, heads = {}, kv_heads = {}, ffn_width = {}, tied_embeddings = {}, \
                     vocabulary {}: {} parameters, {} without embeddings",
                    model.layers,
                    model.width,
                    model.heads,
                    model.kv_heads,
                    model.ffn_width,
                    model.tied_embeddings,
                    grouped(args.vocabulary),
                    grouped(model.parameters() as u64),
                    grouped((model.parameters() - embedding) as u64)
                ),
            );
        }
        let epochs = args.unique.map(|unique| at.tokens / unique).filter(|epochs| *epochs > 1.0);
        let repeated = epochs.map_or(String::new(), |epochs| format!(", each read {epochs:.2} times"));
        line(
            "tokens",
            format!(
                "{} ({:.1} for each parameter{repeated})",
                grouped(at.tokens as u64),
                at.tokens / at.parameters
            ),
        );
        let band = self.interval().map_or(String::new(), |[low, high]| {
            format!(", {:.0} % of samples {low:.3} to {high:.3}", 100.0 * SHARE)
        });
        line("loss", format!("{:.3} nats for each token of the law's tokenizer{band}", self.loss));
        let rule = batch::deepseek(at.flops());
        line(
            "batch",
            format!(
                "about {} tokens, peak learning rate about {}",
                scientific(rule.batch),
                number(rule.rate)
            ),
        );
        if let Some(days) = self.days {
            line("time", format!("{} days", number(days)));
        }
        match (&self.price, &self.machine) {
            (Some((price, currency)), _) => line("price", format!("{price:.0} {currency}")),
            (None, Some(_)) => line("price", "unknown: the machine's entry has no price_per_hour".into()),
            _ => {}
        }
        for assumption in &self.assumptions {
            line("assumed", assumption.clone());
        }
        text
    }

    fn value(&self, args: &ScalingAdviseArgs) -> Value {
        let rule = batch::deepseek(self.at.flops());
        let shape = shape::nearest(self.at.parameters, args.vocabulary as usize).map(|model| {
            json!({
                "layers": model.layers, "width": model.width, "heads": model.heads, "ffn_width": model.ffn_width,
                "tied_embeddings": model.tied_embeddings, "vocabulary": model.vocab_size, "parameters": model.parameters(),
            })
        });
        json!({
            "law": { "source": self.basis.source, "constants": law_value(&self.basis.law), "flops_of_its_runs": self.basis.range },
            "flops": self.at.flops(),
            "parameters": self.at.parameters,
            "tokens": self.at.tokens,
            "loss": self.loss,
            "loss_interval": self.interval(),
            "batch_tokens": rule.batch,
            "learning_rate": rule.rate,
            "days": self.days,
            "price": self.price.as_ref().map(|(price, currency)| json!({ "amount": price, "currency": currency })),
            "shape": shape,
            "assumed": self.assumptions,
        })
    }
}

/// A law, its paper, and the least and the most compute of its runs, if known.
type Published = (ParametricLaw, &'static str, Option<[f64; 2]>);

/// The laws with embeddings; None for Kaplan's.
fn published(law: PublishedLaw) -> Option<Published> {
    match law {
        PublishedLaw::Besiroglu => {
            Some((ParametricLaw::BESIROGLU, "Besiroglu et al. 2024", Some(HOFFMANN_FLOPS)))
        }
        PublishedLaw::Hoffmann => {
            Some((ParametricLaw::HOFFMANN, "Hoffmann et al. 2022, before rounding", Some(HOFFMANN_FLOPS)))
        }
        PublishedLaw::Muennighoff => Some((ParametricLaw::MUENNIGHOFF, "Muennighoff et al. 2023", None)),
        PublishedLaw::Kaplan => None,
    }
}

/// Scaling law used for advice.
struct Basis {
    law: ParametricLaw,
    /// Paper or runs that the law comes from.
    source: String,
    fitted: Option<Fitted>,
    /// Compute of the runs behind the law, where it is known.
    range: Option<[f64; 2]>,
}

impl Basis {
    fn of(args: &ScalingAdviseArgs, published: Published) -> Result<Basis, Failure> {
        if args.runs.is_empty() {
            let (law, source, range) = published;
            return Ok(Basis { law, source: source.into(), fitted: None, range });
        }
        let read = Runs::read(&args.runs)?;
        for note in &read.notes {
            crate::console::warn(note);
        }
        let points = read.points();
        let fitted = Fitted::of(&points, &args.fit)?;
        let flops = points.iter().map(|run| run.at.flops());
        let range = flops.fold([f64::INFINITY, 0.0], |[low, high], x| [x.min(low), x.max(high)]);
        let source = format!("fitted to {} runs", points.len());
        Ok(Basis { law: fitted.fit.law, source, fitted: Some(fitted), range: Some(range) })
    }
}

/// Quantities that are given, completed by those that follow.
pub(super) fn budget(args: &ScalingAdviseArgs, machine: Option<&Machine>) -> Result<Budget, Failure> {
    let given = Budget {
        flops: args.compute,
        parameters: args.parameters,
        tokens: args.tokens,
        rate: machine.zip(args.devices).map(|(m, n)| m.matrix_flops * n as f64 * args.mfu),
        seconds: args.days.map(|days| days * DAY),
    };
    given.complete().map_err(|cause| Failure::usage(cause.to_string()))
}

/// The sizes that a budget leaves: both given, one given, or only the compute.
fn sizes(
    args: &ScalingAdviseArgs,
    law: &ParametricLaw,
    budget: &Budget,
    assumptions: &mut Vec<String>,
) -> Result<Allocation, Failure> {
    let given = match (budget.parameters, budget.tokens, budget.flops) {
        (Some(parameters), Some(tokens), _) => return Ok(Allocation { parameters, tokens }),
        (Some(parameters), None, _) => law.best_for_parameters(parameters),
        (None, Some(tokens), _) => law.best_for_tokens(tokens),
        (None, None, Some(flops)) => match args.unique {
            Some(unique) => {
                assumptions.push("worth of repeated text as in Muennighoff et al. 2023".into());
                RepetitionLaw { fresh: *law, ..RepetitionLaw::MUENNIGHOFF }.best(flops, unique)
            }
            None => law.best(flops),
        },
        (None, None, None) => {
            return Err(Failure::usage(
                "wanted --compute, --tokens, --parameters, or --days with --devices, found none of them",
            ));
        }
    };
    let Some(used) = args.used else { return Ok(given) };
    let loss = law.loss(given);
    let shifted =
        law.best_for_use(loss, used).ok_or_else(|| Failure::new("no model size reaches this loss"))?;
    assumptions.push(format!(
        "for {} tokens of use: the least operations of training and use together at the loss {loss:.3}; without use {} parameters, {} tokens",
        scientific(used),
        scientific(given.parameters),
        scientific(given.tokens)
    ));
    Ok(shifted)
}
