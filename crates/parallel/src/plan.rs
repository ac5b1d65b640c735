//! Assignment of work to ranks: the checked form of [`ParallelConfig`].

use crate::config::{ExpertsOver, ParallelConfig, Stage};
use crate::error::ParallelError;
use crate::param_groups::ParamGroups;
use crate::pipeline::Pipeline;
use bessemer_arch::{Annotations, Model, TensorShard};
use bessemer_mesh::{Axis, ContextOrder, ContextSharing, Mesh, MeshConfig, TensorGrid, exchange_problem};
use bessemer_optim::OptimizerChoice;
use bessemer_program::{PiecesInFlight, Shadowing};
use bessemer_runtime::{LineStream, ModelError, Stream};
use bessemer_units::ReduceDType;

/// Partition of a job's work over ranks. Ranks count those that share a layer first, then shards, then stages of a
/// pipeline, then copies, unless [`ParallelConfig::order`] sets another order.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Degrees of the axes, and the position of each rank.
    pub mesh: Mesh,
    /// Tensors that data-parallel ranks shard.
    pub stage: Stage,
    /// The grid of tensor-parallel ranks, if they are no line.
    pub grid: Option<TensorGrid>,
    /// Whether a line of tensor-parallel ranks shards the rows of the residual stream.
    pub sequence: bool,
    /// Communication of ranks of the context axis around attention, and the positions of each.
    pub context: ContextSharing,
    /// Whether each rank of a line keeps some rows of the residual stream for the backward pass where all have it whole.
    pub partition_activations: bool,
    /// Stages and their order.
    pub pipe: Pipeline,
    /// Type in which gradients travel between data-parallel ranks.
    pub reduce_dtype: ReduceDType,
    /// Whether collectives run concurrently with the computation.
    pub overlap: bool,
    /// Most pieces of parameters and gradients that travel at once.
    pub in_flight: PiecesInFlight,
    /// Axes whose ranks share the experts of a layer.
    pub expert_axes: &'static [Axis],
    /// Experts of a layer that every rank may compute for its own tokens.
    pub shadowing: Option<Shadowing>,
    /// Layouts over the tensor axis that the user requests.
    pub annotations: Annotations,
    /// Groups of parameters that are reduced and sharded alike.
    pub groups: ParamGroups,
}

/// A rank's position on each axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Coord {
    /// Position on the pipeline axis.
    pub pipeline: usize,
    /// Position on the replicate axis.
    pub replicate: usize,
    /// Position on the shard axis.
    pub shard: usize,
    /// Position on the axis of experts.
    pub expert: usize,
    /// Among the ranks that share every layer ([`Plan::layer_axes`]).
    pub tensor: usize,
}

impl Coord {
    /// Position on an axis of data parallelism.
    pub(crate) fn on_data(&self, axis: Axis) -> usize {
        match axis {
            Axis::Shard => self.shard,
            Axis::Expert => self.expert,
            _ => self.replicate,
        }
    }
}

impl Plan {
    /// One rank.
    pub fn single() -> Plan {
        Plan {
            mesh: Mesh::along(Axis::Tensor, 1),
            stage: Stage::Ddp,
            grid: None,
            sequence: false,
            context: ContextSharing::default(),
            partition_activations: false,
            pipe: Pipeline::none(),
            reduce_dtype: ReduceDType::Stored,
            overlap: false,
            in_flight: PiecesInFlight::DEFAULT,
            expert_axes: ExpertsOver::Data.axes(),
            shadowing: None,
            annotations: Annotations::default(),
            groups: ParamGroups::default(),
        }
    }

    /// Assigns the work to `ranks` ranks.
    ///
    /// # Errors
    /// Degrees that do not multiply to the ranks, a model that the tensor degree does not divide, an optimizer that needs
    /// matrices whole that the layout cuts; each with a remedy.
    pub fn new(
        config: &ParallelConfig,
        ranks: usize,
        model: &Model,
        optimizer: OptimizerChoice,
    ) -> Result<Plan, ParallelError> {
        let wrong = |text: String| Err(ParallelError::Layout(text));
        config.context_fits().map_err(ParallelError::Layout)?;
        config.grid_fits().map_err(ParallelError::Layout)?;
        let (tensor, asked) = (config.layer_ranks() as usize, config.shard as usize);
        let layers = match (config.context > 1, config.tensor > 1) {
            (true, true) => format!("parallel.tensor = {} x context = {}", config.tensor, config.context),
            (true, false) => format!("parallel.context = {}", config.context),
            (false, _) => format!("parallel.tensor = {}", config.tensor),
        };
        if tensor == 0 || ranks == 0 || !ranks.is_multiple_of(tensor) {
            return wrong(format!(
                "{layers} does not divide {ranks} ranks: start another number of ranks, or take a divisor"
            ));
        }
        let grid = config.tensor.grid();
        let pipeline = config.pipeline as usize;
        if pipeline == 0 || !(ranks / tensor).is_multiple_of(pipeline) {
            return wrong(format!(
                "parallel.pipeline = {pipeline} does not divide {} ({ranks} ranks / {layers}): start a multiple \
                 of {} ranks, or take a divisor",
                ranks / tensor,
                pipeline.max(1) * tensor
            ));
        }
        let data = ranks / tensor / pipeline;
        let shard = match (config.stage, asked) {
            (Stage::Ddp, 0 | 1) => 1,
            (Stage::Ddp, _) => {
                return wrong(format!(
                    "parallel.shard = {asked} with stage \"ddp\", which shards nothing: take shard = 0, or \
                     stage \"zero1\", \"zero2\" or \"zero3\""
                ));
            }
            (_, 0) => data,
            (_, asked) => asked,
        };
        if !data.is_multiple_of(shard) {
            return wrong(format!(
                "parallel.shard = {shard} does not divide the {data} data-parallel ranks ({ranks} ranks / {layers} / \
                 pipeline = {pipeline}): take a divisor, or 0 for all of them"
            ));
        }
        config.experts_fit().map_err(ParallelError::Layout)?;
        let (experts, expert_data) = (config.experts as usize, config.expert_data_ranks() as usize);
        // Ranks that share experts are among those over which state is sharded, if it is.
        let (among, key) = if shard > 1 { (shard, "parallel.shard") } else { (data, "data-parallel ranks") };
        if model.experts.is_none() && experts != 1 {
            return wrong(format!(
                "parallel.experts = {experts} with a model without experts: take 1, or set model.experts"
            ));
        }
        if expert_data == 0 || !among.is_multiple_of(expert_data) {
            let of_data = match expert_data == experts {
                true => String::new(),
                false => format!(", of which {expert_data} are data-parallel,"),
            };
            return wrong(format!(
                "parallel.experts = {experts}{of_data} does not divide {key} = {among}: take a divisor, or change the number of ranks"
            ));
        }
        if let Some(nodes) = model.experts.and_then(|of| of.gate.nodes).filter(|_| expert_data < experts) {
            return wrong(format!(
                "model.experts.nodes = {} with parallel.experts_over = \"{}\": the turns of nodes are whole sequences of data-parallel ranks; \
                 take \"data\", or remove model.experts.nodes",
                nodes.count,
                config.experts_over.name()
            ));
        }
        if config.shadows > 0 && experts == 1 {
            return wrong(format!(
                "parallel.shadows = {} with parallel.experts = 1: every rank has all experts, so none has a shadow; take 0, or set \
                 parallel.experts",
                config.shadows
            ));
        }
        if optimizer == OptimizerChoice::Adafactor && experts > 1 {
            return wrong(format!(
                "optim.optimizer = \"adafactor\" with parallel.experts = {experts}: its factored moments are those of all experts of a layer; \
                 use another optimizer, or parallel.experts = 1"
            ));
        }
        if config.sequence && config.tensor == 1 {
            return wrong(
                "parallel.sequence = true shards the residual stream over tensor-parallel ranks, and \
                 parallel.tensor = 1: set parallel.tensor above 1, or parallel.sequence = false"
                    .into(),
            );
        }
        config.partition_fits().map_err(ParallelError::Layout)?;
        let mesh = MeshConfig::new()
            .with(Axis::Pipeline, pipeline)
            .with(Axis::Replicate, if shard > 1 { data / shard } else { data / expert_data })
            .with(Axis::Shard, if shard > 1 { shard / expert_data } else { 1 })
            .with(Axis::Expert, expert_data)
            .order(&config.axes());
        let mesh = match grid {
            Some(grid) => {
                TensorGrid::AXES.iter().fold(mesh, |mesh, axis| mesh.with(*axis, grid.degree(*axis)))
            }
            None => mesh
                .with(Axis::Tensor, config.tensor.ranks() as usize)
                .with(Axis::ContextHeads, config.context_heads as usize)
                .with(Axis::Context, config.context_groups() as usize),
        };
        let mut plan = Plan {
            mesh: Mesh::new(&mesh, ranks).map_err(|e| ParallelError::Layout(e.to_string()))?,
            stage: if shard == 1 { Stage::Ddp } else { config.stage },
            grid,
            sequence: config.sequence,
            context: config.context_sharing(),
            partition_activations: config.partition_activations,
            pipe: Pipeline::new(config)?,
            reduce_dtype: config.reduce_dtype,
            overlap: config.overlap,
            in_flight: config.pieces_in_flight(),
            expert_axes: config.experts_over.axes(),
            shadowing: config.shadowing(),
            annotations: config.annotate.clone(),
            groups: ParamGroups::default(),
        };
        plan.train_only(model, &[])?;
        // A model that one rank's part refuses, every rank's does.
        let line = plan.tensor_shard(model, plan.coord(0))?.model;
        let context = plan.context_ranks();
        if context > 1 {
            let (groups, within) = (plan.mesh.degree(Axis::Context), plan.mesh.degree(Axis::ContextHeads));
            let problem = plan.context.problem(groups, line.heads, line.kv_heads);
            if let Some(problem) = problem.or_else(|| exchange_problem(within, line.heads, line.kv_heads)) {
                return wrong(match config.tensor > 1 {
                    true => format!(
                        "{problem}; each of parallel.tensor = {} ranks has some of the heads",
                        config.tensor
                    ),
                    false => problem,
                });
            }
        }
        if grid.is_some() {
            grid_runs(config, optimizer)?;
        }
        if optimizer == OptimizerChoice::Kfac && context > 1 {
            return wrong(format!(
                "optim.optimizer = \"kfac\" with parallel.context = {context}: its factors are sums over all \
                 positions of a sequence, and each rank has only some of them; use another optimizer, or \
                 parallel.context = 1"
            ));
        }
        if optimizer == OptimizerChoice::Kfac && tensor > 1 && !plan.annotations.0.is_empty() {
            return wrong(
                "parallel.annotate with optim.optimizer = \"kfac\" over several tensor-parallel ranks: its factors are those \
                 of the layout without annotations; take another optimizer, or remove parallel.annotate"
                    .into(),
            );
        }
        if optimizer == OptimizerChoice::Kfac && pipeline > 1 && plan.pipe.asynchronous() {
            return wrong(format!(
                "optim.optimizer = \"kfac\" with parallel.schedule = {:?}, which updates a stage before the \
                 others are done: the step size of K-FAC depends on the layers of all stages; use a schedule \
                 with a flush such as \"1f1b\", or another optimizer",
                plan.pipe.name()
            ));
        }
        Ok(plan)
    }

    /// The part of the model on the rank at a position among those that share its layers and its experts.
    ///
    /// # Errors
    /// A model that the layout does not divide; annotations that no program can follow.
    pub fn tensor_shard(&self, model: &Model, at: Coord) -> Result<TensorShard, ParallelError> {
        let part = match self.grid {
            Some(grid) => model.grid_shard(grid, at.tensor),
            None => {
                let shardings = model.annotated_shardings(&self.annotations, self.sequence);
                let shardings = shardings.map_err(|e| ParallelError::Layout(e.to_string()))?;
                let axes: Vec<Axis> = Axis::LAYER.into_iter().chain([Axis::Expert]).collect();
                let (mesh, place) = (self.mesh.along_axes(&axes), self.mesh.coord(self.rank(at)));
                let index = axes.iter().fold(mesh.coord(0), |coord, axis| coord.with(*axis, place.at(*axis)));
                model.layer_shard(&mesh, self.expert_axes, shardings, mesh.rank(&index))
            }
        };
        part.map_err(|e| ParallelError::Layout(e.to_string()))
    }

    /// Refuses micro-batches of `sequences` of any of these lengths that the ranks of a layer cannot share.
    ///
    /// # Errors
    /// The value wanted and the one found, and the keys to change.
    pub fn check_micro_batch(
        &self,
        model: &Model,
        sequences: usize,
        lengths: &[usize],
    ) -> Result<(), ParallelError> {
        for (key, of) in model.experts.map_or([("", 1); 2], |experts| experts.gate.sequences()) {
            if !sequences.is_multiple_of(of) {
                return Err(ParallelError::Layout(format!(
                    "model.experts.{key} = {of}: wanted micro-batches of a multiple of so many sequences, found {sequences} \
                     (train.micro_batch, 1 with parallel.context); set it to a divisor, or change the micro-batch"
                )));
            }
        }
        let sharing = self.mesh.degree(Axis::Expert);
        if let Some(nodes) = model.experts.and_then(|experts| experts.gate.nodes).filter(|_| sharing > 1) {
            let (all, wanted) = (sequences * sharing, nodes.count * nodes.sequences);
            if all != wanted {
                return Err(ParallelError::Layout(format!(
                    "model.experts.nodes = {} with node_sequences = {}: wanted {wanted} sequences in a micro-batch of the ranks that share \
                     experts, found {all} (train.micro_batch times parallel.experts); set node_sequences to the sequences of a node",
                    nodes.count, nodes.sequences
                )));
            }
        }
        let checked = self.stream().check(&self.tensor_shard(model, self.coord(0))?, sequences, lengths);
        checked.map_err(|e| match e {
            ModelError::TensorShard(problem) => ParallelError::Layout(problem),
            other => other.into(),
        })
    }

    /// The axes over which ranks share every layer of a micro-batch: at least one, and all that have several ranks.
    pub fn layer_axes(&self) -> impl Iterator<Item = Axis> + '_ {
        self.mesh.dividing(&Axis::LAYER)
    }

    /// All ranks: the product of the degrees.
    pub fn ranks(&self) -> usize {
        self.mesh.world()
    }

    /// Stages of the pipeline.
    pub fn pipeline(&self) -> usize {
        self.mesh.degree(Axis::Pipeline)
    }

    /// Copies of all parameters but those of experts.
    pub fn replicate(&self) -> usize {
        self.data_ranks() / self.shard()
    }

    /// Ranks over which a copy's state is cut.
    pub fn shard(&self) -> usize {
        if self.stage == Stage::Ddp { 1 } else { self.mesh.size(&[Axis::Shard, Axis::Expert]) }
    }

    /// Ranks that share the experts of a layer.
    pub fn experts(&self) -> usize {
        self.mesh.size(self.expert_axes)
    }

    /// Ranks along an axis of programs, to which all that share experts differ on [`Axis::Expert`].
    pub(crate) fn ranks_along(&self, axis: Axis) -> usize {
        if axis == Axis::Expert { self.experts() } else { self.mesh.degree(axis) }
    }

    /// Whether ranks of a layer have other experts.
    pub(crate) fn folds_experts(&self) -> bool {
        self.experts() > self.mesh.degree(Axis::Expert)
    }

    /// Ranks that share every layer of a micro-batch.
    pub fn tensor(&self) -> usize {
        self.mesh.size(&Axis::LAYER)
    }

    /// Ranks that share every sequence.
    pub fn context_ranks(&self) -> usize {
        self.mesh.size(&Axis::SEQUENCES)
    }

    /// Layout of the residual stream on such a rank.
    pub fn stream(&self) -> Stream {
        let line = match (self.sequence, self.partition_activations) {
            (true, _) => LineStream::Rows,
            (false, true) => LineStream::Partitioned,
            (false, false) => LineStream::Whole,
        };
        Stream { line, context: self.context }
    }

    /// Parts of the residual stream of a micro-batch, of which a rank has one.
    pub fn stream_parts(&self) -> usize {
        match self.grid {
            None if !self.sequence => self.context_ranks(),
            _ => self.tensor(),
        }
    }

    /// Whether every rank has its tensor shard's parameters whole between steps.
    pub fn keeps_values(&self) -> bool {
        (0..self.groups.list().len()).all(|group| self.keeps_values_of(group))
    }

    /// Whether every rank has the whole model between steps, and can run it alone.
    pub fn keeps_model(&self) -> bool {
        self.tensor() == 1 && self.pipeline() == 1 && self.experts() == 1 && self.keeps_values()
    }

    /// Whether some tensor of the job's state is sharded over several ranks.
    pub fn cuts_state(&self) -> bool {
        self.shard() > 1 || self.tensor() > 1 || self.pipeline() > 1 || self.experts() > 1
    }

    /// Ranks that see different data.
    pub fn data_ranks(&self) -> usize {
        self.mesh.size(&Axis::DATA)
    }

    /// Position of a rank on every axis.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn coord(&self, rank: usize) -> Coord {
        let at = self.mesh.coord(rank);
        Coord {
            pipeline: at.at(Axis::Pipeline),
            replicate: at.at(Axis::Replicate),
            shard: at.at(Axis::Shard),
            expert: at.at(Axis::Expert),
            tensor: self.mesh.position(rank, &Axis::LAYER),
        }
    }

    /// The rank at a position.
    pub fn rank(&self, at: Coord) -> usize {
        let origin = self.mesh.coord(0);
        let place = origin.with(Axis::Pipeline, at.pipeline).with(Axis::Replicate, at.replicate);
        let place = place.with(Axis::Shard, at.shard).with(Axis::Expert, at.expert);
        self.mesh.rank(&self.mesh.moved(place, &Axis::LAYER, at.tensor))
    }

    /// The first of the ranks that share layers, of a pipeline rank that sees share `index` of the batch.
    pub fn data_coord(&self, index: usize, pipeline: usize) -> Coord {
        let (shards, experts) = (self.mesh.degree(Axis::Shard), self.mesh.degree(Axis::Expert));
        let (rest, expert) = (index / experts, index % experts);
        Coord { pipeline, replicate: rest / shards, shard: rest % shards, expert, tensor: 0 }
    }

    /// Ranks of the first rank's group along the axes that the label of a group names, such as "shard" or "context+tensor"; only itself if
    /// it names none. "expert" alone is the label of all ranks that share experts.
    pub fn first_group(&self, label: &str) -> Vec<usize> {
        if label == Axis::Expert.name() {
            return self.mesh.group(0, self.expert_axes);
        }
        let named = |axis: &Axis| label.split(['+', ' ']).any(|name| name == axis.name());
        let axes: Vec<Axis> = Axis::ALL.into_iter().filter(named).collect();
        self.mesh.group(0, &axes)
    }

    /// Number of the local batch that a position reads.
    pub fn data_index(&self, at: Coord) -> usize {
        self.index_along(&Axis::DATA, at)
    }

    /// One line for people: "8 ranks: 2 copies x 2 shards (zero1) x tensor 2", "8 ranks: 2 copies x pipeline 4 (1f1b)".
    pub fn summary(&self) -> String {
        let mut text = format!("{} ranks: {} copies", self.ranks(), self.replicate());
        if self.shard() > 1 {
            text += &format!(" x {} shards ({})", self.shard(), self.stage.key());
        }
        if self.pipeline() > 1 {
            text += &format!(" x pipeline {} ({})", self.pipeline(), self.pipe.name());
        }
        if self.experts() > 1 && !self.folds_experts() {
            text += &format!(", experts over {} of them", self.experts());
        }
        if let Some(grid) = self.grid {
            text += &format!(" x tensor {grid}");
        } else if self.mesh.degree(Axis::Tensor) > 1 {
            let stream = match self.stream().line {
                LineStream::Rows => " with sequence",
                LineStream::Partitioned => " with partitioned activations",
                LineStream::Whole => "",
            };
            text += &format!(" x tensor {}{stream}", self.mesh.degree(Axis::Tensor));
        }
        if self.context_ranks() > 1 {
            let ContextSharing { method, order } = self.context;
            let order =
                if order == ContextOrder::Auto { String::new() } else { format!(", {}", order.name()) };
            let groups = match self.mesh.degree(Axis::ContextHeads) {
                1 => String::new(),
                ranks => format!(" of groups of {ranks} by heads"),
            };
            text += &format!(" x context {} ({}{order}{groups})", self.context_ranks(), method.name());
        }
        if self.folds_experts() {
            let axes: Vec<Axis> = self.mesh.dividing(self.expert_axes).collect();
            text += &format!(", experts over {} ranks ({})", self.experts(), bessemer_mesh::label(&axes));
        }
        if self.reduce_dtype == ReduceDType::Int8 && self.data_ranks() > 1 {
            text += ", gradients travel in int8";
        }
        text
    }
}

/// Refuses configurations that do not run on a grid.
fn grid_runs(config: &ParallelConfig, optimizer: OptimizerChoice) -> Result<(), ParallelError> {
    let element_wise =
        matches!(optimizer, OptimizerChoice::AdamW | OptimizerChoice::Lion | OptimizerChoice::Sgd);
    if !element_wise {
        return Err(ParallelError::Layout(format!(
            "optim.optimizer = \"{}\" with parallel.tensor = {}: its update needs whole matrices; take \"adamw\", \"lion\" or \
             \"sgd\", or a number of ranks for parallel.tensor",
            optimizer.name(),
            config.tensor
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use bessemer_mesh::ContextMethod;

    fn plan(config: ParallelConfig, ranks: usize) -> Result<Plan, String> {
        let model = bessemer_arch::named("gpt2-124m").expect("a listed name");
        Plan::new(&config, ranks, &model, OptimizerChoice::AdamW).map_err(|e| e.to_string())
    }

    #[test]
    fn ranks_are_shared_out_and_coordinates_go_both_ways() {
        let hybrid = ParallelConfig { stage: Stage::Zero3, shard: 2, tensor: 3.into(), ..Default::default() };
        let p = plan(hybrid, 24).unwrap();
        assert_eq!((p.replicate(), p.shard(), p.tensor(), p.data_ranks()), (4, 2, 3, 8));
        for rank in 0..24 {
            assert_eq!(p.rank(p.coord(rank)), rank);
        }
        assert_eq!(p.coord(7), Coord { pipeline: 0, replicate: 1, shard: 0, expert: 0, tensor: 1 });
        // Tensor-parallel neighbours first, then shards, then copies: checkpoints and tests count on it.
        let by_hand =
            |r: usize| Coord { pipeline: 0, replicate: r / 6, shard: r / 3 % 2, expert: 0, tensor: r % 3 };
        assert!((0..24).all(|r| p.coord(r) == by_hand(r) && p.data_index(p.coord(r)) == r / 3));
        assert_eq!(p.summary(), "24 ranks: 4 copies x 2 shards (zero3) x tensor 3");
    }

    #[test]
    fn kfac_waits_for_all_stages() {
        let model = bessemer_arch::named("gpt2-124m").expect("a listed name");
        let of = |schedule: &str| {
            let config = ParallelConfig { pipeline: 2, schedule: schedule.into(), ..Default::default() };
            Plan::new(&config, 4, &model, OptimizerChoice::Kfac).map(drop).map_err(|e| e.to_string())
        };
        assert_eq!(of("1f1b"), Ok(()));
        let e = of("pipedream").unwrap_err();
        assert!(e.contains("depends on the layers of all stages"), "{e}");
    }

    #[test]
    fn what_does_not_fit_says_why() {
        let e = plan(ParallelConfig { tensor: 3.into(), ..Default::default() }, 8).unwrap_err();
        assert!(e.contains("parallel.tensor = 3 does not divide 8 ranks"), "{e}");
        let e = plan(ParallelConfig { tensor: 8.into(), ..Default::default() }, 8).unwrap_err();
        assert!(e.contains("found 12"), "{e}");
        let e = plan(ParallelConfig { shard: 2, ..Default::default() }, 8).unwrap_err();
        assert!(e.contains("\"ddp\", which shards nothing"), "{e}");
        let e = plan(ParallelConfig { stage: Stage::Zero1, shard: 3, ..Default::default() }, 8).unwrap_err();
        assert!(e.contains("does not divide the 8 data-parallel ranks"), "{e}");
        let e = plan(ParallelConfig { sequence: true, ..Default::default() }, 8).unwrap_err();
        assert!(e.contains("parallel.tensor = 1"), "{e}");
        let partitioned = ParallelConfig { partition_activations: true, ..Default::default() };
        let e = plan(partitioned.clone(), 8).unwrap_err();
        assert!(e.contains("parallel.tensor = 1"), "{e}");
        let e =
            plan(ParallelConfig { tensor: 2.into(), sequence: true, ..partitioned.clone() }, 8).unwrap_err();
        assert!(e.contains("parallel.sequence = true"), "{e}");
        let p = plan(ParallelConfig { tensor: 2.into(), ..partitioned }, 8).unwrap();
        assert_eq!(p.summary(), "8 ranks: 4 copies x tensor 2 with partitioned activations");
        let by_heads = |context| ParallelConfig {
            context,
            context_method: ContextMethod::Ulysses,
            ..Default::default()
        };
        let e = plan(by_heads(8), 8).unwrap_err();
        let words = ["parallel.context = 8", "query heads that it divides, found 12", "\"all-gather\""];
        assert!(words.iter().all(|words| e.contains(words)), "{e}");
        assert_eq!(plan(by_heads(12), 12).unwrap().summary(), "12 ranks: 1 copies x context 12 (ulysses)");
        let striped = |context_method| ParallelConfig {
            context: 8,
            context_method,
            context_order: ContextOrder::Striped,
            ..Default::default()
        };
        let e = plan(striped(ContextMethod::LightSeq), 8).unwrap_err();
        assert!(
            e.contains("parallel.context_order = \"striped\" with parallel.context_method = \"lightseq\""),
            "{e}"
        );
        let summary = plan(striped(ContextMethod::Ring), 8).unwrap().summary();
        assert_eq!(summary, "8 ranks: 1 copies x context 8 (ring, striped)");
    }

    #[test]
    fn lines_and_groups_share_sequences_of_their_heads() {
        let ring = |tensor: u64, context, context_heads| ParallelConfig {
            tensor: tensor.into(),
            context,
            context_heads,
            context_method: ContextMethod::Ring,
            ..Default::default()
        };
        let p = plan(ring(2, 4, 2), 16).unwrap();
        assert_eq!(p.summary(), "16 ranks: 2 copies x tensor 2 x context 4 (ring of groups of 2 by heads)");
        // The line first, then its group, then the groups.
        let at = |rank| p.mesh.coord(rank);
        assert_eq!(
            (at(1).at(Axis::Tensor), at(2).at(Axis::ContextHeads), at(4).at(Axis::Context)),
            (1, 1, 1)
        );
        assert!((0..16).all(|rank| p.rank(p.coord(rank)) == rank));
        assert_eq!((p.tensor(), p.context_ranks(), p.stream_parts(), p.data_ranks()), (8, 4, 4, 2));
        let e = plan(ring(2, 3, 1), 8).unwrap_err();
        assert!(e.contains("parallel.tensor = 2 x context = 3 does not divide 8 ranks"), "{e}");
        // Six heads on each rank of a line.
        let e = plan(ring(2, 8, 4), 16).unwrap_err();
        let words = [
            "parallel.context_heads = 4",
            "found 6",
            "each of parallel.tensor = 2 ranks has some of the heads",
        ];
        assert!(words.iter().all(|words| e.contains(words)), "{e}");
        let by_heads = ParallelConfig { context_method: ContextMethod::Ulysses, ..ring(2, 4, 1) };
        let e = plan(by_heads.clone(), 8).unwrap_err();
        assert!(e.contains("parallel.context = 4") && e.contains("found 6"), "{e}");
        let e = plan(ParallelConfig { context_heads: 2, ..by_heads }, 8).unwrap_err();
        assert!(e.contains("by which all 4 ranks exchange heads"), "{e}");
        for context_heads in [0, 3, 4] {
            let e = plan(ring(1, 4, context_heads), 8).unwrap_err();
            assert!(e.contains("a divisor of 4 below 4"), "{e}");
        }
    }
}
