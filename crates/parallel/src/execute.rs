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
use crate::notes::OrderSpan;
use crate::peers::RankPeers;
use crate::prepare::{Letter, Order, Run, Slot, Writes};
use crate::ranks::{PassRanks, Watching};
use crate::worker::{Feed, Fillers, Filling, Worker, lift, told};
use bessemer_model::{Accumulate, Decoder, LossSum, ModelError, StepContext, TokenBatch};
use bessemer_optim::StepStats;
use bessemer_program::{GradientTraffic, Phase};
use bessemer_schedule::{Fill, Filler, Flow};
use bessemer_tensor::op::{Copy, Op};
use bessemer_tensor::{Backend, Stream, View};
use std::time::Instant;

/// Which backward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Whole,
    Input,
    Weight,
}

/// What becomes of what gradients are made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Captures {
    Nothing,
    /// The optimizer sees it at once.
    Now,
    /// It is kept for a filler, as that of a micro-batch.
    Later(usize),
}

/// A pass of a chunk.
#[derive(Debug, Clone, Copy)]
struct ChunkPass {
    phase: Phase,
    traffic: GradientTraffic,
    /// Earlier passes have left gradients of the update.
    add: bool,
    captures: Captures,
}

impl ChunkPass {
    /// A pass that makes no gradients.
    fn of(phase: Phase) -> ChunkPass {
        ChunkPass { phase, traffic: GradientTraffic::Stay, add: false, captures: Captures::Nothing }
    }
}

impl Worker {
    /// Every order up to the first update; this rank's losses.
    pub(crate) fn run_passes(
        &mut self,
        backend: &mut dyn Backend,
        feed: &mut dyn Feed,
    ) -> Result<LossSum, ParallelError> {
        let mut sum = LossSum::default();
        self.next = 0;
        self.begin_step();
        while let Some(&order) = self.orders().get(self.next) {
            if is_update(&order) {
                break;
            }
            sum += self.run_pass(backend, feed, order)?;
            self.next += 1;
        }
        Ok(sum)
    }

    /// An order that is no update; what it adds to this rank's losses.
    pub(crate) fn run_pass(
        &mut self,
        backend: &mut dyn Backend,
        feed: &mut dyn Feed,
        order: Order,
    ) -> Result<LossSum, ParallelError> {
        let begun = self.intervals.is_some().then(Instant::now);
        let mut sum = LossSum::default();
        match order {
            Order::Forward { run, from } => {
                let (batch, ctx) = feed.micro_batch(run.micro)?;
                self.forward(backend, run, from, &batch, &ctx)?;
            }
            Order::Backward { run, split, writes, to } => {
                let part = if split { Part::Input } else { Part::Whole };
                sum = self.backward(backend, run, part, writes, to)?.unwrap_or_default();
            }
            Order::Weight { run, writes } => {
                self.backward(backend, run, Part::Weight, writes, None)?;
            }
            Order::Send(letter) => self.send(backend, &letter)?,
            Order::Receive(letter) => self.receive(backend, &letter)?,
            Order::Reduce { chunk, .. } => {
                let chunk = &mut self.chunks[chunk];
                if chunk.leaves_late() {
                    lift(chunk.transfers(backend, |lists| &lists.reduce))?;
                }
            }
            Order::Evaluate { unit, at, from, to } => self.evaluate(backend, feed, (unit, at), (from, to))?,
            Order::Fill(fill) if self.chunks[fill.chunk].has_kfac(fill.filler) => {
                self.chunks[fill.chunk].fill_kfac(backend, fill)?;
            }
            Order::Fill(Fill { filler: Filler::Copy, chunk, unit }) if self.snapshot.is_some() => {
                if let Some(snapshot) = &mut self.snapshot {
                    snapshot.copy(backend, (chunk, unit))?;
                }
            }
            Order::Fill(fill) => {
                let Some(fillers) = feed.fillers() else {
                    return Err(ParallelError::Layout(format!(
                        "schedule {:?} has filler work {fill:?}, and nobody does it",
                        self.program.name
                    )));
                };
                self.chunks[fill.chunk].fill(backend, fill, fillers)?;
            }
            Order::Gather { .. } | Order::Step { .. } => {}
        }
        self.note(begun, &order);
        Ok(sum)
    }

    /// Waits for the gradients of all chunks; tied tables are added up.
    pub(crate) fn complete_gradients(&mut self, backend: &mut dyn Backend) -> Result<(), ParallelError> {
        // Copies of a cut model meet in the order of the stages.
        for c in &self.by_stage {
            lift(self.chunks[*c].transfers(backend, |lists| &lists.finish))?;
        }
        lift(self.tie.add_up(backend, &mut self.chunks))
    }

    /// The orders from the first update on.
    pub(crate) fn run_updates(
        &mut self,
        backend: &mut dyn Backend,
        (t, lr): (u64, f64),
        grad_norm: f64,
    ) -> Result<StepStats, ParallelError> {
        let mut told = StepStats { grad_norm, clip_factor: 0.0, skipped: true };
        while let Some(&order) = self.orders().get(self.next) {
            let begun = self.intervals.is_some().then(Instant::now);
            match order {
                // What a refresh has begun with is kept.
                Order::Step { .. } if !grad_norm.is_finite() && self.amid_refresh() => {}
                Order::Step { chunk, .. } => {
                    told = self.chunks[chunk].step(backend, &mut *self.pipeline, (t, lr), grad_norm)?;
                }
                Order::Gather { chunk, .. } if !told.skipped => {
                    lift(self.chunks[chunk].transfers(backend, |lists| &lists.spread))?;
                }
                Order::Gather { .. } => {}
                // Of a gradient that is not finite nothing is made.
                Order::Fill(fill) if grad_norm.is_finite() => {
                    self.chunks[fill.chunk].fill_kfac(backend, fill)?;
                }
                Order::Fill(_) => {}
                other => {
                    return Err(ParallelError::Layout(format!(
                        "schedule {:?} goes on with {other:?} after its first update",
                        self.program.name
                    )));
                }
            }
            self.note(begun, &order);
            self.next += 1;
        }
        self.next = 0;
        self.end_step(told.skipped);
        Ok(told)
    }

    pub(crate) fn note(&mut self, begun: Option<Instant>, order: &Order) {
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
        chunk.pass(backend, ChunkPass::of(Phase::Forward), |backend, decoder, ranks| {
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
        let keeps = self.keeps_operands();
        let chunk = &mut self.chunks[run.chunk];
        chunk.stash.read(&mut chunk.decoder, run.stash)?;
        let captures = match part {
            Part::Input => Captures::Nothing,
            _ if keeps => Captures::Later(run.micro),
            _ if chunk.optimizer.captures(self.step + 1 - self.skipped) => Captures::Now,
            _ => Captures::Nothing,
        };
        let kept = !chunk.settles;
        let add = Accumulate { input: writes.add.input && kept, weight: writes.add.weight && kept };
        let phase = match part {
            Part::Whole => Phase::Backward,
            Part::Input => Phase::BackwardInput,
            Part::Weight => Phase::BackwardWeight,
        };
        let pass =
            ChunkPass { phase, traffic: chunk.traffic(phase, writes), add: writes.add.weight, captures };
        let pending = match part {
            Part::Weight => chunk.pending.remove(&run.micro),
            _ => None,
        };
        let (sum, left) = chunk.pass(backend, pass, |backend, decoder, ranks| match (part, pending) {
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

    /// One stage's pass of a batch that is evaluated; on the rank with the head the feed is told the losses.
    fn evaluate(
        &mut self,
        backend: &mut dyn Backend,
        feed: &mut dyn Feed,
        (unit, at): (usize, Slot),
        (from, to): (Option<Letter>, Option<Letter>),
    ) -> Result<(), ParallelError> {
        if let Some(letter) = from {
            self.receive(backend, &letter)?;
        }
        let chunk = &mut self.chunks[at.chunk];
        chunk.stash.read(&mut chunk.decoder, None)?;
        let (has_head, losses) = (chunk.place.span.head, &mut self.evaluated);
        losses.resize(chunk.decoder.shape().tokens(), 0.0);
        let batch = feed.evaluation(unit)?;
        chunk.pass(backend, ChunkPass::of(Phase::Score), |backend, decoder, ranks| {
            decoder.stage_forward(backend, ranks, at.slot, &batch, None)?;
            if has_head {
                decoder.stage_loss(backend, ranks, at.slot, Some(losses))?;
            }
            Ok(())
        })?;
        if let Some(letter) = to {
            self.send(backend, &letter)?;
        }
        self.chunks[at.chunk].decoder.stage_release(at.slot)?;
        if has_head {
            feed.evaluated(unit, &self.evaluated);
        }
        Ok(())
    }

    fn send(&mut self, backend: &mut dyn Backend, letter: &Letter) -> Result<(), ParallelError> {
        let decoder = &self.chunks[letter.at.chunk].decoder;
        let view = match letter.flow {
            Flow::Activation => decoder.stage_output(letter.at.slot)?,
            Flow::Gradient => decoder.stage_input_gradient(letter.at.slot)?,
        };
        lift(self.letters.send(backend, &mut *self.pipeline, letter, view))
    }

    fn receive(&mut self, backend: &mut dyn Backend, letter: &Letter) -> Result<(), ParallelError> {
        let decoder = &self.chunks[letter.at.chunk].decoder;
        let view = match letter.flow {
            Flow::Activation => decoder.stage_input(letter.at.slot)?,
            Flow::Gradient => decoder.stage_output_gradient(letter.at.slot)?,
        };
        lift(self.letters.receive(backend, &mut *self.pipeline, letter, view))
    }

    /// Loss of one batch of this rank, without dropout: every stage passes it on. The loss, and `per_token` if given, are
    /// told on the rank that has the head ([`Worker::has_losses`]).
    ///
    /// # Errors
    /// What the model or another rank answers.
    pub fn loss(
        &mut self,
        backend: &mut dyn Backend,
        batch: &TokenBatch<'_>,
        mut per_token: Option<&mut [f32]>,
    ) -> Result<LossSum, ParallelError> {
        let mut sum = LossSum::default();
        let route = self.program.routes[0].clone();
        for (stage, place) in route.iter().enumerate() {
            if place.rank != self.coord.pipeline {
                continue;
            }
            // Nothing is under way in any slot between steps.
            let at = Slot { chunk: place.chunk, slot: 0 };
            let letter = |peer: usize, tag: usize| Letter {
                flow: Flow::Activation,
                micro: 0,
                tag: tag as u64,
                peer,
                at,
            };
            if let Some(before) = stage.checked_sub(1) {
                let input = self.chunks[place.chunk].decoder.stage_input(0)?;
                if route[before].rank == place.rank {
                    let output = self.chunks[route[before].chunk].decoder.stage_output(0)?;
                    copy(backend, output, input)?;
                } else {
                    let letter = letter(route[before].rank, stage);
                    lift(self.letters.receive(backend, &mut *self.pipeline, &letter, input))?;
                }
            }
            let chunk = &mut self.chunks[place.chunk];
            let has_head = chunk.place.span.head;
            let room = per_token.as_deref_mut();
            sum = chunk.pass(backend, ChunkPass::of(Phase::Score), |backend, decoder, ranks| {
                decoder.stage_forward(backend, ranks, 0, batch, None)?;
                match has_head {
                    true => decoder.stage_loss(backend, ranks, 0, room),
                    false => Ok(LossSum::default()),
                }
            })?;
            if let Some(next) = route.get(stage + 1).filter(|next| next.rank != place.rank) {
                let output = self.chunks[place.chunk].decoder.stage_output(0)?;
                let letter = letter(next.rank, stage + 1);
                lift(self.letters.send(backend, &mut *self.pipeline, &letter, output))?;
            }
        }
        for place in route.iter().filter(|p| p.rank == self.coord.pipeline) {
            self.chunks[place.chunk].decoder.stage_release(0)?;
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

    /// Has a piece of filler work done.
    fn fill(
        &mut self,
        backend: &mut dyn Backend,
        fill: Fill,
        fillers: &mut dyn Fillers,
    ) -> Result<(), ParallelError> {
        let mut peers = RankPeers {
            exchange: &mut self.exchange,
            tensor: &mut self.tensor,
            sharing: &mut self.sharing,
            pipeline: None,
            failed: None,
        };
        let (decoder, optimizer) = (&mut self.decoder, &mut self.optimizer);
        let done = fillers.fill(backend, fill, Filling { decoder, optimizer, peers: &mut peers });
        match (done, peers.failed) {
            (Err(_), Some(failed)) => Err(failed.into()),
            (done, _) => done,
        }
    }

    /// Runs a pass with the ranks that share this chunk.
    fn pass<T>(
        &mut self,
        backend: &mut dyn Backend,
        of: ChunkPass,
        pass: impl FnOnce(&mut dyn Backend, &mut Decoder, &mut PassRanks<'_>) -> Result<T, ModelError>,
    ) -> Result<T, ParallelError> {
        let captures = of.captures;
        let mut ranks = PassRanks {
            exchange: &mut self.exchange,
            tensor: &mut self.tensor,
            watching: (captures != Captures::Nothing).then_some(Watching {
                optimizer: &mut self.optimizer,
                how: &mut self.curvature,
                later: match captures {
                    Captures::Later(micro) => self.fill.as_mut().map(|fill| (fill, micro)),
                    _ => None,
                },
            }),
            list: self.lists.pass(of.phase, of.traffic),
            add: of.add,
            failed: None,
            span: &self.place.span,
        };
        let result = told(pass(backend, &mut self.decoder, &mut ranks), ranks.failed.take())?;
        lift(ranks.finish(backend))?;
        Ok(result)
    }
}

/// Whether the order is part of the update, behind all gradients.
fn is_update(order: &Order) -> bool {
    matches!(order, Order::Step { .. } | Order::Fill(Fill { filler: Filler::Precondition, .. }))
}

/// From one stage of this rank to the next.
fn copy(backend: &mut dyn Backend, src: View, dst: View) -> Result<(), ParallelError> {
    Ok(backend.launch(Stream(0), &Op::from(Copy { src, dst }))?)
}

impl Order {
    /// "F 3.0", "step 0": for a trace.
    fn name(&self) -> String {
        match self {
            Order::Forward { run, .. } => format!("F {}.{}", run.micro, run.chunk),
            Order::Backward { run, split: false, .. } => format!("B {}.{}", run.micro, run.chunk),
            Order::Backward { run, .. } => format!("I {}.{}", run.micro, run.chunk),
            Order::Weight { run, .. } => format!("W {}.{}", run.micro, run.chunk),
            Order::Send(letter) => format!("S {}.{}", letter.micro, letter.at.chunk),
            Order::Receive(letter) => format!("R {}.{}", letter.micro, letter.at.chunk),
            Order::Reduce { chunk, .. } => format!("reduce {chunk}"),
            Order::Step { chunk, .. } => format!("step {chunk}"),
            Order::Gather { chunk, .. } => format!("gather {chunk}"),
            Order::Evaluate { unit, at, .. } => format!("Evaluate {unit}.{}", at.chunk),
            Order::Fill(fill) => format!("{:?} {}.{}", fill.filler, fill.unit, fill.chunk),
        }
    }
}
