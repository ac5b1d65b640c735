//! `bessemer plan RECIPE --compare`: every method on one recipe and machine, beside plain layouts.

use crate::layerwise::{Answer, Planning, Shown};
use crate::search::{self, calibration};
use crate::{PlannerError, Wanted, alpa, annotations, machine};
use bessemer_plan::Layout;
use bessemer_plan::layerwise::Degrees;
use bessemer_units::Bytes;
use serde_json::json;
use std::fmt::Write;
use std::time::Instant;

/// A way to find a layout. A new one is a variant, its name and its arm in [`Method::run`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Method {
    Exhaustive,
    Context,
    Grid,
    Layers,
    Mcmc,
    Annotations,
    Alpa,
    DataParallel,
    Zero3,
    RuleOfThumb,
}

impl Method {
    const ALL: [Method; 10] = [
        Method::Exhaustive,
        Method::Context,
        Method::Grid,
        Method::Layers,
        Method::Mcmc,
        Method::Annotations,
        Method::Alpa,
        Method::DataParallel,
        Method::Zero3,
        Method::RuleOfThumb,
    ];

    fn name(self) -> &'static str {
        match self {
            Method::Exhaustive => "exhaustive",
            Method::Context => "of these with context",
            Method::Grid => "of these on a grid",
            Method::Layers => "layers",
            Method::Mcmc => "mcmc",
            Method::Annotations => "annotations",
            Method::Alpa => "alpa",
            Method::DataParallel => "data parallelism alone",
            Method::Zero3 => "ZeRO-3 alone",
            Method::RuleOfThumb => "rule of thumb",
        }
    }

    fn run(self, planning: &mut Planning<'_>, detail: &mut dyn FnMut(&str)) -> Result<Answer, PlannerError> {
        let alone = |degrees: &Degrees| degrees.tensor * degrees.pipeline == 1;
        match self {
            Method::Exhaustive => exhaustive(planning, |_| true, detail),
            Method::Context if planning.training.recipe.train.has_documents() => Err(PlannerError::failed(
                "context parallelism does not support samples that are documents (train.lengths)",
            )),
            Method::Context => exhaustive(planning, |layout| layout.context > 1, detail),
            Method::Grid => match planning.training.without_grids() {
                Some(key) => Err(PlannerError::failed(format!(
                    "{key}, which a grid of tensor-parallel ranks does not support"
                ))),
                None => exhaustive(planning, |layout| layout.grid.is_some(), detail),
            },
            Method::Layers => planning.layers(detail),
            Method::Mcmc => planning.mcmc(detail),
            Method::Annotations => annotations::plans(planning, detail),
            Method::Alpa => alpa::plans(planning, detail),
            Method::DataParallel => planning.alike(&|degrees| alone(degrees) && degrees.zero == 0, detail),
            Method::Zero3 => planning.alike(&|degrees| alone(degrees) && degrees.zero == 3, detail),
            Method::RuleOfThumb => rule_of_thumb(planning, detail),
        }
    }
}

/// The fastest of some layouts of the exhaustive search.
fn exhaustive(
    planning: &Planning<'_>,
    only: fn(&Layout) -> bool,
    detail: &mut dyn FnMut(&str),
) -> Result<Answer, PlannerError> {
    let Planning { wanted, training, machine, calibration, .. } = *planning;
    let best = search::best(wanted, (training, only), machine, calibration, detail)?;
    let plans = best.plan.into_iter().collect();
    Ok(Answer { plans, evaluations: best.evaluated as u64, ..Answer::default() })
}

/// Narayanan et al. 2021, sections 3.2 and 3.4: tensor-parallel ranks up to a node, then pipeline stages until the model fits, the
/// other ranks data-parallel.
fn rule_of_thumb(planning: &mut Planning<'_>, detail: &mut dyn FnMut(&str)) -> Result<Answer, PlannerError> {
    let mut pairs: Vec<(usize, usize)> =
        planning.degrees().iter().map(|of| (of.tensor, of.pipeline)).collect();
    pairs.sort_unstable();
    pairs.dedup();
    let node = planning.machine.node;
    let most = pairs.iter().map(|pair| pair.0).filter(|tensor| *tensor <= node).max().unwrap_or(1);
    pairs.retain(|(tensor, stages)| *tensor <= most && (*stages == 1 || *tensor == most));
    let mut evaluations = 0;
    for (tensor, pipeline) in pairs {
        let is = |of: &Degrees| (of.tensor, of.pipeline, of.zero) == (tensor, pipeline, 0);
        let answer = planning.alike(&|of| is(of) && (tensor == 1 || of.sequence), detail)?;
        evaluations += answer.evaluations;
        if !answer.plans.is_empty() {
            return Ok(Answer { evaluations, ..answer });
        }
    }
    Ok(Answer { evaluations, ..Answer::default() })
}

/// One line of the comparison.
struct Row {
    method: Method,
    found: Result<Option<Shown>, String>,
    /// Seconds of a step of the recipe with the plan's keys, from the programs of its ranks.
    simulated: Result<f64, String>,
    seconds: f64,
    evaluations: u64,
}

/// Every method on one recipe and machine, beside plain layouts.
///
/// # Errors
/// A recipe, a machine or a table that cannot be read.
pub fn compare(
    wanted: &Wanted<'_>,
    as_json: bool,
    detail: &mut dyn FnMut(&str),
) -> Result<String, PlannerError> {
    let machine = machine(wanted.machine)?;
    let calibration = calibration(wanted, &machine)?;
    let training = wanted.recipe.training_annotated()?;
    let mut rows = Vec::new();
    for method in Method::ALL {
        let begun = Instant::now();
        // Prices are made anew for each method: their time is part of its search.
        let mut planning = Planning::new(wanted, &training, &machine, &calibration);
        let answer = method.run(&mut planning, detail);
        let seconds = begun.elapsed().as_secs_f64();
        let evaluations = answer.as_ref().map_or(0, |answer| answer.evaluations);
        let found = answer.map(|answer| answer.plans.into_iter().next()).map_err(|cause| cause.to_string());
        let simulated = match &found {
            Ok(Some(plan)) => planning.seconds_of(&plan.keys).map_err(|cause| cause.to_string()),
            _ => Err("there is no plan".to_owned()),
        };
        rows.push(Row { method, found, simulated, seconds, evaluations });
    }
    let planning = Planning::new(wanted, &training, &machine, &calibration);
    if as_json {
        let row = |row: &Row| {
            let plan = row.found.as_ref().ok().and_then(Option::as_ref);
            json!({
                "method": row.method.name(),
                "search_seconds": row.seconds,
                "evaluations": row.evaluations,
                "own_seconds": plan.map(|plan| plan.seconds),
                "seconds": row.simulated.as_ref().ok(),
                "not_simulated": row.simulated.as_ref().err(),
                "memory": plan.and_then(|plan| plan.planned).map(|bytes| bytes.0),
                "plan": plan.map(|plan| &plan.name),
                "keys": plan.map(|plan| &plan.keys),
                "refusal": row.found.as_ref().err(),
            })
        };
        let rows: Vec<_> = rows.iter().map(row).collect();
        return Ok(serde_json::to_string(&json!({ "machine": machine.name, "methods": rows }))?);
    }
    let mut text = planning.head();
    let _ = writeln!(
        text,
        "{:<22} {:>10} {:>10} {:>10} {:>10} {:>12}  plan",
        "method", "own price", "simulated", "memory", "searched", "evaluations"
    );
    for Row { method, found, simulated, seconds, evaluations } in &rows {
        let searched = format!("{seconds:.2} s");
        let simulated = simulated.as_ref().map_or("-".into(), |seconds| format!("{seconds:.3} s"));
        let (own, memory, plan) = match found {
            Ok(Some(plan)) => (
                format!("{:.3} s", plan.seconds),
                plan.planned.unwrap_or(Bytes(plan.memory as u64)).to_string(),
                plan.name.as_str(),
            ),
            Ok(None) => ("-".into(), "-".into(), "nothing fits"),
            Err(reason) => ("-".into(), "-".into(), reason.as_str()),
        };
        let name = method.name();
        let _ = writeln!(
            text,
            "{name:<22} {own:>10} {simulated:>10} {memory:>10} {searched:>10} {evaluations:>12}  {plan}"
        );
    }
    for Row { method, simulated, .. } in rows.iter().filter(|row| matches!(row.found, Ok(Some(_)))) {
        if let Err(reason) = simulated {
            let _ = writeln!(text, "{} is not simulated: {reason}", method.name());
        }
    }
    for Row { method, found, .. } in &rows {
        if let Ok(Some(plan)) = found {
            let _ = writeln!(text, "keys, {}: --set {}", method.name(), plan.keys.join(" --set "));
        }
    }
    Ok(text)
}
