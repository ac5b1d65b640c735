//! The units of a stage: each recorded once, rewritten for this rank, with a plan of its memory.

use crate::config::ActivationConfig;
use crate::decoder::{Purpose, Shape};
use crate::error::ModelError;
use crate::expert_rows::experts_of_one;
use crate::params::Param;
use crate::stage::StageConfig;
use bessemer_arch::{Model, Sharding, Unit};
use bessemer_model::Recording;
use bessemer_program::{
    AxisRole, Class, ExchangedTokens, Node, Phase, Rank, UnitMemory, UnitProgram, compress, experts, freeze,
    fuse, offload, overlap, overlap_experts, partition, partition_activations, plan_memory, recompute, seal,
    split,
};
use bessemer_tensor::op::Op;
use bessemer_units::{DType, OffloadPlan, ParamStorage, Recompute, RecomputePlan, RecomputePolicy};
use std::collections::HashMap;

/// One unit of a stage.
#[derive(Debug, Clone)]
pub(crate) struct StageUnit {
    pub(crate) unit: Unit,
    pub(crate) program: UnitProgram,
    pub(crate) memory: UnitMemory,
    /// No unit before it has the same program under another name.
    pub(crate) distinct: bool,
    /// Indexed by the number of the unit's parameter: its number in the decoder.
    pub(crate) parameters: Vec<usize>,
}

/// Inputs from which the units of a stage are made.
#[derive(Debug, Clone)]
pub(crate) struct Plan<'a> {
    /// The whole model.
    pub(crate) model: &'a Model,
    /// Shardings of its parameters.
    pub(crate) shardings: &'a [Sharding],
    pub(crate) shape: Shape,
    pub(crate) config: &'a ActivationConfig,
    pub(crate) stage: &'a StageConfig,
    pub(crate) ranks: &'a [Rank],
    /// Among ranks that share experts.
    pub(crate) experts: Option<Rank>,
    /// Whether the branches that are added to the residual stream stay values of their own.
    pub(crate) branches: bool,
    /// The last pass.
    pub(crate) until: Rewrite,
}

/// The passes that rewrite a unit, in their order.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rewrite {
    /// The program as the model's code has recorded it.
    Record,
    /// Removal of the gradients of frozen parameters.
    Freeze,
    /// Values that are made again.
    Recompute,
    /// One rank's shapes and collectives.
    Partition,
    /// Operators that are one launch.
    Fuse,
    /// Backward passes in two parts.
    Split,
    /// Collectives that run concurrently with products.
    Overlap,
    /// Stored activations in fewer bits.
    Compress,
    /// Stored activations in a second memory: the final program.
    #[default]
    Offload,
}

impl Plan<'_> {
    /// Element type of activations.
    pub(crate) fn storage(&self) -> DType {
        match self.shape.purpose {
            Purpose::Train => self.config.storage.dtype(),
            Purpose::Score => DType::F32,
        }
    }

    /// Rows and columns of the residual stream on this rank.
    pub(crate) fn stream(&self) -> [usize; 2] {
        let of = |shards: &dyn Fn(&&Rank) -> bool| {
            self.ranks.iter().filter(shards).map(|r| r.degree).product::<usize>()
        };
        let rows = of(&|rank| rank.sequence);
        let columns = of(&|rank| rank.role.shards_columns());
        [self.shape.tokens() / rows, self.model.width / columns]
    }

    /// Gives parameters and gradients their types where programs have copies of them: on a grid. Elsewhere operators and collectives of a
    /// step take the types of what is bound to them.
    fn set_param_types(&self, unit: &mut UnitProgram) {
        if self.ranks.iter().all(|rank| rank.role == AxisRole::Line) {
            return;
        }
        let ParamStorage { weights, gradients } = self.config.params;
        for value in &mut unit.values {
            match value.class {
                Class::Parameter(_) => value.dtype = weights.dtype(),
                Class::Gradient(_) => value.dtype = gradients.dtype(),
                _ => {}
            }
        }
    }

    /// The passes, in their order, as far as they are wanted. Only layers have a policy of recomputation,
    /// and only their stored values are compressed or offloaded.
    fn rewrite(
        &self,
        (of, mut unit): (Unit, UnitProgram),
        policy: Option<&RecomputePolicy>,
        offloads: bool,
        frozen: &dyn Fn(&str) -> bool,
    ) -> Result<(UnitProgram, UnitMemory), ModelError> {
        let wanted = |pass: Rewrite| pass <= self.until;
        if self.shape.purpose == Purpose::Train {
            unit = self.config.passes.iter().fold(unit, |unit, pass| (pass.apply)(of, unit));
        }
        if wanted(Rewrite::Freeze) && self.shape.purpose == Purpose::Train {
            freeze(&mut unit, frozen);
        }
        if self.experts.is_some() {
            // Copies of rows travel: they are kept, unless a layer is computed again.
            unit.again.retain(|again| !matches!(again.op, Op::Dispatch(_)));
        }
        if let Some(policy) = policy.filter(|_| wanted(Rewrite::Recompute)) {
            recompute(&mut unit, policy)?;
        }
        if wanted(Rewrite::Partition) {
            self.set_param_types(&mut unit);
            unit = partition(&unit, self.ranks)?;
            for rank in self.ranks.iter().filter(|rank| policy.is_some() && rank.partition) {
                partition_activations(&mut unit, *rank);
            }
            if let Some(rank) = self.experts {
                match self.shape.purpose {
                    Purpose::Train => {
                        experts(&mut unit, rank, self.ranks, ExchangedTokens::EachRank(self.stage.shadowing))
                    }
                    Purpose::Score => experts_of_one(&mut unit, rank, self.shape.tokens()),
                }
            }
        }
        if wanted(Rewrite::Fuse) && !self.branches {
            fuse(&mut unit);
        }
        if wanted(Rewrite::Split) && self.stage.pending > 0 {
            split(&mut unit);
        }
        if wanted(Rewrite::Overlap) && self.stage.overlap {
            if self.ranks.iter().all(|r| r.role == AxisRole::Line) {
                overlap(&mut unit);
            }
            if let Some(rank) = self.experts.filter(|_| self.shape.purpose == Purpose::Train) {
                overlap_experts(&mut unit, rank);
            }
        }
        if wanted(Rewrite::Compress) && policy.is_some() && self.shape.purpose == Purpose::Train {
            compress(&mut unit, &self.config.compression)?;
        }
        if wanted(Rewrite::Offload) && offloads && self.shape.purpose == Purpose::Train {
            offload(&mut unit);
        }
        seal(&mut unit);
        let memory = plan_memory(&unit, phases(self.shape.purpose, self.stage));
        Ok((unit, memory))
    }

    /// Number of slots whose micro-batches keep everything: the first ones.
    pub(crate) fn stored_slots(&self) -> usize {
        match self.shape.purpose {
            Purpose::Train => self.config.recompute.stored_micro_batches.min(self.stage.slots),
            Purpose::Score => 0,
        }
    }

    /// The units of the stage, in the order of the forward pass, for slots that recompute; for all slots if none does.
    pub(crate) fn units(&self, params: &[Param]) -> Result<Vec<StageUnit>, ModelError> {
        match self.stored_slots() == self.stage.slots {
            true => self.units_with(&Recompute::None.into(), self.config.offload, params),
            false => self.units_with(&self.config.recompute, self.config.offload, params),
        }
    }

    /// The units for slots that keep everything, if others do not.
    pub(crate) fn stored_units(&self, params: &[Param]) -> Result<Vec<StageUnit>, ModelError> {
        match self.stored_slots() {
            stored if stored == 0 || stored == self.stage.slots => Ok(Vec::new()),
            _ if self.stage.pending > 0 => Err(ModelError::Stage(
                "train.stored_micro_batches needs whole backward passes, and the schedule splits them: use \
                 another schedule, or train.stored_micro_batches = 0"
                    .into(),
            )),
            _ => self.units_with(&Recompute::None.into(), self.config.offload, params),
        }
    }

    pub(crate) fn units_with(
        &self,
        recompute: &RecomputePlan,
        offload: OffloadPlan,
        params: &[Param],
    ) -> Result<Vec<StageUnit>, ModelError> {
        let span = &self.stage.span;
        let recording = Recording {
            tied_here: self.model.tied_embeddings && span.head && span.embedding,
            train: self.shape.purpose == Purpose::Train,
            teacher: self.config.teacher.map(|teacher| teacher.shape()),
            ..Recording::new(
                self.model,
                self.shardings,
                [self.shape.sequences, self.shape.seq],
                self.storage(),
            )
        };
        let mut units = Vec::with_capacity(span.layers.len() + 2);
        let numbers: HashMap<&str, usize> =
            params.iter().enumerate().map(|(i, p)| (p.spec.name.as_str(), i)).collect();
        let number = |prefix: &str, program: &UnitProgram| -> Vec<usize> {
            let find = |name: &String| {
                numbers.get(format!("{prefix}{name}").as_str()).copied().unwrap_or(usize::MAX)
            };
            program.parameters.iter().map(find).collect()
        };
        let frozen = |name: &str| numbers.get(name).is_some_and(|number| params[*number].grad.is_none());
        if span.embedding {
            let (program, memory) =
                self.rewrite((Unit::Embedding, recording.embedding()), None, false, &frozen)?;
            let parameters = number("", &program);
            units.push(StageUnit { unit: Unit::Embedding, program, memory, distinct: true, parameters });
        }
        // Layers of one policy, one memory, one kind of feed-forward block and one layout that freeze the same parameters differ only in their number.
        let mut recorded: HashMap<LayerKind<'_>, usize> = HashMap::new();
        for layer in span.layers.clone() {
            let policy = recompute.of(layer, &span.layers);
            let of_layer = self.shardings.iter().filter(|s| s.spec.id.unit() == Unit::Layer(layer));
            let offloads = offload.has(layer, &span.layers);
            let of_layer = of_layer.map(|sharding| (sharding.dim(), frozen(&sharding.spec.name)));
            let experts = self.model.experts_of(layer).map(|of| of.count);
            let kind = LayerKind { policy, offloads, experts, params: of_layer.collect() };
            // A pass of the caller's may treat layers differently.
            let like = recorded.get(&kind).copied().filter(|_| self.config.passes.is_empty());
            let (program, memory) = match like {
                Some(at) => {
                    let StageUnit { program, memory, .. }: &StageUnit = &units[at];
                    (program.renamed(&program.name, &layer_prefix(layer)), memory.clone())
                }
                None => {
                    recorded.insert(kind, units.len());
                    let prefix = layer_prefix(layer);
                    let frozen = |name: &str| frozen(&format!("{prefix}{name}"));
                    let recorded = (Unit::Layer(layer), recording.layer(layer));
                    self.rewrite(recorded, Some(policy), offloads, &frozen)?
                }
            };
            let parameters = number(&layer_prefix(layer), &program);
            let distinct = like.is_none();
            units.push(StageUnit { unit: Unit::Layer(layer), program, memory, distinct, parameters });
        }
        if span.head {
            let (program, memory) = self.rewrite((Unit::Head, recording.head()), None, false, &frozen)?;
            let parameters = number("", &program);
            units.push(StageUnit { unit: Unit::Head, program, memory, distinct: true, parameters });
        }
        Ok(units)
    }
}

/// Properties of a layer on which its program depends.
#[derive(Debug, PartialEq, Eq, Hash)]
struct LayerKind<'a> {
    policy: &'a RecomputePolicy,
    offloads: bool,
    experts: Option<usize>,
    /// Indexed by parameter: the dim that is sharded, and whether it is frozen.
    params: Vec<(Option<usize>, bool)>,
}

impl StageUnit {
    /// Whether a backward pass reads the residual stream that has entered the unit.
    pub(crate) fn reads_stream_again(&self) -> bool {
        let lists = [Phase::Backward, Phase::BackwardInput, Phase::BackwardWeight];
        let mut touches = lists.iter().flat_map(|phase| self.program.list(*phase)).flat_map(Node::touches);
        touches.any(|t| self.program.values[t.value()].class == Class::StreamIn)
    }
}

/// The lists that passes of such a stage run.
pub(crate) fn phases(purpose: Purpose, stage: &StageConfig) -> &'static [Phase] {
    match (purpose, stage.pending) {
        (Purpose::Score, _) => &[Phase::Score],
        (Purpose::Train, 0) => &[Phase::Forward, Phase::Score, Phase::Backward],
        (Purpose::Train, _) => &Phase::ALL,
    }
}

/// "layers.3."
pub(crate) fn layer_prefix(layer: usize) -> String {
    format!("layers.{layer}.")
}
