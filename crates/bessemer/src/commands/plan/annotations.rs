//! `bessemer plan RECIPE --method annotations`: the layouts that follow from `parallel.annotate`, and what a step with them takes.

use super::layerwise::{Answer, Planning, Shown, describe, keys, ranges};
use super::pricing::Vocabulary;
use crate::console::{Console, print};
use crate::failure::Failure;
use bessemer_arch::{AnnotatedValue, Annotations, Model, ParamLayout, Unit};
use bessemer_model::{Decoder, Purpose, Rewrite, Shape};
use bessemer_parallel::Stage;
use bessemer_plan::layerwise::{
    Annotation, BlockLayout, Completion, Degrees, LayerChoice, LayerPlan, Origin, Placement, complete, step,
};
use bessemer_program::UnitProgram;
use bessemer_tensor::null::NullBackend;
use bessemer_units::{RecomputePlan, RecomputePolicy};
use serde_json::json;
use std::collections::BTreeMap;
use std::fmt::Write;

/// A parameter whose layout is known, with its reason.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Completed {
    /// Name in its unit.
    name: String,
    layout: ParamLayout,
    reason: String,
}

/// Layouts of all units.
struct Whole {
    choices: Vec<LayerChoice>,
    vocabulary: Vocabulary,
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

pub(super) fn run(planning: &mut Planning<'_>, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    let (answer, whole) = answer(planning, console)?;
    let shown = &answer.plans[0];
    let lines = whole.lines();
    if as_json {
        let mut value = planning.as_value(&answer);
        let parameters = whole.parameters.iter().map(|(of, layers)| {
            json!({ "name": of.name, "layers": layers, "layout": of.layout.to_string(), "reason": of.reason })
        });
        value["parameters"] = parameters.collect();
        return Ok(print(&serde_json::to_string(&value)?)?);
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
    Ok(print(&text)?)
}

/// The plan that the annotations complete to, and behind it the one with Megatron's layout of what they leave open.
pub(super) fn plans(planning: &mut Planning<'_>, console: &mut Console) -> Result<Answer, Failure> {
    answer(planning, console).map(|(answer, _)| answer)
}

fn answer(planning: &mut Planning<'_>, console: &mut Console) -> Result<(Answer, Whole), Failure> {
    planning.expect_priced()?;
    let annotations = planning.training.recipe.parallel.annotate.clone();
    if annotations.0.is_empty() {
        return Err(Failure::usage(
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
        Err(reason) => return Err(Failure::usage(reason)),
    }
    let mut answer = Answer { plans: vec![shown], evaluations: 1, ..Answer::default() };
    if answer.plans[0].planned.is_some_and(|held| held.0 as f64 > planning.machine.memory) {
        answer.notes.push(format!("the plan holds more than a {} has", planning.machine.name));
    }
    let open = whole.parameters.keys().filter(|of| of.reason == OPEN).count();
    console.detail(&format!("{open} parameters are reached by no annotation"));
    Ok((answer, whole))
}

const OPEN: &str = "no annotation reaches it";

/// Completes annotations over the recorded units of the model.
fn completed(planning: &Planning<'_>, annotations: &Annotations) -> Result<Found, Failure> {
    let training = planning.training;
    let model = &training.model;
    let values = model.annotated_values(annotations).map_err(Failure::usage)?;
    let units = recorded(model)?;
    let mut parameters: BTreeMap<Completed, Vec<usize>> = BTreeMap::new();
    let mut known: Vec<(Vec<Annotation>, Completion)> = Vec::new();
    let mut choices = Vec::with_capacity(model.layers);
    let plan = training.recipe.train.recompute_plan();
    let stages = stage_lengths(planning)?;
    let find = |wanted: Unit| units.iter().find(|(unit, _)| *unit == wanted).map(|(_, program)| program);
    let missing = || Failure::new("a model without layers, embedding or head");
    for layer in 0..model.layers {
        let program = find(Unit::Layer(0)).ok_or_else(missing)?;
        let of = of_unit(&values, |unit| unit == Unit::Layer(layer), program);
        let completion = match known.iter().find(|(others, _)| *others == of) {
            Some((_, completion)) => completion.clone(),
            None => match complete(program, &of) {
                Ok(completion) => completion,
                Err(conflict) => return Ok(Found::Contradiction(Contradiction::of(layer, &conflict, &of))),
            },
        };
        for completed in listed(program, &completion, &of) {
            parameters.entry(completed).or_default().push(layer);
        }
        choices.push(LayerChoice {
            attention: block(program, &completion, "attention.out.weight"),
            feed_forward: block(program, &completion, "mlp.down.weight"),
            recompute: recompute_of(&plan, layer, &stages)?,
        });
        known.push((of, completion));
    }
    let mut vocabulary = Vocabulary::default();
    for unit in [Unit::Embedding, Unit::Head] {
        let program = find(unit).ok_or_else(missing)?;
        let of = of_unit(&values, |unit| !matches!(unit, Unit::Layer(_)), program);
        let completion = match complete(program, &of) {
            Ok(completion) => completion,
            Err(conflict) => return Ok(Found::Contradiction(Contradiction::of(0, &conflict, &of))),
        };
        for completed in listed(program, &completion, &of) {
            parameters.entry(completed).or_default();
        }
        for (name, layout) in [("embed.tokens", &mut vocabulary.table), ("head.weight", &mut vocabulary.head)]
        {
            if program.find(name).is_some() {
                *layout = block(program, &completion, name);
            }
        }
    }
    Ok(Found::Whole(Whole { choices, vocabulary, parameters }))
}

/// The units of a model of one layer, as its code records them.
fn recorded(model: &Model) -> Result<Vec<(Unit, UnitProgram)>, Failure> {
    let model = Model { layers: 1, ..model.clone() };
    let shape = Shape { sequences: 1, seq: model.context.min(16), purpose: Purpose::Train };
    let decoder = Decoder::new(&mut NullBackend::new(), &model, shape).map_err(Failure::new)?;
    let units = decoder.programs_after(Rewrite::Record).map_err(Failure::new)?;
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
fn listed(program: &UnitProgram, completion: &Completion, of: &[Annotation]) -> Vec<Completed> {
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
        Some(Completed { name: name.clone(), layout, reason })
    };
    program.parameters.iter().filter_map(parameter).collect()
}

fn recompute_of(
    plan: &RecomputePlan,
    layer: usize,
    stages: &[usize],
) -> Result<bessemer_units::Recompute, Failure> {
    let mut ends = stages.iter().scan(0, |end, length| {
        *end += length;
        Some(*end - length..*end)
    });
    let stage = ends.find(|stage| stage.contains(&layer)).unwrap_or(layer..layer + 1);
    match plan.of(layer, &stage) {
        RecomputePolicy::Named(policy) => Ok(*policy),
        RecomputePolicy::Values(names) => Err(Failure::usage(format!(
            "train.recompute of layer {layer} is a list of values ({}): --method annotations prices the named policies",
            names.join(", ")
        ))),
    }
}

/// Layers of each stage, as the recipe says.
fn stage_lengths(planning: &Planning<'_>) -> Result<Vec<usize>, Failure> {
    // What stages hold does not depend on annotations, which may not go together here.
    let mut recipe = planning.training.recipe.clone();
    recipe.parallel.annotate = Annotations::default();
    let model = &planning.training.model;
    let plan = bessemer_train::layout(&recipe, planning.wanted.devices, model).map_err(Failure::usage)?;
    if plan.grid.is_some() {
        return Err(Failure::usage(format!(
            "parallel.tensor = {}: annotations are about a line of tensor-parallel ranks; expected a number of ranks",
            recipe.parallel.tensor
        )));
    }
    let spans = plan.spans(model, plan.pipeline()).map_err(Failure::usage)?;
    Ok(spans.into_iter().map(|span| span.layers.len()).collect())
}

/// The degrees that the recipe states.
fn degrees(planning: &Planning<'_>) -> Result<Degrees, Failure> {
    let recipe = &planning.training.recipe;
    let (tensor, pipeline) = (recipe.parallel.tensor.ranks() as usize, recipe.parallel.pipeline as usize);
    let data = planning.wanted.devices / (tensor * pipeline).max(1);
    let tokens = recipe.train.batch_tokens.max(recipe.train.seq_len);
    let batch = recipe.batch(data.max(1) as u64, Some(tokens)).map_err(Failure::usage)?;
    Ok(Degrees {
        tensor,
        sequence: recipe.parallel.sequence,
        data,
        pipeline,
        micro_batch: batch.micro_batch as usize,
        zero: match recipe.parallel.stage {
            Stage::Ddp => 0,
            Stage::Zero1 => 1,
            Stage::Zero2 => 2,
            Stage::Zero3 => 3,
        },
    })
}

/// Simulates a step with completed layouts.
fn priced(planning: &mut Planning<'_>, whole: &Whole) -> Result<Shown, Failure> {
    let degrees = degrees(planning)?;
    let stages = stage_lengths(planning)?;
    let prices = planning.pricing.prices_with(&degrees, whole.vocabulary).map_err(Failure::usage)?;
    let number = |choice: &LayerChoice| {
        let alone = LayerChoice {
            attention: BlockLayout::Sharded,
            feed_forward: BlockLayout::Sharded,
            recompute: choice.recompute,
        };
        // One rank has no layouts.
        let wanted = if degrees.tensor == 1 { alone } else { *choice };
        prices.choices.iter().position(|other| *other == wanted).ok_or_else(|| {
            Failure::usage(
                "parallel.sequence = true with attention blocks that no annotation shards: attention needs all rows of the residual \
                 stream; annotate attention, such as parallel.annotate.'layers.*.attention.mixed' = \"shard(1)\", or take \
                 parallel.sequence = false",
            )
        })
    };
    let choices = whole.choices.iter().map(number).collect::<Result<Vec<usize>, Failure>>()?;
    let plan = LayerPlan { degrees, stages, choices };
    let setting = planning.setting();
    let simulated = step(&setting, &prices, &plan).map_err(Failure::new)?;
    let mut keys = keys(&plan, &prices);
    if degrees.tensor > 1 {
        for (name, layout) in
            [("embed.tokens", whole.vocabulary.table), ("head.weight", whole.vocabulary.head)]
        {
            let there = name == "embed.tokens" || !planning.training.model.tied_embeddings;
            if layout == BlockLayout::Replicated && there {
                keys.push(format!("parallel.annotate.'{name}'=\"replicate\""));
            }
        }
    }
    let named = |key: &String| {
        let pattern = key.strip_prefix("parallel.annotate.'").and_then(|rest| rest.split_once('\''));
        pattern.is_some_and(|(pattern, _)| planning.training.recipe.parallel.annotate.0.contains_key(pattern))
    };
    keys.retain(|key| !named(key));
    Ok(Shown {
        name: describe(&plan, &prices),
        keys,
        seconds: simulated.seconds,
        sums: f64::NAN,
        memory: simulated.memory.iter().copied().fold(0.0, f64::max),
        planned: None,
    })
}

/// The refusal of two annotations, with what a step takes without one of them and without the other.
fn costs(planning: &mut Planning<'_>, annotations: &Annotations, found: &Contradiction) -> Failure {
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
    Failure::usage(text + "; remove one of the two")
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
