//! Running a program: one loop over the orders of a rank.
//!
//! ```text
//! next order ─► Receive    wait, put it into the slot
//!              Forward     (the stage before is here: copy its output) run, the slot is taken
//!              Backward    run, (the stage before is here: copy the gradient to it); the last one sends gradients on their way
//!              Send        copy, hand over
//!              Reduce      gradients that are not under way yet are sent on their way
//!              ─ first Step: every chunk's gradients are waited for, tied tables added up, the caller judges ─
//!              Step, Gather
//! ```
//! What must never happen: an order is run in another place than where it stands; a slot is written while something in it
//! is needed ([`crate::prepare`]); a rank waits for a message or a collective that another one makes only after it.

use crate::chunk::Chunk;
use crate::error::ParallelError;
use crate::fill::FillerWork;
use crate::notes::OrderSpan;
use crate::offload::PassOffload;
use crate::operands::GradientPass;
use crate::prepare::{EvaluationPass, ExecOp, Onward, Run, Slot, StreamMessage, Writes};
use crate::ranks::PassRanks;
use crate::worker::{BatchSource, Worker, parallel_error, pass_result};
use bessemer_model::{Accumulate, Decoder, LossSum, ModelError, StepContext, TokenBatch};
use bessemer_optim::StepStats;
use bessemer_program::{GradientTraffic, Phase};
use bessemer_schedule::Flow;
use bessemer_tensor::op::{Copy, Op};
use bessemer_tensor::{Backend, Stream, View};
use std::time::Instant;

/// Part of a backward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Whole,
    Input,
    Weight,
}

/// The source of one batch that is evaluated between steps.
struct OneBatch<'a> {
    batch: &'a TokenBatch<'a>,
    per_token: Option<&'a mut [f32]>,
}

impl BatchSource for OneBatch<'_> {
    fn micro_batch(&mut self, micro: usize) -> Result<(TokenBatch<'_>, StepContext), ParallelError> {
        let problem = "the batch is evaluated and not trained on".into();
        Err(ParallelError::BatchSource { micro, problem })
    }

    fn evaluation(&mut self, _: usize) -> Result<TokenBatch<'_>, ParallelError> {
        Ok(*self.batch)
    }

    fn evaluated(&mut self, _: usize, losses: &[f32]) {
        if let Some(per_token) = &mut self.per_token {
            per_token.copy_from_slice(losses);
        }
    }
}

/// A pass of a chunk.
#[derive(Debug, Clone, Copy)]
struct ChunkPass {
    phase: Phase,
    traffic: GradientTraffic,
    /// The backward pass whose operands may be read.
    reads: Option<GradientPass>,
}

impl ChunkPass {
    /// A pass that makes no gradients.
    fn of(phase: Phase) -> ChunkPass {
        ChunkPass { phase, traffic: GradientTraffic::Stay, reads: None }
    }
}

impl Worker {
    /// Runs every instruction up to the first update; returns the sum of this rank's losses.
    pub(crate) fn run_passes(
        &mut self,
        backend: &mut dyn Backend,
        feed: &mut dyn BatchSource,
    ) -> Result<LossSum, ParallelError> {
        let mut sum = LossSum::default();
        self.next = 0;
        self.forget_reloads();
        while let Some(&order) = self.ops().get(self.next) {
            if is_update(&order) {
                break;
            }
            sum += self.run_pass(backend, feed, order)?;
            self.next += 1;
        }
        Ok(sum)
    }

    /// Runs an instruction that is no update; returns what it adds to this rank's losses.
    pub(crate) fn run_pass(
        &mut self,
        backend: &mut dyn Backend,
        feed: &mut dyn BatchSource,
        order: ExecOp,
    ) -> Result<LossSum, ParallelError> {
        let begun = self.intervals.is_some().then(Instant::now);
        let mut sum = LossSum::default();
        self.begin_reloads(&order)?;
        match order {
            ExecOp::Forward { run, from } => {
                if from.is_some() {
                    self.takes_stream_of(Slot { chunk: run.chunk, slot: run.slot }, feed.length(run.micro)?)?;
                }
                let (batch, ctx) = feed.micro_batch(run.micro)?;
                self.forward(backend, run, from, &batch, &ctx)?;
            }
            ExecOp::Backward { run, split, writes, to } => {
                let part = if split { Part::Input } else { Part::Whole };
                sum = self.backward(backend, run, part, writes, to)?.unwrap_or_default();
            }
            ExecOp::Weight { run, writes } => {
                self.backward(backend, run, Part::Weight, writes, None)?;
            }
            ExecOp::Send(message) => self.send(backend, &message)?,
            ExecOp::Receive(message) => {
                if message.flow == Flow::Activation {
                    self.takes_stream_of(message.at, feed.length(message.micro)?)?;
                }
                self.receive(backend, &message)?;
            }
            ExecOp::Reduce { chunk, .. } => {
                let chunk = &mut self.chunks[chunk];
                if chunk.leaves_late() {
                    parallel_error(chunk.transfers(backend, |lists| &lists.reduce))?;
                }
            }
            ExecOp::Evaluate(pass) => {
                self.evaluate(backend, feed, &pass)?;
            }
            ExecOp::Fill(fill) => self.fill(backend, fill)?,
            ExecOp::Gather { .. } | ExecOp::Step { .. } => {}
        }
        self.plan_next_reloads(&order)?;
        self.note(begun, &order);
        Ok(sum)
    }

    /// The stream that is written to a slot next is that of sequences of `seq` tokens; none: of the longest.
    fn takes_stream_of(&mut self, at: Slot, seq: Option<usize>) -> Result<(), ParallelError> {
        let decoder = &mut self.chunks[at.chunk].decoder;
        let seq = seq.unwrap_or(decoder.shape().seq);
        Ok(decoder.stage_length(at.slot, seq)?)
    }

    /// The instructions of the step at hand.
    pub(crate) fn ops(&self) -> &[ExecOp] {
        self.fillers.ops().unwrap_or(&self.prepared.ops)
    }

    /// Completes the gradients of all chunks, and sums the two terms of tied tables.
    pub(crate) fn complete_gradients(&mut self, backend: &mut dyn Backend) -> Result<(), ParallelError> {
        // Copies of a cut model meet in the order of the stages.
        for c in &self.by_stage {
            parallel_error(self.chunks[*c].transfers(backend, |lists| &lists.finish))?;
        }
        parallel_error(self.tie.add_up(backend, &mut self.chunks))
    }

    /// Runs the instructions from the first update on.
    pub(crate) fn run_updates(
        &mut self,
        backend: &mut dyn Backend,
        (t, lr): (u64, f64),
        grad_norm: f64,
    ) -> Result<StepStats, ParallelError> {
        let mut told = StepStats { grad_norm, clip_factor: 0.0, skipped: true };
        let finite = grad_norm.is_finite();
        let mut size = None;
        while let Some(&order) = self.ops().get(self.next) {
            let begun = self.intervals.is_some().then(Instant::now);
            match order {
                // What work over several steps rests on is kept.
                ExecOp::Step { .. } if !finite && self.fillers.are_amid_interval() => {}
                ExecOp::Step { chunk, .. } => {
                    let of_all = match size {
                        Some(size) => size,
                        None if finite => self.prepare_updates(backend, t)?,
                        None => 0.0,
                    };
                    size = Some(of_all);
                    told = self.chunks[chunk].step(backend, (t, lr), grad_norm, of_all)?;
                }
                ExecOp::Gather { chunk, .. } if !told.skipped => {
                    parallel_error(self.chunks[chunk].transfers(backend, |lists| &lists.spread))?;
                }
                ExecOp::Gather { .. } => {}
                // Of a gradient that is not finite nothing is made.
                ExecOp::Fill(fill) if finite => self.fill(backend, fill)?,
                ExecOp::Fill(_) => {}
                other => {
                    return Err(ParallelError::Layout(format!(
                        "schedule {:?} continues with {other:?} after its first update",
                        self.program.name
                    )));
                }
            }
            self.note(begun, &order);
            self.next += 1;
        }
        self.next = 0;
        self.end_filling(told.skipped);
        Ok(told)
    }

    /// Prepares update `t` of every chunk of this rank, and sums what the size of the step depends on over all stages. Mirrored
    /// holders meet in the order of the stages, and one of them counts.
    pub(crate) fn prepare_updates(
        &mut self,
        backend: &mut dyn Backend,
        t: u64,
    ) -> Result<f64, ParallelError> {
        let mut sum = 0.0;
        for c in &self.by_stage {
            let chunk = &mut self.chunks[*c];
            let term = chunk.with_peers(|optimizer, peers| optimizer.prepare(backend, peers, t))?;
            sum += if chunk.place.first_holder { term } else { 0.0 };
        }
        match self.chunks.iter().any(|chunk| chunk.optimizer.sums_size()) {
            true => Ok(self.control.sum(&mut *self.pipeline, "size of the step", sum)?),
            false => Ok(sum),
        }
    }

    pub(crate) fn note(&mut self, begun: Option<Instant>, order: &ExecOp) {
        let (Some(start), Some(intervals)) = (begun, &mut self.intervals) else { return };
        intervals.push(OrderSpan { name: order.name(), start, end: Instant::now() });
    }

    fn forward(
        &mut self,
        backend: &mut dyn Backend,
        run: Run,
        from: Option<Slot>,
        batch: &TokenBatch<'_>,
        ctx: &StepContext,
    ) -> Result<(), ParallelError> {
        self.step = ctx.step;
        let loss_scale = (f64::from(ctx.loss_scale) * self.loss_scale) as f32;
        let ctx = &StepContext { loss_scale, ..*ctx };
        if let Some(from) = from {
            let output = self.chunks[from.chunk].decoder.stage_output(from.slot)?;
            copy(backend, output, self.chunks[run.chunk].decoder.stage_input(run.slot)?)?;
        }
        let chunk = &mut self.chunks[run.chunk];
        chunk.stash.read(&mut chunk.decoder, run.stash)?;
        let offload = self.offloading.as_mut().map(|offloading| offloading.of_pass(run.chunk));
        chunk.pass(backend, ChunkPass::of(Phase::Forward), &mut None, offload, |backend, decoder, ranks| {
            decoder.stage_forward(backend, ranks, run.slot, batch, Some(ctx))
        })
    }

    fn backward(
        &mut self,
        backend: &mut dyn Backend,
        run: Run,
        part: Part,
        writes: Writes,
        to: Option<Slot>,
    ) -> Result<Option<LossSum>, ParallelError> {
        let (micro, update, add) =
            (run.micro, (self.step + 1).saturating_add_signed(self.updates_ahead), writes.add.weight);
        let reads = (part != Part::Input).then_some(GradientPass { chunk: run.chunk, micro, update, add });
        let chunk = &mut self.chunks[run.chunk];
        chunk.stash.read(&mut chunk.decoder, run.stash)?;
        let kept = !chunk.settles;
        let add = Accumulate { input: writes.add.input && kept, weight: writes.add.weight && kept };
        let phase = match part {
            Part::Whole => Phase::Backward,
            Part::Input => Phase::BackwardInput,
            Part::Weight => Phase::BackwardWeight,
        };
        let pass = ChunkPass { phase, traffic: chunk.traffic(phase, writes), reads };
        let pending = match part {
            Part::Weight => chunk.pending.remove(&run.micro),
            _ => None,
        };
        let fill = &mut self.fillers.work;
        let offload = self.offloading.as_mut().map(|offloading| offloading.of_pass(run.chunk));
        let (sum, left) =
            chunk.pass(backend, pass, fill, offload, |backend, decoder, ranks| match (part, pending) {
                (Part::Whole, _) => Ok((decoder.stage_backward(backend, ranks, run.slot, add)?, None)),
                (Part::Input, _) => {
                    let (sum, left) = decoder.stage_backward_input(backend, ranks, run.slot, add.input)?;
                    Ok((sum, Some(left)))
                }
                (Part::Weight, Some(pending)) => {
                    decoder.stage_backward_weight(backend, ranks, pending, add.weight)?;
                    Ok((None, None))
                }
                (Part::Weight, None) => Err(ModelError::Stage(format!(
                    "the weight part of micro-batch {} comes before its input part",
                    run.micro
                ))),
            })?;
        if let Some(left) = left {
            chunk.pending.insert(run.micro, left);
        }
        if let Some(to) = to {
            let gradient = self.chunks[run.chunk].decoder.stage_input_gradient(run.slot)?;
            copy(backend, gradient, self.chunks[to.chunk].decoder.stage_output_gradient(to.slot)?)?;
        }
        Ok(sum)
    }

    /// Runs one stage's pass of an evaluated batch; the rank with the head reports the losses to the source. Returns the loss
    /// where the head is.
    fn evaluate(
        &mut self,
        backend: &mut dyn Backend,
        source: &mut dyn BatchSource,
        pass: &EvaluationPass,
    ) -> Result<LossSum, ParallelError> {
        let EvaluationPass { unit, at, from, to } = *pass;
        if let Some(message) = from {
            self.takes_stream_of(at, None)?;
            self.receive(backend, &message)?;
        }
        let chunk = &mut self.chunks[at.chunk];
        chunk.stash.read(&mut chunk.decoder, None)?;
        let (has_head, losses) = (chunk.place.span.head, &mut self.evaluated);
        losses.resize(chunk.decoder.shape().tokens(), 0.0);
        let batch = source.evaluation(unit)?;
        let sum = chunk.pass(
            backend,
            ChunkPass::of(Phase::Score),
            &mut None,
            None,
            |backend, decoder, ranks| {
                decoder.stage_forward(backend, ranks, at.slot, &batch, None)?;
                match has_head {
                    true => decoder.stage_loss(backend, ranks, at.slot, Some(losses)),
                    false => Ok(LossSum::default()),
                }
            },
        )?;
        match to {
            Some(Onward::Message(message)) => self.send(backend, &message)?,
            Some(Onward::Chunk(next)) => {
                self.takes_stream_of(next, None)?;
                let output = self.chunks[at.chunk].decoder.stage_output(at.slot)?;
                copy(backend, output, self.chunks[next.chunk].decoder.stage_input(next.slot)?)?;
            }
            None => {}
        }
        self.chunks[at.chunk].decoder.stage_release(at.slot)?;
        if has_head {
            source.evaluated(unit, &self.evaluated);
        }
        Ok(sum)
    }

    fn send(&mut self, backend: &mut dyn Backend, message: &StreamMessage) -> Result<(), ParallelError> {
        let decoder = &self.chunks[message.at.chunk].decoder;
        let view = match message.flow {
            Flow::Activation => decoder.stage_output(message.at.slot)?,
            Flow::Gradient => decoder.stage_input_gradient(message.at.slot)?,
        };
        parallel_error(self.messages.send(backend, &mut *self.pipeline, message, view))
    }

    fn receive(&mut self, backend: &mut dyn Backend, message: &StreamMessage) -> Result<(), ParallelError> {
        let decoder = &self.chunks[message.at.chunk].decoder;
        let view = match message.flow {
            Flow::Activation => decoder.stage_input(message.at.slot)?,
            Flow::Gradient => decoder.stage_output_gradient(message.at.slot)?,
        };
        parallel_error(self.messages.receive(backend, &mut *self.pipeline, message, view))
    }

    /// Loss of one batch of this rank, without dropout, through all stages. The loss, and `per_token` if given, are
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
        let (mut source, mut sum) = (OneBatch { batch, per_token }, LossSum::default());
        for at in 0..self.evaluation.len() {
            let ExecOp::Evaluate(pass) = self.evaluation[at] else { continue };
            sum += self.evaluate(backend, &mut source, &pass)?;
        }
        Ok(sum)
    }

    /// Whether the rank at `pipeline` has the losses of evaluated batches.
    pub fn has_losses(&self, pipeline: usize) -> bool {
        self.program.routes[0].last().is_some_and(|p| p.rank == pipeline)
    }
}

impl Chunk {
    /// Whether gradients may leave during the last backward pass. Those of a stage with mirrored holders wait for the
    /// program's order: the mirror may be there much later.
    pub(crate) fn leaves_early(&self) -> bool {
        !self.place.mirrored
    }

    /// Whether gradients leave where the schedule says so, and not in passes.
    pub(crate) fn leaves_late(&self) -> bool {
        !self.settles && !self.leaves_early()
    }

    /// Runs a pass with the ranks that share this chunk.
    fn pass<T>(
        &mut self,
        backend: &mut dyn Backend,
        of: ChunkPass,
        fill: &mut Option<Box<dyn FillerWork>>,
        offload: Option<PassOffload<'_>>,
        pass: impl FnOnce(&mut dyn Backend, &mut Decoder, &mut PassRanks<'_>) -> Result<T, ModelError>,
    ) -> Result<T, ParallelError> {
        let mut ranks = PassRanks {
            exchange: &mut self.exchange,
            tensor: &mut self.tensor,
            reader: of.reads.and_then(|pass| self.operands.reader(&mut self.optimizer, fill, pass)),
            offload,
            list: self.lists.pass(of.phase, of.traffic),
            failed: None,
            span: &self.place.span,
        };
        let result = pass_result(pass(backend, &mut self.decoder, &mut ranks), ranks.failed.take())?;
        parallel_error(ranks.finish(backend))?;
        Ok(result)
    }
}

/// Returns whether the instruction belongs to the update, after all gradients.
fn is_update(order: &ExecOp) -> bool {
    match order {
        ExecOp::Step { .. } => true,
        ExecOp::Fill(fill) => fill.filler.is_update(),
        _ => false,
    }
}

/// Copies the residual stream from one stage of this rank to the next.
fn copy(backend: &mut dyn Backend, src: View, dst: View) -> Result<(), ParallelError> {
    Ok(backend.launch(Stream(0), &Op::from(Copy { src, dst }))?)
}

impl ExecOp {
    /// "F 3.0", "step 0": for a trace.
    fn name(&self) -> String {
        match self {
            ExecOp::Forward { run, .. } => format!("F {}.{}", run.micro, run.chunk),
            ExecOp::Backward { run, split: false, .. } => format!("B {}.{}", run.micro, run.chunk),
            ExecOp::Backward { run, .. } => format!("I {}.{}", run.micro, run.chunk),
            ExecOp::Weight { run, .. } => format!("W {}.{}", run.micro, run.chunk),
            ExecOp::Send(message) => format!("S {}.{}", message.micro, message.at.chunk),
            ExecOp::Receive(message) => format!("R {}.{}", message.micro, message.at.chunk),
            ExecOp::Reduce { chunk, .. } => format!("reduce {chunk}"),
            ExecOp::Step { chunk, .. } => format!("step {chunk}"),
            ExecOp::Gather { chunk, .. } => format!("gather {chunk}"),
            ExecOp::Evaluate(pass) => format!("Evaluate {}.{}", pass.unit, pass.at.chunk),
            ExecOp::Fill(fill) => format!("{:?} {}.{}", fill.filler, fill.unit, fill.chunk),
        }
    }
}
