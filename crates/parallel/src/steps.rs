//! A rank's step as a list of [`StepNode`]s: its orders, each expanded to the units of its pass and what joins them.

use crate::chunk::Chunk;
use crate::error::ParallelError;
use crate::prepare::{EvaluationPass, ExecOp, Onward, Run, Slot, StreamMessage, Writes};
use crate::worker::Worker;
use bessemer_arch::Unit;
use bessemer_program::{
    Action, GradientTraffic, Message, PassNode, Phase, StepChunk, StepNode, Stream, verify_step,
};
use bessemer_schedule::{Flow, Place};

impl Chunk {
    /// The facts about the chunk that [`verify_step`] checks against.
    pub(crate) fn step_chunk(&self) -> StepChunk {
        let flat_of = |param: usize| self.units.place(param).unit;
        let name = |unit| match unit {
            Unit::Embedding => "embedding".to_owned(),
            Unit::Layer(layer) => format!("layers.{layer}"),
            Unit::Head => "head".to_owned(),
        };
        StepChunk {
            names: self.decoder.programs().map(|(unit, ..)| name(unit)).collect(),
            embedding: self.place.span.embedding,
            head: self.place.span.head,
            tied: self.units.table.is_some(),
            data: self.lists.data.clone(),
            uses: Phase::ALL.map(|phase| self.decoder.uses(phase, &flat_of)),
        }
    }

    /// Traffic of the gradients of a backward pass.
    pub(crate) fn traffic(&self, phase: Phase, writes: Writes) -> GradientTraffic {
        match phase {
            Phase::Backward | Phase::BackwardWeight if self.settles => match writes.add.weight {
                true => GradientTraffic::Accumulate,
                false => GradientTraffic::Settle,
            },
            Phase::Backward | Phase::BackwardWeight if writes.last && self.leaves_early() => {
                GradientTraffic::Leave
            }
            _ => GradientTraffic::Stay,
        }
    }
}

/// Expands orders one by one.
struct Expanding<'a> {
    worker: &'a Worker,
    nodes: Vec<StepNode>,
    /// The gradients of every chunk are complete, and so is their norm.
    normed: bool,
}

impl Worker {
    /// Facts about this rank's chunks, by number, for [`verify_step`].
    pub fn step_chunks(&self) -> Vec<StepChunk> {
        self.chunks.iter().map(Chunk::step_chunk).collect()
    }

    /// The whole step of this rank, in the order in which it runs.
    pub fn step_nodes(&self) -> Vec<StepNode> {
        self.nodes_of(&self.prepared.ops)
    }

    pub(crate) fn nodes_of(&self, ops: &[ExecOp]) -> Vec<StepNode> {
        let mut expanding = Expanding { worker: self, nodes: Vec::new(), normed: false };
        for order in ops {
            expanding.order(order);
        }
        expanding.nodes
    }

    /// Whether each chunk updates as soon as its own gradients are complete.
    fn updates_alone(&self) -> bool {
        self.plan.pipe.asynchronous()
    }

    /// Whether a micro-batch passes a chunk of this rank.
    fn visits(&self, micro: usize, chunk: usize) -> bool {
        let here = Place { rank: self.coord.pipeline, chunk };
        self.program.stage_at(here).is_some_and(|stage| self.program.place(micro, stage) == here)
    }

    /// Refuses a step in which a unit would read what is not there, or an update would take gradients that are not complete.
    ///
    /// # Errors
    /// The first node that is wrong, with the name of what it is about.
    pub fn verify_step(&self) -> Result<(), ParallelError> {
        let chunks = self.step_chunks();
        for nodes in std::iter::once(self.step_nodes()).chain(self.filled_step_nodes()) {
            verify_step(&chunks, nodes, !self.updates_alone())
                .map_err(|violation| ParallelError::Layout(violation.to_string()))?;
        }
        Ok(())
    }
}

impl Expanding<'_> {
    fn push(&mut self, chunk: usize, action: Action) {
        self.nodes.push(StepNode { chunk, action });
    }

    /// The entries of a list; units run their list of `phase` for a micro-batch.
    fn entries(&mut self, chunk: usize, list: &[PassNode], (phase, micro, older): (Phase, usize, bool)) {
        for node in list {
            let action = match node {
                PassNode::Unit(unit) => Action::Unit { unit: *unit, phase, micro, older },
                PassNode::Complete(flats) => Action::Complete(flats.clone()),
                PassNode::Start(transfer) => Action::Start(*transfer),
                PassNode::Wait(transfer) => Action::Wait(*transfer),
                PassNode::Add(flat) => Action::Add(*flat),
            };
            self.push(chunk, action);
        }
    }

    fn pass(&mut self, run: &Run, phase: Phase, traffic: GradientTraffic) {
        let list = self.worker.chunks[run.chunk].lists.pass(phase, traffic);
        self.entries(run.chunk, list, (phase, run.micro, run.stash.is_some()));
    }

    fn transfers(&mut self, chunk: usize, list: &[PassNode]) {
        self.entries(chunk, list, (Phase::Forward, 0, false));
    }

    fn hand(&mut self, from: usize, to: Option<usize>, stream: Stream, micro: usize) {
        if let Some(to) = to {
            self.push(from, Action::Hand { stream, micro, to });
        }
    }

    fn message(&self, message: &StreamMessage) -> Message {
        let chunk = &self.worker.chunks[message.at.chunk];
        let stream = match message.flow {
            Flow::Activation => Stream::Values,
            Flow::Gradient => Stream::Gradient,
        };
        let bytes = chunk.decoder.stream_bytes();
        Message { stream, micro: message.micro, peer: message.peer, tag: message.tag, bytes }
    }

    /// Everything between the last pass and the first update: gradients are complete over all ranks, and so is their norm.
    fn complete(&mut self) {
        let worker = self.worker;
        for chunk in worker.by_stage.iter().copied() {
            self.transfers(chunk, &worker.chunks[chunk].lists.finish);
        }
        if worker.chunks.iter().any(|chunk| chunk.units.table.is_some()) {
            self.push(0, Action::Tie);
        }
        self.push(0, Action::Norm);
        self.normed = true;
    }

    fn order(&mut self, order: &ExecOp) {
        let worker = self.worker;
        match order {
            ExecOp::Forward { run, from } => {
                self.hand(
                    from.map_or(0, |slot| slot.chunk),
                    from.map(|_| run.chunk),
                    Stream::Values,
                    run.micro,
                );
                self.pass(run, Phase::Forward, GradientTraffic::Stay);
            }
            ExecOp::Backward { run, split, writes, to } => {
                let phase = if *split { Phase::BackwardInput } else { Phase::Backward };
                self.pass(run, phase, worker.chunks[run.chunk].traffic(phase, *writes));
                self.hand(run.chunk, to.map(|slot| slot.chunk), Stream::Gradient, run.micro);
            }
            ExecOp::Weight { run, writes } => {
                let phase = Phase::BackwardWeight;
                self.pass(run, phase, worker.chunks[run.chunk].traffic(phase, *writes));
            }
            ExecOp::Send(message) => self.push(message.at.chunk, Action::Send(self.message(message))),
            ExecOp::Receive(message) => self.push(message.at.chunk, Action::Receive(self.message(message))),
            ExecOp::Reduce { chunk, .. } if worker.chunks[*chunk].leaves_late() => {
                self.transfers(*chunk, &worker.chunks[*chunk].lists.reduce);
            }
            ExecOp::Reduce { .. } => {}
            ExecOp::Step { chunk, update, .. } => {
                if worker.updates_alone() {
                    self.transfers(*chunk, &worker.chunks[*chunk].lists.finish);
                } else if !self.normed {
                    self.complete();
                }
                let of = &worker.program.update_of;
                let micro_batches = of
                    .iter()
                    .enumerate()
                    .filter(|(micro, u)| *u == update && worker.visits(*micro, *chunk))
                    .count();
                self.push(*chunk, Action::Update { micro_batches });
            }
            ExecOp::Gather { chunk, .. } => self.transfers(*chunk, &worker.chunks[*chunk].lists.spread),
            ExecOp::Evaluate(EvaluationPass { unit, at: Slot { chunk, .. }, from, to }) => {
                let micro = worker.program.micro_batches() + unit;
                if let Some(message) = from {
                    self.push(*chunk, Action::Receive(self.message(message)));
                }
                let list = worker.chunks[*chunk].lists.pass(Phase::Score, GradientTraffic::Stay);
                self.entries(*chunk, list, (Phase::Score, micro, false));
                match to {
                    Some(Onward::Message(message)) => self.push(*chunk, Action::Send(self.message(message))),
                    Some(Onward::Chunk(next)) => self.hand(*chunk, Some(next.chunk), Stream::Values, micro),
                    None => {}
                }
            }
            ExecOp::Fill(fill) => {
                if fill.filler.is_update() && !self.normed {
                    self.complete();
                }
                self.push(fill.chunk, Action::Filler(format!("{:?} {}", fill.filler, fill.unit)))
            }
        }
    }
}
