//! Runs the list of a step: one walker over its nodes.
//!
//! | section of the list | nodes |
//! |---|---|
//! | [`RankProgram::gradients`](bessemer_program::RankProgram::gradients) | passes with their messages; transfers of parameters and gradients; tied tables |
//! | [`RankProgram::norm`](bessemer_program::RankProgram::norm) | squares of the gradients, summed over the ranks; the caller decides on the update |
//! | [`RankProgram::updates`](bessemer_program::RankProgram::updates) | updates, and gathers of updated parameters |
//!
//! A schedule that updates while micro-batches are in flight has no such sections: its list runs as a whole
//! ([`Worker::window`]). Nodes run in the order of the list. The verifier has checked the same list
//! ([`bessemer_program::verify_step`]).

use crate::chunk::Chunk;
use crate::error::ParallelError;
use crate::messages;
use crate::notes::OrderSpan;
use crate::operands::GradientPass;
use crate::ranks::UnitRanks;
use crate::steps::RankStep;
use crate::window::Update;
use crate::worker::{BatchSource, Worker, parallel_error, pass_result};
use bessemer_optim::StepStats;
use bessemer_program::{Action, Hand, Message, NormGroup, Pass, Phase, Stream};
use bessemer_runtime::{Accumulate, BackwardPart, LossSum, ModelError, StepContext, TokenBatch};
use bessemer_tensor::op::{Copy, Op};
use bessemer_tensor::{Backend, Stream as DeviceStream, View};
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

/// The source of one batch that is evaluated between steps.
struct OneBatch<'a> {
    batch: &'a TokenBatch<'a>,
    /// Tokens of a sequence.
    length: usize,
    per_token: Option<&'a mut [f32]>,
}

impl BatchSource for OneBatch<'_> {
    fn micro_batch(&mut self, micro: usize) -> Result<(TokenBatch<'_>, StepContext), ParallelError> {
        let problem = "the batch is evaluated and not trained on".into();
        Err(ParallelError::BatchSource { micro, problem })
    }

    fn evaluation_length(&mut self, _: usize) -> Option<usize> {
        Some(self.length)
    }

    fn evaluation(&mut self, _: usize) -> Result<TokenBatch<'_>, ParallelError> {
        Ok(*self.batch)
    }

    fn evaluated(&mut self, _: usize, losses: &[f32]) {
        if let Some(per_token) = &mut self.per_token {
            let tokens = per_token.len();
            per_token.copy_from_slice(&losses[..tokens]);
        }
    }
}

/// The source of nodes that read no batch.
pub(crate) struct NoBatches;

impl BatchSource for NoBatches {
    fn micro_batch(&mut self, micro: usize) -> Result<(TokenBatch<'_>, StepContext), ParallelError> {
        let problem = "the step has no passes after its norm".into();
        Err(ParallelError::BatchSource { micro, problem })
    }
}

/// Rule by which updates are applied or skipped.
pub(crate) enum UpdateRule<'a> {
    /// The norm of the gradients of all chunks and ranks, which is not finite if the update is skipped. Update `t`, from 1.
    Global { t: u64, lr: f64, grad_norm: f64 },
    /// Each chunk's own norm. The first update is number `t`, from 1; `rate` gives the learning rate of an update.
    Alone { t: u64, rate: &'a dyn Fn(u64) -> f64 },
}

/// Inputs and results of nodes while they run.
pub(crate) struct StepRun<'a> {
    pub(crate) source: &'a mut dyn BatchSource,
    pub(crate) rule: UpdateRule<'a>,
    /// Indexed by update: the losses of this rank, and the outcome of the update.
    pub(crate) updates: &'a mut [Update],
    /// Loss of batches that were evaluated.
    pub(crate) evaluated: LossSum,
    /// Sum of the terms of the size of the update.
    size: f64,
    /// The newest update.
    pub(crate) stats: StepStats,
}

impl<'a> StepRun<'a> {
    pub(crate) fn new(
        source: &'a mut dyn BatchSource,
        rule: UpdateRule<'a>,
        updates: &'a mut [Update],
    ) -> StepRun<'a> {
        let grad_norm = if let UpdateRule::Global { grad_norm, .. } = rule { grad_norm } else { 0.0 };
        let stats = StepStats { grad_norm, clip_factor: 0.0, skipped: true };
        StepRun { source, rule, updates, evaluated: LossSum::default(), size: 0.0, stats }
    }

    /// A run of nodes that neither read batches nor update.
    pub(crate) fn of_norm(source: &'a mut NoBatches) -> StepRun<'a> {
        StepRun::new(source, UpdateRule::Global { t: 0, lr: 0.0, grad_norm: f64::NAN }, &mut [])
    }

    /// The gradients are not finite: nothing is made of them.
    fn skips(&self) -> bool {
        matches!(self.rule, UpdateRule::Global { grad_norm, .. } if !grad_norm.is_finite())
    }
}

impl Worker {
    /// The step at hand.
    pub(crate) fn step_at_hand(&self) -> &Arc<RankStep> {
        self.fillers.step_at_hand().unwrap_or(&self.step)
    }

    /// Runs some nodes of a step, in order.
    pub(crate) fn run_nodes(
        &mut self,
        backend: &mut dyn Backend,
        step: &RankStep,
        range: Range<usize>,
        run: &mut StepRun<'_>,
    ) -> Result<(), ParallelError> {
        let mut begun = self.intervals.is_some().then(Instant::now);
        for at in range.clone() {
            self.run_node(backend, step, at, run)?;
            if let Some(start) = begun {
                let instruction = step.instruction(at);
                if at + 1 == range.end || step.instruction(at + 1) != instruction {
                    let (name, end) = (step.instructions[instruction].name.clone(), Instant::now());
                    self.intervals
                        .iter_mut()
                        .for_each(|all| all.push(OrderSpan { name: name.clone(), start, end }));
                    begun = Some(end);
                }
            }
        }
        Ok(())
    }

    fn run_node(
        &mut self,
        backend: &mut dyn Backend,
        step: &RankStep,
        at: usize,
        run: &mut StepRun<'_>,
    ) -> Result<(), ParallelError> {
        let node = &step.program.nodes[at];
        let number = node.chunk;
        match &node.action {
            Action::Begin(pass) => self.begin(backend, step, at, pass, run)?,
            Action::Unit { unit, pass } => self.unit(backend, number, *unit, pass)?,
            Action::End(pass) => self.end(backend, step, at, pass, run)?,
            // Parameters that were not updated are whole.
            Action::Start(_) | Action::Wait(_) if at >= step.updates_from && run.stats.skipped => {}
            Action::Complete(flats) => parallel_error(self.chunks[number].tensor.complete(backend, flats))?,
            Action::Start(transfer) => {
                parallel_error(self.chunks[number].exchange.start(backend, *transfer))?
            }
            Action::Wait(transfer) => parallel_error(self.chunks[number].exchange.wait(backend, *transfer))?,
            Action::Add(flat) => {
                let op = parallel_error(self.chunks[number].exchange.addition(*flat).map_err(Into::into))?;
                backend.launch(DeviceStream::Compute, &op)?;
            }
            Action::Send(message) => self.send(backend, number, message)?,
            Action::Receive(message) => self.receive(backend, step, number, message, run)?,
            Action::Hand(hand) => self.hand(backend, step, number, hand, run)?,
            Action::Tie => parallel_error(self.tie.add_up(backend, &mut self.chunks))?,
            // The caller of [`Worker::gradients`] sums them ([`Worker::sum_over_data`]), as it keeps the loss.
            Action::Losses => {}
            Action::Squares => self.chunks[number].squares.add_to(backend, &mut self.squares)?,
            Action::SumSquares(group) => self.sum_squares(number, *group)?,
            Action::Prepare => self.prepare_update(backend, number, run)?,
            Action::SumSize if run.skips() => {}
            Action::SumSize => {
                run.size = self.control.sum(&mut *self.pipeline.host()?, "size of the step", run.size)?;
            }
            Action::Update { update, keep, .. } => self.update(backend, number, *update, *keep, run)?,
            // Skips fillers if the gradients are not finite.
            Action::Filler(filler) if filler.update && run.skips() => {}
            Action::Filler(filler) => self.fill(backend, step.fills[filler.work])?,
        }
        Ok(())
    }

    /// The stream that is written to a slot next is that of a micro-batch of the program, or of an evaluated batch.
    fn expect_stream(
        &mut self,
        step: &RankStep,
        chunk: usize,
        slot: usize,
        micro: usize,
        source: &mut dyn BatchSource,
    ) -> Result<(), ParallelError> {
        let length = match micro.checked_sub(step.micro_batches) {
            None => source.length(micro)?,
            Some(unit) => source.evaluation_length(unit),
        };
        let decoder = &mut self.chunks[chunk].decoder;
        let seq = length.unwrap_or(decoder.shape().seq);
        Ok(decoder.stage_length(slot, seq)?)
    }

    fn begin(
        &mut self,
        backend: &mut dyn Backend,
        step: &RankStep,
        at: usize,
        pass: &Pass,
        run: &mut StepRun<'_>,
    ) -> Result<(), ParallelError> {
        let number = step.program.nodes[at].chunk;
        self.begin_reloads(step, at)?;
        let chunk = &mut self.chunks[number];
        chunk.stash.read(&mut chunk.decoder, pass.kept)?;
        let decoder = &mut chunk.decoder;
        let slot = pass.slot.unwrap_or_default();
        let adds = Accumulate { input: pass.adds.input, weight: pass.adds.weight };
        let begun = match pass.phase {
            Phase::Forward => {
                decoder.stage_scored_share(slot, run.source.scored_share(pass.micro))?;
                decoder.stage_weigh_targets(run.source.target_weights(pass.micro));
                let (batch, ctx) = run.source.micro_batch(pass.micro)?;
                self.step_number = ctx.step;
                let loss_scale = (f64::from(ctx.loss_scale) * self.loss_scale) as f32;
                decoder.begin_forward(backend, slot, &batch, Some(&StepContext { loss_scale, ..ctx }))?
            }
            Phase::Score => {
                decoder.stage_weigh_targets(None);
                let batch = run.source.evaluation(pass.micro - step.micro_batches)?;
                decoder.begin_forward(backend, slot, &batch, None)?
            }
            Phase::Backward => decoder.begin_backward(backend, slot, adds, BackwardPart::Whole)?,
            Phase::BackwardInput => decoder.begin_backward(backend, slot, adds, BackwardPart::Input)?,
            Phase::BackwardWeight => {
                let pending = chunk.pending.remove(&pass.micro).ok_or_else(|| {
                    let micro = pass.micro;
                    ModelError::Stage(format!(
                        "the weight part of micro-batch {micro} comes before its input part"
                    ))
                })?;
                decoder.begin_weight(pending, pass.adds.weight)?
            }
        };
        chunk.running = Some(begun);
        Ok(())
    }

    fn unit(
        &mut self,
        backend: &mut dyn Backend,
        number: usize,
        unit: usize,
        pass: &Pass,
    ) -> Result<(), ParallelError> {
        let update = (self.step_number + 1).saturating_add_signed(self.updates_ahead);
        let Chunk { decoder, tensor, operands, optimizer, running, .. } = &mut self.chunks[number];
        let Some(running) = running else {
            return Err(ParallelError::Layout(format!(
                "unit {unit} of chunk {number} runs outside of a pass"
            )));
        };
        let makes_matrices = matches!(pass.phase, Phase::Backward | Phase::BackwardWeight);
        let reads = GradientPass { chunk: number, micro: pass.micro, update, add: !pass.begins };
        let work = &mut self.fillers.work;
        let mut ranks = UnitRanks {
            tensor,
            reader: if makes_matrices { operands.reader(optimizer, work, reads) } else { None },
            offload: match pass.phase {
                Phase::Score => None,
                _ => self.offloading.as_mut().map(|offloading| offloading.of_pass(number)),
            },
            failed: None,
        };
        let result = decoder.run_unit(backend, &mut ranks, unit, running);
        pass_result(result, ranks.failed)
    }

    fn end(
        &mut self,
        backend: &mut dyn Backend,
        step: &RankStep,
        at: usize,
        pass: &Pass,
        run: &mut StepRun<'_>,
    ) -> Result<(), ParallelError> {
        let chunk = &mut self.chunks[step.program.nodes[at].chunk];
        let Some(running) = chunk.running.take() else {
            return Err(ParallelError::Layout(format!(
                "a pass of micro-batch {} ends and has not begun",
                pass.micro
            )));
        };
        if let Some(pending) = chunk.decoder.end_pass(&running) {
            chunk.pending.insert(pass.micro, pending);
        }
        match pass.phase {
            Phase::BackwardWeight => {}
            Phase::Forward | Phase::Backward | Phase::BackwardInput => {
                let loss = chunk.decoder.pass_loss(backend, &running, None)?;
                run.updates[pass.update].loss += loss.unwrap_or_default();
            }
            Phase::Score => {
                self.evaluated.resize(chunk.decoder.shape().tokens(), 0.0);
                let loss = chunk.decoder.pass_loss(backend, &running, Some(&mut self.evaluated))?;
                chunk.decoder.stage_release(pass.slot.unwrap_or_default())?;
                if let Some(loss) = loss {
                    run.evaluated += loss;
                    run.source.evaluated(pass.micro - step.micro_batches, &self.evaluated);
                }
            }
        }
        self.plan_next_reloads(step, at)
    }

    fn send(
        &mut self,
        backend: &mut dyn Backend,
        number: usize,
        message: &Message,
    ) -> Result<(), ParallelError> {
        let view = self.chunks[number].outgoing(message.stream, message.slot)?;
        parallel_error(messages::send(backend, &mut *self.pipeline, message, view))
    }

    fn receive(
        &mut self,
        backend: &mut dyn Backend,
        step: &RankStep,
        number: usize,
        message: &Message,
        run: &mut StepRun<'_>,
    ) -> Result<(), ParallelError> {
        if message.stream == Stream::Values {
            self.expect_stream(step, number, message.slot, message.micro, run.source)?;
        }
        let view = self.chunks[number].incoming(message.stream, message.slot)?;
        parallel_error(messages::receive(backend, &mut *self.pipeline, message, view))
    }

    fn hand(
        &mut self,
        backend: &mut dyn Backend,
        step: &RankStep,
        number: usize,
        hand: &Hand,
        run: &mut StepRun<'_>,
    ) -> Result<(), ParallelError> {
        if hand.stream == Stream::Values {
            self.expect_stream(step, hand.to, hand.to_slot, hand.micro, run.source)?;
        }
        copy(backend, self.handed(number, hand)?)
    }

    /// The copy from one chunk of this rank to another.
    pub(crate) fn handed(&self, from: usize, hand: &Hand) -> Result<Copy, ModelError> {
        let src = self.chunks[from].outgoing(hand.stream, hand.slot)?;
        let dst = self.chunks[hand.to].incoming(hand.stream, hand.to_slot)?;
        Ok(Copy { src, dst })
    }

    fn sum_squares(&mut self, number: usize, group: NormGroup) -> Result<(), ParallelError> {
        let name = "norm of the gradient";
        if let NormGroup::Shard(group) = group {
            let mut shard = self.chunks[number].exchange.group(group).shard.host()?;
            self.squares[group] = self.control.sum(&mut *shard, name, self.squares[group])?;
            return Ok(());
        }
        if let NormGroup::Experts(group) = group {
            if let Some(mut experts) = self.chunks[number].tensor.expert_ranks()? {
                self.squares[group] = self.control.sum(&mut *experts, name, self.squares[group])?;
            }
            return Ok(());
        }
        // From here on the first sum is that of all groups.
        let sum = self.take_squares();
        self.squares[0] = match group {
            NormGroup::Layers => self.control.sum(&mut *self.chunks[number].tensor.idle()?, name, sum)?,
            _ => self.sum_over_stages(sum)?,
        };
        Ok(())
    }

    /// The sum of squares of all groups of parameters, which are zero after it.
    pub(crate) fn take_squares(&mut self) -> f64 {
        self.squares.iter_mut().map(std::mem::take).sum()
    }

    /// Prepares the update of a chunk. Of mirrored holders one counts in the size of the update.
    fn prepare_update(
        &mut self,
        backend: &mut dyn Backend,
        number: usize,
        run: &mut StepRun<'_>,
    ) -> Result<(), ParallelError> {
        let UpdateRule::Global { t, .. } = run.rule else { return Ok(()) };
        // Work over several steps that rests on the state of the optimizer keeps it.
        if run.skips() {
            return Ok(());
        }
        let chunk = &mut self.chunks[number];
        let term = chunk.with_peers(|optimizer, peers| optimizer.prepare(backend, peers, t))?;
        run.size += if chunk.place.first_holder { term } else { 0.0 };
        Ok(())
    }

    fn update(
        &mut self,
        backend: &mut dyn Backend,
        number: usize,
        update: usize,
        keep: Option<usize>,
        run: &mut StepRun<'_>,
    ) -> Result<(), ParallelError> {
        let amid_interval = self.fillers.are_amid_interval();
        let chunk = &mut self.chunks[number];
        match run.rule {
            UpdateRule::Global { .. } if run.skips() && amid_interval => {}
            UpdateRule::Global { t, lr, grad_norm } => {
                run.stats = chunk.step(backend, (t, lr), grad_norm, run.size)?;
            }
            UpdateRule::Alone { t, rate } => {
                let squares = self.take_squares() / self.loss_scale.powi(2);
                let chunk = &mut self.chunks[number];
                if let Some(keep) = keep {
                    chunk.stash.keep(backend, &chunk.memory, keep)?;
                }
                let t = t + update as u64;
                run.stats = chunk.step(backend, (t, rate(t)), squares.sqrt(), 0.0)?;
                run.updates[update].squares += squares;
                run.updates[update].skipped += usize::from(run.stats.skipped);
            }
        }
        Ok(())
    }

    /// Loss of one batch of this rank, of one of the lengths of the job, without dropout, through all stages. The loss, and `per_token` if given, are
    /// returned on the rank that has the head ([`Worker::has_losses`]).
    ///
    /// # Errors
    /// An error of the model or of another rank.
    pub fn loss(
        &mut self,
        backend: &mut dyn Backend,
        batch: &TokenBatch<'_>,
        per_token: Option<&mut [f32]>,
    ) -> Result<LossSum, ParallelError> {
        let step = Arc::clone(&self.evaluation);
        let length = batch.ids.len() / self.chunks[0].decoder.shape().sequences;
        let mut source = OneBatch { batch, length, per_token };
        let rule = UpdateRule::Global { t: 0, lr: 0.0, grad_norm: f64::NAN };
        let mut run = StepRun::new(&mut source, rule, &mut []);
        self.run_nodes(backend, &step, 0..step.program.nodes.len(), &mut run)?;
        Ok(run.evaluated)
    }

    /// Whether the rank at `pipeline` has the losses of evaluated batches.
    pub fn has_losses(&self, pipeline: usize) -> bool {
        self.program.routes[0].last().is_some_and(|p| p.rank == pipeline)
    }
}

impl Chunk {
    /// Memory of a part of the residual stream that leaves the chunk.
    fn outgoing(&self, stream: Stream, slot: usize) -> Result<View, ModelError> {
        match stream {
            Stream::Values => self.decoder.stage_output(slot),
            Stream::Gradient => self.decoder.stage_input_gradient(slot),
        }
    }

    /// Memory of a part of the residual stream that enters the chunk.
    fn incoming(&self, stream: Stream, slot: usize) -> Result<View, ModelError> {
        match stream {
            Stream::Values => self.decoder.stage_input(slot),
            Stream::Gradient => self.decoder.stage_output_gradient(slot),
        }
    }

    /// Whether gradients are reduced during the last backward pass. Those of a stage with mirrored holders wait for the schedule's
    /// reduction, because the mirror may finish its passes much later.
    pub(crate) fn leaves_early(&self) -> bool {
        !self.place.mirrored
    }

    /// Whether gradients are reduced where the schedule has its reduction, and not in passes.
    pub(crate) fn leaves_late(&self) -> bool {
        !self.settles && !self.leaves_early()
    }
}

fn copy(backend: &mut dyn Backend, copy: Copy) -> Result<(), ParallelError> {
    Ok(backend.launch(DeviceStream::Compute, &Op::from(copy))?)
}
