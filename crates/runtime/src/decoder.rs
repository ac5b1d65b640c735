//! A decoder: its memory, its construction, and the passes of a whole model.

use crate::config::ActivationConfig;
use crate::error::ModelError;
use crate::gradient_memory::GradientMemory;
use crate::lengths::{LengthUnits, ShorterLength};
use crate::logits::logits_units;
use crate::memory::{Allocating, Binding, ScratchBuffers, StageBuffers};
use crate::offload::OffloadLayout;
use crate::params::{self, Param};
use crate::peers::Peers;
use crate::prefix::AfterPrefix;
use crate::ranks::StageRanks;
pub use crate::shape::{Purpose, Shape};
use crate::slots::Held;
use crate::stage::{SlotMemory, StageConfig, StagePass};
use crate::step::{LossSum, StepContext, TokenBatch, WeighedLoss};
use crate::teacher::Teacher;
use crate::tensor_shard::expert_rank;
use crate::tensor_shard::{LineStream, Stream};
use crate::units::{Plan, Rewrite, StageUnit, phases};
use bessemer_arch::{Model, ParamSpec, Sharding, TensorShard, Unit};
use bessemer_mesh::{Axis, Placement};
use bessemer_program::{
    Class, OneDevice, Phase, Rank, UnitMemory, UnitProgram, UnitUse, each_op, verify, verify_experts,
};
use bessemer_tensor::op::{DropoutMask, Op};
use bessemer_tensor::{Backend, View};
use bessemer_units::Bytes;
use std::collections::HashMap;

/// Choices of each expert of a layer by the tokens of forward passes.
#[derive(Debug, Clone)]
pub(crate) struct Loads {
    pub(crate) layer: Option<usize>,
    /// Indexed by expert; empty without experts.
    pub(crate) counts: Vec<u32>,
}

/// A decoder whose memory is allocated: parameters, and activations for batches of one [`Shape`]. It is a whole model, or
/// one stage of it ([`Decoder::of_stage`]) or a tensor shard, or both.
#[derive(Debug)]
pub struct Decoder {
    /// The part of the model on this rank; for a stage the model that it is a stage of.
    pub(crate) model: Model,
    /// The whole model, if that is more.
    whole: Option<Box<Model>>,
    /// Which layers are here, and memory for how many micro-batches.
    pub(crate) stage: StageConfig,
    pub(crate) tensor_shard: Option<Box<TensorShard>>,
    ranks: Vec<Rank>,
    /// Among ranks that share experts, if there are others.
    experts: Option<Rank>,
    pub(crate) shape: Shape,
    pub(crate) config: ActivationConfig,
    pub(crate) params: Vec<Param>,
    /// Values that passes read, by parameter.
    pub(crate) values: Vec<View>,
    gradients: Vec<Option<View>>,
    /// Units in the order of the forward pass.
    pub(crate) units: Vec<StageUnit>,
    /// Units and slots of shorter micro-batches, the longest first.
    pub(crate) shorter: Vec<ShorterLength>,
    /// The same units without recomputation, for slots that keep everything if others do not.
    pub(crate) stored: Vec<StageUnit>,
    /// Programs of the logits of a few rows, and of the remaining rows of a batch.
    pub(crate) logits: Vec<StageUnit>,
    pub(crate) buffers: StageBuffers,
    /// Auxiliary losses with their weights.
    pub(crate) weighed: Vec<WeighedLoss>,
    /// Indexed by unit: counts of the forward passes.
    pub(crate) loads: Vec<Loads>,
    /// The first layer whose router has computed values that are not finite, since it was last read.
    pub(crate) router_not_finite: Option<usize>,
    /// Indexed by auxiliary loss, unit after unit: its number among those that are weighed.
    pub(crate) loss_numbers: Vec<Option<usize>>,
    /// Host copy of their weights.
    pub(crate) loss_weights: Vec<[f32; 2]>,
    /// Use of each slot and each set.
    pub(crate) held: Held,
    /// Memory of the values of the unit that runs.
    pub(crate) table: Vec<View>,
    /// Host copy of the counters of random numbers, by use, unit after unit.
    pub(crate) counters: Vec<[u32; DropoutMask::WORDS]>,
    /// 0, 1, ... in every row, or in every document of the last batch.
    pub(crate) default_positions: Vec<u32>,
    /// First position of each token's document in the last batch, if attention stays within documents.
    pub(crate) documents: Vec<u32>,
    /// Host copy of the token losses, of one auxiliary loss, or of the factors on the tokens' gradients.
    pub(crate) numbers: Vec<f32>,
    /// Places of offloaded values.
    pub(crate) second_memory: OffloadLayout,
    /// The cache that batches continue, if there is one.
    pub(crate) prefix: Option<AfterPrefix>,
    pub(crate) peers: Peers,
    /// A model whose predictions the loss compares with, if there is one.
    pub(crate) teacher: Option<Box<Teacher>>,
    /// Operands of the head from the teacher.
    of_teacher: Option<[View; 2]>,
}

/// The memory of one pass through the units.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PassMemory {
    pub(crate) slot: Option<usize>,
    pub(crate) kept: Option<usize>,
    pub(crate) pending: Option<usize>,
}

impl Decoder {
    /// Allocates parameters (zero until [`Decoder::init`] or [`Decoder::write_param`]), gradients and activations, and
    /// reserves the workspace that the passes need. Nothing is allocated after that.
    ///
    /// Bytes by class: "weights" and, to train, "gradients", 4 bytes a parameter; "constants", 4 context D for a fixed table of
    /// positions; "activations", the values that the programs save and the scratch that they share.
    ///
    /// # Errors
    /// A sequence longer than the model's context, or an error of the backend (out of memory).
    pub fn new(backend: &mut dyn Backend, model: &Model, shape: Shape) -> Result<Decoder, ModelError> {
        Decoder::with_activations(backend, model, shape, ActivationConfig::default())
    }

    /// Returns [`Decoder::new`] with an activation config; a scorer keeps no activations.
    pub fn with_activations(
        backend: &mut dyn Backend,
        model: &Model,
        shape: Shape,
        config: ActivationConfig,
    ) -> Result<Decoder, ModelError> {
        shape.check(model)?;
        let params = params::alloc(backend, model.params(), shape.purpose == Purpose::Train)?;
        Decoder::with_params(backend, model, shape, config, params)
    }

    /// Returns [`Decoder::with_activations`] with parameters that the caller has placed: views of any buffers,
    /// which parameters of different units may share if [`StageRanks::unit_begins`] loads the right values and
    /// [`StageRanks::unit_ends`] takes the gradients away ([`Decoder::init`], [`Decoder::read_params`] and
    /// [`Decoder::write_param`] then do not work on the model). A tied token table belongs to two units.
    ///
    /// # Errors
    /// Same errors as [`Decoder::new`]; parameters that are not those of [`Model::params`] in their order and shapes, of a float type (the first
    /// that is not is named). A decoder that trains freezes the parameters without a gradient.
    pub fn with_params(
        backend: &mut dyn Backend,
        model: &Model,
        shape: Shape,
        config: ActivationConfig,
        params: Vec<Param>,
    ) -> Result<Decoder, ModelError> {
        shape.check(model)?;
        let ranks = &[Rank::alone()];
        let (config, stage) = (&config, &StageConfig::whole(model));
        let parts = Parts { model, tensor_shard: None, ranks, shape, config, stage };
        Decoder::build(backend, &parts, params, None)
    }

    /// Builds a decoder from checked parts. `beside`: another stage of the same rank, and whether both have its slots.
    pub(crate) fn build(
        backend: &mut dyn Backend,
        parts: &Parts<'_>,
        params: Vec<Param>,
        beside: Option<(&Decoder, SlotMemory)>,
    ) -> Result<Decoder, ModelError> {
        let Parts { model, tensor_shard, ranks, shape, config, stage } = *parts;
        if config.teacher.is_some() && (stage.slots > 1 || !config.lengths.is_empty()) {
            return Err(ModelError::Stage(format!(
                "a teacher makes the predictions of one micro-batch of one length at a time, found {} slots and {} shorter lengths",
                stage.slots,
                config.lengths.len()
            )));
        }
        let span = &stage.span;
        let specs = tensor_shard.map_or_else(|| span.params(model), |part| part.specs(span));
        params::check(&params, &specs)?;
        let shardings = tensor_shard.map_or_else(|| model.shardings(), |part| part.shardings.clone());
        let whole = tensor_shard.map(|part| &part.whole);
        let plan = Plan {
            model: whole.unwrap_or(model),
            shardings: &shardings,
            shape,
            config,
            stage,
            ranks,
            experts: tensor_shard.and_then(expert_rank),
            branches: false,
            until: Rewrite::default(),
        };
        let logits = logits_units(&plan, &params)?;
        let logits_scratch = crate::memory::scratch_of(logits.iter().map(|u| &u.memory));
        let (units, stored, shorter) = match plan.has_arenas() {
            true => {
                let mut lengths = plan.units_of_lengths(&params, &logits_scratch)?;
                (lengths.remove(0).units, Vec::new(), lengths)
            }
            false => (plan.units(&params)?, plan.stored_units(&params)?, Vec::new()),
        };
        let none = ScratchBuffers::default();
        let shared = beside.filter(|beside| beside.1 == SlotMemory::Shared).map(|beside| beside.0);
        let beside = beside.map_or(&none, |beside| &beside.0.buffers.scratch);
        let places = units.iter().map(|u| u.program.random.len()).sum();
        let counters = vec![[0; DropoutMask::WORDS]; places];
        let with_logits = plan.has_arenas().then_some(&logits_scratch);
        let gradients: Vec<Option<View>> = params.iter().map(|p| p.grad).collect();
        let mut memory = Allocating {
            stored: &stored,
            shared,
            shorter: &shorter,
            logits: with_logits,
            gradients: match plan.in_gradients(shared.is_some())? {
                true => GradientMemory::new(&units, &gradients),
                false => GradientMemory::default(),
            },
            ..Allocating::new(&mut *backend, &plan, &units)
        };
        let (buffers, slots) = memory.all(beside)?;
        let of_unit = |(unit, counts): (&StageUnit, &Option<View>)| Loads {
            layer: unit.unit.layer(),
            counts: vec![0; counts.map_or(0, |counts| counts.cols)],
        };
        let loads = units.iter().zip(&buffers.counts).map(of_unit).collect();
        let auxiliary = units.iter().map(|u| u.program.losses.len()).sum();
        let longest_loss = buffers.auxiliary.iter().flatten().map(View::len).max().unwrap_or(0);
        let shorter = shorter
            .into_iter()
            .zip(slots)
            .map(|(LengthUnits { plan, units }, slots)| ShorterLength { seq: plan.shape.seq, units, slots });
        let shorter: Vec<ShorterLength> = shorter.collect();
        let mut decoder = Decoder {
            model: model.clone(),
            whole: whole.cloned().map(Box::new),
            stage: stage.clone(),
            tensor_shard: None,
            ranks: ranks.to_vec(),
            experts: tensor_shard.and_then(expert_rank),
            shape,
            config: config.clone(),
            values: params.iter().map(|p| p.value).collect(),
            gradients,
            logits,
            params,
            units,
            shorter,
            stored,
            buffers,
            weighed: Vec::new(),
            loads,
            router_not_finite: None,
            loss_numbers: vec![None; auxiliary],
            loss_weights: vec![[0.0; 2]; auxiliary],
            held: Held::new(stage),
            table: Vec::new(),
            counters,
            default_positions: (0..shape.tokens()).map(|n| (n % shape.seq) as u32).collect(),
            documents: if model.document_end.is_some() { vec![0; shape.tokens()] } else { Vec::new() },
            numbers: vec![0.0; shape.tokens().max(longest_loss)],
            second_memory: OffloadLayout::default(),
            prefix: None,
            peers: Peers::default(),
            teacher: None,
            of_teacher: config.teacher.map(|teacher| teacher.views()),
        };
        decoder.lay_out_second_memory();
        decoder.buffers.scratch =
            ScratchBuffers::alloc(backend, "activations", &logits_scratch, &decoder.buffers.scratch)?;
        decoder.reserve(backend)?;
        Ok(decoder)
    }

    /// Checks every operator that any pass may launch and reserves the largest workspace.
    pub(crate) fn reserve(&mut self, backend: &mut dyn Backend) -> Result<(), ModelError> {
        let mut most = Bytes(0);
        let mut table = std::mem::take(&mut self.table);
        let mut ask = |op: &Op| {
            op.check()?;
            most = most.max(backend.workspace(op)?);
            Ok(())
        };
        let set = |sets: usize| (sets > 0).then_some(0);
        self.for_each_length(|decoder| {
            // Slots that keep everything come first.
            for slot in [0, decoder.stage.slots - 1] {
                let (kept, pending) = (set(decoder.held.kept.len()), set(decoder.stage.pending));
                let memory = PassMemory { slot: Some(slot), kept, pending };
                for at in 0..decoder.units.len() {
                    for &phase in phases(decoder.shape.purpose, &decoder.stage) {
                        decoder.binding(at, phase, memory).fill(&mut table);
                        each_op(&decoder.unit(at, memory.slot).program, phase, &table, &mut ask)?;
                    }
                }
            }
            Ok::<(), ModelError>(())
        })?;
        for (unit, rows) in self.logits.iter().zip(self.logit_rows()) {
            let logits = self.buffers.logits.map(|l| l.rows(0, rows));
            let (Some(x), Some(logits)) = (self.buffers.slots[0].stream.last(), logits) else { continue };
            self.logits_binding(unit, &[x.rows(0, rows), logits]).fill(&mut table);
            each_op(&unit.program, Phase::Score, &table, &mut ask)?;
        }
        self.table = table;
        Ok(backend.reserve_workspace(most)?)
    }

    /// Unit number `at` for a micro-batch in a slot.
    pub(crate) fn unit(&self, at: usize, slot: Option<usize>) -> &StageUnit {
        if let Some(length) = slot.and_then(|slot| self.held.length[slot]) {
            return &self.shorter[length].units[at];
        }
        let stored = slot.is_some_and(|slot| slot < self.config.recompute.stored_micro_batches);
        self.stored.get(at).filter(|_| stored).unwrap_or(&self.units[at])
    }

    /// Memory of the values of unit number `at`.
    pub(crate) fn binding(&self, at: usize, phase: Phase, memory: PassMemory) -> Binding<'_> {
        let buffers = &self.buffers;
        let slot = memory.slot.map(|slot| self.slot(slot));
        let places = |units: &[StageUnit]| units.iter().map(|u| u.program.random.len()).sum();
        let random = self.units[at].program.random.len();
        let layers = at - usize::from(self.stage.span.embedding && at > 0);
        let stream = |boundary: usize| slot.and_then(|s| s.stream.get(boundary)).copied();
        let end = slot.and_then(|s| s.stream.last()).copied();
        let last = end.unwrap_or(crate::memory::UNTOUCHED);
        let through = match self.units[at].unit {
            Unit::Embedding => (last, stream(0).unwrap_or(last)),
            Unit::Layer(_) => (stream(layers).unwrap_or(last), stream(layers + 1).unwrap_or(last)),
            Unit::Head => (last, last),
        };
        Binding {
            unit: self.unit(at, memory.slot),
            at,
            phase,
            values: &self.values,
            gradients: &self.gradients,
            slot,
            stream: through,
            kept: memory.kept.map(|set| &buffers.kept[set]),
            pending: memory.pending.map(|set| &buffers.pending[set]),
            losses: memory.slot.map_or(buffers.losses, |slot| self.losses_of(slot)),
            auxiliary: &buffers.auxiliary[at],
            counts: buffers.counts[at],
            loss_weights: buffers
                .loss_weights
                .map(|w| w.rows(self.first_loss(at), buffers.auxiliary[at].len())),
            counters: buffers.counters.map(|c| c.rows(places(&self.units[..at]), random)),
            constant: buffers.constant,
            external: match (&self.of_teacher, self.units[at].unit) {
                (Some(views), Unit::Head) => views,
                (_, unit) => self.prefix.as_ref().map_or(&[], |prefix| prefix.external(unit)),
            },
            scratch: &buffers.scratch,
            indices: None,
        }
    }

    /// Runs some units of a pass, in this order.
    pub(crate) fn run_units(
        &mut self,
        backend: &mut dyn Backend,
        ranks: &mut dyn StageRanks,
        order: &mut dyn Iterator<Item = usize>,
        pass: &StagePass,
    ) -> Result<(), ModelError> {
        for at in order {
            let unit = self.units[at].unit;
            let begun = ranks.unit_begins(backend, unit, pass.phase);
            begun.inspect_err(|_| self.give_up(pass))?;
            self.run_unit(backend, &mut *ranks, at, pass)?;
            let ended = ranks.unit_ends(backend, unit, pass.phase);
            ended.inspect_err(|_| self.give_up(pass))?;
        }
        Ok(())
    }

    /// The program of every unit that is here with the plan of its memory, in the order of the forward pass.
    pub fn programs(&self) -> impl Iterator<Item = (Unit, &UnitProgram, &UnitMemory)> {
        self.units.iter().map(|u| (u.unit, &u.program, &u.memory))
    }

    /// The program of unit number `at` for micro-batches in a slot: those of [`Decoder::programs`], or, where the slot keeps
    /// everything, without recomputation.
    pub fn program(&self, at: usize, slot: usize) -> Option<&UnitProgram> {
        (at < self.units.len()).then(|| &self.unit(at, Some(slot)).program)
    }

    /// Layer of the model that unit number `at` is.
    pub fn layer_of(&self, at: usize) -> Option<usize> {
        self.units.get(at)?.unit.layer()
    }

    /// The uses of each unit's list of a phase, in the order of the forward pass; `flat_of` returns the flat parameter that contains a
    /// parameter of the decoder.
    pub fn uses(&self, phase: Phase, flat_of: &dyn Fn(usize) -> usize) -> Vec<UnitUse> {
        let of = |(number, unit): (usize, &StageUnit)| {
            let mut of = UnitUse::of(number, &unit.program, phase, &|p| flat_of(unit.parameters[p]));
            // Lengths may recompute other layers: the uses of all of them are included.
            for length in &self.shorter {
                let unit = &length.units[number];
                of.add(UnitUse::of(number, &unit.program, phase, &|p| flat_of(unit.parameters[p])));
            }
            of
        };
        self.units.iter().enumerate().map(of).collect()
    }

    /// The programs as they are after some of the passes that have rewritten them.
    ///
    /// # Errors
    /// Same errors as when the decoder was made.
    pub fn programs_after(&self, until: Rewrite) -> Result<Vec<(Unit, UnitProgram, UnitMemory)>, ModelError> {
        let model = self.whole();
        let (shape, config, stage, ranks) = (self.shape, &self.config, &self.stage, &self.ranks);
        let (shardings, branches, experts) = (&self.shardings(), false, self.experts);
        let plan = Plan { model, shardings, shape, config, stage, ranks, experts, branches, until };
        let units = plan.units(&self.params)?;
        Ok(units.into_iter().map(|u| (u.unit, u.program, u.memory)).collect())
    }

    /// The whole model.
    pub(crate) fn whole(&self) -> &Model {
        self.whole.as_deref().unwrap_or(&self.model)
    }

    /// Sets for passes without other ranks of their own, [`Decoder::loss`], [`Decoder::logits`] and those of [`crate::Cache`], the ranks with the
    /// other experts.
    pub fn set_peers(&mut self, peers: Peers) {
        self.peers = peers;
    }

    /// A decoder of another shape over the same parameters and with the same other ranks, to score.
    ///
    /// # Errors
    /// Same errors as [`Decoder::with_params`].
    pub fn reshaped(&self, backend: &mut dyn Backend, shape: Shape) -> Result<Decoder, ModelError> {
        let (config, params) = (ActivationConfig::default(), self.params.clone());
        let mut decoder = match self.tensor_shard() {
            Some(part) => {
                Decoder::of_tensor_shard(backend, part, self.stream(), shape, config, Some(params))?
            }
            None => Decoder::with_params(backend, &self.model, shape, config, params)?,
        };
        decoder.set_peers(self.peers.clone());
        Ok(decoder)
    }

    /// A decoder of this model with adapters, of the same shape, over the parameters of this one. New memory ("weights", zero) is
    /// allocated for the adapters and for parameters that are its `own`, by name.
    ///
    /// # Errors
    /// A part of a model; a parameter of another shape than here (it is named); an error of the backend.
    pub fn adapted(
        &self,
        backend: &mut dyn Backend,
        model: &Model,
        own: &dyn Fn(&str) -> bool,
    ) -> Result<Decoder, ModelError> {
        self.expect_whole("adapters on the parameters of another model")?;
        let shared: HashMap<&str, &Param> = self.params.iter().map(|p| (p.spec.name.as_str(), p)).collect();
        let is_shared = |spec: &ParamSpec| shared.contains_key(spec.name.as_str()) && !own(&spec.name);
        let specs: Vec<ParamSpec> = model.params();
        let new = specs.iter().filter(|spec| !is_shared(spec)).cloned().collect();
        let mut new = params::alloc(backend, new, false)?.into_iter();
        let place = |spec: &ParamSpec| match shared.get(spec.name.as_str()).filter(|_| is_shared(spec)) {
            Some(param) => Some((*param).clone()),
            None => new.next(),
        };
        let params = specs.iter().filter_map(place).collect();
        Decoder::with_params(backend, model, self.shape, self.config.clone(), params)
    }

    /// Shardings of the parameters of the whole model.
    pub(crate) fn shardings(&self) -> Vec<Sharding> {
        self.tensor_shard().map_or_else(|| self.model.shardings(), |part| part.shardings.clone())
    }

    /// The lists that passes run.
    pub fn phases(&self) -> &'static [Phase] {
        phases(self.shape.purpose, &self.stage)
    }

    /// Its rank on every axis whose ranks share a micro-batch.
    pub fn ranks(&self) -> &[Rank] {
        &self.ranks
    }

    /// The rank that it is among those that share the experts of its layers, if there are others.
    pub fn expert_rank(&self) -> Option<Rank> {
        self.experts
    }

    /// For each of [`Decoder::params`], the axes over whose ranks its gradient is a term of a sum after a backward pass.
    pub fn partial_gradients(&self) -> Vec<Vec<Axis>> {
        let mut partial: Vec<Vec<Axis>> = vec![Vec::new(); self.params.len()];
        for (unit, rank) in self.units.iter().flat_map(|unit| self.ranks.iter().map(move |rank| (unit, rank)))
        {
            for value in &unit.program.values {
                if let (Class::Gradient(p), Placement::Partial { .. }) =
                    (value.class, value.placement(rank.axis))
                {
                    let axes = &mut partial[unit.parameters[p]];
                    if !axes.contains(&rank.axis) {
                        axes.push(rank.axis);
                    }
                }
            }
        }
        partial
    }

    /// Whether no earlier unit has the same program: layers of one policy of recomputation and of one layout differ only in
    /// their names.
    pub fn is_distinct(&self, unit: Unit) -> bool {
        self.units.iter().any(|u| u.unit == unit && u.distinct)
    }

    /// Refuses programs that would compute something else than those of one device.
    ///
    /// # Errors
    /// The first node that is wrong, with the value's name.
    pub fn verify(&self) -> Result<(), ModelError> {
        for unit in self.all_units().filter(|unit| unit.distinct) {
            verify(&unit.program, &unit.memory, self.phases(), &self.ranks)?;
            if let Some(rank) = self.experts {
                verify_experts(&unit.program, self.phases(), rank)?;
            }
        }
        Ok(())
    }

    /// Keeps the branches that are added to the residual stream as values of their own from now on, "attention.branch" and "mlp.branch",
    /// which are reported to [`bessemer_program::Ranks::written`]. Numbers are those of the fused operators.
    ///
    /// # Errors
    /// An error of the backend.
    pub fn keep_branches(&mut self, backend: &mut dyn Backend) -> Result<(), ModelError> {
        if !self.shorter.is_empty() {
            return Err(ModelError::Stage("branches are kept of micro-batches of one length only".into()));
        }
        let whole = self.whole();
        let (shape, config, ranks) = (self.shape, &self.config, &self.ranks);
        let plan = Plan {
            model: whole,
            shardings: &self.shardings(),
            shape,
            config,
            stage: &self.stage,
            ranks,
            experts: self.experts,
            branches: true,
            until: Rewrite::default(),
        };
        let (units, stored) = (plan.units(&self.params)?, plan.stored_units(&self.params)?);
        let wanted = crate::memory::scratch_of(units.iter().chain(&stored).map(|u| &u.memory));
        self.buffers.scratch = ScratchBuffers::alloc(backend, "activations", &wanted, &self.buffers.scratch)?;
        (self.units, self.stored) = (units, stored);
        self.lay_out_second_memory();
        self.reserve(backend)
    }

    /// The model; for a tensor shard, its part as a model. For a stage the whole model: [`Decoder::stage`] returns the part.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The sharding of the residual stream.
    pub(crate) fn stream(&self) -> Stream {
        let on = |axis: Axis| self.ranks.iter().find(|rank| rank.axis == axis);
        let line = match on(Axis::Tensor) {
            Some(rank) if rank.sequence => LineStream::Rows,
            Some(rank) if rank.partition => LineStream::Partitioned,
            _ => LineStream::Whole,
        };
        Stream { line, context: on(Axis::Context).map(|rank| rank.context).unwrap_or_default() }
    }

    /// Vocabulary of the whole model.
    pub(crate) fn vocab_size(&self) -> usize {
        self.whole.as_ref().map_or(self.model.vocab_size, |whole| whole.vocab_size)
    }

    /// Weighs auxiliary losses: each is a term of what gradients are taken of, and its sums are reported at its place in
    /// [`LossSum::auxiliary`]. Losses that are not listed have weight 0; a stage that has none of that name has no use for it.
    ///
    /// # Errors
    /// More losses than [`LossSum::MOST_AUXILIARY`].
    pub fn weigh_losses(&mut self, losses: &[WeighedLoss]) -> Result<(), ModelError> {
        if losses.len() > LossSum::MOST_AUXILIARY {
            return Err(ModelError::Stage(format!(
                "wanted at most {} auxiliary losses, found {}",
                LossSum::MOST_AUXILIARY,
                losses.len()
            )));
        }
        self.weighed = losses.to_vec();
        let names = self.units.iter().flat_map(|unit| &unit.program.losses);
        for (number, loss) in self.loss_numbers.iter_mut().zip(names) {
            *number = losses.iter().position(|weighed| weighed.name == loss.name && weighed.weight != 0.0);
        }
        Ok(())
    }

    /// Number of the first auxiliary loss of unit number `at` among those of all units.
    pub(crate) fn first_loss(&self, at: usize) -> usize {
        self.buffers.auxiliary[..at].iter().map(Vec::len).sum()
    }

    /// The shape of a batch.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Loss and gradients of one micro-batch, on one device. See [`Decoder::forward_backward_through`].
    pub fn forward_backward(
        &mut self,
        backend: &mut dyn Backend,
        batch: &TokenBatch<'_>,
        ctx: &StepContext,
    ) -> Result<LossSum, ModelError> {
        self.forward_backward_through(backend, &mut OneDevice, batch, ctx)
    }

    /// Loss and gradients of one micro-batch: gradients of `loss_scale * sum of token losses` replace or are added to
    /// the parameters' gradients.
    ///
    /// # Errors
    /// A batch of another shape or with foreign indices (nothing is launched then), a decoder made to score, or what
    /// the backend and other ranks answer.
    pub fn forward_backward_through(
        &mut self,
        backend: &mut dyn Backend,
        ranks: &mut dyn StageRanks,
        batch: &TokenBatch<'_>,
        ctx: &StepContext,
    ) -> Result<LossSum, ModelError> {
        self.expect_training()?;
        self.expect_all_layers("a pass from tokens to the loss")?;
        self.held.free(0);
        let pass = self.begin_forward(backend, 0, batch, Some(ctx))?;
        let mut loss = self.forward_of(backend, ranks, &pass)?.unwrap_or_default();
        loss += self.stage_backward(backend, ranks, 0, ctx.accumulate)?.unwrap_or_default();
        Ok(loss)
    }

    /// Loss of one batch, without dropout. `per_token`, if given, receives the loss of every token in nats (0 where
    /// the target is ignored) and must be as long as the batch.
    pub fn loss(
        &mut self,
        backend: &mut dyn Backend,
        batch: &TokenBatch<'_>,
        per_token: Option<&mut [f32]>,
    ) -> Result<LossSum, ModelError> {
        let peers = self.peers.clone();
        self.loss_through(backend, peers.lock().ranks(), batch, per_token)
    }

    /// Computes [`Decoder::loss`] with other ranks.
    pub fn loss_through(
        &mut self,
        backend: &mut dyn Backend,
        ranks: &mut dyn StageRanks,
        batch: &TokenBatch<'_>,
        per_token: Option<&mut [f32]>,
    ) -> Result<LossSum, ModelError> {
        self.expect_all_layers("a pass from tokens to the loss")?;
        self.check_batch(batch)?;
        expect_room("per_token", per_token.as_deref(), batch.ids.len())?;
        self.held.free(0);
        self.stage_forward(backend, ranks, 0, batch, None)?;
        self.loss_of(backend, ranks, 0, per_token)
    }
}

/// Parts from which a decoder is built.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Parts<'a> {
    pub(crate) model: &'a Model,
    /// The part of the whole model that `model` is.
    pub(crate) tensor_shard: Option<&'a TensorShard>,
    pub(crate) ranks: &'a [Rank],
    pub(crate) shape: Shape,
    pub(crate) config: &'a ActivationConfig,
    pub(crate) stage: &'a StageConfig,
}

/// Errors unless a host slice, if given, has exactly `wanted` values.
pub(crate) fn expect_room(
    what: &'static str,
    slice: Option<&[f32]>,
    wanted: usize,
) -> Result<(), ModelError> {
    match slice {
        Some(s) if s.len() != wanted => Err(ModelError::Shape {
            what,
            wanted: format!("room for {wanted} values"),
            found: s.len().to_string(),
        }),
        _ => Ok(()),
    }
}
