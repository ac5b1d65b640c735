//! A recipe as the planner sees it, and layouts as keys of recipes.

use crate::PlannerError;
use bessemer_arch::{MlpKind, Model};
use bessemer_optim::{OptimizerChoice, StateChoice};
use bessemer_parallel::{CubeConfig, LayoutChoice, PlacedAxis, PlaneConfig, TensorConfig};
use bessemer_plan::{
    Axis, ElementBytes, Layout, ParameterBytes, PipelineSchedule, Recompute, TensorGrid, Transformer, grids,
};
use bessemer_program::PiecesInFlight;
use bessemer_recipe::{Loaded, Recipe, set_argument};
use bessemer_units::{DType, Offload, ParamStorage, Recompute as Mode, RecomputeLayers, RecomputePolicy};
use serde_json::Value;
use std::collections::BTreeMap;

/// Keys that a plan chooses.
const KEYS: [&str; 18] = [
    "parallel.tensor",
    "parallel.sequence",
    "parallel.context",
    "parallel.context_method",
    "parallel.pipeline",
    "parallel.schedule",
    "parallel.chunks",
    "parallel.stages",
    "parallel.data",
    "parallel.shard",
    "parallel.order",
    "parallel.values_in_flight",
    "parallel.gradients_in_flight",
    "train.micro_batch",
    RECOMPUTE,
    RECOMPUTE_LAYERS,
    OFFLOAD,
    OFFLOAD_LAYERS,
];
const RECOMPUTE: &str = "train.recompute";
const RECOMPUTE_LAYERS: &str = "train.recompute_layers";
const OFFLOAD: &str = "train.offload";
const OFFLOAD_LAYERS: &str = "train.offload_layers";

/// A recipe as the planner sees it.
pub struct Training {
    pub(crate) recipe: Recipe,
    pub(crate) model: Model,
    pub(crate) shape: Transformer,
    /// Sequences of a step.
    pub(crate) sequences: usize,
    pub(crate) bytes: ElementBytes,
    /// Keys of [`KEYS`] that the user gives: a plan keeps them.
    constraints: Vec<&'static str>,
}

impl Training {
    /// The training of a recipe. Where its layout is "auto", keys that the user gives are constraints.
    ///
    /// # Errors
    /// A model that cannot be.
    pub(crate) fn new(loaded: &Loaded<Recipe>) -> Result<Training, PlannerError> {
        let recipe = loaded.value.clone();
        // A character vocabulary may be smaller.
        let model = recipe.model.resolve(Some(recipe.tokenizer.vocab_size as usize))?;
        if model.experts.is_some() {
            return Err(PlannerError::Recipe(
                "model.experts: searches and estimates of layouts know dense layers only; choose a layout by hand (parallel.layout = \
                 \"manual\", with parallel.data or parallel.pipeline)"
                    .into(),
            ));
        }
        if recipe.train.teacher.is_on() {
            return Err(PlannerError::Recipe(
                "train.teacher: searches and estimates of layouts count no teacher; choose a layout by hand (parallel.layout = \"manual\", with \
                 parallel.data)"
                    .into(),
            ));
        }
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
        let tables = if model.tied_embeddings { 1.0 } else { 2.0 };
        let bytes = ElementBytes { tables, ..bytes(&recipe) };
        let given = |key: &&str| !loaded.is_free(key) && !means_any(&recipe, key);
        let mut constraints: Vec<&str> = match recipe.parallel.layout {
            LayoutChoice::Auto => KEYS.into_iter().filter(given).collect(),
            LayoutChoice::Manual => Vec::new(),
        };
        // Whoever offloads has a disk for it, of which a machine of the catalogue knows nothing.
        if recipe.train.offload != Offload::None {
            constraints.retain(|key| ![OFFLOAD, OFFLOAD_LAYERS].contains(key));
            constraints.extend([OFFLOAD, OFFLOAD_LAYERS]);
        }
        // A budget of activations means nothing without it.
        if recipe.train.recompute == Mode::InputAware.into() && !constraints.contains(&RECOMPUTE) {
            constraints.push(RECOMPUTE);
        }
        Ok(Training { recipe, model, shape, sequences, bytes, constraints })
    }

    /// Grids of tensor-parallel ranks that go with the rest of the recipe on so many ranks: the one that the user gives, or all.
    pub(crate) fn grids(&self, ranks: usize) -> Vec<TensorGrid> {
        match self.recipe.parallel.tensor.grid().filter(|_| self.gives("parallel.tensor")) {
            Some(grid) => vec![grid],
            None if self.without_grids().is_none() => grids(ranks),
            None => Vec::new(),
        }
    }

    /// The key because of which no grid of tensor-parallel ranks is searched, with its value.
    pub(crate) fn without_grids(&self) -> Option<String> {
        let Recipe { parallel, train, optim, .. } = &self.recipe;
        let whole_matrices =
            !matches!(optim.optimizer, OptimizerChoice::AdamW | OptimizerChoice::Lion | OptimizerChoice::Sgd);
        let types = train.types();
        let given = |key: &str| self.gives(key);
        let keys = [
            ("parallel.tensor", given("parallel.tensor")),
            ("train.weights", types.weights != ParamStorage::default().weights),
            ("train.gradients", types.gradients != ParamStorage::default().gradients),
            ("optim.optimizer", whole_matrices),
            ("parallel.sequence", parallel.sequence && given("parallel.sequence")),
            ("parallel.context", parallel.context > 1 && given("parallel.context")),
            ("parallel.partition_activations", parallel.partition_activations),
            ("parallel.annotate", !parallel.annotate.0.is_empty()),
        ];
        keys.into_iter()
            .find(|(_, asked)| *asked)
            .map(|(key, _)| set_argument(key, &value(&self.recipe, key)))
    }

    /// Whether the user gives a key.
    pub(crate) fn gives(&self, key: &str) -> bool {
        self.constraints.contains(&key)
    }

    /// Tokens of a step.
    pub(crate) fn tokens(&self) -> f64 {
        (self.sequences as u64 * self.recipe.train.seq_len) as f64
    }

    /// Tokens of the whole training, where the recipe says so.
    pub(crate) fn all_tokens(&self) -> Option<f64> {
        let train = &self.recipe.train;
        let tokens =
            if train.tokens > 0 { train.tokens } else { train.steps.saturating_mul(train.batch_tokens) };
        (tokens > 0).then_some(tokens as f64)
    }

    /// The keys that the user gives, with their values.
    pub(crate) fn given(&self) -> impl Iterator<Item = (&'static str, Value)> + '_ {
        self.constraints.iter().map(|key| (*key, value(&self.recipe, key)))
    }

    /// The keys that the user gives, as `--set` takes them.
    pub(crate) fn constraints(&self) -> Vec<String> {
        self.given().map(|(key, value)| set_argument(key, &value)).collect()
    }

    /// Keys that the user gives and a layout does not have.
    pub(crate) fn violated(&self, layout: &Layout) -> Vec<&'static str> {
        self.constraints.iter().copied().filter(|key| !self.keeps(key, layout)).collect()
    }

    /// Whether a layout can be asked for at all: all that the user gives, and what goes with documents.
    pub(crate) fn admits(&self, layout: &Layout) -> bool {
        self.constraints.iter().all(|key| self.keeps(key, layout)) && self.goes_with_documents(layout)
    }

    /// Whether a layout goes with the lengths of the recipe's sequences.
    pub(crate) fn goes_with_documents(&self, layout: &Layout) -> bool {
        layout.context == 1 || !self.recipe.train.has_documents()
    }

    /// Whether a layout has what the user says of a key. What the search does not know, such as a schedule of a file, is kept beside
    /// the layout, and the dry run decides.
    fn keeps(&self, key: &str, layout: &Layout) -> bool {
        let (parallel, train) = (&self.recipe.parallel, &self.recipe.train);
        match key {
            "parallel.tensor" => parallel.tensor == tensor(layout),
            "parallel.sequence" => parallel.sequence == layout.sequence,
            "parallel.context" => parallel.context == layout.context as u64,
            "parallel.context_method" => {
                let (wanted, name) = (parallel.context_method.name(), layout.context_method.name());
                let known = ["all-gather", "ring", "ulysses"].contains(&wanted);
                // Another method takes about the time of a ring.
                layout.context == 1 || name == if known { wanted } else { "ring" }
            }
            "parallel.pipeline" => parallel.pipeline == layout.pipeline as u64,
            "parallel.schedule" => {
                let name = schedule(layout);
                let known = ["1f1b", "interleaved", "zb-h1", "zb-v"].contains(&parallel.schedule.as_str());
                // Another schedule takes about the time of 1F1B.
                let wanted = if known { parallel.schedule.as_str() } else { "1f1b" };
                layout.pipeline == 1 || wanted == name
            }
            "parallel.chunks" => layout.pipeline == 1 || parallel.chunks == layout.chunks as u64,
            "parallel.stages" => parallel.stages.len() == layout.pipeline * layout.chunks,
            "parallel.data" => layout.data == 1 || layout.zero == parallel.stage,
            "parallel.shard" => parallel.shard == layout.shards() as u64,
            "train.micro_batch" => train.micro_batch == layout.micro_batch as u64,
            RECOMPUTE => match policy(layout.recompute) {
                policy if train.recompute == policy => layout.recomputed == 0,
                // One of those that the search does not know.
                _ => !searched(&train.recompute) && layout.recompute == Recompute::None,
            },
            // What the layers do is given, whatever it costs.
            RECOMPUTE_LAYERS => layout.recompute == Recompute::None,
            OFFLOAD | OFFLOAD_LAYERS => layout.offload == 0,
            _ => true,
        }
    }

    /// The recipe in a layout on so many ranks, with the keys that the user gives as they are.
    pub(crate) fn in_layout(&self, layout: &Layout, ranks: usize) -> Recipe {
        self.laid_out(layout, ranks, &self.constraints)
    }

    /// The recipe in a layout on so many ranks, with some keys as they are.
    fn laid_out(&self, layout: &Layout, ranks: usize, given: &[&str]) -> Recipe {
        let mut recipe = self.recipe.clone();
        let free = |key: &str| !given.contains(&key);
        let Recipe { parallel, train, .. } = &mut recipe;
        // The checks of a planned recipe are those of the layout.
        (parallel.layout, parallel.planned.ranks) = (LayoutChoice::Auto, ranks as u64);
        if free("parallel.tensor") {
            parallel.tensor = tensor(layout);
        }
        if free("parallel.sequence") {
            parallel.sequence = layout.sequence;
        }
        if free("parallel.context") {
            parallel.context = layout.context as u64;
        }
        if free("parallel.context_method") {
            parallel.context_method = layout.context_method;
        }
        if free("parallel.pipeline") {
            parallel.pipeline = layout.pipeline as u64;
        }
        if free("parallel.schedule") {
            parallel.schedule = schedule(layout).into();
        }
        if free("parallel.chunks") {
            let chosen = layout.chunks > 1 && layout.schedule == PipelineSchedule::OneFOneB;
            parallel.chunks = if chosen { layout.chunks as u64 } else { 0 };
        }
        if free("parallel.stages") {
            parallel.stages.clear();
        }
        if free("parallel.data") {
            parallel.stage = layout.zero;
        }
        if free("parallel.shard") {
            parallel.shard = layout.shard as u64;
        }
        if free("parallel.order") {
            parallel.order = order(layout);
        }
        if free("parallel.values_in_flight") {
            parallel.values_in_flight = layout.in_flight.values as u64;
        }
        if free("parallel.gradients_in_flight") {
            parallel.gradients_in_flight = layout.in_flight.gradients as u64;
        }
        if free("train.micro_batch") {
            train.micro_batch = layout.micro_batch as u64;
        }
        if free(OFFLOAD) {
            train.offload = if layout.offload > 0 { Offload::Disk } else { Offload::None };
        }
        if free(OFFLOAD_LAYERS) {
            let all = layout.offload == layout.stage_layers(self.shape.layers);
            train.offload_layers = if all { 0 } else { layout.offload as u64 };
        }
        let some = layout.recomputed > 0;
        if free(RECOMPUTE) {
            train.recompute = if some { policy(Recompute::None) } else { policy(layout.recompute) };
        }
        if free(RECOMPUTE_LAYERS) {
            train.recompute_layers = match some {
                true => {
                    let layers = format!("stage 0-{}", layout.recomputed - 1);
                    RecomputeLayers::try_from(BTreeMap::from([(layers, policy(layout.recompute))]))
                        .unwrap_or_default()
                }
                false => RecomputeLayers::default(),
            };
        }
        recipe
    }

    /// Values of the keys that a plan chooses, in a layout.
    pub(crate) fn settings(&self, layout: &Layout, ranks: usize) -> Vec<(String, Value)> {
        let recipe = self.in_layout(layout, ranks);
        let free = KEYS.into_iter().filter(|key| !self.constraints.contains(key));
        free.map(|key| (key.to_owned(), value(&recipe, key))).collect()
    }

    /// The settings of a layout, as `--set` takes them.
    pub(crate) fn arguments(&self, layout: &Layout, ranks: usize) -> Vec<String> {
        self.settings(layout, ranks).iter().map(|(key, value)| set_argument(key, value)).collect()
    }

    /// Of these settings those that change the recipe.
    pub(crate) fn changes(&self, layout: &Layout, ranks: usize) -> Vec<String> {
        let settings = self.settings(layout, ranks).into_iter();
        let changed = settings.filter(|(key, set)| *set != value(&self.recipe, key));
        changed.map(|(key, set)| set_argument(&key, &set)).collect()
    }

    /// The value of a key in a layout, whatever the user gives.
    pub(crate) fn value_in(&self, key: &str, layout: &Layout) -> String {
        value(&self.laid_out(layout, 1, &[]), key).to_string()
    }
}

/// Whether the user's value of a key leaves the choice to whoever reads it.
fn means_any(recipe: &Recipe, key: &str) -> bool {
    let (parallel, train) = (&recipe.parallel, &recipe.train);
    match key {
        "parallel.chunks" => parallel.chunks == 0,
        "parallel.stages" => parallel.stages.is_empty(),
        "parallel.shard" => parallel.shard == 0,
        "parallel.order" => parallel.order.is_empty(),
        "train.micro_batch" => train.micro_batch == 0,
        RECOMPUTE_LAYERS => train.recompute_layers == RecomputeLayers::default(),
        OFFLOAD_LAYERS => train.offload_layers == 0,
        _ => false,
    }
}

/// A dotted key of a recipe.
fn value(recipe: &Recipe, key: &str) -> Value {
    let (section, name) = key.split_once('.').unwrap_or((key, ""));
    let table = match section {
        "parallel" => serde_json::to_value(&recipe.parallel),
        "optim" => serde_json::to_value(&recipe.optim),
        _ => serde_json::to_value(&recipe.train),
    };
    table.ok().and_then(|table| table.get(name).cloned()).unwrap_or_default()
}

/// Bytes that elements take at least.
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
        tables: 1.0,
    }
}

/// The order of the axes with several ranks, if it is not the usual one.
fn order(layout: &Layout) -> Vec<PlacedAxis> {
    let placed = |axis: &Axis| PlacedAxis::ALL.into_iter().find(|placed| placed.name() == axis.name());
    let several = |order: [Axis; 5]| -> Vec<PlacedAxis> {
        order.iter().filter(|axis| layout.ranks_along(**axis) > 1).filter_map(placed).collect()
    };
    let order = several(layout.order);
    if order == several(Layout::USUAL_ORDER) { Vec::new() } else { order }
}

/// Tensor-parallel ranks as the recipe has them.
fn tensor(layout: &Layout) -> TensorConfig {
    match layout.grid {
        None => TensorConfig::Line(layout.tensor as u64),
        Some(TensorGrid::Plane { rows, columns, depth }) => {
            TensorConfig::Plane(PlaneConfig { grid: [rows as u64, columns as u64], depth: depth as u64 })
        }
        Some(TensorGrid::Cube { side }) => TensorConfig::Cube(CubeConfig { cube: side as u64 }),
    }
}

fn schedule(layout: &Layout) -> &'static str {
    match layout.schedule {
        PipelineSchedule::OneFOneB if layout.chunks > 1 => "interleaved",
        PipelineSchedule::OneFOneB => "1f1b",
        PipelineSchedule::ZbH1 => "zb-h1",
        PipelineSchedule::ZbV => "zb-v",
    }
}

fn policy(recompute: Recompute) -> RecomputePolicy {
    let mode = match recompute {
        Recompute::None => Mode::None,
        Recompute::Selective => Mode::Selective,
        Recompute::Attention => Mode::Attention,
        Recompute::AttentionOutput => Mode::AttentionOutput,
        Recompute::Full => Mode::Full,
    };
    mode.into()
}

/// Whether the search varies this.
fn searched(wanted: &RecomputePolicy) -> bool {
    Recompute::ALL.into_iter().any(|mode| policy(mode) == *wanted)
}

/// A layout in words.
pub fn name(layout: &Layout) -> String {
    let mut parts = Vec::new();
    if layout.tensor > 1 {
        let sequence = if layout.sequence { " with sequence" } else { "" };
        let ranks = layout.grid.map_or(layout.tensor.to_string(), |grid| grid.to_string());
        parts.push(format!("tensor {ranks}{sequence}"));
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
        parts.push(format!("data {} ({}{groups})", layout.data, layout.zero.name()));
    }
    let order: Vec<&str> = order(layout).into_iter().map(PlacedAxis::name).collect();
    if !order.is_empty() {
        parts.push(format!("neighbours by {}", order.join(", ")));
    }
    if layout.in_flight != PiecesInFlight::DEFAULT {
        let PiecesInFlight { values, gradients } = layout.in_flight;
        parts.push(format!("{values} pieces of parameters and {gradients} of gradients in flight"));
    }
    parts.push(format!("micro-batch {}", layout.micro_batch));
    let what = match layout.recompute {
        Recompute::None => None,
        Recompute::Selective => Some("norms and activations"),
        Recompute::Attention => Some("attention"),
        Recompute::AttentionOutput => Some("all but attention"),
        Recompute::Full => Some("layers"),
    };
    if let Some(what) = what {
        let some =
            if layout.recomputed > 0 { format!(" of {} a stage", layout.recomputed) } else { String::new() };
        parts.push(format!("{what}{some} recomputed"));
    }
    if layout.offload > 0 {
        parts.push(format!("{} layers of a stage offloaded", layout.offload));
    }
    parts.join(", ")
}
