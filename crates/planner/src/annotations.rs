//! `bessemer plan RECIPE --method annotations`: the layouts that follow from `parallel.annotate`, and what a step with them takes.

use crate::PlannerError;
use crate::layerwise::{Answer, LayerMethod, Planning, Shown, describe, keys, ranges};
use crate::pricing::Vocabulary;
use crate::stated::Stated;
use bessemer_arch::{AnnotatedValue, Annotations, Model, ParamLayout, Unit};
use bessemer_plan::layerwise::{Annotation, BlockLayout, Completion, Origin, Placement, complete};
use bessemer_program::UnitProgram;
use bessemer_runtime::{Decoder, Purpose, Rewrite, Shape};
use bessemer_tensor::null::NullBackend;
use serde_json::json;
use std::collections::BTreeMap;
use std::fmt::Write;

/// A parameter whose layout is known, with its reason.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Completed {
    unit: UnitKind,
    /// Name in its unit.
    name: String,
    layout: ParamLayout,
    reason: String,
}

/// Where a parameter is, in the order in which parameters are listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum UnitKind {
    Embedding,
    Layer,
    Head,
}

/// Layouts of all units.
struct Whole {
    stated: Stated,
    /// By parameter and reason: the layers that have it; none outside of layers.
    parameters: BTreeMap<Completed, Vec<usize>>,
}

/// Annotations that contradict each other, by pattern.
struct Contradiction {
    text: String,
    patterns: [String; 2],
}

enum Found {
    Whole(Whole),
    Contradiction(Contradiction),
}

pub(crate) fn run(
    planning: &mut Planning<'_>,
    as_json: bool,
    detail: &mut dyn FnMut(&str),
) -> Result<String, PlannerError> {
    let (answer, whole) = answer(planning, detail)?;
    let shown = &answer.plans[0];
    let lines = whole.lines();
    if as_json {
        let mut value = planning.as_value(LayerMethod::Annotations, &answer);
        let parameters = whole.parameters.iter().map(|(of, layers)| {
            json!({ "name": of.name, "layers": layers, "layout": of.layout.to_string(), "reason": of.reason })
        });
        value["parameters"] = parameters.collect();
        return Ok(serde_json::to_string(&value)?);
    }
    let mut text = planning.head();
    for line in lines.iter().chain(&answer.notes) {
        let _ = writeln!(text, "{line}");
    }
    for shown in &answer.plans {
        let memory = shown.planned.map_or_else(String::new, |bytes| format!(", {bytes} by its dry run"));
        let _ = writeln!(text, "{:>8.3} s{memory}: {}", shown.seconds, shown.name);
    }
    let _ = writeln!(text, "keys: --set {}", shown.keys.join(" --set "));
    Ok(text)
}

/// The plan that the annotations complete to.
pub(crate) fn plans(
    planning: &mut Planning<'_>,
    detail: &mut dyn FnMut(&str),
) -> Result<Answer, PlannerError> {
    answer(planning, detail).map(|(answer, _)| answer)
}

fn answer(
    planning: &mut Planning<'_>,
    detail: &mut dyn FnMut(&str),
) -> Result<(Answer, Whole), PlannerError> {
    let annotations = planning.training.recipe.parallel.annotate.clone();
    if annotations.0.is_empty() {
        return Err(PlannerError::request(
            "--method annotations completes the layouts of parallel.annotate, and there is none; name some parameters or activations, \
             such as parallel.annotate.'layers.*.mlp.hidden' = \"shard(1)\"",
        ));
    }
    let whole = match completed(planning, &annotations)? {
        Found::Whole(whole) => whole,
        Found::Contradiction(contradiction) => return Err(costs(planning, &annotations, &contradiction)),
    };
    let mut shown = priced(planning, &whole)?;
    match planning.dry_run(&shown.keys) {
        Ok(memory) => shown.planned = Some(memory.buffers.total()),
        Err(reason) => return Err(PlannerError::request(reason)),
    }
    let mut answer = Answer { plans: vec![shown], evaluations: 1, ..Answer::default() };
    if answer.plans[0].planned.is_some_and(|held| held.0 as f64 > planning.machine.memory) {
        answer.notes.push(format!("the plan holds more than a {} has", planning.machine.name));
    }
    let open = whole.parameters.keys().filter(|of| of.reason == OPEN).count();
    detail(&format!("{open} parameters are reached by no annotation"));
    Ok((answer, whole))
}

const OPEN: &str = "no annotation reaches it";

/// Completes annotations over the recorded units of the model.
fn completed(planning: &Planning<'_>, annotations: &Annotations) -> Result<Found, PlannerError> {
    let training = planning.training;
    let model = &training.model;
    // Without annotations, which may contradict each other here.
    let mut recipe = training.recipe.clone();
    recipe.parallel.annotate = Annotations::default();
    let mut stated = planning.stated(&recipe)?;
    let values = model.annotated_values(annotations).map_err(PlannerError::request)?;
    let units = recorded(model)?;
    let mut parameters: BTreeMap<Completed, Vec<usize>> = BTreeMap::new();
    let mut known: Vec<(Vec<Annotation>, Completion)> = Vec::new();
    let find = |wanted: Unit| units.iter().find(|(unit, _)| *unit == wanted).map(|(_, program)| program);
    let missing = || PlannerError::failed("a model without layers, embedding or head");
    for layer in 0..model.layers {
        let unit = Unit::Layer(layer);
        let program = find(Unit::Layer(0)).ok_or_else(missing)?;
        let of = of_unit(&values, |of| of == unit, program);
        let completion = match known.iter().find(|(others, _)| *others == of) {
            Some((_, completion)) => completion.clone(),
            None => match complete(program, &of) {
                Ok(completion) => {
                    known.push((of.clone(), completion.clone()));
                    completion
                }
                Err(conflict) => return Ok(Found::Contradiction(Contradiction::of(layer, &conflict, &of))),
            },
        };
        for completed in listed(unit, program, &completion, &of) {
            parameters.entry(completed).or_default().push(layer);
        }
        let choice = &mut stated.choices[layer];
        choice.attention = block(program, &completion, "attention.out.weight");
        choice.feed_forward = block(program, &completion, "mlp.down.weight");
    }
    for unit in [Unit::Embedding, Unit::Head] {
        let program = find(unit).ok_or_else(missing)?;
        let of = of_unit(&values, |unit| !matches!(unit, Unit::Layer(_)), program);
        let completion = match complete(program, &of) {
            Ok(completion) => completion,
            Err(conflict) => return Ok(Found::Contradiction(Contradiction::of(0, &conflict, &of))),
        };
        for completed in listed(unit, program, &completion, &of) {
            parameters.entry(completed).or_default();
        }
        let Vocabulary { table, head } = &mut stated.vocabulary;
        for (name, layout) in [("embed.tokens", table), ("head.weight", head)] {
            if program.find(name).is_some() {
                *layout = block(program, &completion, name);
            }
        }
    }
    Ok(Found::Whole(Whole { stated, parameters }))
}

/// The units of a model of one layer, as its code records them.
fn recorded(model: &Model) -> Result<Vec<(Unit, UnitProgram)>, PlannerError> {
    let model = Model { layers: 1, ..model.clone() };
    let shape = Shape { sequences: 1, seq: model.context.min(16), purpose: Purpose::Train };
    let decoder = Decoder::new(&mut NullBackend::new(), &model, shape).map_err(PlannerError::failed)?;
    let units = decoder.programs_after(Rewrite::Record).map_err(PlannerError::failed)?;
    Ok(units.into_iter().map(|(unit, program, _)| (unit, program)).collect())
}

/// The annotations of a unit.
fn of_unit(
    values: &[AnnotatedValue<'_>],
    is: impl Fn(Unit) -> bool,
    program: &UnitProgram,
) -> Vec<Annotation> {
    let mine = values.iter().filter(|value| is(value.unit));
    let annotation = |value: &AnnotatedValue<'_>| {
        let name = match value.unit {
            Unit::Layer(layer) => value.name.trim_start_matches(&format!("layers.{layer}.")).to_owned(),
            _ => value.name.clone(),
        };
        // A vector is a row of a program.
        let vector = program.find(&name).is_some_and(|id| program.values[id].rows == 1);
        let layout = match value.layout {
            ParamLayout::Replicate => Placement::Replicate,
            ParamLayout::Rows if !vector => Placement::Shard { dim: 0 },
            ParamLayout::Rows | ParamLayout::Columns => Placement::Shard { dim: 1 },
        };
        Annotation { value: name, source: value.pattern.to_owned(), layout }
    };
    mine.map(annotation).collect()
}

fn block(program: &UnitProgram, completion: &Completion, parameter: &str) -> BlockLayout {
    match program.find(parameter).map(|id| completion.layouts[id]) {
        Some(Placement::Shard { .. }) => BlockLayout::Sharded,
        _ => BlockLayout::Replicated,
    }
}

/// The parameters of a unit.
fn listed(unit: Unit, program: &UnitProgram, completion: &Completion, of: &[Annotation]) -> Vec<Completed> {
    let parameter = |name: &String| {
        let id = program.find(name)?;
        let vector = program.values[id].rows == 1;
        let layout = match completion.layouts[id] {
            Placement::Shard { dim: 0 } => ParamLayout::Rows,
            Placement::Shard { .. } if vector => ParamLayout::Rows,
            Placement::Shard { .. } => ParamLayout::Columns,
            _ => ParamLayout::Replicate,
        };
        let reason = match &completion.origins[id] {
            Origin::Annotated(number) => format!("by {:?}", of[*number].source),
            Origin::Propagated { from, op } => format!("by {op}, from {:?}", of[*from].source),
            Origin::Open => OPEN.to_owned(),
        };
        let unit = match unit {
            Unit::Embedding => UnitKind::Embedding,
            Unit::Layer(_) => UnitKind::Layer,
            Unit::Head => UnitKind::Head,
        };
        Some(Completed { unit, name: name.clone(), layout, reason })
    };
    program.parameters.iter().filter_map(parameter).collect()
}

/// Simulates a step with completed layouts.
fn priced(planning: &mut Planning<'_>, whole: &Whole) -> Result<Shown, PlannerError> {
    let given = planning.training.recipe.parallel.annotate.0.clone();
    let priced = planning.price(&whole.stated)?;
    let mut keys = keys(&priced.plan, &priced.prices);
    if priced.plan.degrees.tensor > 1 {
        let Vocabulary { table, head } = whole.stated.vocabulary;
        let tied = planning.training.model.tied_embeddings;
        for (name, layout, there) in [("embed.tokens", table, true), ("head.weight", head, !tied)] {
            if layout == BlockLayout::Replicated && there {
                keys.push(format!("parallel.annotate.'{name}'=\"replicate\""));
            }
        }
    }
    let named = |key: &String| {
        let pattern = key.strip_prefix("parallel.annotate.'").and_then(|rest| rest.split_once('\''));
        pattern.is_some_and(|(pattern, _)| given.contains_key(pattern))
    };
    keys.retain(|key| !named(key));
    Ok(Shown {
        name: describe(&priced.plan, &priced.prices),
        keys,
        seconds: priced.step.seconds,
        sums: f64::NAN,
        memory: priced.step.memory.iter().copied().fold(0.0, f64::max),
        planned: None,
    })
}

/// The refusal of two annotations, with what a step takes without one of them and without the other.
fn costs(planning: &mut Planning<'_>, annotations: &Annotations, found: &Contradiction) -> PlannerError {
    let mut text = format!("parallel.annotate: {}", found.text);
    for (at, pattern) in found.patterns.iter().enumerate() {
        let mut others = annotations.clone();
        others.0.remove(pattern);
        let kept = &found.patterns[1 - at];
        let seconds = match completed(planning, &others) {
            Ok(Found::Whole(whole)) => priced(planning, &whole).map(|shown| shown.seconds).ok(),
            _ => None,
        };
        let takes = match seconds {
            Some(seconds) => format!(
                "a step takes {seconds:.3} s on {} {}",
                planning.wanted.devices, planning.machine.name
            ),
            None => "other annotations still contradict each other, or there is no such plan".to_owned(),
        };
        let _ = write!(text, "; with {kept:?} and without {pattern:?} {takes}");
    }
    PlannerError::request(text + "; remove one of the two")
}

impl Contradiction {
    fn of(layer: usize, conflict: &bessemer_plan::layerwise::Conflict, of: &[Annotation]) -> Contradiction {
        let patterns = [of[conflict.first].source.clone(), of[conflict.second].source.clone()];
        let unit = conflict.unit.replacen("layers.0.", &format!("layers.{layer}."), 1);
        let named = |placement: Placement| match placement {
            Placement::Shard { dim } => format!("shard({dim})"),
            _ => "replicate".to_owned(),
        };
        let text = format!(
            "{unit}{} is {} by {:?}, and {} wants it {} from {:?}",
            conflict.value,
            named(conflict.layout),
            patterns[0],
            conflict.op,
            named(conflict.wanted),
            patterns[1]
        );
        Contradiction { text, patterns }
    }
}

impl Whole {
    /// A line for each parameter and reason.
    fn lines(&self) -> Vec<String> {
        let mut lines = vec![format!("{:<44} {:<10} reason", "parameter", "layout")];
        for (of, layers) in &self.parameters {
            let unit = if layers.is_empty() { String::new() } else { format!("layers.{}.", ranges(layers)) };
            lines.push(format!(
                "{:<44} {:<10} {}",
                format!("{unit}{}", of.name),
                of.layout.to_string(),
                of.reason
            ));
        }
        lines
    }
}
