//! `bessemer plan RECIPE --method alpa`: layouts of parameters by the graph of the operators, stages by dynamic programming.

use crate::layerwise::{self, Planning, Shown};
use crate::search::calibration;
use crate::{PlannerError, Training, Wanted, machine};
use bessemer_arch::{Model, ParamRole, Sharding, Unit};
use bessemer_parallel::MemoryPlan;
use bessemer_plan::sharding::{
    BoundBy, Chain, ChainSolution, Devices, Layouts, MOST_UNEQUAL_DEVICES, Place, Prices, ShardAxis,
    ShardingError, ShardingPlan, ShardingQuestion, UnequalStage, UnequalStages, UnitChoice, UnitGraph,
    UnitPrograms, sharding_plans, unequal_stages,
};
use bessemer_plan::{Efficiency, Machine, Spread};
use bessemer_runtime::{ActivationConfig, Decoder, ModelError, Purpose, Rewrite, Shape};
use bessemer_tensor::null::NullBackend;
use bessemer_train::planned_memory;
use bessemer_units::{Bytes, Recompute, RecomputePlan};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::fmt::Write;
use std::ops::RangeInclusive;
use std::time::Instant;

#[cfg(test)]
mod tests;

/// Policies of recomputation that are searched.
const POLICIES: [Recompute; 4] =
    [Recompute::None, Recompute::Selective, Recompute::Attention, Recompute::Full];
/// Sequences of the largest micro-batch.
const MOST_MICRO_BATCH: usize = 64;
/// Plans of a search at least: of the fastest some may not fit.
const PLANS: usize = 4;
/// Least part of a step that unequal stages must save to be named.
const LEAST_SAVING: f64 = 0.001;
/// Times that the limit of memory is lowered by what the dry run has found besides.
const MOST_ROUNDS: usize = 8;

/// Devices, and the software on them.
#[derive(Debug, Clone, Copy)]
struct On<'a> {
    machine: &'a Machine,
    efficiency: &'a Efficiency,
}

/// A plan with the memory of its dry run.
struct Planned {
    plan: ShardingPlan,
    keys: Vec<String>,
    memory: MemoryPlan,
}

/// Plans that fit, and what the search for them was like.
struct Answer {
    /// The fastest first; at least one.
    planned: Vec<Planned>,
    /// Seconds of a step that no plan of the searched meshes takes less than.
    bound: f64,
    solved: usize,
    bounded: usize,
    too_large: usize,
    /// Seconds of the search.
    seconds: f64,
}

/// The same mesh with every layout that the operators allow.
struct AnyLayout {
    solution: ChainSolution,
    micro_batches: usize,
    /// Decisions, options and priced pairs of options.
    size: [usize; 3],
    build: f64,
    solve: f64,
}

/// Answers beside the plans that no run can obey.
struct Others {
    any: Option<AnyLayout>,
    unequal: Option<UnequalStages>,
}

/// Layouts of parameters by the graph of the operators, stages by dynamic programming.
///
/// # Errors
/// Nothing that fits, a recipe that states such layouts itself.
pub fn alpa(
    wanted: &Wanted<'_>,
    as_json: bool,
    detail: &mut dyn FnMut(&str),
) -> Result<String, PlannerError> {
    let machine = machine(wanted.machine)?;
    let efficiency = calibration(wanted, &machine)?.efficiency;
    let training = wanted.recipe.training()?;
    expect_open(&training)?;
    let on = On { machine: &machine, efficiency: &efficiency };
    let answer = search(wanted, &training, on, detail)?;
    let others = Others {
        any: any_layout(&training, &answer.planned[0].plan, on)?,
        unequal: unequal(wanted, &training, on, &answer)?,
    };
    match as_json {
        true => Ok(serde_json::to_string(&as_value(&training, &machine, &answer, &others))?),
        false => Ok(text(wanted, &training, &machine, &answer, &others)),
    }
}

fn expect_open(training: &Training) -> Result<(), PlannerError> {
    match training.recipe.parallel.annotate.0.is_empty() {
        true => Ok(()),
        false => Err(PlannerError::request(
            "parallel.annotate: --method alpa finds the layouts of parameters itself; expected none, or another method",
        )),
    }
}

/// The plans that fit, the fastest first.
pub(crate) fn plans(
    planning: &Planning<'_>,
    detail: &mut dyn FnMut(&str),
) -> Result<layerwise::Answer, PlannerError> {
    expect_open(planning.training)?;
    let on = On { machine: planning.machine, efficiency: &planning.calibration.efficiency };
    let answer = search(planning.wanted, planning.training, on, detail)?;
    let shown = |planned: Planned| Shown {
        name: name(&planned.plan),
        seconds: planned.plan.seconds,
        sums: f64::NAN,
        memory: planned.plan.memory,
        planned: Some(planned.memory.buffers.total()),
        keys: planned.keys,
    };
    let evaluations = (answer.solved + answer.bounded) as u64;
    let plans = answer.planned.into_iter().map(shown).collect();
    Ok(layerwise::Answer { plans, evaluations, ..layerwise::Answer::default() })
}

/// Records the units of a training's model for micro-batches of so many sequences.
fn record(training: &Training, sequences: usize, recompute: Recompute) -> Result<UnitPrograms, PlannerError> {
    let document_end = training.recipe.model.document_mask.then_some(0);
    let model = Model { layers: 1, document_end, ..training.model.clone() };
    let seq = training.recipe.train.seq_len as usize;
    let shape = Shape { sequences, seq, purpose: Purpose::Train };
    let config = ActivationConfig {
        recompute: RecomputePlan::from(recompute),
        lengths: Vec::new(),
        in_gradients: false,
        ..bessemer_train::activations(&training.recipe.train)
    };
    Ok(units(&Decoder::with_activations(&mut NullBackend::new(), &model, shape, config)?)?)
}

/// Embedding, first layer and head as the model's code has recorded them.
fn units(decoder: &Decoder) -> Result<UnitPrograms, ModelError> {
    let units = decoder.programs_after(Rewrite::Recompute)?;
    let of = |wanted: Unit| {
        let program = units.iter().find(|(unit, ..)| *unit == wanted).map(|(_, program, _)| program.clone());
        program.ok_or_else(|| {
            ModelError::Stage(format!("wanted a decoder of a whole model, found no {wanted:?}"))
        })
    };
    Ok(UnitPrograms { embedding: of(Unit::Embedding)?, layer: of(Unit::Layer(0))?, head: of(Unit::Head)? })
}

/// The search that the recipe asks for.
fn question<'a>(wanted: &Wanted<'_>, training: &'a Training, on: On<'a>) -> ShardingQuestion<'a> {
    let (model, On { machine, efficiency }) = (&training.model, on);
    let divides = |ranks: &usize| {
        [model.heads, model.kv_heads, model.ffn_width].iter().all(|n| n.is_multiple_of(*ranks))
    };
    ShardingQuestion {
        layers: model.layers,
        tied: model.tied_embeddings.then_some("embed.tokens"),
        seq: training.recipe.train.seq_len as usize,
        sequences: training.sequences,
        devices: wanted.devices,
        tensor: (1..=model.kv_heads.min(wanted.devices)).filter(divides).collect(),
        micro_batches: (1..=MOST_MICRO_BATCH).filter(|n| training.sequences.is_multiple_of(*n)).collect(),
        recompute: POLICIES.to_vec(),
        machine,
        efficiency,
        bytes: training.bytes.parameters,
        memory: machine.memory,
        plans: PLANS.max(wanted.top as usize),
    }
}

/// Searches until a plan fits by its dry run.
fn search(
    wanted: &Wanted<'_>,
    training: &Training,
    on: On<'_>,
    detail: &mut dyn FnMut(&str),
) -> Result<Answer, PlannerError> {
    let (begun, machine) = (Instant::now(), on.machine);
    let mut question = question(wanted, training, on);
    let mut recorded: Vec<((usize, Recompute), UnitPrograms)> = Vec::new();
    let mut answer =
        Answer { planned: Vec::new(), bound: 0.0, solved: 0, bounded: 0, too_large: 0, seconds: 0.0 };
    let mut why = Refusals::default();
    for round in 0..MOST_ROUNDS {
        let plans = sharding_plans(&question, |sequences, recompute| {
            let key = (sequences, recompute);
            if let Some((_, programs)) = recorded.iter().find(|(known, _)| *known == key) {
                return Ok(programs.clone());
            }
            let programs = record(training, sequences, recompute)?;
            recorded.push((key, programs.clone()));
            Ok(programs)
        });
        let plans = plans.map_err(|error| match error {
            ShardingError::Programs(failure) => failure,
            ShardingError::Entangled(entangled) => PlannerError::failed(entangled.to_string()),
        })?;
        if round == 0 {
            // With less memory nothing is faster.
            answer.bound = plans.bound;
        }
        answer.solved += plans.solved;
        answer.bounded += plans.bounded;
        answer.too_large = plans.too_large;
        let besides =
            dry_runs(wanted, training, machine, &plans.plans, &mut answer.planned, &mut why, detail);
        let best = answer.planned.first().map(|planned| planned.plan.seconds);
        let no_better = plans.plans.first().is_none_or(|plan| best.is_some_and(|best| best <= plan.seconds));
        let (false, Some(besides)) = (no_better, besides) else { break };
        // Scratch and what else the dry run counts is taken off the limit.
        question.memory = (machine.memory - besides).min(question.memory * 0.98);
    }
    answer.planned.truncate(wanted.top as usize);
    answer.seconds = begun.elapsed().as_secs_f64();
    match answer.planned.is_empty() {
        true => Err(nothing(&question, &answer, why)),
        false => Ok(answer),
    }
}

/// Why plans were not taken: the first of each kind.
#[derive(Default)]
struct Refusals {
    /// A plan that holds too much, and how much.
    too_large: Option<(String, Bytes)>,
    /// The first refusal of the recipe or the model.
    refused: Option<String>,
}

/// Plans by dry runs: those that fit join `planned`. Returns the fewest bytes that a plan which does not fit holds besides states and saved
/// activations.
fn dry_runs(
    wanted: &Wanted<'_>,
    training: &Training,
    machine: &Machine,
    plans: &[ShardingPlan],
    planned: &mut Vec<Planned>,
    why: &mut Refusals,
    detail: &mut dyn FnMut(&str),
) -> Option<f64> {
    let mut least: Option<f64> = None;
    for plan in plans {
        let keys = keys(training, plan);
        let memory = wanted.recipe.load(&keys).map_err(|e| e.to_string()).and_then(|loaded| {
            let planned = planned_memory(&loaded.value, wanted.devices, &training.model);
            planned.map(MemoryPlan::of_device).map_err(|e| e.to_string())
        });
        match memory {
            Err(reason) => {
                detail(&format!("{}: {reason}", name(plan)));
                why.refused.get_or_insert(reason);
            }
            Ok(memory) if memory.buffers.total().0 as f64 <= machine.memory => {
                if planned.iter().all(|other| other.keys != keys) {
                    let at = planned.partition_point(|other| other.plan.seconds <= plan.seconds);
                    planned.insert(at, Planned { plan: plan.clone(), keys, memory });
                }
            }
            Ok(memory) => {
                let held = memory.buffers.total();
                let besides = held.0 as f64 - plan.memory;
                least = Some(least.map_or(besides, |least| least.min(besides)));
                why.too_large.get_or_insert((name(plan), held));
            }
        }
    }
    least
}

/// The refusal where no plan fits.
fn nothing(question: &ShardingQuestion<'_>, answer: &Answer, why: Refusals) -> PlannerError {
    let memory = Bytes(question.machine.memory as u64);
    match why {
        Refusals { too_large: Some((name, held)), .. } => PlannerError::failed(format!(
            "no plan fits: {name} holds {held} by its dry run where a {} has {memory}; take more devices, or a smaller sequence or model",
            question.machine.name
        )),
        Refusals { refused: Some(reason), .. } => PlannerError::failed(format!("no plan runs: {reason}")),
        _ if answer.too_large == 0 => PlannerError::request(format!(
            "no mesh of {} devices divides the {} sequences of a step (train.batch_tokens / train.seq_len) and {} layers; take another \
             number of devices or another batch",
            question.devices, question.sequences, question.layers
        )),
        _ => PlannerError::failed(format!(
            "no mesh fits ({} tried): parameters, gradients, states and saved activations of every one take \
             more than the {memory} of a {}; take more devices, or a smaller sequence or model",
            answer.too_large, question.machine.name
        )),
    }
}

/// Prefix of the names of a unit's parameters: units are embedding, layers, head.
fn prefix(unit: usize, layers: usize) -> String {
    match unit {
        0 => String::new(),
        unit if unit > layers => String::new(),
        unit => format!("layers.{}.", unit - 1),
    }
}

/// Parameters, one of each loop that they share, which every tensor-parallel rank has whole.
fn replicated(training: &Training, plan: &ShardingPlan) -> Vec<String> {
    if plan.layout.tensor == 1 {
        return Vec::new();
    }
    let layers = training.model.layers;
    let shardings: HashMap<String, Sharding> =
        training.model.shardings().into_iter().map(|s| (s.spec.name.clone(), s)).collect();
    let names = |unit: usize, role: &dyn Fn(ParamRole) -> bool| -> Vec<String> {
        let UnitChoice { parameters, .. } = &plan.units[unit];
        let whole = |(name, place): &(String, Place)| {
            let name = format!("{}{name}", prefix(unit, layers));
            let of = shardings.get(&name)?;
            (*place == Place::Replicate && of.dim().is_some() && role(of.spec.id.role())).then_some(name)
        };
        parameters.iter().filter_map(whole).collect()
    };
    let mut all: Vec<String> = Vec::new();
    for unit in [0, layers + 1] {
        all.extend(names(unit, &|role| matches!(role, ParamRole::TokenTable | ParamRole::HeadWeight)));
    }
    let kinds: [&dyn Fn(ParamRole) -> bool; 2] = [&|role| role == ParamRole::QkvWeight, &|role| {
        matches!(role, ParamRole::UpWeight | ParamRole::GateUpWeight)
    }];
    for kind in kinds {
        let of_layers: Vec<String> = (1..=layers).flat_map(|unit| names(unit, kind)).collect();
        match of_layers.first() {
            Some(first) if of_layers.len() == layers => all.push(first.replacen("layers.0.", "layers.*.", 1)),
            _ => all.extend(of_layers),
        }
    }
    all.sort();
    all.dedup();
    all
}

/// The keys of a recipe that mean a plan.
pub(crate) fn keys(training: &Training, plan: &ShardingPlan) -> Vec<String> {
    let layout = &plan.layout;
    let mut keys = vec![
        format!("parallel.tensor={}", layout.tensor),
        format!("parallel.sequence={}", layout.sequence),
        "parallel.context=1".into(),
        format!("parallel.pipeline={}", layout.pipeline),
        "parallel.schedule=\"1f1b\"".into(),
        "parallel.chunks=0".into(),
        format!("parallel.stages={:?}", if layout.pipeline > 1 { &plan.stages[..] } else { &[] }),
        format!("parallel.data={:?}", layout.zero.key()),
        "parallel.shard=0".into(),
        format!("train.micro_batch={}", layout.micro_batch),
        format!("train.recompute=\"{}\"", layout.recompute),
    ];
    keys.extend(
        replicated(training, plan).iter().map(|name| format!("parallel.annotate.{name:?}=\"replicate\"")),
    );
    keys
}

/// A plan in words.
fn name(plan: &ShardingPlan) -> String {
    let layout = &plan.layout;
    let mut parts = Vec::new();
    if layout.tensor > 1 {
        let sequence = if layout.sequence { " with sequence" } else { "" };
        parts.push(format!("tensor {}{sequence}", layout.tensor));
    }
    if layout.pipeline > 1 {
        parts.push(format!("pipeline {} of {} layers", layout.pipeline, lengths(&plan.stages)));
    }
    if layout.data > 1 {
        parts.push(format!("data {} ({})", layout.data, layout.zero.name()));
    }
    parts.push(format!("micro-batch {}", layout.micro_batch));
    parts.push(format!("recompute {}", layout.recompute));
    parts.join(", ")
}

/// Layers of stages in words, equal ones beside each other as one.
fn lengths(stages: &[usize]) -> String {
    let alike = stages.chunk_by(|a, b| a == b).map(|same| match same {
        [one] => one.to_string(),
        several => format!("{} x {}", several.len(), several[0]),
    });
    alike.collect::<Vec<_>>().join(" + ")
}

/// The best layouts of all that the operators allow, where the plan has no stages: on the same devices as two axes, either of which may shard
/// any loop. The first axis is that of the plan's tensor-parallel ranks, or a node.
fn any_layout(
    training: &Training,
    plan: &ShardingPlan,
    on: On<'_>,
) -> Result<Option<AnyLayout>, PlannerError> {
    let (layout, On { machine, efficiency }) = (&plan.layout, on);
    if layout.pipeline > 1 {
        return Ok(None);
    }
    let begun = Instant::now();
    let programs = record(training, layout.micro_batch * layout.data, layout.recompute)?;
    let devices = layout.tensor * layout.data;
    let neighbours = match layout.tensor {
        1 => (1..=machine.node).filter(|ranks| devices.is_multiple_of(*ranks)).max().unwrap_or(1),
        ranks => ranks,
    };
    let axes = ShardAxis::plane(neighbours, devices / neighbours, machine.node);
    let devices = Devices { machine, efficiency, axes: &axes };
    let tables = match training.model.tied_embeddings {
        true => UnitGraph::new(&programs.head, devices, Layouts::Any).layouts_of("embed.tokens"),
        false => vec![Vec::new()],
    };
    let [embedding, layer, head] = [&programs.embedding, &programs.layer, &programs.head]
        .map(|unit| UnitGraph::new(unit, devices, Layouts::Any));
    let build = begun.elapsed().as_secs_f64();
    let begun = Instant::now();
    let micro_batches = training.sequences / (layout.micro_batch * layout.data);
    let prices = Prices::new(
        bessemer_plan::sharding::Training {
            zero: layout.zero,
            data: Spread::consecutive(1, machine.node),
            micro_batches,
            in_flight: 1,
            bytes: training.bytes.parameters,
        },
        devices,
    );
    let mut best: Option<(ChainSolution, [usize; 3])> = None;
    let mut bound = f64::INFINITY;
    for places in tables {
        let (embedding, head) = match places.is_empty() {
            true => (embedding.clone(), head.clone()),
            false => (
                embedding.with_parameter("embed.tokens", &places),
                head.with_parameter("embed.tokens", &places),
            ),
        };
        let layers = training.model.layers;
        let chain = Chain { embedding: &embedding, layer: &layer, layers, head: &head, devices };
        let solved = chain.solve(&prices, BoundBy::Compute, machine.memory);
        let Some(solution) = solved.map_err(|e| PlannerError::failed(e.to_string()))? else { continue };
        bound = bound.min(solution.bound);
        if best.as_ref().is_none_or(|(best, _)| solution.price.seconds < best.price.seconds) {
            best = Some((solution, chain.size()));
        }
    }
    let solve = begun.elapsed().as_secs_f64();
    Ok(best.map(|(solution, size)| AnyLayout {
        solution: ChainSolution { bound, ..solution },
        micro_batches,
        size,
        build,
        solve,
    }))
}

/// The fastest pipeline of stages on submeshes that may differ, of those like a plan that fits.
fn unequal(
    wanted: &Wanted<'_>,
    training: &Training,
    on: On<'_>,
    answer: &Answer,
) -> Result<Option<UnequalStages>, PlannerError> {
    let question = question(wanted, training, on);
    let mut asked = Vec::new();
    let mut best: Option<UnequalStages> = None;
    for Planned { plan, .. } in &answer.planned {
        // Plans that differ in what their stages may differ in have the same answer.
        let layout = plan.layout;
        let like =
            (layout.tensor, layout.sequence, layout.zero, layout.data * layout.micro_batch, layout.recompute);
        if asked.contains(&like) || asked.len() == PLANS {
            continue;
        }
        asked.push(like);
        let found =
            unequal_stages(&question, &plan.layout, |sequences, policy| record(training, sequences, policy));
        let found = found.map_err(|error| match error {
            ShardingError::Programs(failure) => failure,
            ShardingError::Entangled(entangled) => PlannerError::failed(entangled.to_string()),
        })?;
        if let Some(found) =
            found.filter(|found| best.as_ref().is_none_or(|best| found.seconds < best.seconds))
        {
            best = Some(found);
        }
    }
    Ok(best)
}

/// Part of a step that stages on unequal submeshes would save, beside equal ones of the same price and beside the plan.
fn saving(unequal: &UnequalStages, plan: &ShardingPlan) -> f64 {
    (1.0 - unequal.seconds / unequal.equal.min(plan.seconds)).max(0.0)
}

/// The stages in words, equal ones beside each other as one.
fn submeshes(unequal: &UnequalStages) -> String {
    let of = |stage: &UnequalStage| (stage.layers, stage.tensor, stage.data);
    let alike = unequal.stages.chunk_by(|a, b| of(a) == of(b)).map(|same| {
        let (layers, tensor, data) = of(&same[0]);
        let each = if same.len() > 1 { format!("{} x ", same.len()) } else { String::new() };
        format!("{each}{layers} layers on {} devices (tensor {tensor}, data {data})", tensor * data)
    });
    alike.collect::<Vec<_>>().join(", ")
}

/// Choices of units, those of units that are alike once.
fn placements(plan: &ShardingPlan, layers: usize) -> Vec<(String, &UnitChoice)> {
    let ends = |unit: usize| unit == 0 || unit > layers;
    let mut rows: Vec<(Vec<RangeInclusive<usize>>, &UnitChoice)> = Vec::new();
    for (unit, choice) in plan.units.iter().enumerate() {
        let alike = |row: &&mut (Vec<RangeInclusive<usize>>, &UnitChoice)| {
            row.1 == choice && !ends(unit) && !ends(*row.0[0].start())
        };
        match rows.iter_mut().find(alike) {
            Some((units, _)) => match units.last_mut() {
                Some(last) if *last.end() + 1 == unit => *last = *last.start()..=unit,
                _ => units.push(unit..=unit),
            },
            None => rows.push((vec![unit..=unit], choice)),
        }
    }
    let named = |(units, choice): (Vec<RangeInclusive<usize>>, _)| {
        let numbers = units.iter().map(|range| match (*range.start(), *range.end()) {
            (first, last) if first == last => (first - 1).to_string(),
            (first, last) => format!("{}-{}", first - 1, last - 1),
        });
        let name = match *units[0].start() {
            0 => "embedding".to_owned(),
            first if first > layers => "head".to_owned(),
            _ => format!("layers {}", numbers.collect::<Vec<_>>().join(", ")),
        };
        (name, choice)
    };
    rows.into_iter().map(named).collect()
}

/// Parameters of a unit by layout.
fn by_place(choice: &UnitChoice) -> String {
    let of = |place: Place| {
        let names = choice.parameters.iter().filter(|(_, other)| *other == place).map(|(name, _)| &name[..]);
        let names: Vec<&str> = names.collect();
        (!names.is_empty()).then(|| format!("{place} {}", names.join(", ")))
    };
    let all = [Place::Rows, Place::Columns, Place::Replicate].into_iter().filter_map(of);
    all.collect::<Vec<_>>().join("; ")
}

/// Seconds in words.
fn time(seconds: f64) -> String {
    if seconds < 1.0 { format!("{:.4} ms", 1e3 * seconds) } else { format!("{seconds:.4} s") }
}

fn text(
    wanted: &Wanted<'_>,
    training: &Training,
    machine: &Machine,
    answer: &Answer,
    Others { any, unequal }: &Others,
) -> String {
    let Answer { planned, bound, solved, bounded, too_large, seconds } = answer;
    let Planned { plan, keys, memory } = &planned[0];
    let mut text = format!(
        "{}\n{} x {}, {} sequences of {} tokens a step\nalpa: {solved} meshes solved, {bounded} cannot be better, {too_large} do not fit; \
         {seconds:.2} s\n",
        training.model.summary(),
        wanted.devices,
        machine.name,
        training.sequences,
        training.recipe.train.seq_len,
    );
    if wanted.fit.is_none() {
        text += "constants of the cost model are not fitted: times may be off by a third (--fit TABLE fits \
                 them)\n";
    }
    let _ = writeln!(text, "plan: {}", name(plan));
    let _ = writeln!(
        text,
        "objective {} a step, {:.0} tokens/s; no plan of these meshes takes less than {} (gap {:.2} %)",
        time(plan.seconds),
        training.tokens() / plan.seconds,
        time(*bound),
        100.0 * gap(plan.seconds, *bound)
    );
    let _ = writeln!(
        text,
        "memory {} by the dry run, {} of it states and saved activations",
        memory.buffers.total(),
        Bytes(plan.memory as u64)
    );
    if plan.layout.tensor > 1 {
        let _ = writeln!(text, "layouts over the {} tensor-parallel ranks:", plan.layout.tensor);
        for (unit, choice) in placements(plan, training.model.layers) {
            let _ = writeln!(text, "  {unit}: {}", by_place(choice));
        }
    }
    for Planned { plan: other, memory, .. } in &planned[1..] {
        let slower = 100.0 * (other.seconds / plan.seconds - 1.0);
        let _ =
            writeln!(text, "  {slower:+6.2} %  {:>10}  {}", memory.buffers.total().to_string(), name(other));
    }
    if let Some(AnyLayout { solution, micro_batches, size, build, solve }) = any {
        let step = |seconds: f64| time(seconds * *micro_batches as f64);
        let _ = writeln!(
            text,
            "any layout of the operators on these ranks, also those that no program is rewritten to: {}, bound {} (gap {:.2} %); \
             {} decisions, {} options, {} pairs, built in {:.1} ms, solved in {:.1} ms",
            step(solution.price.seconds),
            step(solution.bound),
            100.0 * gap(solution.price.seconds, solution.bound),
            size[0],
            size[1],
            size[2],
            1e3 * build,
            1e3 * solve
        );
    }
    text += &match unequal {
        None => format!(
            "stages on unequal numbers of devices: not compared (tied embeddings, or more than {MOST_UNEQUAL_DEVICES} devices)\n"
        ),
        Some(found) if saving(found, plan) < LEAST_SAVING => {
            "stages on unequal numbers of devices would save nothing (no run has them)\n".to_owned()
        }
        Some(found) => format!(
            "stages on unequal numbers of devices would save {:.1} % (no run has them): {}, {} a step\n",
            100.0 * saving(found, plan),
            submeshes(found),
            time(found.seconds)
        ),
    };
    let _ = writeln!(text, "keys: --set {}", keys.join(" --set "));
    text
}

/// By how much a plan may be slower than the best.
fn gap(seconds: f64, bound: f64) -> f64 {
    (seconds / bound - 1.0).max(0.0)
}

fn as_value(training: &Training, machine: &Machine, answer: &Answer, others: &Others) -> Value {
    let Others { any, unequal } = others;
    let of_stage = |stage: &UnequalStage| json!({ "layers": stage.layers, "tensor": stage.tensor, "data": stage.data, "seconds": stage.seconds });
    let of_unit = |(unit, choice): (String, &UnitChoice)| {
        let parameters: serde_json::Map<String, Value> =
            choice.parameters.iter().map(|(name, place)| (name.clone(), json!(place.to_string()))).collect();
        let loops: serde_json::Map<String, Value> =
            choice.loops.iter().map(|(name, label)| (name.clone(), json!(label))).collect();
        json!({ "units": unit, "parameters": parameters, "loops": loops })
    };
    let of_plan = |Planned { plan, keys, memory }: &Planned| {
        let layout = &plan.layout;
        json!({
            "seconds": plan.seconds,
            "tokens_per_second": training.tokens() / plan.seconds,
            "layout": {
                "tensor": layout.tensor,
                "sequence": layout.sequence,
                "data": layout.data,
                "zero": layout.zero.key(),
                "pipeline": layout.pipeline,
                "stages": plan.stages,
                "micro_batch": layout.micro_batch,
                "recompute": layout.recompute.to_string(),
            },
            "placements": placements(plan, training.model.layers).into_iter().map(of_unit).collect::<Vec<_>>(),
            "sent_by_stage": plan.sent,
            "memory": memory.buffers.total().0,
            "states_and_activations": plan.memory,
            "keys": keys,
        })
    };
    json!({
        "method": "alpa",
        "machine": machine.name,
        "solved": answer.solved,
        "bounded": answer.bounded,
        "too_large": answer.too_large,
        "search_seconds": answer.seconds,
        "bound": answer.bound,
        "gap": gap(answer.planned[0].plan.seconds, answer.bound),
        "plans": answer.planned.iter().map(of_plan).collect::<Vec<_>>(),
        "unequal_stages": unequal.as_ref().map(|found| json!({
            "seconds": found.seconds,
            "equal_seconds": found.equal,
            "saving": saving(found, &answer.planned[0].plan),
            "stages": found.stages.iter().map(of_stage).collect::<Vec<_>>(),
        })),
        "any_layout": any.as_ref().map(|any| json!({
            "seconds": any.solution.price.seconds * any.micro_batches as f64,
            "bound": any.solution.bound * any.micro_batches as f64,
            "decisions": any.size[0],
            "options": any.size[1],
            "pairs": any.size[2],
            "build_seconds": any.build,
            "solve_seconds": any.solve,
        })),
    })
}
