//! One rank: its stages of the model and parts of the optimizer's state, its peers, and the program that it runs.

use crate::chunk::{Chunk, places, slot_pools};
use crate::control::ControlMessages;
use crate::error::ParallelError;
use crate::exchange::ExchangeError;
use crate::execute::{NoBatches, StepRun, UpdateRule};
use crate::fill::{AnyRank, FillSupplier, Fillers};
use crate::groups::Groups;
use crate::notes::OrderSpan;
use crate::offload::Offloading;
use crate::plan::{Coord, Plan};
use crate::prepare::{Needs, Prepared, prepare, prepare_evaluation};
use crate::steps::RankStep;
use crate::tie::Tie;
use crate::window::Update;
use bessemer_arch::{Model, ParamRole, Unit};
use bessemer_collectives::{Communicator, DeviceCommunicator, HostStaging, Reduce, Stopwatch};
use bessemer_optim::{OptimConfig, OptimizerChoice, StepStats};
use bessemer_runtime::{
    ActivationConfig, Decoder, LengthPlan, LossSum, ModelError, Shape, SlotMemory, StepContext, Teacher,
    TokenBatch, WeighedLoss,
};
use bessemer_schedule::{Place, Program};
use bessemer_tensor::Backend;
use bessemer_units::ParamStorage;
use std::sync::Arc;

/// Description of a job, the same on every rank.
#[derive(Debug, Clone)]
pub struct Job<'a> {
    /// The whole model.
    pub model: &'a Model,
    /// A micro-batch of one rank; made to train.
    pub shape: Shape,
    /// Storage of activations.
    pub activations: ActivationConfig,
    /// Types of parameters and gradients.
    pub types: ParamStorage,
    /// The optimizer.
    pub optim: &'a OptimConfig,
    /// Losses besides those of the tokens.
    pub losses: &'a [WeighedLoss],
    /// Shares of the ranks.
    pub plan: &'a Plan,
    /// Schedule, with as many pipeline ranks as the plan ([`Plan::program`]).
    pub program: &'a Program,
}

/// Source of micro-batches. Each pipeline rank requests every micro-batch that it processes, possibly several times, and must
/// receive the same data each time.
pub trait BatchSource {
    /// Returns micro-batch `micro` of the program (of this rank's share of the batch), and its position in the run.
    /// `accumulate` is ignored; the worker sets it.
    ///
    /// # Errors
    /// [`ParallelError::BatchSource`].
    fn micro_batch(&mut self, micro: usize) -> Result<(TokenBatch<'_>, StepContext), ParallelError>;

    /// Returns the share of the tokens of the step of micro-batch `micro`, over all ranks and without padding, that are scored targets
    /// ([`Decoder::stage_scored_share`](bessemer_runtime::Decoder::stage_scored_share)).
    fn scored_share(&self, _micro: usize) -> f64 {
        1.0
    }

    /// Returns the weights of the gradients of micro-batch `micro`'s targets, in the order of its tokens; none: all 1
    /// ([`Decoder::stage_weigh_targets`](bessemer_runtime::Decoder::stage_weigh_targets)).
    fn target_weights(&self, _micro: usize) -> Option<&[f32]> {
        None
    }

    /// Returns the tokens of a sequence of micro-batch `micro`, where micro-batches have several lengths: called before messages of other
    /// ranks about it arrive. None: the length of the job's shape.
    ///
    /// # Errors
    /// [`ParallelError::BatchSource`].
    fn length(&mut self, _micro: usize) -> Result<Option<usize>, ParallelError> {
        Ok(None)
    }

    /// Returns the tokens of a sequence of evaluation batch `unit`, as [`BatchSource::length`].
    fn evaluation_length(&mut self, _unit: usize) -> Option<usize> {
        None
    }

    /// Returns evaluation batch `unit` of this rank, for a program that evaluates in its bubbles. Every rank of a pipeline requests
    /// every batch.
    ///
    /// # Errors
    /// [`ParallelError::BatchSource`].
    fn evaluation(&mut self, unit: usize) -> Result<TokenBatch<'_>, ParallelError> {
        let problem = "the schedule evaluates batches, and there are none".into();
        Err(ParallelError::BatchSource { micro: unit, problem })
    }

    /// Receives the loss of each token of an evaluated batch, on the rank that has the head
    /// ([`Worker::has_losses`]): without dropout, with the weights that the step's passes read.
    fn evaluated(&mut self, _unit: usize, _losses: &[f32]) {}
}

/// Choices of experts. Empty without experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertLoads<'a> {
    /// Choices of each expert of each layer before any is dropped, one layer after the other: as many numbers for each of the model's
    /// layers as the layer with most experts has, zeros after those of a layer with fewer or none.
    pub choices: &'a [u32],
    /// Choices that a capacity has dropped and those that it has kept, by layer; zeros without a capacity.
    pub dropped_and_kept: &'a [[u32; 2]],
    /// Shadows over all gathers of their matrices, each counted by its owner, and gathers, each counted by all ranks that share experts; none if
    /// there may be no shadow.
    pub shadows: Option<[u32; 2]>,
}

/// One rank of a job. All ranks make the same calls in the same order.
#[derive(Debug)]
pub struct Worker {
    pub(crate) plan: Plan,
    pub(crate) whole: Model,
    pub(crate) program: Program,
    /// The step of the schedule.
    pub(crate) step: Arc<RankStep>,
    /// Memory that was made, by chunk.
    needs: Vec<Needs>,
    /// Indexed by chunk: number of the first chunk with which it shares its slots.
    pub(crate) pools: Vec<usize>,
    /// Passes of a batch that is evaluated between steps.
    pub(crate) evaluation: Arc<RankStep>,
    /// Other work, in its bubbles.
    pub(crate) fillers: Fillers,
    pub(crate) coord: Coord,
    pub(crate) world: Box<dyn Communicator>,
    /// Ranks of all stages that see the same data.
    pub(crate) pipeline: Box<dyn DeviceCommunicator>,
    /// Host memory of collectives that computation waits for.
    pub(crate) staging: HostStaging,
    /// Indexed by number.
    pub(crate) chunks: Vec<Chunk>,
    /// Chunks in the order of their stages.
    pub(crate) by_stage: Vec<usize>,
    pub(crate) tie: Tie,
    /// The part of the model that each stage holds.
    pub(crate) spans: Vec<bessemer_arch::Span>,
    /// Current optimizer step, from 0.
    pub(crate) step_number: u64,
    /// Updates before this step, less steps before it.
    pub(crate) updates_ahead: i64,
    /// Factor on the loss, and with it on the gradients in memory.
    pub(crate) loss_scale: f64,
    /// Number of auxiliary losses.
    pub(crate) losses: usize,
    /// Indexed by group of parameters: the sum of the squares of gradients.
    pub(crate) squares: Vec<f64>,
    /// Losses of an evaluated batch.
    pub(crate) evaluated: Vec<f32>,
    /// Bits of every rank's part of the newest loss, equally many of each.
    pub(crate) rank_losses: Vec<u64>,
    /// Choices of experts, as [`Worker::sum_loads`] has summed them last.
    loads: Vec<u32>,
    /// Numbers of one layer's experts.
    of_experts: Vec<f32>,
    pub(crate) control: ControlMessages,
    /// The second memory of offloaded activations.
    pub(crate) offloading: Option<Offloading>,
    /// Records when collectives and messages ran, while it is switched on.
    pub(crate) watch: Stopwatch,
    /// Times of the instructions, if they are recorded.
    pub(crate) intervals: Option<Vec<OrderSpan>>,
}

impl Worker {
    /// Makes this rank's buffers and groups, and verifies the programs of its stages. `world` is the communicator of all ranks
    /// of the plan.
    ///
    /// # Errors
    /// A model that the plan cannot shard, programs that would compute something else than those of one device, or an error of the
    /// backend or of another rank.
    pub fn new(
        backend: &mut dyn Backend,
        job: &Job<'_>,
        world: Box<dyn Communicator>,
    ) -> Result<Worker, ParallelError> {
        Worker::filled(backend, job, None, world)
    }

    /// [`Worker::new`] with the work that `fill` supplies in bubbles.
    ///
    /// # Errors
    /// Same errors as [`Worker::new`], or a supplied program that the rank cannot run.
    pub fn filled(
        backend: &mut dyn Backend,
        job: &Job<'_>,
        fill: Option<&dyn FillSupplier>,
        world: Box<dyn Communicator>,
    ) -> Result<Worker, ParallelError> {
        let mut worker = Worker::dry(backend, job, fill, world)?;
        worker.staging.allocate();
        worker.chunks.iter_mut().for_each(Chunk::allocate_staging);
        Ok(worker)
    }

    /// Returns [`Worker::filled`] for a rank that is only inspected for its lists and bytes and runs no step: host memory for collectives is
    /// counted ([`Worker::staging_bytes`]) and not allocated.
    ///
    /// # Errors
    /// Same errors as [`Worker::filled`].
    pub fn dry(
        backend: &mut dyn Backend,
        job: &Job<'_>,
        fill: Option<&dyn FillSupplier>,
        world: Box<dyn Communicator>,
    ) -> Result<Worker, ParallelError> {
        let (plan, program) = (job.plan, job.program);
        plan.groups.check(plan, job.model)?;
        if job.optim.optimizer == OptimizerChoice::Kfac && !plan.groups.is_single() {
            return Err(ParallelError::Layout(
                "optim.optimizer = \"kfac\" with several groups of parameters, whose curvature would be summed over different ranks: \
                 wanted one group; take another optimizer"
                    .into(),
            ));
        }
        if job.optim.optimizer == OptimizerChoice::Kfac && job.model.experts.is_some() {
            return Err(ParallelError::Layout(
                "optim.optimizer = \"kfac\" with model.experts, whose curvature is that of no linear map of all rows; take another \
                 optimizer"
                    .into(),
            ));
        }
        let differ = |what: &str, wanted: usize, found: usize| {
            Err(ParallelError::Layout(format!("the plan is for {wanted} {what}, found {found}")))
        };
        if world.size() != plan.ranks() {
            return differ("ranks", plan.ranks(), world.size());
        }
        if program.ranks() != plan.pipeline() {
            return differ("pipeline ranks", plan.pipeline(), program.ranks());
        }
        let tied = job.model.tied_embeddings;
        if plan.pipe.asynchronous() && plan.pipeline() > 1 {
            refuse_asynchronous(job)?;
        }
        let watch = Stopwatch::new();
        let world = watch.wrap(world);
        let Groups { coord, world, pipeline, staging, chunks: groups } =
            Groups::new(world, plan, program, tied)?;
        let spans = plan.spans(job.model, program.stages)?;
        let places = places(job, &spans, coord.pipeline)?;
        crate::lengths::check(job, fill, places.len())?;
        let pools = slot_pools(job, &places, coord.pipeline);
        let Prepared { instructions, mut needs } = prepare(program, coord.pipeline, &pools)?;
        let placed = Fillers::place(fill, (coord.pipeline, &pools), &mut needs)?;
        refuse_unequal_visits(job)?;
        let mut chunks: Vec<Chunk> = Vec::with_capacity(places.len());
        for ((place, needs), groups) in places.into_iter().zip(&needs).zip(groups) {
            let pool = pools[chunks.len()];
            let beside = match chunks.get(pool) {
                Some(first) => Some((&first.decoder, SlotMemory::Shared)),
                // One that has layers, if there is one.
                None => {
                    let with_layers = chunks.iter().find(|c| !c.place.span.layers.is_empty());
                    with_layers.map(|c| (&c.decoder, SlotMemory::Own))
                }
            };
            chunks.push(Chunk::new(backend, job, coord, place, needs, (groups, &staging), beside)?);
        }
        if plan.pipeline() > 1 {
            // A rank's part of the stream.
            let all = job.shape.tokens() * job.model.width;
            staging.plan(1, job.activations.storage.dtype(), all.div_ceil(plan.stream_parts()));
        }
        let mut by_stage: Vec<usize> = (0..chunks.len()).collect();
        by_stage.sort_by_key(|c| chunks[*c].place.stage);
        let mut worker = Worker {
            tie: Tie::new(&chunks, &staging),
            by_stage,
            plan: plan.clone(),
            whole: job.model.clone(),
            program: program.clone(),
            step: Arc::default(),
            needs,
            evaluation: Arc::default(),
            pools,
            fillers: Fillers::default(),
            coord,
            world,
            pipeline,
            staging,
            chunks,
            spans,
            step_number: 0,
            updates_ahead: 0,
            loss_scale: 1.0,
            losses: job.losses.len(),
            squares: vec![0.0; plan.groups.list().len()],
            evaluated: Vec::new(),
            rank_losses: Vec::new(),
            loads: Vec::new(),
            of_experts: Vec::new(),
            control: ControlMessages::default(),
            offloading: None,
            watch,
            intervals: None,
        };
        worker.step = Arc::new(worker.expand(program, &instructions));
        let evaluation = prepare_evaluation(program, coord.pipeline, &worker.pools)?;
        worker.evaluation = Arc::new(worker.expand(program, &evaluation));
        for (program, instructions) in placed {
            let step = worker.expand(program, &instructions);
            worker.fillers.add(program, step);
        }
        worker.verify_step()?;
        if let Some(fill) = fill {
            worker.fillers.work = Some(fill.work(backend, job, coord.pipeline, &mut worker.chunks)?);
        }
        Ok(worker)
    }

    /// Gives the rank's model its teacher, whose operands the job's activations name ([`ActivationConfig::teacher`]).
    ///
    /// # Errors
    /// Another teacher than the job was made for.
    pub fn set_teacher(&mut self, teacher: Teacher) -> Result<(), ParallelError> {
        Ok(self.chunks[0].decoder.set_teacher(teacher)?)
    }

    /// The shares of the ranks.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The schedule.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Replaces the program by another of the same stages, which may take no more memory than the one that the worker was
    /// made for.
    ///
    /// # Errors
    /// A program that needs more memory.
    pub fn set_program(&mut self, program: &Program) -> Result<(), ParallelError> {
        let Prepared { instructions, needs } = prepare(program, self.coord.pipeline, &self.pools)?;
        let fits = program.routes == self.program.routes
            && needs.iter().zip(&self.needs).all(|(new, made)| new.fit(made));
        if !fits {
            return Err(ParallelError::Layout(format!(
                "schedule {:?} of {} micro-batches does not fit the memory of the one of {}",
                program.name,
                program.micro_batches(),
                self.program.micro_batches()
            )));
        }
        self.step = Arc::new(self.expand(program, &instructions));
        self.program = program.clone();
        Ok(())
    }

    /// Position of this rank on every axis.
    pub fn coord(&self) -> Coord {
        self.coord
    }

    /// Number of this rank.
    pub fn rank(&self) -> usize {
        self.world.rank()
    }

    /// The whole model.
    pub fn model(&self) -> &Model {
        &self.whole
    }

    /// The communicator of all ranks.
    pub fn world(&mut self) -> &mut dyn Communicator {
        &mut *self.world
    }

    /// This rank's tensor shard of the first stage that it holds. With stage "zero3" its parameters hold nothing lasting
    /// between passes.
    pub fn decoder(&self) -> &Decoder {
        &self.chunks[0].decoder
    }

    /// Plans of the layers of each stage of this rank under a budget of activations, by length of a micro-batch's sequences
    /// ([`Decoder::plans_by_length`]).
    pub fn plans_by_length(&self) -> Vec<LengthPlan> {
        self.chunks.iter().flat_map(|chunk| chunk.decoder.plans_by_length()).collect()
    }

    /// Elements of this rank's tensor shard that each rank of the shard axis steps: equal but for a remainder, or those of the
    /// owners of whole matrices.
    pub fn shares(&self) -> Vec<usize> {
        let units = || self.chunks.iter().flat_map(|c| c.units.list.iter().zip(&c.memory.parts));
        let part = |at: usize| {
            units().filter(|(unit, _)| unit.group == 0).map(move |(_, parts)| parts.range(at).len())
        };
        (0..self.plan.shards(0)).map(|rank| part(rank).sum()).collect()
    }

    /// Bytes of host memory in which values wait for collectives, or for copies to and from the second memory.
    pub fn staging_bytes(&self) -> u64 {
        let of_chunks = self.chunks.iter().map(Chunk::staging_bytes).sum::<u64>();
        self.staging.capacity_bytes() + of_chunks + self.offload_buffer_bytes()
    }

    /// Runs the program up to its first update: loss and gradients of every micro-batch. Gradients are then complete, over
    /// all ranks; the loss is this rank's part of it ([`Worker::sum_over_data`]).
    ///
    /// # Errors
    /// An error of the model, the source or another rank.
    pub fn gradients(
        &mut self,
        backend: &mut dyn Backend,
        feed: &mut dyn BatchSource,
    ) -> Result<LossSum, ParallelError> {
        self.forget_reloads();
        // Choices of evaluations do not count.
        self.take_shadows();
        let step = Arc::clone(self.step_at_hand());
        let mut updates = [Update::default()];
        let rule = UpdateRule::Global { t: 0, lr: 0.0, grad_norm: f64::NAN };
        let mut run = StepRun::new(feed, rule, &mut updates);
        self.run_nodes(backend, &step, step.program.gradients(), &mut run)?;
        Ok(updates[0].loss)
    }

    /// Multiplies the loss, and with it the gradients in memory, by `scale` from the next step on; norms and updates are those
    /// of the gradients without it. The same on every rank.
    pub fn set_loss_scale(&mut self, scale: f64) {
        self.loss_scale = scale;
        self.chunks.iter_mut().for_each(|c| c.optimizer.set_loss_scale(scale));
    }

    /// Sets how many updates the optimizer's state has seen before the run, and how many of the run's steps so far had their update skipped;
    /// 0 and 0 until it is called. Optimizer work that is due every few updates counts the updates, not the steps. The same on every rank.
    pub fn set_updates(&mut self, before: u64, skipped: u64) {
        self.updates_ahead = before as i64 - skipped as i64;
    }

    /// Global norm of the gradient, the same bits on every rank; not finite if a gradient of any rank is not.
    ///
    /// # Errors
    /// An error of the device or of another rank.
    pub fn grad_norm(&mut self, backend: &mut dyn Backend) -> Result<f64, ParallelError> {
        let step = Arc::clone(self.step_at_hand());
        let source = &mut NoBatches;
        let mut run = StepRun::of_norm(source);
        self.squares.fill(0.0);
        self.run_nodes(backend, &step, step.program.norm(), &mut run)?;
        Ok(self.take_squares().sqrt() / self.loss_scale)
    }

    /// A sum over the stages, added in the order of the ranks.
    pub(crate) fn sum_over_stages(&mut self, value: f64) -> Result<f64, ParallelError> {
        Ok(self.control.sum(&mut *self.pipeline.host()?, "norm of the gradient", value)?)
    }

    /// Runs the rest of the program: update `t`, counted from 1, with the norm that [`Worker::grad_norm`] found. Skipped
    /// steps do not count in `t`.
    ///
    /// # Errors
    /// An error of the optimizer or of another rank.
    pub fn apply(
        &mut self,
        backend: &mut dyn Backend,
        t: u64,
        lr: f64,
        grad_norm: f64,
    ) -> Result<StepStats, ParallelError> {
        let step = Arc::clone(self.step_at_hand());
        let source = &mut NoBatches;
        let mut run = StepRun::new(source, UpdateRule::Global { t, lr, grad_norm }, &mut []);
        self.run_nodes(backend, &step, step.program.updates(), &mut run)?;
        let stats = run.stats;
        self.end_filling(stats.skipped);
        Ok(stats)
    }

    /// Whether the size of an update is summed over the pipeline.
    pub(crate) fn sums_size(&self) -> bool {
        self.chunks.iter().any(|chunk| chunk.optimizer.sums_size())
    }

    /// Skips an update.
    pub fn skip(&mut self, grad_norm: f64) -> StepStats {
        let mut stats = StepStats { grad_norm, clip_factor: 0.0, skipped: true };
        if !self.fillers.are_amid_interval() {
            for chunk in &mut self.chunks {
                stats = chunk.optimizer.skip(grad_norm);
            }
        }
        self.end_filling(true);
        stats
    }

    /// Forgets the gradients of the batch at hand, and all that was made from it.
    pub fn discard(&mut self) {
        if let Some(work) = &mut self.fillers.work {
            work.discard();
        }
        self.chunks.iter_mut().for_each(|c| c.optimizer.discard());
    }

    /// A sum of losses over the ranks that made them, added in the order of data-parallel ranks; the same bits on every
    /// rank.
    ///
    /// # Errors
    /// An error of another rank.
    pub fn sum_over_data(&mut self, sum: LossSum) -> Result<LossSum, ParallelError> {
        if self.plan.ranks() == 1 {
            return Ok(sum);
        }
        let (mut numbers, words) = ([0; 2 + LossSum::MOST_AUXILIARY], 2 + self.losses);
        (numbers[0], numbers[1]) = (sum.nats.to_bits(), sum.scored);
        numbers[2..].iter_mut().zip(sum.auxiliary).for_each(|(bits, sum)| *bits = sum.to_bits());
        let all = self.control.gather(&mut *self.world, "losses", &numbers[..words])?;
        self.rank_losses.clear();
        self.rank_losses.extend_from_slice(all);
        let mut total = LossSum::default();
        for index in 0..self.plan.data_ranks() {
            for pipeline in 0..self.plan.pipeline() {
                let first = self.plan.data_coord(index, pipeline);
                for tensor in 0..self.plan.tensor() {
                    let rank = self.plan.rank(Coord { tensor, ..first });
                    let of = &all[rank * words..][..words];
                    let mut auxiliary = [0.0; LossSum::MOST_AUXILIARY];
                    auxiliary.iter_mut().zip(&of[2..]).for_each(|(sum, bits)| *sum = f64::from_bits(*bits));
                    // Ranks that share layers have the same token losses, and terms of the others.
                    total += match tensor {
                        0 => LossSum { nats: f64::from_bits(of[0]), scored: of[1], auxiliary },
                        _ => LossSum { auxiliary, ..LossSum::default() },
                    };
                }
            }
        }
        Ok(total)
    }

    /// Choices by the tokens of all forward passes of all ranks since this was called last. All ranks call this.
    ///
    /// # Errors
    /// An error of another rank.
    pub fn sum_loads(&mut self) -> Result<ExpertLoads<'_>, ParallelError> {
        self.own_loads();
        if !self.loads.is_empty() && self.plan.ranks() > 1 {
            self.world.all_reduce("loads of experts", &mut self.loads[..], Reduce::Sum)?;
        }
        Ok(self.expert_loads())
    }

    fn expert_loads(&self) -> ExpertLoads<'_> {
        let experts = self.whole.experts.map_or(0, |experts| experts.count);
        let (loads, shadows) = match (self.plan.shadowing, self.loads.split_last_chunk()) {
            (Some(_), Some((loads, shadows))) => (loads, Some(*shadows)),
            _ => (&self.loads[..], None),
        };
        let (choices, drops) = loads.split_at((self.whole.layers * experts).min(loads.len()));
        ExpertLoads { choices, dropped_and_kept: drops.as_chunks().0, shadows }
    }

    /// [`Worker::sum_loads`] by the passes of this rank alone.
    pub fn own_loads(&mut self) -> ExpertLoads<'_> {
        let experts = self.whole.experts.map_or(0, |experts| experts.count);
        self.loads.clear();
        let (all, drops) = (self.whole.layers * experts, if experts > 0 { 2 } else { 0 });
        self.loads.resize(all + self.whole.layers * drops, 0);
        for chunk in &mut self.chunks {
            chunk.decoder.take_loads(&mut |layer, counts| {
                let here = self.whole.experts_of(layer).map_or(0, |experts| experts.count);
                let (of_experts, of_drops) = counts.split_at(here.min(counts.len()));
                let mut add = |at: usize, counts: &[u32]| {
                    let sums = self.loads[at..].iter_mut();
                    sums.zip(counts).for_each(|(sum, count)| *sum = sum.saturating_add(*count));
                };
                add(layer * experts, of_experts);
                add(all + layer * drops, of_drops);
            });
        }
        if self.plan.shadowing.is_some() {
            let shadows = self.take_shadows();
            self.loads.extend(shadows);
        }
        self.expert_loads()
    }

    /// The first layer whose router has computed values that are not finite in the passes since the last call, as far as this rank
    /// has processed them.
    pub fn take_router_not_finite(&mut self) -> Option<usize> {
        self.chunks.iter_mut().filter_map(|chunk| chunk.decoder.take_router_not_finite()).min()
    }

    /// The first of such layers of all ranks. All ranks call this.
    ///
    /// # Errors
    /// An error of another rank.
    pub fn first_router_not_finite(&mut self, here: Option<usize>) -> Result<Option<usize>, ParallelError> {
        let word = here.map_or(u64::MAX, |layer| layer as u64);
        let first = self.gather_numbers("routers that are not finite", &[word])?.into_iter().min();
        Ok(first.filter(|layer| *layer != u64::MAX).map(|layer| layer as usize))
    }

    fn take_shadows(&mut self) -> [u32; 2] {
        let add = |[a, b]: [u32; 2], [c, d]: [u32; 2]| [a + c, b + d];
        self.chunks.iter_mut().map(|chunk| chunk.tensor.take_shadows()).fold([0; 2], add)
    }

    /// Sets the routing state from the loads of experts ([`ParamRole::is_routing_state`]), as [`Worker::sum_loads`] has summed them last, after an
    /// update: loads as multiples of their mean, and corrections, each moved by `rate` against the deviation of its expert's load from the
    /// mean (DeepSeek-V3, arXiv 2412.19437, section 2.1.2). Returns the largest difference between two corrections of a layer of this rank,
    /// if experts have any.
    ///
    /// # Errors
    /// The backend's.
    pub fn set_routing_state(
        &mut self,
        backend: &mut dyn Backend,
        rate: f32,
    ) -> Result<Option<f64>, ParallelError> {
        let most = self.whole.experts.map_or(0, |experts| experts.count);
        let mut range = None;
        for chunk in &self.chunks {
            for param in chunk.decoder.params() {
                let role = param.spec.id.role();
                let (true, Unit::Layer(layer)) = (role.is_routing_state(), param.spec.id.unit()) else {
                    continue;
                };
                let experts = self.whole.experts_of(layer).map_or(0, |experts| experts.count);
                let loads = self.loads.get(layer * most..layer * most + experts).unwrap_or_default();
                let mean = loads.iter().map(|load| f64::from(*load)).sum::<f64>() / experts.max(1) as f64;
                if mean == 0.0 {
                    continue;
                }
                self.of_experts.resize(experts, 0.0);
                backend.read_f32(param.value, &mut self.of_experts)?;
                for (value, load) in self.of_experts.iter_mut().zip(loads) {
                    let load = f64::from(*load);
                    *value = match role == ParamRole::RouterLoads {
                        true => (load / mean) as f32,
                        false if load == mean => *value,
                        false if load < mean => *value + rate,
                        false => *value - rate,
                    };
                }
                backend.write_f32(param.value, &self.of_experts)?;
                if role != ParamRole::RouterLoads {
                    let values = || self.of_experts.iter().map(|value| f64::from(*value));
                    let of_layer = values().fold(f64::MIN, f64::max) - values().fold(f64::MAX, f64::min);
                    range = Some(of_layer.max(range.unwrap_or(0.0)));
                }
            }
        }
        Ok(range)
    }

    /// The largest of a number, not negative, that some ranks have. All ranks call this.
    ///
    /// # Errors
    /// An error of another rank.
    pub fn largest(&mut self, name: &str, here: Option<f64>) -> Result<Option<f64>, ParallelError> {
        if self.plan.ranks() == 1 {
            return Ok(here);
        }
        let bits = here.map_or(u64::MAX, f64::to_bits);
        let all = self.gather_numbers(name, &[bits])?;
        let some = all.into_iter().filter(|bits| *bits != u64::MAX).map(f64::from_bits);
        Ok(some.reduce(f64::max))
    }

    /// Bits of every rank's part of the loss that [`Worker::sum_over_data`] summed last, by rank. Nothing of a job of one rank.
    pub fn rank_losses(&self) -> impl ExactSizeIterator<Item = &[u64]> {
        self.rank_losses.chunks_exact((self.rank_losses.len() / self.plan.ranks()).max(1))
    }

    /// Returns rank 0's `word` on every rank; the words of other ranks are ignored.
    ///
    /// # Errors
    /// An error of another rank.
    pub fn broadcast_from_root(&mut self, name: &str, word: u64) -> Result<u64, ParallelError> {
        if self.plan.ranks() == 1 {
            return Ok(word);
        }
        Ok(self.control.gather(&mut *self.world, name, &[word])?[0])
    }

    /// Returns on every rank whether `yes` is true on any rank.
    ///
    /// # Errors
    /// The collective's, if another rank has failed or does not come.
    pub fn any(&mut self, name: &str, yes: bool) -> Result<bool, ParallelError> {
        AnyRank { control: &mut self.control, world: &mut *self.world }.any(name, yes)
    }

    /// Returns on every rank whether all ranks give the same number.
    ///
    /// # Errors
    /// The errors of [`Worker::any`].
    pub fn same_on_all(&mut self, name: &str, number: u64) -> Result<bool, ParallelError> {
        let numbers = self.control.gather(&mut *self.world, name, &[number])?;
        Ok(numbers.iter().all(|other| *other == number))
    }

    /// Returns on every rank the bits that are set in the word of any rank.
    ///
    /// # Errors
    /// The errors of [`Worker::any`].
    pub fn or_over_ranks(&mut self, name: &str, word: u64) -> Result<u64, ParallelError> {
        let words = self.control.gather(&mut *self.world, name, &[word])?;
        Ok(words.iter().fold(0, |all, word| all | word))
    }
}

/// Refuses settings that an asynchronous schedule cannot have.
fn refuse_asynchronous(job: &Job<'_>) -> Result<(), ParallelError> {
    let name = &job.program.name;
    if job.plan.experts() > 1 {
        return Err(ParallelError::Layout(format!(
            "schedule {name:?} lets stages step on their own, and ranks with parallel.experts = {} exchange rows in every pass: use a \
             schedule with a flush such as \"1f1b\", or parallel.experts = 1",
            job.plan.experts()
        )));
    }
    if job.model.tied_embeddings && job.program.stages > 1 {
        return Err(ParallelError::Layout(format!(
            "schedule {name:?} updates each stage separately, and the first and the last stage share the \
             token table (model.tied_embeddings): set model.tied_embeddings = false, or use a schedule with \
             a flush such as \"1f1b\""
        )));
    }
    if job.optim.clip > 0.0 {
        return Err(ParallelError::Layout(format!(
            "schedule {name:?} updates a stage before the others are done, and optim.clip = {} needs the \
             gradient norm over all stages: set optim.clip = 0, or use a schedule with a flush such as \
             \"1f1b\"",
            job.optim.clip
        )));
    }
    Ok(())
}

/// Refuses a program whose holders of a stage process unequally many micro-batches, where K-FAC takes the mean of their curvature.
fn refuse_unequal_visits(job: &Job<'_>) -> Result<(), ParallelError> {
    let program = job.program;
    if job.optim.optimizer != OptimizerChoice::Kfac {
        return Ok(());
    }
    for stage in 0..program.stages {
        let visits = |place: &Place| {
            (0..program.micro_batches()).filter(|micro| program.place(*micro, stage) == *place).count()
        };
        let counts: Vec<usize> = program.holders(stage).iter().map(visits).collect();
        if counts.iter().any(|count| *count != counts[0]) {
            return Err(ParallelError::Layout(format!(
                "optim.optimizer = \"kfac\" with schedule {:?}, whose holders of stage {stage} see {counts:?} micro-batches: wanted \
                 equally many, because their curvature is averaged; change train.micro_batch or train.batch_tokens, or the file",
                program.name
            )));
        }
    }
    Ok(())
}

/// Returns the pass's result, or the collective's error if one failed during the pass.
pub(crate) fn pass_result<T>(
    result: Result<T, ModelError>,
    failed: Option<bessemer_collectives::CollectiveError>,
) -> Result<T, ParallelError> {
    match (result, failed) {
        (Ok(value), _) => Ok(value),
        (Err(_), Some(failed)) => Err(failed.into()),
        (Err(e), None) => Err(e.into()),
    }
}

pub(crate) fn parallel_error<T>(result: Result<T, ExchangeError>) -> Result<T, ParallelError> {
    result.map_err(|e| match e {
        ExchangeError::Collective(e) => e.into(),
        ExchangeError::Tensor(e) => e.into(),
    })
}
