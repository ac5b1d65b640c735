//! The matrix of layouts.

use crate::models::Style;
use bessemer_arch::{ExpertCount, ExpertLayers, ExpertsConfig, GateChoice, LayerRule, Model, ModelConfig};
use bessemer_optim::{OptimConfig, OptimizerChoice};

use bessemer_parallel::{
    ContextMethod, ContextOrder, ContextSharing, CubeConfig, ExpertsOver, ParallelConfig, PlacedAxis,
    PlaneConfig, Stage, TensorConfig, TensorGrid,
};
use bessemer_units::{ParamDType, ParamStorage, ReduceDType};

/// A layout to be held against one rank.
#[derive(Debug, Clone, PartialEq)]
pub struct Layout {
    /// Short name: "zero2 x4, tensor 2 + sequence, 2 micro-batches".
    pub name: String,
    /// How ranks share the work.
    pub parallel: ParallelConfig,
    /// Ranks.
    pub ranks: usize,
    /// Micro-batches of a step.
    pub accumulation: usize,
    /// How parameters and gradients are kept; the reference is one rank that keeps them so.
    pub types: ParamStorage,
    /// The experts, if the model is a mixture.
    pub mixture: Option<Mixture>,
}

/// Experts of a model that layouts are tried on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mixture {
    /// Eight in every layer, by a gate.
    Gate(GateChoice),
    /// Eight in every layer on two nodes that few tokens leave (FasterMoE).
    Nodes,
    /// In every other layer, eight in the later half of them and four in the earlier one, beside a residual block, by Switch's gate (PR-MoE).
    Pyramid,
}

impl Layout {
    /// One rank, one micro-batch: the reference.
    pub fn single() -> Layout {
        Layout {
            name: "one rank".into(),
            parallel: ParallelConfig::default(),
            ranks: 1,
            accumulation: 1,
            types: ParamStorage::default(),
            mixture: None,
        }
    }

    /// The same with parameters and gradients of other types.
    pub fn with_types(self, types: ParamStorage) -> Layout {
        let name = format!("{}, {types}", self.name);
        Layout { name, types, ..self }
    }

    /// The layout of `replicate` copies, each cut over `shard` ranks by `stage`, of layers cut over `tensor` ranks.
    pub fn of(
        stage: Stage,
        (replicate, shard): (usize, usize),
        (tensor, sequence): (usize, bool),
        accumulation: usize,
    ) -> Layout {
        let mut parts = Vec::new();
        if replicate > 1 {
            parts.push(format!("replicate {replicate}"));
        }
        if shard > 1 {
            parts.push(format!("{stage:?} {shard}").to_lowercase());
        }
        if tensor > 1 {
            parts.push(format!("tensor {tensor}{}", if sequence { " + sequence" } else { "" }));
        }
        if accumulation > 1 {
            parts.push(format!("{accumulation} micro-batches"));
        }
        if parts.is_empty() {
            parts.push("one rank".into());
        }
        let parallel = ParallelConfig {
            stage,
            shard: if shard > 1 { shard as u64 } else { 0 },
            tensor: (tensor as u64).into(),
            sequence,
            ..ParallelConfig::default()
        };
        let (name, ranks) = (parts.join(", "), replicate * shard * tensor);
        Layout { name, parallel, ranks, accumulation, ..Layout::single() }
    }
}

impl Layout {
    /// This layout on `ranks` times as many ranks, of which so many share every sequence.
    #[must_use]
    pub fn sharing_sequences(mut self, ranks: usize, sharing: ContextSharing) -> Layout {
        let ContextSharing { method, order } = sharing;
        let context = match order {
            ContextOrder::Auto => format!("context {ranks} ({})", method.name()),
            _ => format!("context {ranks} ({}, {})", method.name(), order.name()),
        };
        self.name = if self.ranks == 1 && self.accumulation == 1 {
            context
        } else {
            format!("{}, {context}", self.name)
        };
        self.parallel.context = ranks as u64;
        (self.parallel.context_method, self.parallel.context_order) = (method, order);
        self.ranks *= ranks;
        self
    }

    /// This layout with groups of so many of the ranks that share sequences, which exchange heads.
    #[must_use]
    pub fn exchanging_heads(mut self, ranks: usize) -> Layout {
        self.name += &format!(" of groups of {ranks} by heads");
        self.parallel.context_heads = ranks as u64;
        self
    }

    /// This layout on as many times more ranks as the grid has.
    #[must_use]
    pub fn on_grid(mut self, tensor: TensorConfig) -> Layout {
        let grid = format!("tensor {tensor}");
        self.name = match self.ranks == 1 && self.accumulation == 1 {
            true => grid,
            false => format!("{}, {grid}", self.name),
        };
        self.parallel.tensor = tensor;
        self.ranks *= tensor.ranks() as usize;
        self
    }

    /// Ranks that see different data.
    pub fn data_ranks(&self) -> usize {
        let parallel = &self.parallel;
        self.ranks / (parallel.tensor.ranks() * parallel.context * parallel.pipeline) as usize
    }

    /// Whether stages step while micro-batches are in flight.
    pub fn asynchronous(&self) -> bool {
        self.parallel.pipeline > 1 && ASYNCHRONOUS.contains(&self.parallel.schedule.as_str())
    }

    /// The model of a style that the layout is tried on. Stages that step on their own have no table in common.
    pub fn model(&self, style: Style, context: usize) -> Result<Model, bessemer_arch::ArchError> {
        let model = if self.parallel.pipeline > 1 { style.deep_model(context) } else { style.model(context) };
        let model =
            model.map(|m| Model { tied_embeddings: m.tied_embeddings && !self.asynchronous(), ..m })?;
        let experts = match self.mixture {
            None => return Ok(model),
            Some(Mixture::Gate(gate)) => {
                let groups = (gate == GateChoice::Deepseek).then_some(4);
                ExpertsConfig {
                    gate: Some(gate),
                    count: Some(ExpertCount::One(8)),
                    width: Some(32),
                    groups,
                    groups_kept: groups.map(|_| 2),
                    ..Default::default()
                }
            }
            Some(Mixture::Nodes) => ExpertsConfig {
                count: Some(ExpertCount::One(8)),
                width: Some(32),
                nodes: Some(2),
                ..Default::default()
            },
            Some(Mixture::Pyramid) => {
                let layers = model.layers / 2;
                let counts = (0..layers).map(|layer| if 2 * layer < layers { 4 } else { 8 });
                ExpertsConfig {
                    gate: Some(GateChoice::Switch),
                    layers: Some(ExpertLayers::Rule(LayerRule::Alternate)),
                    count: Some(ExpertCount::Each(counts.collect())),
                    width: Some(32),
                    shared: Some(32),
                    residual: Some(true),
                    ..Default::default()
                }
            }
        };
        ModelConfig { experts: Some(experts), ..ModelConfig::of(&model) }.resolve(None)
    }

    /// Whether models of a style go with the layout: experts have gates.
    pub fn goes_with_style(&self, style: Style) -> bool {
        self.mixture.is_none() || style == Style::Llama
    }

    /// The same with at most so many shadows of experts in a layer, which are chosen wherever they lower the most rows of a rank.
    fn with_shadows(mut self, slots: u64) -> Layout {
        (self.parallel.shadows, self.parallel.shadow_flops, self.parallel.shadow_bandwidth) =
            (slots, 1e6, 1e15);
        self.name += &format!(", at most {slots} shadows");
        self
    }

    /// This layout of a mixture whose experts so many of the data-parallel ranks share.
    #[must_use]
    pub fn with_experts(mut self, ranks: usize) -> Layout {
        self.name += &format!(", experts over {ranks}");
        self.parallel.experts = ranks as u64;
        self.mixture = Some(Mixture::Gate(GateChoice::TopK));
        self
    }

    /// The same with whole experts on so many ranks, those of a layer first.
    #[must_use]
    fn folded(mut self, over: ExpertsOver, ranks: usize) -> Layout {
        self = self.with_experts(ranks);
        self.name += &format!(" from {}", over.name());
        self.parallel.experts_over = over;
        self
    }

    /// This layout of another mixture.
    #[must_use]
    fn with_gate(mut self, name: &str, mixture: Mixture) -> Layout {
        self.name += &format!(", gate {name}");
        self.mixture = Some(mixture);
        self
    }

    /// The optimizer that the layout is tried with: stages that step on their own have no norm to clip by.
    pub fn optim(&self, optim: &OptimConfig) -> OptimConfig {
        OptimConfig { clip: if self.asynchronous() { 0.0 } else { optim.clip }, ..optim.clone() }
    }

    /// Whether an optimizer goes with the layout: K-FAC wants whole sequences, one stage a rank, and a norm over all of them.
    pub fn goes_with(&self, optimizer: OptimizerChoice) -> bool {
        use OptimizerChoice::{AdamW, Lion, Sgd};
        let factored = optimizer == OptimizerChoice::Adafactor && self.parallel.experts > 1;
        if factored || self.mixture.is_some() && optimizer == OptimizerChoice::Kfac {
            return false;
        }
        if self.parallel.tensor.grid().is_some() {
            return matches!(optimizer, AdamW | Lion | Sgd);
        }
        let one_stage = ["gpipe", "1f1b", "zb-h1", "zb-h2", "zb-auto"];
        if self.parallel.context > 1 {
            return optimizer != OptimizerChoice::Kfac;
        }
        optimizer != OptimizerChoice::Kfac
            || self.parallel.pipeline == 1
            || (one_stage.contains(&self.parallel.schedule.as_str()) && !self.parallel.stages.contains(&0))
    }

    /// This layout with every layer's holder cut into `stages` pipeline ranks that run `schedule`, with so many
    /// micro-batches in a step. `layers` of each stage, or none for a balanced split.
    #[must_use]
    pub fn pipelined(mut self, schedule: &str, ranks: usize, micro_batches: usize, layers: &[u64]) -> Layout {
        let before = if self.ranks == 1 { String::new() } else { format!("{}, ", self.name) };
        let uneven = if layers.is_empty() { String::new() } else { format!(" of {layers:?} layers") };
        self.name = format!("{before}{schedule} {ranks}{uneven}, {micro_batches} micro-batches");
        self.parallel.pipeline = ranks as u64;
        self.parallel.schedule = schedule.into();
        self.parallel.stages = layers.to_vec();
        self.ranks *= ranks;
        self.accumulation = micro_batches;
        self
    }
}

/// Schedules with a flush, which change nothing but the order of sums.
pub const SYNCHRONOUS: [&str; 11] = [
    "gpipe",
    "1f1b",
    "interleaved",
    "breadth-first",
    "chimera",
    "zb-h1",
    "zb-h2",
    "zb-v",
    "dualpipe",
    "dualpipev",
    "zb-auto",
];

/// Schedules without one: what they are is said by the weights that each micro-batch reads.
pub const ASYNCHRONOUS: [&str; 2] = ["pipedream", "pipedream-2bw"];

/// Updates of a program of an asynchronous schedule.
const WINDOW: u64 = 7;

/// Layouts that are combined with each pipeline.
fn beside() -> [Layout; 6] {
    let (line, cut) = ((1, false), (2, false));
    [
        Layout::of(Stage::Ddp, (1, 1), line, 1),
        Layout::of(Stage::Ddp, (2, 1), line, 1),
        Layout::of(Stage::Zero1, (1, 2), line, 1),
        Layout::of(Stage::Ddp, (1, 1), cut, 1),
        Layout::of(Stage::Ddp, (1, 1), (2, true), 1),
        Layout::of(Stage::Zero1, (2, 2), (2, true), 1),
    ]
}

/// The asynchronous schedules in the layouts of [`pipelines`]: PipeDream with updates of fewer micro-batches than there are
/// stages, so that weights are old; PipeDream-2BW with as many as there are, the fewest that it can do with.
pub fn asynchronous(ranks: usize) -> Vec<Layout> {
    let mut list = Vec::new();
    for stages in [2, 4, 8] {
        for (kind, every) in ASYNCHRONOUS.into_iter().zip([stages / 2, stages]) {
            for layout in beside() {
                let mut layout = layout.pipelined(kind, stages, every, &[]);
                layout.parallel.window = WINDOW;
                list.push(layout);
            }
        }
    }
    list.retain(|l| l.ranks <= ranks);
    list.sort_by_key(|l| l.ranks);
    list
}

/// Pipelines of at most `ranks` ranks, for the deep models: every schedule with a flush on 2, 4 and 8 stages' ranks, alone
/// and with copies, ZeRO-1, tensor and sequence parallelism, and all of them; some of uneven stages. The fewest
/// micro-batches that every schedule can do with are two for each pipeline rank.
pub fn pipelines(ranks: usize) -> Vec<Layout> {
    let mut list = Vec::new();
    for stages in [2, 4, 8] {
        for kind in SYNCHRONOUS {
            for layout in beside() {
                list.push(layout.pipelined(kind, stages, 2 * stages, &[]));
            }
        }
    }
    list.push(Layout::single().pipelined("1f1b", 4, 8, &[0, 9, 4, 1]));
    list.push(Layout::single().pipelined("zb-v", 2, 4, &[5, 1, 8, 0]));
    list.push(Layout::single().pipelined("dualpipe", 4, 8, &[3, 4, 5, 2]));
    list.retain(|l| l.ranks <= ranks);
    list.sort_by_key(|l| l.ranks);
    list
}

/// Context parallelism on at most `ranks` ranks, alone and beside copies, ZeRO, pipelines and tensor parallelism, of steps of `sequences` sequences:
/// a micro-batch is one sequence. By every method that the ranks' number allows for the 8 heads of the models, in its own order of
/// positions; in the others alone.
pub fn contexts(ranks: usize, sequences: usize) -> Vec<Layout> {
    let mut list = Vec::new();
    let data = [
        (Stage::Ddp, (1, 1)),
        (Stage::Ddp, (2, 1)),
        (Stage::Zero1, (1, 2)),
        (Stage::Zero2, (1, 2)),
        (Stage::Zero3, (1, 2)),
        (Stage::Zero3, (2, 2)),
    ];
    let methods =
        [ContextMethod::AllGather, ContextMethod::Ulysses, ContextMethod::Ring, ContextMethod::LightSeq]
            .map(ContextSharing::of);
    let fits = |(ranks, sharing): &(usize, ContextSharing)| sharing.problem(*ranks, 8, 8).is_none();
    let all =
        [2, 4, 8, 16].into_iter().flat_map(|ranks| methods.map(|sharing| (ranks, sharing))).filter(fits);
    for (context, sharing) in all {
        for (stage, sizes) in data {
            let micro_batches = sequences / (sizes.0 * sizes.1);
            list.push(
                Layout::of(stage, sizes, (1, false), micro_batches).sharing_sequences(context, sharing),
            );
        }
        for schedule in ["1f1b", "zb-v", "dualpipe"] {
            list.push(
                Layout::single().pipelined(schedule, 2, sequences, &[]).sharing_sequences(context, sharing),
            );
        }
        let both = Layout::of(Stage::Zero1, (1, 2), (1, false), 1).pipelined("zb-h1", 2, sequences / 2, &[]);
        list.push(both.sharing_sequences(context, sharing));
    }
    for context in [2, 4, 8, 16] {
        for (method, order) in [
            (ContextMethod::AllGather, ContextOrder::Striped),
            (ContextMethod::Ring, ContextOrder::Consecutive),
            (ContextMethod::Ring, ContextOrder::Striped),
        ] {
            let alone = Layout::of(Stage::Ddp, (1, 1), (1, false), sequences);
            list.push(alone.sharing_sequences(context, ContextSharing { method, order }));
        }
    }
    // Lines of tensor-parallel ranks, each for some positions.
    for (line, context) in [((2, false), 2), ((2, true), 2), ((2, true), 4), ((4, true), 2)] {
        let orders = methods
            .into_iter()
            .chain([ContextSharing { method: ContextMethod::Ring, order: ContextOrder::Striped }]);
        let heads = 8 / line.0;
        for sharing in orders.filter(|sharing| sharing.problem(context, heads, heads).is_none()) {
            for (stage, sizes) in [(Stage::Ddp, (1, 1)), (Stage::Zero1, (1, 2)), (Stage::Zero3, (1, 2))] {
                let micro_batches = sequences / (sizes.0 * sizes.1);
                let layout = Layout::of(stage, sizes, line, micro_batches);
                list.push(layout.sharing_sequences(context, sharing));
            }
            let stages = Layout::of(Stage::Ddp, (1, 1), line, 1).pipelined("zb-h1", 2, sequences, &[]);
            list.push(stages.sharing_sequences(context, sharing));
        }
    }
    // Groups that exchange heads, and blocks or gathered keys between them.
    for (heads, context, line) in [(2, 4, 1), (2, 8, 1), (4, 8, 1), (2, 16, 1), (2, 4, 2)] {
        for sharing in methods.into_iter().filter(|sharing| sharing.method != ContextMethod::Ulysses) {
            for (stage, sizes) in [(Stage::Ddp, (1, 1)), (Stage::Zero3, (1, 2))] {
                let layout = Layout::of(stage, sizes, (line, line > 1), sequences / (sizes.0 * sizes.1));
                list.push(layout.sharing_sequences(context, sharing).exchanging_heads(heads));
            }
            let stages = Layout::single().pipelined("zb-v", 2, sequences, &[]);
            list.push(stages.sharing_sequences(context, sharing).exchanging_heads(heads));
        }
    }
    list.retain(|l| l.ranks <= ranks);
    list.sort_by_key(|l| l.ranks);
    list
}

/// Grids of tensor-parallel ranks on at most `ranks` ranks, alone and beside copies, ZeRO and a pipeline, with parameters in f32 and in bf16, for steps
/// of `sequences` sequences.
pub fn grids(ranks: usize, sequences: usize) -> Vec<Layout> {
    let plane = |rows, columns, depth| TensorConfig::Plane(PlaneConfig { grid: [rows, columns], depth });
    let mut list = Vec::new();
    for tensor in [
        plane(2, 1, 1),
        plane(1, 2, 1),
        plane(1, 1, 2),
        plane(2, 2, 1),
        plane(2, 2, 2),
        plane(4, 4, 1),
        TensorConfig::Cube(CubeConfig { cube: 2 }),
    ] {
        for (stage, sizes, accumulation) in [
            (Stage::Ddp, (1, 1), 1),
            (Stage::Ddp, (2, 1), 2),
            (Stage::Zero1, (1, 2), 1),
            (Stage::Zero2, (1, 2), 2),
            (Stage::Zero3, (1, 2), 2),
        ] {
            list.push(Layout::of(stage, sizes, (1, false), accumulation).on_grid(tensor));
        }
        list.push(Layout::single().pipelined("1f1b", 2, 4, &[]).on_grid(tensor));
        for types in [ParamStorage::weights(ParamDType::Bf16), ParamStorage::both(ParamDType::Bf16)] {
            list.push(Layout::of(Stage::Ddp, (1, 1), (1, false), 2).on_grid(tensor).with_types(types));
            list.push(Layout::of(Stage::Zero3, (1, 2), (1, false), 1).on_grid(tensor).with_types(types));
        }
    }
    let parts = |l: &Layout| l.parallel.tensor.grid().map_or(1, TensorGrid::sequence_parts);
    list.retain(|l| l.ranks <= ranks && sequences.is_multiple_of(l.data_ranks() * l.accumulation * parts(l)));
    list.sort_by_key(|l| l.ranks);
    list
}

/// Layouts of at most `ranks` ranks whose axes lie in other orders on the ranks, each kind of parallelism inside another,
/// for steps of 16 sequences.
pub fn placed(ranks: usize) -> Vec<Layout> {
    use PlacedAxis::{Context, Pipeline, Replicate, Shard, Tensor};
    let (line, cut) = ((1, false), (2, true));
    let ring = ContextSharing::of(ContextMethod::Ring);
    let plane = TensorConfig::Plane(PlaneConfig { grid: [2, 2], depth: 1 });
    let mut list: Vec<Layout> = [
        (Layout::of(Stage::Zero3, (1, 2), cut, 2), vec![Shard]),
        (Layout::of(Stage::Zero1, (2, 2), line, 2), vec![Replicate]),
        (Layout::of(Stage::Ddp, (2, 1), line, 1).pipelined("1f1b", 2, 4, &[]), vec![Replicate, Pipeline]),
        (Layout::of(Stage::Zero1, (1, 2), cut, 1).pipelined("zb-h1", 2, 4, &[]), vec![Pipeline, Shard]),
        (Layout::of(Stage::Zero2, (2, 2), cut, 1), vec![Replicate, Tensor, Shard]),
        (Layout::of(Stage::Zero1, (1, 2), (2, false), 8).sharing_sequences(2, ring), vec![Context, Shard]),
        (Layout::of(Stage::Zero2, (1, 2), line, 2).on_grid(plane), vec![Shard]),
    ]
    .into_iter()
    .map(|(mut layout, order)| {
        let names: Vec<&str> = order.iter().map(|axis| axis.name()).collect();
        layout.name += &format!(", neighbours by {}", names.join(", "));
        layout.parallel.order = order;
        layout
    })
    .collect();
    list.retain(|layout| layout.ranks <= ranks);
    list
}

/// Layouts of at most `ranks` ranks whose gradients travel in 8 bits, for steps of `sequences` sequences: copies, ZeRO and both, alone and
/// beside each other kind of parallelism.
pub fn in_int8(ranks: usize, sequences: usize) -> Vec<Layout> {
    let (line, cut) = ((1, false), (2, true));
    let ring = ContextSharing::of(ContextMethod::Ring);
    let plane = TensorConfig::Plane(PlaneConfig { grid: [1, 2], depth: 1 });
    let both = ParamStorage::both(ParamDType::Bf16);
    let mut list = vec![
        Layout::of(Stage::Ddp, (2, 1), line, 1),
        Layout::of(Stage::Ddp, (4, 1), line, 2),
        Layout::of(Stage::Ddp, (2, 1), (2, false), 1),
        Layout::of(Stage::Zero1, (1, 2), line, 2),
        Layout::of(Stage::Zero1, (2, 2), line, 1),
        Layout::of(Stage::Zero2, (1, 4), line, 2),
        Layout::of(Stage::Zero2, (2, 2), line, 2),
        Layout::of(Stage::Zero3, (1, 2), line, 1),
        Layout::of(Stage::Zero3, (1, 2), cut, 2),
        Layout::of(Stage::Zero3, (2, 2), cut, 1),
        Layout::of(Stage::Zero3, (4, 4), line, 1),
        Layout::of(Stage::Zero2, (2, 2), line, 2).with_types(both),
        Layout::of(Stage::Ddp, (2, 1), line, 1).with_types(both),
        Layout::of(Stage::Ddp, (2, 1), line, 1).pipelined("1f1b", 2, 4, &[]),
        Layout::of(Stage::Zero1, (1, 2), line, 1).pipelined("zb-h1", 2, 4, &[]),
        Layout::of(Stage::Zero2, (1, 2), line, 1).pipelined("interleaved", 2, 4, &[]),
        Layout::single().pipelined("dualpipe", 2, 4, &[]),
        Layout::of(Stage::Ddp, (2, 1), line, 1).pipelined("pipedream-2bw", 2, 2, &[]),
        Layout::of(Stage::Zero1, (1, 2), line, sequences / 2).sharing_sequences(2, ring),
        Layout::of(Stage::Zero2, (1, 2), line, 2).on_grid(plane),
    ];
    for layout in &mut list {
        layout.parallel.reduce_dtype = ReduceDType::Int8;
        layout.name += ", int8";
        if layout.asynchronous() {
            layout.parallel.window = WINDOW;
        }
    }
    list.retain(|l| l.ranks <= ranks);
    list.sort_by_key(|l| l.ranks);
    list
}

/// Layouts of at most `ranks` ranks of a mixture of experts, for steps of `sequences` sequences: experts on every rank and over 2, 4 and 8 of
/// them, with copies, ZeRO, tensor, sequence and context parallelism and pipelines, up to four axes at once; other gates in some of them.
pub fn mixtures(ranks: usize, sequences: usize) -> Vec<Layout> {
    let (line, cut) = ((1, false), (2, true));
    let gathered = ContextSharing::of(ContextMethod::AllGather);
    let ulysses = ContextSharing::of(ContextMethod::Ulysses);
    let mut list = Vec::new();
    for layout in beside() {
        list.push(layout.with_experts(1));
    }
    for degree in [2, 4, 8] {
        for (stage, sizes, accumulation) in [
            (Stage::Ddp, (degree, 1), 1),
            (Stage::Ddp, (2 * degree, 1), 2),
            (Stage::Zero1, (1, degree), 1),
            (Stage::Zero1, (2, degree), 2),
            (Stage::Zero2, (1, degree), 2),
            (Stage::Zero2, (1, 2 * degree), 2),
            (Stage::Zero3, (1, degree), 2),
            (Stage::Zero3, (2, degree), 1),
        ] {
            for tensor in [line, (2, false), cut] {
                list.push(Layout::of(stage, sizes, tensor, accumulation).with_experts(degree));
            }
        }
        for sharing in [gathered, ulysses] {
            for (stage, sizes) in [(Stage::Ddp, (degree, 1)), (Stage::Zero3, (1, degree))] {
                let layout = Layout::of(stage, sizes, line, sequences / degree);
                list.push(layout.sharing_sequences(2, sharing).with_experts(degree));
            }
        }
        for schedule in SYNCHRONOUS {
            let layout = Layout::of(Stage::Ddp, (degree, 1), line, 1);
            list.push(layout.pipelined(schedule, 2, 4, &[]).with_experts(degree));
        }
    }
    // Four axes at once.
    let both = |stage, sizes, tensor, schedule, micro_batches| {
        Layout::of(stage, sizes, tensor, 1).pipelined(schedule, 2, micro_batches, &[]).with_experts(2)
    };
    list.push(both(Stage::Zero1, (2, 2), cut, "zb-h1", 4));
    list.push(both(Stage::Zero3, (2, 2), cut, "1f1b", 4));
    list.push(both(Stage::Ddp, (2, 1), cut, "zb-v", sequences / 2).sharing_sequences(2, gathered));
    list.push(both(Stage::Zero2, (1, 2), cut, "interleaved", sequences / 2).sharing_sequences(2, gathered));
    list.push(both(Stage::Zero1, (2, 2), line, "dualpipe", sequences / 4).sharing_sequences(2, ulysses));
    for (name, gate) in [
        ("switch", Mixture::Gate(GateChoice::Switch)),
        ("gshard", Mixture::Gate(GateChoice::Gshard)),
        ("deepseek", Mixture::Gate(GateChoice::Deepseek)),
        ("expert choice", Mixture::Gate(GateChoice::ExpertChoice)),
        ("two nodes", Mixture::Nodes),
        ("switch, pyramid, residual", Mixture::Pyramid),
    ] {
        let of = |stage, sizes, tensor, accumulation| {
            Layout::of(stage, sizes, tensor, accumulation).with_experts(2)
        };
        list.push(of(Stage::Ddp, (2, 1), line, 2).with_gate(name, gate));
        list.push(of(Stage::Zero3, (1, 2), cut, 1).with_gate(name, gate));
        list.push(both(Stage::Zero1, (2, 2), cut, "zb-h1", 4).with_gate(name, gate));
        let context = Layout::of(Stage::Ddp, (2, 1), line, sequences / 2).sharing_sequences(2, gathered);
        list.push(context.with_experts(2).with_gate(name, gate));
    }
    // Whole experts on ranks of a layer.
    use ExpertsOver::{Context, Tensor};
    let of_context = |stage, sizes, micro_batches, sharing| {
        Layout::of(stage, sizes, line, micro_batches).sharing_sequences(2, sharing)
    };
    list.push(of_context(Stage::Ddp, (1, 1), sequences, gathered).folded(Context, 2));
    list.push(of_context(Stage::Ddp, (2, 1), sequences / 2, gathered).folded(Context, 4));
    list.push(of_context(Stage::Zero3, (1, 4), sequences / 4, ulysses).folded(Context, 4));
    list.push(of_context(Stage::Zero1, (2, 2), sequences / 4, gathered).folded(Context, 2));
    list.push(Layout::of(Stage::Ddp, (1, 1), cut, 2).folded(Tensor, 2));
    list.push(Layout::of(Stage::Zero1, (2, 2), cut, 1).folded(Tensor, 4));
    list.push(Layout::of(Stage::Zero3, (1, 2), cut, 2).folded(Tensor, 4));
    let piped = |stage, sizes, tensor, schedule, micro_batches| {
        Layout::of(stage, sizes, tensor, 1).pipelined(schedule, 2, micro_batches, &[])
    };
    list.push(piped(Stage::Zero3, (1, 4), cut, "1f1b", 2).folded(Tensor, 4));
    let four = piped(Stage::Zero1, (1, 2), cut, "zb-h1", sequences / 2).sharing_sequences(2, gathered);
    list.push(four.clone().folded(Tensor, 8));
    list.push(four.folded(Context, 4));
    for (name, gate) in [
        ("switch", Mixture::Gate(GateChoice::Switch)),
        ("deepseek", Mixture::Gate(GateChoice::Deepseek)),
        ("expert choice", Mixture::Gate(GateChoice::ExpertChoice)),
        ("switch, pyramid, residual", Mixture::Pyramid),
    ] {
        let context = of_context(Stage::Ddp, (2, 1), sequences / 2, gathered).folded(Context, 4);
        list.push(context.with_gate(name, gate));
        list.push(Layout::of(Stage::Zero3, (1, 2), cut, 1).folded(Tensor, 4).with_gate(name, gate));
    }
    let bf16 = ParamStorage::both(ParamDType::Bf16);
    list.push(Layout::of(Stage::Zero3, (1, 2), cut, 1).folded(Tensor, 4).with_types(bf16));
    list.push(Layout::of(Stage::Zero1, (1, 2), cut, 1).folded(Tensor, 4).with_shadows(2));
    list.push(Layout::of(Stage::Ddp, (2, 1), line, 2).with_experts(2).with_shadows(2));
    list.push(Layout::of(Stage::Zero3, (1, 4), cut, 1).with_experts(4).with_shadows(1));
    list.push(both(Stage::Zero1, (2, 2), cut, "zb-h1", 4).with_shadows(4));
    list.push(Layout::of(Stage::Ddp, (4, 1), line, 1).with_experts(2).with_types(bf16));
    list.push(Layout::of(Stage::Zero3, (1, 4), line, 2).with_experts(4).with_types(bf16));
    list.retain(|l| l.ranks <= ranks && (l.ranks > 1 || l.accumulation > 1));
    list.retain(|l| sequences.is_multiple_of(l.data_ranks() * l.accumulation));
    list.sort_by_key(|l| l.ranks);
    list
}

/// Layouts of at most `ranks` ranks: every kind, and their pairs and triples, with and without gradient accumulation.
pub fn matrix(ranks: usize) -> Vec<Layout> {
    let stages = [Stage::Zero1, Stage::Zero2, Stage::Zero3];
    let mut list = Vec::new();
    for tensor in [(1, false), (2, false), (2, true), (4, false), (4, true)] {
        for accumulation in [1, 2] {
            for copies in [1, 2, 4, 8, 16] {
                list.push(Layout::of(Stage::Ddp, (copies, 1), tensor, accumulation));
            }
            for stage in stages {
                for sizes in [(1, 2), (1, 4), (2, 2), (1, 8), (2, 4), (4, 2), (1, 16)] {
                    list.push(Layout::of(stage, sizes, tensor, accumulation));
                }
            }
        }
    }
    for types in [ParamStorage::weights(ParamDType::Bf16), ParamStorage::both(ParamDType::Bf16)] {
        let few = [
            Layout::of(Stage::Ddp, (4, 1), (1, false), 2),
            Layout::of(Stage::Zero1, (1, 4), (1, false), 1),
            Layout::of(Stage::Zero2, (2, 2), (1, false), 2),
            Layout::of(Stage::Zero3, (1, 4), (1, false), 2),
            Layout::of(Stage::Zero3, (1, 2), (2, true), 2),
        ];
        list.extend(few.map(|l| l.with_types(types)));
    }
    list.retain(|l| l.ranks <= ranks && (l.ranks > 1 || l.accumulation > 1));
    list.sort_by_key(|l| l.ranks);
    list
}
