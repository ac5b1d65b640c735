//! `bessemer plan RECIPE`.

use super::layerwise::Shown;
use super::{machine, text_of};
use crate::cli::PlanArgs;
use crate::console::{Console, print};
use crate::failure::Failure;
use bessemer_arch::{MlpKind, Model};
use bessemer_optim::{OptimizerChoice, StateChoice};
use bessemer_parallel::MemoryPlan;
use bessemer_plan::{
    Calibration, Candidate, Candidates, DataParallel, ElementBytes, Job, Layout, Machine, ParameterBytes,
    PipelineSchedule, Question, Recompute, Transformer, candidates, choose, read_table,
};
use bessemer_recipe::{Recipe, load_recipe};
use bessemer_tokenizer::TokenizerKind;
use bessemer_train::planned_memory;
use bessemer_units::{Bytes, DType};
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::Path;

/// Most dry runs.
const MOST_DRY_RUNS: usize = 200;
/// Share of a device's memory that should stay free.
const HEADROOM: f64 = 0.05;
const DAY: f64 = 86_400.0;

/// What is asked for.
pub(super) struct Wanted<'a> {
    pub(super) recipe: &'a Path,
    pub(super) devices: usize,
    pub(super) args: &'a PlanArgs,
}

/// A recipe as the planner sees it.
pub(super) struct Training {
    pub(super) recipe: Recipe,
    pub(super) model: Model,
    pub(super) shape: Transformer,
    /// Sequences of a step.
    pub(super) sequences: usize,
    pub(super) bytes: ElementBytes,
}

/// A layout with its planned memory.
struct Planned {
    candidate: Candidate,
    memory: MemoryPlan,
}

/// What became of the layouts that were planned by dry runs.
#[derive(Default)]
struct DryRuns {
    planned: Vec<Planned>,
    /// Layouts that do not fit.
    too_large: usize,
    /// Layouts that the recipe or the model refuses.
    refused: usize,
    /// Why the first of them is.
    reason: Option<String>,
}

pub(super) fn run(wanted: &Wanted<'_>, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    let machine = machine(&wanted.args.machine)?;
    let calibration = calibration(wanted, &machine)?;
    let training = Training::load(wanted)?;
    let question = training.question(wanted, &machine, &calibration);
    let found = candidates(&question, |_| true).map_err(Failure::usage)?;
    if found.layouts.is_empty() {
        return Err(nothing(&found, wanted, &training, &machine));
    }
    let runs = dry_runs(wanted, &training, &machine, &found, console);
    if runs.planned.is_empty() {
        return Err(nothing_planned(&runs, &machine));
    }
    match as_json {
        true => Ok(print(&serde_json::to_string(&as_value(&training, &machine, &found, &runs))?)?),
        false => Ok(print(&text(wanted, &training, &machine, &found, &runs))?),
    }
}

/// The constants of the cost model.
pub(super) fn calibration(wanted: &Wanted<'_>, machine: &Machine) -> Result<Calibration, Failure> {
    let Some(path) = &wanted.args.fit else { return Ok(Calibration::none()) };
    let table = read_table(&text_of(path)?, machine, true)
        .map_err(|cause| Failure::new(format!("{}: {cause}", path.display())))?;
    Ok(Calibration::of(&choose(&table.steps)))
}

/// The fastest layout of a search.
pub(super) struct Best {
    pub(super) plan: Option<Shown>,
    pub(super) evaluated: usize,
}

/// Finds the fastest layout that fits by its dry run.
pub(super) fn best(
    wanted: &Wanted<'_>,
    training: &Training,
    machine: &Machine,
    calibration: &Calibration,
    console: &mut Console,
) -> Result<Best, Failure> {
    let found =
        candidates(&training.question(wanted, machine, calibration), |_| true).map_err(Failure::usage)?;
    let runs = dry_runs(wanted, training, machine, &found, console);
    let shown = |Planned { candidate, memory }: &Planned| Shown {
        name: name(&candidate.job.layout),
        keys: keys(&candidate.job.layout),
        seconds: candidate.time.total,
        sums: f64::NAN,
        memory: candidate.least_memory,
        planned: Some(memory.buffers.total()),
    };
    Ok(Best { plan: runs.planned.first().map(shown), evaluated: found.evaluated })
}

impl Training {
    pub(super) fn load(wanted: &Wanted<'_>) -> Result<Training, Failure> {
        Training::of(load_recipe(wanted.recipe, &wanted.args.sets)?.value)
    }

    /// A recipe that has been checked.
    pub(super) fn of(recipe: Recipe) -> Result<Training, Failure> {
        let vocabulary = match recipe.tokenizer.kind {
            TokenizerKind::ByteBpe => Some(recipe.tokenizer.vocab_size as usize),
            TokenizerKind::Char => None,
        };
        let model = recipe.model.resolve(vocabulary)?;
        let shape = Transformer {
            width: model.width,
            heads: model.heads,
            kv_heads: model.kv_heads,
            ffn_width: model.ffn_width,
            gated: model.mlp() == MlpKind::Gated,
            layers: model.layers,
            vocab: model.vocab_size,
        };
        let sequences = (recipe.train.batch_tokens / recipe.train.seq_len) as usize;
        let bytes = bytes(&recipe);
        Ok(Training { recipe, model, shape, sequences, bytes })
    }

    fn question<'a>(
        &self,
        wanted: &Wanted<'_>,
        machine: &'a Machine,
        calibration: &'a Calibration,
    ) -> Question<'a> {
        Question {
            model: self.shape,
            seq: self.recipe.train.seq_len as usize,
            global_batch: self.sequences,
            devices: wanted.devices,
            machine,
            calibration,
            bytes: self.bytes,
        }
    }

    pub(super) fn tokens(&self) -> f64 {
        (self.sequences as u64 * self.recipe.train.seq_len) as f64
    }
}

/// What elements take at least.
fn bytes(recipe: &Recipe) -> ElementBytes {
    let types = recipe.train.types();
    let size = |dtype: DType| dtype.size() as f64;
    let master = if types.weights.dtype() == DType::F32 { 0.0 } else { 4.0 };
    let moments = match (recipe.optim.optimizer, recipe.optim.state) {
        (OptimizerChoice::AdamW, StateChoice::F32) => 8.0,
        (OptimizerChoice::AdamW, _) => 2.0,
        _ => 0.0,
    };
    ElementBytes {
        parameters: ParameterBytes {
            parameter: size(types.weights.dtype()),
            gradient: size(types.gradients.dtype()),
            state: master + moments,
        },
        activation: size(recipe.train.storage.dtype()),
    }
}

fn stage(zero: DataParallel) -> (&'static str, &'static str) {
    match zero {
        DataParallel::Ddp => ("ddp", "DDP"),
        DataParallel::Zero1 => ("zero1", "ZeRO-1"),
        DataParallel::Zero2 => ("zero2", "ZeRO-2"),
        DataParallel::Zero3 => ("zero3", "ZeRO-3"),
    }
}

/// The keys of a recipe that mean a layout.
fn keys(layout: &Layout) -> Vec<String> {
    let recompute = match layout.recompute {
        Recompute::None => "none",
        Recompute::Attention => "attention",
        Recompute::Full => "full",
    };
    let (schedule, chunks) = match layout.schedule {
        PipelineSchedule::OneFOneB if layout.chunks > 1 => ("interleaved", layout.chunks),
        PipelineSchedule::OneFOneB => ("1f1b", 0),
        PipelineSchedule::ZbH1 => ("zb-h1", 0),
        PipelineSchedule::ZbV => ("zb-v", 0),
    };
    let mut keys = vec![
        format!("parallel.tensor={}", layout.tensor),
        format!("parallel.sequence={}", layout.sequence),
        format!("parallel.context={}", layout.context),
        format!("parallel.pipeline={}", layout.pipeline),
        format!("parallel.schedule={schedule:?}"),
        format!("parallel.chunks={chunks}"),
        format!("parallel.data={:?}", stage(layout.zero).0),
        format!("parallel.shard={}", layout.shard),
        format!("train.micro_batch={}", layout.micro_batch),
    ];
    if layout.context > 1 {
        keys.push(format!("parallel.context_method={:?}", layout.context_method.name()));
    }
    match layout.recomputed {
        0 => keys.push(format!("train.recompute={recompute:?}")),
        some => {
            keys.push("train.recompute=\"none\"".into());
            keys.push(format!("train.recompute_layers.'stage 0-{}'={recompute:?}", some - 1));
        }
    }
    keys
}

/// A layout in words.
fn name(layout: &Layout) -> String {
    let mut parts = Vec::new();
    if layout.tensor > 1 {
        let sequence = if layout.sequence { " with sequence" } else { "" };
        parts.push(format!("tensor {}{sequence}", layout.tensor));
    }
    if layout.context > 1 {
        parts.push(format!("context {} ({})", layout.context, layout.context_method.name()));
    }
    if layout.pipeline > 1 {
        let order = match (layout.schedule, layout.chunks) {
            (PipelineSchedule::OneFOneB, 1) => String::new(),
            (PipelineSchedule::OneFOneB, chunks) => format!(" of {chunks} chunks"),
            (PipelineSchedule::ZbH1, _) => " (zb-h1)".into(),
            (PipelineSchedule::ZbV, _) => " (zb-v)".into(),
        };
        parts.push(format!("pipeline {}{order}", layout.pipeline));
    }
    if layout.data > 1 {
        let groups = if layout.shard > 0 { format!(" in groups of {}", layout.shard) } else { String::new() };
        parts.push(format!("data {} ({}{groups})", layout.data, stage(layout.zero).1));
    }
    parts.push(format!("micro-batch {}", layout.micro_batch));
    let what = match layout.recompute {
        Recompute::None => None,
        Recompute::Attention => Some("attention"),
        Recompute::Full => Some("layers"),
    };
    if let Some(what) = what {
        let some =
            if layout.recomputed > 0 { format!(" of {} a stage", layout.recomputed) } else { String::new() };
        parts.push(format!("{what}{some} recomputed"));
    }
    parts.join(", ")
}

/// Plans the fastest layouts until enough of them fit.
fn dry_runs(
    wanted: &Wanted<'_>,
    training: &Training,
    machine: &Machine,
    found: &Candidates,
    console: &mut Console,
) -> DryRuns {
    let mut runs = DryRuns::default();
    for candidate in found.layouts.iter().take(MOST_DRY_RUNS) {
        let layout = &candidate.job.layout;
        let sets: Vec<String> = wanted.args.sets.iter().cloned().chain(keys(layout)).collect();
        let planned =
            load_recipe(wanted.recipe, &sets).map_err(|cause| cause.to_string()).and_then(|loaded| {
                let memory = planned_memory(&loaded.value, wanted.devices, &training.model);
                memory.map_err(|cause| cause.to_string())
            });
        match planned {
            Err(reason) => {
                runs.refused += 1;
                console.detail(&format!("{}: {reason}", name(layout)));
                runs.reason.get_or_insert(reason);
            }
            Ok(memory) if memory.buffers.total().0 as f64 > machine.memory => runs.too_large += 1,
            Ok(memory) => runs.planned.push(Planned { candidate: *candidate, memory }),
        }
        if runs.planned.len() as u64 == wanted.args.top {
            break;
        }
    }
    runs
}

/// The refusal where no layout can fit: which limit it meets, and by how much.
fn nothing(found: &Candidates, wanted: &Wanted<'_>, training: &Training, machine: &Machine) -> Failure {
    let Some(smallest) = &found.smallest else {
        return Failure::usage(format!(
            "no layout of {} devices divides the {} sequences of a step (train.batch_tokens / train.seq_len), {} layers and {} \
             heads; take another number of devices or another batch",
            wanted.devices, training.sequences, training.model.layers, training.model.heads
        ));
    };
    Failure::new(format!(
        "none of {} layouts fits: the smallest ({}) holds at least {} where a {} has {}; take more devices, or a smaller \
         sequence or model",
        found.evaluated,
        name(&smallest.job.layout),
        Bytes(smallest.least_memory as u64),
        machine.name,
        Bytes(machine.memory as u64)
    ))
}

fn nothing_planned(runs: &DryRuns, machine: &Machine) -> Failure {
    let reason = match &runs.reason {
        Some(reason) => format!("; {} are refused, the first because {reason}", runs.refused),
        None => String::new(),
    };
    Failure::new(format!(
        "none of the {} fastest layouts fits: {} hold more than the {} of a {} by their dry run{reason}",
        runs.too_large + runs.refused,
        runs.too_large,
        Bytes(machine.memory as u64),
        machine.name
    ))
}

/// Model FLOPs utilisation: operations without those of recomputation, over the peak.
fn utilisation(candidate: &Candidate, machine: &Machine) -> f64 {
    let layout = Layout { recompute: Recompute::None, ..candidate.job.layout };
    Job { layout, ..candidate.job }.hardware_flops() / (candidate.time.total * machine.matrix_flops)
}

fn text(
    wanted: &Wanted<'_>,
    training: &Training,
    machine: &Machine,
    found: &Candidates,
    runs: &DryRuns,
) -> String {
    let mut text = format!(
        "{}\n{} x {}, {} sequences of {} tokens a step\n{} layouts: {} cannot fit; of the fastest others {} do not fit by their dry \
         run, {} are refused\n",
        training.model.summary(),
        wanted.devices,
        machine.name,
        training.sequences,
        training.recipe.train.seq_len,
        found.evaluated,
        found.too_large,
        runs.too_large,
        runs.refused
    );
    if let Some(reason) = &runs.reason {
        let _ = writeln!(text, "first refusal: {reason}");
    }
    if wanted.args.fit.is_none() {
        text += "constants of the cost model that were fitted to nothing: times may be off by a third (--fit TABLE)\n";
    }
    let _ = writeln!(text, "{:>10} {:>12} {:>7} {:>10}  layout", "step", "tokens/s", "MFU", "memory");
    for Planned { candidate, memory } in &runs.planned {
        let held = memory.buffers.total();
        let full = held.0 as f64 > (1.0 - HEADROOM) * machine.memory;
        let _ = writeln!(
            text,
            "{:>8.3} s {:>12.0} {:>5.1} % {:>10}  {}{}",
            candidate.time.total,
            training.tokens() / candidate.time.total,
            100.0 * utilisation(candidate, machine),
            held.to_string(),
            name(&candidate.job.layout),
            if full { "; less than 5 % of the memory is free" } else { "" }
        );
    }
    let Planned { candidate, memory } = &runs.planned[0];
    let time = &candidate.time;
    let parts = [
        ("compute", time.compute),
        ("tensor collectives", time.tensor),
        ("messages", time.messages),
        ("bubble", time.bubble),
        ("last stage", time.last_stage),
        ("data collectives", time.data),
        ("optimizer", time.optimizer),
        ("context", time.context),
        ("constant", time.constant),
    ];
    let shares = parts.iter().filter(|(_, part)| *part > 0.0);
    let shares: Vec<String> =
        shares.map(|(part, seconds)| format!("{part} {:.1} %", 100.0 * seconds / time.total)).collect();
    let classes = memory.buffers.classes.iter().filter(|(_, bytes)| bytes.0 > 0);
    let classes: Vec<String> = classes.map(|(class, bytes)| format!("{class} {bytes}")).collect();
    let _ = writeln!(text, "time of the first: {}", shares.join(", "));
    let _ = writeln!(text, "memory of the first: {}", classes.join(", "));
    let _ = writeln!(text, "a day: {:.2} billion tokens", training.tokens() / time.total * DAY / 1e9);
    let _ = writeln!(text, "plain layouts beside the first, in closed form: {}", plain(found, candidate));
    let _ = writeln!(text, "keys of the first: --set {}", keys(&candidate.job.layout).join(" --set "));
    text
}

/// Whether a layout is of a kind.
type Kind = fn(&Layout) -> bool;

/// Whether only data-parallel ranks share the work.
fn alone(layout: &Layout) -> bool {
    layout.tensor * layout.pipeline == 1
}

/// The fastest layouts of one kind beside the best. Faster ones than the best were planned, and do not fit.
fn plain(found: &Candidates, best: &Candidate) -> String {
    let kinds: [(&str, Kind); 3] = [
        ("DDP", |layout| alone(layout) && layout.zero == DataParallel::Ddp),
        ("ZeRO-3", |layout| alone(layout) && layout.zero == DataParallel::Zero3),
        ("tensor and pipeline without ZeRO", |layout| !alone(layout) && layout.zero == DataParallel::Ddp),
    ];
    let rest = || found.layouts.iter().skip_while(|candidate| *candidate != best);
    let beside = kinds.map(|(kind, is)| match rest().find(|candidate| is(&candidate.job.layout)) {
        Some(candidate) => format!("{kind} {:+.1} %", 100.0 * (candidate.time.total / best.time.total - 1.0)),
        None => format!("{kind} does not fit"),
    });
    beside.join(", ")
}

fn as_value(training: &Training, machine: &Machine, found: &Candidates, runs: &DryRuns) -> Value {
    let layout = |Planned { candidate, memory }: &Planned| {
        let classes: serde_json::Map<String, Value> =
            memory.buffers.classes.iter().map(|(class, bytes)| (class.to_string(), json!(bytes.0))).collect();
        json!({
            "layout": candidate.job.layout,
            "keys": keys(&candidate.job.layout),
            "time": candidate.time,
            "tokens_per_second": training.tokens() / candidate.time.total,
            "model_flops_utilisation": utilisation(candidate, machine),
            "memory": memory.buffers.total().0,
            "least_memory": candidate.least_memory,
            "memory_by_class": classes,
        })
    };
    json!({
        "machine": machine.name,
        "evaluated": found.evaluated,
        "cannot_fit": found.too_large,
        "too_large_by_dry_run": runs.too_large,
        "refused": runs.refused,
        "first_refusal": runs.reason,
        "layouts": runs.planned.iter().map(layout).collect::<Vec<_>>(),
    })
}
