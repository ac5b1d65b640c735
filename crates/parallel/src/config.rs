//! `[parallel]`: how a job's ranks share the work.

use crate::pipeline::Pipeline;
use crate::tensor_config::TensorConfig;
use bessemer_arch::Annotations;
pub use bessemer_mesh::formulas::ZeroStage as Stage;
use bessemer_mesh::{Axis, ContextMethod, ContextOrder, ContextSharing};
use bessemer_program::{PiecesInFlight, Shadowing};
use bessemer_tensor::op::ShadowRates;
use bessemer_units::ReduceDType;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One kind of work that a rank does in the bubbles of a pipeline.
#[derive(
    Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum FillChoice {
    /// No work: the rank waits.
    #[default]
    None,
    /// K-FAC's curvature and inversions (Osawa et al. 2023, PipeFisher).
    Kfac,
    /// Batches of evaluations while training: they pass the bubbles of the step after.
    Evaluation,
    /// Copies of the state for checkpoints: made in the bubbles of the step after, and written beside the steps after that.
    Checkpoint,
}

impl FillChoice {
    /// The name in a recipe.
    pub fn name(self) -> &'static str {
        match self {
            FillChoice::None => "none",
            FillChoice::Kfac => "kfac",
            FillChoice::Evaluation => "evaluation",
            FillChoice::Checkpoint => "checkpoint",
        }
    }
}

/// Work that ranks do in the bubbles of a pipeline: one kind, or a list of kinds.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum FillConfig {
    /// One kind, or none.
    One(FillChoice),
    /// Several kinds, in any order.
    Several(Vec<FillChoice>),
}

impl FillConfig {
    fn choices(&self) -> &[FillChoice] {
        match self {
            FillConfig::One(choice) => std::slice::from_ref(choice),
            FillConfig::Several(choices) => choices,
        }
    }

    /// Whether this kind of work is asked for.
    pub fn has(&self, choice: FillChoice) -> bool {
        self.choices().contains(&choice)
    }

    /// Whether no work is asked for.
    pub fn is_none(&self) -> bool {
        self.choices().iter().all(|choice| *choice == FillChoice::None)
    }

    fn check(&self) -> Result<(), String> {
        let FillConfig::Several(choices) = self else { return Ok(()) };
        let mut sorted = choices.clone();
        sorted.sort_unstable();
        sorted.dedup();
        if sorted.len() < choices.len() || sorted.contains(&FillChoice::None) {
            return Err(format!(
                "parallel.fill = {self}: expected each of \"kfac\", \"evaluation\" and \"checkpoint\" at most once, or \
                 \"none\" alone"
            ));
        }
        Ok(())
    }
}

/// As in a recipe.
impl std::fmt::Display for FillConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<String> = self.choices().iter().map(|c| format!("\"{}\"", c.name())).collect();
        match self {
            FillConfig::One(_) => write!(f, "{}", names.concat()),
            FillConfig::Several(_) => write!(f, "[{}]", names.join(", ")),
        }
    }
}

impl Default for FillConfig {
    fn default() -> FillConfig {
        FillConfig::One(FillChoice::None)
    }
}

impl From<FillChoice> for FillConfig {
    fn from(choice: FillChoice) -> FillConfig {
        FillConfig::One(choice)
    }
}

/// Source of the layout of ranks.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LayoutChoice {
    /// The keys of the recipe.
    #[default]
    Manual,
    /// A plan, made before the first step. Keys that the recipe gives stay as they are.
    Auto,
}

/// Ranks that [`ParallelConfig::experts`] counts.
#[derive(
    Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum ExpertsOver {
    /// Data-parallel ranks.
    #[default]
    Data,
    /// Ranks that share sequences, then data-parallel ones.
    Context,
    /// Tensor-parallel ranks, then those of `context`.
    Tensor,
}

impl ExpertsOver {
    /// The name in a recipe.
    pub fn name(self) -> &'static str {
        match self {
            ExpertsOver::Data => "data",
            ExpertsOver::Context => "context",
            ExpertsOver::Tensor => "tensor",
        }
    }

    /// The axes on which these ranks differ.
    pub fn axes(self) -> &'static [Axis] {
        match self {
            ExpertsOver::Data => &[Axis::Expert],
            ExpertsOver::Context => &[Axis::ContextHeads, Axis::Context, Axis::Expert],
            ExpertsOver::Tensor => &[Axis::Tensor, Axis::ContextHeads, Axis::Context, Axis::Expert],
        }
    }
}

/// An axis of the mesh that [`ParallelConfig::order`] places.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PlacedAxis {
    /// Tensor-parallel ranks, of a line or of a grid.
    Tensor,
    /// Ranks that share sequences.
    Context,
    /// Data-parallel ranks that keep a part each.
    Shard,
    /// Stages of a pipeline.
    Pipeline,
    /// Data-parallel ranks that keep the same.
    Replicate,
}

impl PlacedAxis {
    /// All, in the usual order.
    pub const ALL: [PlacedAxis; 5] = [
        PlacedAxis::Tensor,
        PlacedAxis::Context,
        PlacedAxis::Shard,
        PlacedAxis::Pipeline,
        PlacedAxis::Replicate,
    ];

    /// The name in a recipe.
    pub fn name(self) -> &'static str {
        match self {
            PlacedAxis::Tensor => "tensor",
            PlacedAxis::Context => "context",
            PlacedAxis::Shard => "shard",
            PlacedAxis::Pipeline => "pipeline",
            PlacedAxis::Replicate => "replicate",
        }
    }

    fn axes(self) -> &'static [Axis] {
        match self {
            PlacedAxis::Tensor => &[Axis::TensorColumn, Axis::TensorRow, Axis::TensorDepth, Axis::Tensor],
            PlacedAxis::Context => &[Axis::ContextHeads, Axis::Context],
            PlacedAxis::Shard => &[Axis::Expert, Axis::Shard],
            PlacedAxis::Pipeline => &[Axis::Pipeline],
            PlacedAxis::Replicate => &[Axis::Replicate],
        }
    }
}

/// `[parallel.planned]`: what `parallel.layout = "auto"` decided, written into the resolved recipe of a run directory. A run that continues
/// with as many ranks of the same machine keeps it.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PlannedLayout {
    /// Ranks that the plan is for; 0: no plan was made.
    pub ranks: u64,
    /// Machine that the plan is for, in words.
    pub machine: String,
    /// Keys whose values the plan chose.
    pub keys: Vec<String>,
}

/// `[parallel]`: how ranks share the work. Ranks come from `--ranks N` or the launcher; those that no other axis takes
/// replicate the model and share the batch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ParallelConfig {
    /// Source of the layout: "manual" (the keys below) or "auto" (`bessemer run` and `train` plan it before the first step; keys of this
    /// section, `train.micro_batch` and `train.recompute` that the recipe gives are constraints). See docs/planner.md.
    pub layout: LayoutChoice,
    /// Machine that "auto" plans for: a name of the catalogue of machines, or a file that ends with `.toml`. Empty: this one, measured.
    pub machine: String,
    /// What data-parallel ranks shard instead of replicating: "ddp" (nothing), "zero1" (optimizer state), "zero2"
    /// (gradients too) or "zero3" (parameters too).
    #[serde(rename = "data")]
    pub stage: Stage,
    /// Ranks over which one replica of that is sharded; 0: all data-parallel ranks. Fewer make several replicas, each
    /// sharded over so many ranks (hybrid sharding). Not with "ddp".
    pub shard: u64,
    /// Type in which gradients travel between data-parallel ranks: "stored" (that of `train.gradients`) or "int8" (codes of 8 bits and an
    /// f32 scale for every 256 elements; ZeRO++'s quantised reductions). "int8" sends a quarter of the bytes of f32 and rounds each rank's
    /// gradient to 1/254 of the largest magnitude in its block, and an all-reduced sum once more; one rank sends and rounds nothing. Stored
    /// gradients and their sums keep their type. See docs/parallel.md.
    pub reduce_dtype: ReduceDType,
    /// Ranks that share every layer's matrices (tensor parallelism): their number, for a line of ranks, which divides heads and the
    /// width of the feed-forward block; `{ grid = [rows, columns] }` for two dimensions, with `depth` for two and a half; `{ cube =
    /// side }` for three. On a grid micro-batches are shared by whole sequences too. See docs/parallel.md.
    pub tensor: TensorConfig,
    /// Cut the residual stream over the tensor-parallel ranks too (sequence parallelism): less memory for activations,
    /// a quarter more traffic.
    pub sequence: bool,
    /// Between the forward and the backward pass of a micro-batch each tensor-parallel rank keeps its rows of what enters a layer,
    /// and gathers the others (ZeRO-R's partitioned activation checkpoints): with `train.recompute = "full"` a layer keeps 1/tensor
    /// of its input on each rank. Wants `parallel.tensor` above 1; with `parallel.sequence` the rows are sharded anyway.
    pub partition_activations: bool,
    /// Ranks that share every sequence (context parallelism), for sequences whose activations one rank cannot hold: each has
    /// some positions, and all of the model or, with `parallel.tensor` above 1, a line of tensor-parallel ranks for these positions.
    /// Divides `train.seq_len`.
    pub context: u64,
    /// Ranks of a group within those of `parallel.context` that exchange heads for the positions of their group, by all-to-alls;
    /// `parallel.context_method` works between the groups (ring attention inside Ulysses). 1: no groups. Divides `parallel.context`,
    /// and `model.heads`; only with the methods other than "ulysses".
    pub context_heads: u64,
    /// What these ranks exchange to compute attention: "all-gather" (each gathers the keys and values of all positions), "ulysses"
    /// (all-to-alls give each all positions of some heads; less traffic, `parallel.context` divides `model.heads`), "ring" (keys and
    /// values go round, two blocks of them a rank at a time) or "lightseq" (as "ring", with consecutive positions, and ranks with early
    /// ones compute for others). All but "ulysses" take any number of heads, and one sequence in a micro-batch.
    pub context_method: ContextMethod,
    /// Which positions each of these ranks has, for "all-gather" and "ring": "auto" (zig-zag where 2 `parallel.context` divides
    /// `train.seq_len`, consecutive otherwise), "consecutive", "zig-zag" (the i-th stretch of 2 `parallel.context` from the beginning
    /// and from the end) or "striped" (every `parallel.context`-th). The others have consecutive positions.
    pub context_order: ContextOrder,
    /// Ranks that share the experts of a layer (expert parallelism): each has `model.experts.count` / `experts` of them, and tokens travel to
    /// the ranks of their experts and back. 1: every rank has all. Divides the number of experts; its data-parallel part divides `shard`
    /// where state is sharded. See docs/experts.md.
    pub experts: u64,
    /// Which ranks `experts` counts: "data" (data-parallel ones; tensor-parallel ones share the hidden units of every expert, and those of
    /// `context` have the same experts), "context" (the `context` ranks of a sequence, then data-parallel ones) or "tensor" (those of `tensor`
    /// and `context`, then data-parallel ones; each has whole experts, and `sequence` is true). See docs/experts.md.
    pub experts_over: ExpertsOver,
    /// Most experts of a layer that every rank computes for its own tokens, in each micro-batch those with which the layer takes least time
    /// by `shadow_flops` and `shadow_bandwidth` (FasterMoE); 0: none. Losses and gradients have the same bits. See docs/experts.md.
    pub shadows: u64,
    /// FLOPs a second of a rank's products, by which shadows are chosen. Wanted with `shadows`.
    pub shadow_flops: f64,
    /// Bytes a second that a rank sends to the others that share its experts, by which shadows are chosen. Wanted with `shadows`.
    pub shadow_bandwidth: f64,
    /// Pipeline ranks: each holds some of the layers, and micro-batches pass from one to the next. 1: no pipeline.
    pub pipeline: u64,
    /// When the ranks of a pipeline do what: "gpipe", "1f1b", "pipedream", "pipedream-2bw", "interleaved", "breadth-first", "chimera",
    /// "zb-h1", "zb-h2", "zb-v", "dualpipe", "dualpipev", "zb-auto", or the name of a file that a schedule stands in.
    /// See docs/pipelines.md.
    pub schedule: String,
    /// Stages that each pipeline rank holds (chunks); 0: as many as the schedule has by its nature.
    pub chunks: u64,
    /// Layers of each stage, from the first to the last; empty: balanced by floating-point operations. There are as many
    /// stages as pipeline ranks times chunks (half of that where a schedule works in two directions).
    pub stages: Vec<u64>,
    /// For "zb-auto": most activations that a rank may hold at a time, in those of one micro-batch; 0: twice the pipeline
    /// ranks.
    pub memory_limit: f64,
    /// For asynchronous schedules ("pipedream", "pipedream-2bw"): steps after which the pipeline is drained, so that stopping
    /// and saving have a moment. It also ends at evaluations, samples and saves by steps.
    pub window: u64,
    /// What ranks do while a pipeline waits: "none", one of the others, or a list of them such as `["kfac", "checkpoint"]`.
    /// "evaluation": batches of `eval.every_steps`, as many as fit into the bubbles of one step. "checkpoint": copies of the
    /// state, from which checkpoints are then written beside training. "kfac": the curvature and inversions of
    /// `optim.optimizer = "kfac"`, planned by floating-point operations over as many steps as the bubbles need for them, which
    /// takes the place of `optim.kfac.curvature_every` and `inverse_every`.
    pub fill: FillConfig,
    /// Layouts of parameters over the tensor-parallel ranks, by name; `*` stands for any characters: `"layers.0.mlp.*" =
    /// "replicate"` keeps the feed-forward block of a layer whole on every rank. One annotation holds for all parameters that
    /// share heads, hidden units or rows of the vocabulary with the named one; an activation of a layer, such as
    /// `"layers.0.mlp.hidden"`, may stand for them. See docs/parallel.md.
    pub annotate: Annotations,
    /// Communication beside computation: gradients of a layer travel while the layers below are computed, rows of a product that is cut
    /// over tensor-parallel ranks while other rows are, and rows for experts of other ranks while those that have come are.
    pub overlap: bool,
    /// Pieces of gathered parameters (of at most 8,388,608 elements) that travel at once, each through a staging buffer on the host. A gather
    /// of a layer begins while the layer before it computes, and only what travels then is hidden: large layers want more.
    pub values_in_flight: u64,
    /// Pieces of gradients that travel at once, likewise.
    pub gradients_in_flight: u64,
    /// Axes of the mesh, the one whose ranks are neighbours first: "tensor" (all axes of a grid), "context", "shard", "pipeline" and
    /// "replicate". Axes that are not named follow in this order. It says which device does what: a neighbour is on the same node, and
    /// reached fastest. See docs/parallel.md.
    pub order: Vec<PlacedAxis>,
    /// What "auto" decided; not to be written by hand.
    pub planned: PlannedLayout,
}

/// Largest degree that a recipe may ask for: more is a mistake.
const MOST_RANKS: u64 = 1 << 20;
/// Most pieces that travel at once: those of 8 billion parameters.
const MOST_IN_FLIGHT: u64 = 1 << 10;
/// Most steps of a window.
const MOST_WINDOW: u64 = 1 << 16;
/// Most shadows of a layer: each has room for an expert.
const MOST_SHADOWS: u64 = 1 << 10;
/// Most chunks of a rank.
const MOST_CHUNKS: u64 = 1 << 10;

impl ParallelConfig {
    /// Checks what does not need the number of ranks.
    ///
    /// # Errors
    /// A sentence that names the key, the value and what is allowed.
    pub fn check(&self) -> Result<(), String> {
        if self.shard > MOST_RANKS {
            return Err(format!("parallel.shard = {}: expected 0 (all) to {MOST_RANKS}", self.shard));
        }
        self.tensor.check(MOST_RANKS)?;
        if self.machine.contains('\0') {
            return Err(format!(
                "parallel.machine = {:?}: expected a name, or a file that ends with .toml",
                self.machine
            ));
        }
        if self.planned.ranks > MOST_RANKS {
            return Err(format!(
                "parallel.planned.ranks = {}: expected 0 to {MOST_RANKS}",
                self.planned.ranks
            ));
        }
        if !self.awaits_plan() {
            self.degrees_fit()?;
        }
        if !(1..=MOST_RANKS).contains(&self.pipeline) {
            return Err(format!("parallel.pipeline = {}: expected 1 to {MOST_RANKS}", self.pipeline));
        }
        if !(1..=MOST_RANKS).contains(&self.experts) {
            return Err(format!("parallel.experts = {}: expected 1 to {MOST_RANKS}", self.experts));
        }
        self.experts_fit()?;
        if self.shadows > MOST_SHADOWS {
            return Err(format!("parallel.shadows = {}: expected 0 to {MOST_SHADOWS}", self.shadows));
        }
        for (key, found) in [("shadow_flops", self.shadow_flops), ("shadow_bandwidth", self.shadow_bandwidth)]
        {
            let rate = found.is_finite() && found > 0.0;
            if !rate && (self.shadows > 0 || found != 0.0) {
                return Err(format!(
                    "parallel.{key} = {found:?}: expected a number above 0 of a second, such as 1e11, by which parallel.shadows are chosen"
                ));
            }
        }
        if self.chunks > MOST_CHUNKS {
            return Err(format!("parallel.chunks = {}: expected 0 to {MOST_CHUNKS}", self.chunks));
        }
        if !(1..=MOST_WINDOW).contains(&self.window) {
            return Err(format!("parallel.window = {}: expected 1 to {MOST_WINDOW}", self.window));
        }
        for (key, found) in
            [("values_in_flight", self.values_in_flight), ("gradients_in_flight", self.gradients_in_flight)]
        {
            if !(1..=MOST_IN_FLIGHT).contains(&found) {
                return Err(format!("parallel.{key} = {found}: expected 1 to {MOST_IN_FLIGHT}"));
            }
        }
        let twice = |at: usize| self.order[..at].contains(&self.order[at]);
        if let Some(at) = (0..self.order.len()).find(|at| twice(*at)) {
            return Err(format!(
                "parallel.order names \"{}\" twice: expected each axis once",
                self.order[at].name()
            ));
        }
        self.fill.check()?;
        Pipeline::new(self).map_err(|e| e.to_string())?;
        if !(self.memory_limit >= 0.0 && self.memory_limit.is_finite()) {
            return Err(format!("parallel.memory_limit = {}: expected 0 or more", self.memory_limit));
        }
        Ok(())
    }

    /// Ranks of a layer among which each data-parallel rank's experts are divided further.
    fn folded_ranks(&self) -> u64 {
        match self.experts_over {
            ExpertsOver::Data => 1,
            ExpertsOver::Context => self.context,
            ExpertsOver::Tensor => self.layer_ranks(),
        }
    }

    /// Data-parallel ranks that share the experts of a layer.
    pub fn expert_data_ranks(&self) -> u64 {
        self.experts / self.folded_ranks().max(1)
    }

    /// Refuses ranks that cannot share experts so.
    pub(crate) fn experts_fit(&self) -> Result<(), String> {
        let key = format!("parallel.experts_over = \"{}\"", self.experts_over.name());
        match self.experts_over {
            ExpertsOver::Tensor if self.tensor.grid().is_some() => {
                return Err(format!(
                    "{key} with parallel.tensor = {}: wanted a number of ranks for parallel.tensor",
                    self.tensor
                ));
            }
            ExpertsOver::Tensor if self.tensor.ranks() > 1 && !self.sequence => {
                return Err(format!(
                    "{key} with parallel.sequence = false: every tensor-parallel rank has all rows, and each would send the same to the \
                     experts; set parallel.sequence = true, or parallel.experts_over = \"data\""
                ));
            }
            _ => {}
        }
        let folded = self.folded_ranks();
        if !self.experts.is_multiple_of(folded) {
            return Err(format!(
                "{key} with parallel.experts = {}: wanted a multiple of the {folded} ranks that share a layer (parallel.tensor times \
                 parallel.context, as far as experts are over them); change parallel.experts, or parallel.experts_over",
                self.experts
            ));
        }
        Ok(())
    }

    /// Shadows of experts, and the rates by which they are chosen.
    pub fn shadowing(&self) -> Option<Shadowing> {
        let rates = ShadowRates { flops: self.shadow_flops, bandwidth: self.shadow_bandwidth };
        (self.shadows > 0).then_some(Shadowing { slots: self.shadows as usize, rates })
    }

    /// Most pieces of parameters and gradients that travel at once.
    pub fn pieces_in_flight(&self) -> PiecesInFlight {
        PiecesInFlight {
            values: self.values_in_flight as usize,
            gradients: self.gradients_in_flight as usize,
        }
    }

    /// The axes of the mesh, the one whose ranks are neighbours first.
    pub(crate) fn axes(&self) -> Vec<Axis> {
        let others = PlacedAxis::ALL.iter().filter(|axis| !self.order.contains(axis));
        self.order.iter().chain(others).flat_map(|axis| axis.axes()).copied().collect()
    }

    /// Whether a plan has still to choose keys of this section.
    pub fn awaits_plan(&self) -> bool {
        self.layout == LayoutChoice::Auto && self.planned.ranks == 0
    }

    /// Checks keys that a plan may choose against each other.
    fn degrees_fit(&self) -> Result<(), String> {
        self.grid_fits()?;
        self.context_fits()?;
        self.partition_fits()?;
        if self.stage == Stage::Ddp && self.shard > 1 {
            return Err(format!(
                "parallel.shard = {} with parallel.data = \"ddp\", which shards nothing: expected 0, or data = \"zero1\", \
                 \"zero2\" or \"zero3\"",
                self.shard
            ));
        }
        if self.sequence && self.tensor == 1 {
            return Err(
                "parallel.sequence = true shards the residual stream over tensor-parallel ranks: expected \
                 parallel.tensor above 1, or false"
                    .into(),
            );
        }
        Ok(())
    }

    /// Checks what does not go together with a grid of tensor-parallel ranks.
    pub(crate) fn grid_fits(&self) -> Result<(), String> {
        if self.tensor.grid().is_none() {
            return Ok(());
        }
        let beside = [
            ("parallel.sequence = true", self.sequence, "a grid shards the residual stream by itself"),
            (
                "parallel.partition_activations = true",
                self.partition_activations,
                "a grid keeps parts anyway",
            ),
            (
                "parallel.annotate",
                !self.annotate.0.is_empty(),
                "it says how parameters lie on a line of ranks",
            ),
        ];
        match beside.iter().find(|(_, asked, _)| *asked) {
            Some((key, _, why)) => Err(format!(
                "{key} with parallel.tensor = {}: {why}; expected a number of ranks, or no {key}",
                self.tensor
            )),
            None => Ok(()),
        }
    }

    /// Checks that partitioned activations are whole on several ranks otherwise.
    pub(crate) fn partition_fits(&self) -> Result<(), String> {
        if self.partition_activations && (self.tensor <= 1 || self.sequence) {
            return Err(format!(
                "parallel.partition_activations = true with parallel.tensor = {} and parallel.sequence = {}: \
                 it shards activations that are replicated over tensor-parallel ranks; expected \
                 parallel.tensor above 1 and parallel.sequence = false, or partition_activations = false",
                self.tensor, self.sequence
            ));
        }
        Ok(())
    }

    /// Groups of ranks among which [`ParallelConfig::context_method`] works: all ranks that share sequences, or groups that exchange heads.
    pub fn context_groups(&self) -> u64 {
        self.context / self.context_heads.max(1)
    }

    /// Ranks that share every layer of a micro-batch.
    pub fn layer_ranks(&self) -> u64 {
        self.tensor.ranks().saturating_mul(self.context)
    }

    /// Fewest ranks that a job can have: data-parallel ranks, of which there may be more, are those of `shard`, or those that share experts.
    pub fn fewest_ranks(&self) -> u64 {
        let data = if self.shard > 1 { self.shard } else { self.expert_data_ranks().max(1) };
        self.layer_ranks().saturating_mul(self.pipeline).saturating_mul(data)
    }

    /// Number of which the sequences of a micro-batch are a multiple, so that the ranks of a layer can share its rows: those of micro-batches
    /// of each of `lengths`, which `context` divides.
    pub fn sequences_multiple(&self, lengths: &[u64]) -> u64 {
        if let Some(grid) = self.tensor.grid() {
            return grid.sequence_parts() as u64;
        }
        let (ranks, shares) = (self.tensor.ranks(), self.sequence || self.partition_activations);
        let rows = |len: &u64| len / self.context.max(1);
        let fits = |sequences: &u64| {
            ranks.is_multiple_of(*sequences)
                && lengths.iter().all(|len| sequences.saturating_mul(rows(len)).is_multiple_of(ranks))
        };
        if shares { (1..=ranks).find(fits).unwrap_or(ranks) } else { 1 }
    }

    /// Whether a micro-batch is one sequence: consecutive rows of several are no stretch of each.
    pub fn one_sequence(&self) -> bool {
        self.context > 1 && self.context_method.one_sequence()
    }

    /// What ranks that share every sequence exchange, and which positions each has.
    pub fn context_sharing(&self) -> ContextSharing {
        ContextSharing { method: self.context_method, order: self.context_order }
    }

    /// Checks context parallelism beside other kinds.
    pub(crate) fn context_fits(&self) -> Result<(), String> {
        if !(1..=MOST_RANKS).contains(&self.context) {
            return Err(format!("parallel.context = {}: expected 1 to {MOST_RANKS}", self.context));
        }
        let (context, heads) = (self.context, self.context_heads);
        if heads == 0 || !context.is_multiple_of(heads) || (heads > 1 && heads == context) {
            return Err(format!(
                "parallel.context_heads = {heads} with parallel.context = {context}: groups of so many ranks \
                 exchange heads; expected a divisor of {context} below {context}, or parallel.context_method \
                 = \"ulysses\" for all ranks"
            ));
        }
        if heads > 1 && self.context_method == ContextMethod::Ulysses {
            return Err(format!(
                "parallel.context_heads = {heads} with parallel.context_method = \"ulysses\", by which all {context} ranks exchange heads: \
                 expected parallel.context_heads = 1, or \"ring\", \"lightseq\" or \"all-gather\" between the groups"
            ));
        }
        if self.context > 1 && self.tensor.grid().is_some() {
            return Err(format!(
                "parallel.context = {} with parallel.tensor = {}: ranks of a grid share a micro-batch by whole sequences; expected a number \
                 of ranks for parallel.tensor, or parallel.context = 1",
                self.context, self.tensor
            ));
        }
        if self.context > 1 && !self.annotate.0.is_empty() {
            return Err(format!(
                "parallel.context = {} with parallel.annotate, which shards parameters over tensor-parallel \
                 ranks: expected parallel.context = 1, or no annotations",
                self.context
            ));
        }
        Ok(())
    }
}

impl Default for ParallelConfig {
    fn default() -> Self {
        ParallelConfig {
            layout: LayoutChoice::Manual,
            machine: String::new(),
            stage: Stage::Ddp,
            shard: 0,
            reduce_dtype: ReduceDType::default(),
            tensor: TensorConfig::Line(1),
            sequence: false,
            partition_activations: false,
            context: 1,
            experts: 1,
            experts_over: ExpertsOver::default(),
            shadows: 0,
            shadow_flops: 0.0,
            shadow_bandwidth: 0.0,
            context_heads: 1,
            context_method: ContextMethod::default(),
            context_order: ContextOrder::default(),
            pipeline: 1,
            schedule: "1f1b".into(),
            chunks: 0,
            stages: Vec::new(),
            memory_limit: 0.0,
            window: 32,
            fill: FillConfig::default(),
            annotate: Annotations::default(),
            overlap: true,
            values_in_flight: PiecesInFlight::DEFAULT.values as u64,
            gradients_in_flight: PiecesInFlight::DEFAULT.gradients as u64,
            order: Vec::new(),
            planned: PlannedLayout::default(),
        }
    }
}
