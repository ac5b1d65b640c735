//! Expands a rank's schedule to its step: each instruction becomes the units of its pass and the transfers between them.

use crate::chunk::Chunk;
use crate::error::ParallelError;
use crate::prepare::{EvaluationPass, Onward, PlacedInstruction, Run, Slot, StreamMessage, Writes};
use crate::worker::Worker;
use bessemer_arch::Unit;
use bessemer_program::{
    Action, Filler, GradientAdds, GradientTraffic, Hand, Message, NormGroup, Pass, PassNode, Phase,
    RankProgram, StepChunk, StepNode, Stream, verify_step,
};
use bessemer_schedule::{Fill, Flow, Place, Program};

/// A step of a rank, with the executor's data besides the list.
#[derive(Debug, Default)]
pub(crate) struct RankStep {
    pub(crate) program: RankProgram,
    /// Work of the fillers, by their numbers.
    pub(crate) fills: Vec<Fill>,
    /// Instructions of the schedule, in their order.
    pub(crate) instructions: Vec<InstructionNodes>,
    /// Micro-batches that train; evaluated batches are numbered after them.
    pub(crate) micro_batches: usize,
    /// First node after the norm of a step with one norm.
    pub(crate) updates_from: usize,
}

impl RankStep {
    /// Number of the instruction of a node.
    pub(crate) fn instruction(&self, node: usize) -> usize {
        self.instructions.partition_point(|instruction| instruction.first <= node) - 1
    }
}

/// Name of an instruction, or of a part of the step that belongs to none, and its first node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct InstructionNodes {
    pub(crate) first: usize,
    pub(crate) name: String,
}

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
            tied: self.table_gradient().is_some(),
            pool: 0,
            slots: self.decoder.stage().slots,
            kept: self.stash.count(),
            layer_ranks: 1,
            pipeline_ranks: 1,
            sums_size: false,
            trained: Vec::new(),
            expert_ranks: Vec::new(),
            data: self.transfers.data.clone(),
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

/// Expands instructions one by one.
struct Expanding<'a> {
    worker: &'a Worker,
    schedule: &'a Program,
    step: RankStep,
    /// Losses and gradients of every chunk are complete, and so is their norm.
    normed: bool,
    /// The optimizer has prepared the update of every chunk.
    prepared: bool,
}

impl Worker {
    /// Facts about this rank's chunks, by number, for [`verify_step`].
    pub fn step_chunks(&self) -> Vec<StepChunk> {
        let sums_size = self.sums_size();
        let facts = |(number, chunk): (usize, &Chunk)| StepChunk {
            pool: self.pools[number],
            layer_ranks: self.plan.tensor(),
            trained: self.plan.groups.list().iter().map(|group| group.trainable).collect(),
            expert_ranks: (0..self.plan.groups.list().len())
                .map(|group| self.plan.expert_ranks(group))
                .collect(),
            pipeline_ranks: self.plan.pipeline(),
            sums_size,
            ..chunk.step_chunk()
        };
        self.chunks.iter().enumerate().map(facts).collect()
    }

    /// The whole step of this rank, in the order in which it runs.
    pub fn step_nodes(&self) -> &[StepNode] {
        &self.step.program.nodes
    }

    /// The list of instructions of a schedule.
    pub(crate) fn expand(&self, schedule: &Program, instructions: &[PlacedInstruction]) -> RankStep {
        let step = RankStep { micro_batches: schedule.micro_batches(), ..RankStep::default() };
        let mut expanding = Expanding { worker: self, schedule, step, normed: false, prepared: false };
        for instruction in instructions {
            expanding.instruction(instruction);
        }
        let mut step = expanding.step;
        step.updates_from = match self.updates_alone() {
            true => step.program.nodes.len(),
            false => step.program.updates().start,
        };
        step
    }

    /// Whether each chunk updates as soon as its own gradients are complete.
    fn updates_alone(&self) -> bool {
        self.plan.pipe.asynchronous()
    }

    /// Refuses a step in which a unit would read memory that is not written yet, or an update would take gradients that are not complete.
    ///
    /// # Errors
    /// The first node that is wrong, with the name of its subject.
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
    /// The nodes from here on belong to a part of the step of this name.
    fn part(&mut self, name: String) {
        let first = self.step.program.nodes.len();
        self.step.instructions.push(InstructionNodes { first, name });
    }

    fn push(&mut self, chunk: usize, action: Action) {
        self.step.program.nodes.push(StepNode { chunk, action });
    }

    /// The entries of a list without units.
    fn transfers(&mut self, chunk: usize, list: &[PassNode]) {
        for node in list {
            let action = match node {
                PassNode::Unit(unit) => unreachable!("unit {unit} in a list of transfers"),
                PassNode::Complete(flats) => Action::Complete(flats.clone()),
                PassNode::Start(transfer) => Action::Start(*transfer),
                PassNode::Wait(transfer) => Action::Wait(*transfer),
                PassNode::Add(flat) => Action::Add(*flat),
            };
            self.push(chunk, action);
        }
    }

    /// A pass of a chunk: its units, and the transfers before, between and after them.
    fn pass(&mut self, chunk: usize, pass: Pass, traffic: GradientTraffic) {
        let list = self.worker.chunks[chunk].transfers.pass(pass.phase, traffic);
        let last = list.iter().rposition(|node| matches!(node, PassNode::Unit(_)));
        self.push(chunk, Action::Begin(pass));
        for (at, node) in list.iter().enumerate() {
            match node {
                PassNode::Unit(unit) => self.push(chunk, Action::Unit { unit: *unit, pass }),
                node => self.transfers(chunk, std::slice::from_ref(node)),
            }
            if Some(at) == last {
                self.push(chunk, Action::End(pass));
            }
        }
        if last.is_none() {
            self.push(chunk, Action::End(pass));
        }
    }

    fn training(&self, run: &Run, phase: Phase, writes: Option<Writes>) -> Pass {
        let earlier = writes.map(|writes| writes.add);
        let keeps = !self.worker.chunks[run.chunk].settles;
        let adds = earlier.map_or(GradientAdds::default(), |add| GradientAdds {
            input: add.input && keeps,
            weight: add.weight && keeps,
        });
        let begins = phase != Phase::BackwardInput && earlier.is_some_and(|add| !add.weight);
        let slot = (phase != Phase::BackwardWeight).then_some(run.slot);
        let Run { micro, version, stash: kept, update, .. } = *run;
        Pass { phase, micro, slot, version, kept, update, adds, begins }
    }

    fn hand(&mut self, from: Slot, to: Slot, stream: Stream, micro: usize) {
        let hand = Hand { stream, micro, slot: from.slot, to: to.chunk, to_slot: to.slot };
        self.push(from.chunk, Action::Hand(hand));
    }

    fn message(&self, message: &StreamMessage) -> Message {
        let StreamMessage { flow, micro, tag, peer, at } = *message;
        let stream = match flow {
            Flow::Activation => Stream::Values,
            Flow::Gradient => Stream::Gradient,
        };
        let bytes = self.worker.chunks[at.chunk].decoder.stream_bytes();
        Message { stream, micro, slot: at.slot, peer, tag, bytes }
    }

    fn send(&mut self, message: &StreamMessage) {
        self.push(message.at.chunk, Action::Send(self.message(message)));
    }

    fn receive(&mut self, message: &StreamMessage) {
        self.push(message.at.chunk, Action::Receive(self.message(message)));
    }

    /// The sum of a chunk's squares over the ranks that have other parts of the same gradients.
    fn sum_squares(&mut self, chunk: usize, pipeline: bool) {
        let worker = self.worker;
        let plan = &worker.plan;
        let trained = plan.groups.list().iter().enumerate().filter(|(_, group)| group.trainable);
        let trained: Vec<usize> = trained.map(|(group, _)| group).collect();
        let shards = trained.iter().map(|group| (NormGroup::Shard(*group), plan.shards(*group)));
        let experts = trained.iter().map(|group| (NormGroup::Experts(*group), plan.expert_ranks(*group)));
        let others = [
            (NormGroup::Layers, plan.tensor()),
            (NormGroup::Pipeline, if pipeline { plan.pipeline() } else { 1 }),
        ];
        for (group, _) in shards.chain(experts).chain(others).filter(|(_, ranks)| *ranks > 1) {
            self.push(chunk, Action::SumSquares(group));
        }
    }

    /// Everything between the last pass and the first update: gradients are complete over all ranks, and so is their norm.
    fn complete(&mut self) {
        if std::mem::replace(&mut self.normed, true) {
            return;
        }
        let worker = self.worker;
        self.part("complete".into());
        // Copies of a cut model communicate in the order of the stages.
        for chunk in worker.by_stage.iter().copied() {
            self.transfers(chunk, &worker.chunks[chunk].transfers.finish());
        }
        if worker.chunks.iter().any(|chunk| chunk.table_gradient().is_some()) {
            self.push(0, Action::Tie);
        }
        self.part("norm".into());
        self.push(0, Action::Losses);
        (0..worker.chunks.len()).for_each(|chunk| self.push(chunk, Action::Squares));
        self.sum_squares(0, true);
    }

    /// The update of a chunk, with the work of all chunks before the first one.
    fn update(&mut self, chunk: usize, update: usize, keep: Option<usize>) {
        let worker = self.worker;
        if worker.updates_alone() {
            self.transfers(chunk, &worker.chunks[chunk].transfers.finish());
            self.push(chunk, Action::Squares);
            self.sum_squares(chunk, false);
        } else {
            self.complete();
            self.part(format!("step {chunk}"));
            if !std::mem::replace(&mut self.prepared, true) {
                // Mirrored holders communicate in the order of the stages.
                worker.by_stage.iter().for_each(|chunk| self.push(*chunk, Action::Prepare));
                if worker.sums_size() {
                    self.push(0, Action::SumSize);
                }
            }
        }
        let here = Place { rank: worker.coord.pipeline, chunk };
        let visits = |micro: usize| {
            let stage = self.schedule.stage_at(here);
            stage.is_some_and(|stage| self.schedule.place(micro, stage) == here)
        };
        let of = self.schedule.update_of.iter().enumerate();
        let micro_batches = of.filter(|(micro, u)| **u == update && visits(*micro)).count();
        self.push(chunk, Action::Update { micro_batches, update, keep });
    }

    fn evaluate(&mut self, EvaluationPass { unit, at, from, to }: &EvaluationPass) {
        let micro = self.step.micro_batches + unit;
        if let Some(message) = from {
            self.receive(message);
        }
        let pass = Pass {
            phase: Phase::Score,
            micro,
            slot: Some(at.slot),
            version: 0,
            kept: None,
            update: 0,
            adds: GradientAdds::default(),
            begins: false,
        };
        self.pass(at.chunk, pass, GradientTraffic::Stay);
        match to {
            Some(Onward::Message(message)) => self.send(message),
            Some(Onward::Chunk(next)) => self.hand(*at, *next, Stream::Values, micro),
            None => {}
        }
    }

    fn instruction(&mut self, instruction: &PlacedInstruction) {
        let worker = self.worker;
        self.part(instruction.name());
        match instruction {
            PlacedInstruction::Forward { run, from } => {
                if let Some(from) = from {
                    let to = Slot { chunk: run.chunk, slot: run.slot };
                    self.hand(*from, to, Stream::Values, run.micro);
                }
                self.pass(run.chunk, self.training(run, Phase::Forward, None), GradientTraffic::Stay);
            }
            PlacedInstruction::Backward { run, split, writes, to } => {
                let phase = if *split { Phase::BackwardInput } else { Phase::Backward };
                let traffic = worker.chunks[run.chunk].traffic(phase, *writes);
                self.pass(run.chunk, self.training(run, phase, Some(*writes)), traffic);
                if let Some(to) = to {
                    let from = Slot { chunk: run.chunk, slot: run.slot };
                    self.hand(from, *to, Stream::Gradient, run.micro);
                }
            }
            PlacedInstruction::Weight { run, writes } => {
                let phase = Phase::BackwardWeight;
                let traffic = worker.chunks[run.chunk].traffic(phase, *writes);
                self.pass(run.chunk, self.training(run, phase, Some(*writes)), traffic);
            }
            PlacedInstruction::Send(message) => self.send(message),
            PlacedInstruction::Receive(message) => self.receive(message),
            PlacedInstruction::Reduce { chunk, .. } if worker.chunks[*chunk].leaves_late() => {
                self.transfers(*chunk, &worker.chunks[*chunk].transfers.reduce());
            }
            PlacedInstruction::Reduce { .. } => {}
            PlacedInstruction::Step { chunk, update, stash } => self.update(*chunk, *update, *stash),
            PlacedInstruction::Gather { chunk, .. } => {
                self.transfers(*chunk, &worker.chunks[*chunk].transfers.spread());
            }
            PlacedInstruction::Evaluate(pass) => self.evaluate(pass),
            PlacedInstruction::Fill(fill) => {
                if fill.filler.is_update() {
                    self.complete();
                    self.part(instruction.name());
                }
                let (work, update) = (self.step.fills.len(), fill.filler.is_update());
                let name = format!("{:?} {}", fill.filler, fill.unit);
                self.push(fill.chunk, Action::Filler(Filler { work, name, update }));
                self.step.fills.push(*fill);
            }
        }
    }
}
