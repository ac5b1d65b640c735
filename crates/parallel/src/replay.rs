//! Events of this rank's step, for [`bessemer_sim::replay`]: the nodes of the list that runs ([`Worker::step_nodes`]) and of its
//! units' programs, in the pieces in which they are sent.

use crate::chunk::Chunk;
use crate::error::ParallelError;
use crate::execute::{NoBatches, StepRun, UpdateRule};
use crate::flow::{PieceFlow, PieceWork};
use crate::groups::DATA_EXPERTS;
use crate::plan::Coord;
use crate::worker::Worker;
use bessemer_mesh::{Axis, label};
use bessemer_program::{Action, Collective, CollectiveKind, Message, NormGroup, Pass, Phase, Transfer};
use bessemer_schedule::Place;
use bessemer_sim::SimError;
use bessemer_sim::replay::{Copied, Progress, RankWriter, Traffic, UnitCosts};
use bessemer_tensor::null::NullBackend;
use bessemer_tensor::op::{Op, quantised_bytes};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Operators of the optimizer in a step, by node of the list.
#[derive(Debug, Clone, Default)]
pub struct UpdateOps {
    ops: BTreeMap<usize, Vec<Op>>,
    /// First node after the norm.
    updates_from: usize,
}

impl UpdateOps {
    /// Operators of the updates, without those of the norm.
    pub fn updates(&self) -> impl Iterator<Item = &Op> {
        self.ops.range(self.updates_from..).flat_map(|(_, ops)| ops)
    }
}

/// Numbers of a chunk's groups.
#[derive(Debug, Clone)]
struct ChunkGroupNumbers {
    /// All ranks that share its layers.
    tensor: usize,
    /// Indexed by axis of these ranks.
    axes: [Option<(Axis, usize)>; 4],
    /// Data-parallel ranks that share experts.
    data_experts: Option<usize>,
    /// Indexed by group of parameters: ranks over which it is sharded, and ranks with replicas.
    data: Vec<[usize; 2]>,
}

/// A collective that has started.
#[derive(Debug, Clone, Copy)]
struct Started {
    group: usize,
    id: usize,
}

/// A chunk while its events are written.
#[derive(Debug)]
struct ChunkState {
    flow: PieceFlow<Started>,
    next_id: usize,
}

/// A step's events while they are written.
struct Writing<'w, 'a> {
    worker: &'w Worker,
    writer: &'w mut RankWriter<'a>,
    groups: Vec<ChunkGroupNumbers>,
    chunks: Vec<ChunkState>,
    /// Costs of passes over units, by chunk, unit, slot, phase and whether they begin the gradients.
    costs: HashMap<(usize, usize, usize, Phase, bool), UnitCosts>,
}

impl Worker {
    /// Runs the nodes of the norm and of the updates on a device that computes nothing, without transfers, and returns their
    /// operators.
    ///
    /// # Errors
    /// An error of the optimizer.
    pub fn update_ops(&mut self, null: &mut NullBackend) -> Result<UpdateOps, ParallelError> {
        let step = Arc::clone(self.step_at_hand());
        let source = &mut NoBatches;
        // On a null device the norm is not a number.
        let rule = UpdateRule::Global { t: 1, lr: 0.0, grad_norm: 1.0 };
        let mut run = StepRun::new(source, rule, &mut []);
        let mut update = UpdateOps { updates_from: step.updates_from, ..UpdateOps::default() };
        null.keep_launches();
        null.take_launches();
        for at in step.program.norm().start..step.program.nodes.len() {
            let action = &step.program.nodes[at].action;
            if let Action::Squares | Action::Prepare | Action::SumSize | Action::Update { .. } = action {
                self.run_nodes(null, &step, at..at + 1, &mut run)?;
                update.ops.insert(at, null.take_launches());
            }
        }
        Ok(update)
    }

    /// Appends the events of the next optimizer step on this rank, with the batches of evaluation in its bubbles:
    /// [`Worker::gradients`], [`Worker::sum_over_data`], [`Worker::grad_norm`] and [`Worker::apply`], one after the other.
    /// `update`: the operators of the optimizer; those that it lacks are left out.
    ///
    /// # Errors
    /// [`SimError::Cost`] for an operator whose cost is not known, and for work in bubbles whose operators are in no list:
    /// K-FAC's and copies.
    pub fn write_events(&self, writer: &mut RankWriter<'_>, update: &UpdateOps) -> Result<(), SimError> {
        let groups = self.chunks.iter().map(|chunk| self.group_numbers(chunk, writer)).collect();
        let chunks = self
            .chunks
            .iter()
            .map(|chunk| ChunkState { flow: PieceFlow::new(chunk.exchange.in_flight()), next_id: 0 });
        let chunks = chunks.collect();
        let mut writing = Writing { worker: self, writer, groups, chunks, costs: HashMap::new() };
        for (at, node) in self.step_at_hand().program.nodes.iter().enumerate() {
            writing.action(node.chunk, &node.action)?;
            let ops = update.ops.get(&at).map_or(&[][..], Vec::as_slice);
            ops.iter().try_for_each(|op| writing.writer.op(op))?;
        }
        Ok(())
    }

    /// Numbers of a chunk's groups; a group has the label of its axis.
    fn group_numbers(&self, chunk: &Chunk, writer: &mut RankWriter<'_>) -> ChunkGroupNumbers {
        let number = chunk.place.stage;
        let progress = if self.plan.overlap { Progress::Thread } else { Progress::Caller };
        let mut group = |label: String, ranks: Vec<usize>| writer.group(&label, number, ranks, progress);
        let along = |axes: &[Axis]| self.plan.mesh.group(self.world.rank(), axes);
        let layer_axes: Vec<Axis> = self.plan.layer_axes().collect();
        let tensor = group(label(&layer_axes), along(&layer_axes));
        let mut axes = [None; 4];
        let [of_layers @ .., of_experts] = &mut axes;
        for (place, axis) in of_layers.iter_mut().zip(&layer_axes) {
            let line = layer_axes.len() == 1;
            *place = Some((*axis, if line { tensor } else { group(label(&[*axis]), along(&[*axis])) }));
        }
        if self.plan.experts() > 1 {
            let axis = Axis::Expert;
            *of_experts = Some((axis, group(label(&[axis]), along(self.plan.expert_axes))));
        }
        let data_experts = match (self.plan.folds_experts(), self.plan.mesh.degree(Axis::Expert)) {
            (true, 1) => None,
            (true, _) => Some(group(DATA_EXPERTS.into(), along(&[Axis::Expert]))),
            (false, _) => of_experts.map(|(_, group)| group),
        };
        let holders = self.program.holders(number);
        let ranks = |coords: Vec<Coord>| coords.into_iter().map(|coord| self.plan.rank(coord)).collect();
        let mut data = Vec::new();
        for of in 0..self.plan.groups.list().len() {
            let (shard_axes, reduce_axes) = (self.plan.shard_axes(of), self.plan.reduce_axes(of));
            let name =
                |axes: &[Axis], usual: Axis| if axes.is_empty() { label(&[usual]) } else { label(axes) };
            let replicas = |place: &Place| {
                self.plan.along_data(&reduce_axes, Coord { pipeline: place.rank, ..self.coord })
            };
            let replicas = ranks(holders.iter().flat_map(replicas).collect());
            let shards = ranks(self.plan.along_data(shard_axes, self.coord));
            data.push([
                group(name(shard_axes, Axis::Shard), shards),
                group(name(&reduce_axes, Axis::Replicate), replicas),
            ]);
        }
        ChunkGroupNumbers { tensor, axes, data_experts, data }
    }
}

impl<'a> Writing<'_, 'a> {
    fn action(&mut self, chunk: usize, action: &Action) -> Result<(), SimError> {
        let worker = self.worker;
        match action {
            Action::Unit { unit, pass } => self.unit(chunk, *unit, pass)?,
            Action::Complete(flats) => self.complete(chunk, flats),
            Action::Start(transfer) => {
                let (flow, mut pieces) = self.pieces(chunk);
                flow.start(&mut pieces, *transfer)?;
            }
            Action::Wait(transfer) => {
                let (flow, mut pieces) = self.pieces(chunk);
                flow.wait(&mut pieces, *transfer)?;
            }
            Action::Add(flat) => {
                let op = worker.chunks[chunk].exchange.addition(*flat);
                self.writer.op(&op.map_err(|e| SimError::Cost(e.to_string()))?)?;
            }
            Action::Send(m) => self.writer.send(worker.peer(m), m.tag, m.bytes),
            Action::Receive(m) => self.writer.receive(worker.peer(m), m.tag, m.bytes),
            Action::Hand(hand) => {
                let copy = worker.handed(chunk, hand).map_err(|e| SimError::Cost(e.to_string()))?;
                self.writer.op(&Op::from(copy))?;
            }
            Action::Tie => self.tie()?,
            Action::Losses => self.sum_losses(),
            Action::SumSquares(group) => self.sum_squares(chunk, *group),
            Action::Filler(filler) => {
                return Err(SimError::Cost(format!("filler work ({})", filler.name)));
            }
            Action::SumSize => self.control_over_pipeline("size of the step"),
            Action::Begin(_) | Action::End(_) | Action::Squares | Action::Prepare | Action::Update { .. } => {
            }
        }
        Ok(())
    }

    fn unit(&mut self, chunk: usize, unit: usize, pass: &Pass) -> Result<(), SimError> {
        let (of, phase) = (&self.worker.chunks[chunk], pass.phase);
        let first = match phase {
            Phase::Backward | Phase::BackwardInput => !pass.adds.input,
            _ => phase == Phase::Forward,
        };
        // Backward passes are split only where all slots run the same programs.
        let slot = pass.slot.unwrap_or(0);
        let Some(program) = of.decoder.program(unit, slot) else { return Ok(()) };
        let (groups, plan) = (&self.groups[chunk], &self.worker.plan);
        let group_of = |collective: &Collective| {
            let group = groups.axes.iter().flatten().find(|(axis, _)| *axis == collective.axis);
            (group.map_or(groups.tensor, |group| group.1), plan.ranks_along(collective.axis))
        };
        let pass = (chunk, unit, slot, phase, first);
        let known = self.costs.remove(&pass).filter(|_| !self.writer.counts());
        let costs = match known {
            Some(costs) => costs,
            None => self.writer.unit_costs(program, (of.decoder.layer_of(unit), phase), first, &group_of)?,
        };
        self.writer.unit(program, phase, &costs);
        self.costs.insert(pass, costs);
        Ok(())
    }

    /// Sums of gradients over ranks that share layers. Ranks that hold the same key/value heads are taken for all of their axis.
    fn complete(&mut self, chunk: usize, flats: &[usize]) {
        let of = &self.worker.chunks[chunk];
        let element = of.types.gradients.dtype().size();
        for (axis, group) in self.groups[chunk].axes.iter().copied().flatten() {
            let bytes = (of.tensor.partial_along(axis, flats) * element) as u64;
            if bytes > 0 {
                let ranks = self.worker.plan.mesh.degree(axis);
                let traffic = Traffic::even(CollectiveKind::AllReduce, bytes, ranks);
                let copied = Copied { read: bytes, written: bytes };
                self.writer.collective(group, "partial gradients", traffic, copied);
            }
        }
    }

    /// The pieces of a chunk's transfers that are in flight, and how others are written.
    fn pieces(&mut self, chunk: usize) -> (&mut PieceFlow<Started>, WrittenPieces<'_, 'a>) {
        let ChunkState { flow, next_id, .. } = &mut self.chunks[chunk];
        let (of, groups) = (&self.worker.chunks[chunk], &self.groups[chunk]);
        (flow, WrittenPieces { of, groups, next_id, writer: &mut *self.writer })
    }

    /// Sums the gradients of tied tables.
    fn tie(&mut self) -> Result<(), SimError> {
        let worker = self.worker;
        for chunk in worker.tie.apart() {
            let Some(gradient) = worker.chunks[*chunk].table_gradient() else { continue };
            let Some((route, _)) = worker.chunks[*chunk].ends else { continue };
            let ends = &worker.program.routes[route];
            let at = |place: &Place| worker.plan.rank(Coord { pipeline: place.rank, ..worker.coord });
            let ranks: Vec<usize> = ends.first().into_iter().chain(ends.last()).map(at).collect();
            let group = self.writer.group("tied table", route, ranks, Progress::Caller);
            let bytes = gradient.bytes();
            let traffic = Traffic::even(CollectiveKind::AllReduce, bytes, 2);
            self.writer.collective(group, "tied table", traffic, Copied { read: bytes, written: bytes });
        }
        worker.tie.sums_here(&worker.chunks).try_for_each(|op| self.writer.op(&op))
    }

    /// The loss over all ranks.
    fn sum_losses(&mut self) {
        let ranks = self.worker.plan.ranks();
        let group = self.writer.group("world", 0, (0..ranks).collect(), Progress::Caller);
        self.control(group, "losses", ranks, 2 + self.worker.losses as u64);
    }

    /// A sum of the squares of the gradients over a group.
    fn sum_squares(&mut self, chunk: usize, group: NormGroup) {
        let (worker, name, groups) = (self.worker, "norm of the gradient", &self.groups[chunk]);
        match group {
            NormGroup::Shard(of) => self.control(groups.data[of][0], name, worker.plan.shards(of), 1),
            NormGroup::Experts(_) => {
                let ranks = worker.plan.mesh.degree(Axis::Expert);
                self.control(groups.data_experts.unwrap_or(groups.tensor), name, ranks, 1);
            }
            NormGroup::Layers => self.control(groups.tensor, name, worker.plan.tensor(), 1),
            NormGroup::Pipeline => self.control_over_pipeline(name),
        }
    }

    /// A number that is summed over the ranks of the pipeline.
    fn control_over_pipeline(&mut self, name: &str) {
        let worker = self.worker;
        let ranks = worker.plan.mesh.group(worker.world.rank(), &[Axis::Pipeline]);
        let group = self.writer.group(Axis::Pipeline.name(), 0, ranks, Progress::Caller);
        self.control(group, name, worker.plan.pipeline(), 1);
    }

    /// A control message of so many numbers of 64 bits.
    fn control(&mut self, group: usize, name: &str, ranks: usize, numbers: u64) {
        let traffic = Traffic::even(CollectiveKind::AllGather, 8 * numbers * ranks as u64, ranks);
        self.writer.collective(group, name, traffic, Copied::default());
    }
}

/// Pieces of a chunk's transfers as events.
struct WrittenPieces<'w, 'a> {
    of: &'w Chunk,
    groups: &'w ChunkGroupNumbers,
    next_id: &'w mut usize,
    writer: &'w mut RankWriter<'a>,
}

impl PieceWork for WrittenPieces<'_, '_> {
    type Ticket = Started;
    type Error = SimError;

    fn pieces(&self, transfer: Transfer) -> usize {
        self.of.exchange.pieces(transfer.flat).len()
    }

    fn begin(&mut self, transfer: Transfer, piece: usize) -> Result<Started, SimError> {
        let (data, exchange) = (&self.of.transfers.data, &self.of.exchange);
        let (rank, [shard, replicate]) =
            (data.rank(transfer.flat), self.groups.data[data.flats[transfer.flat].group]);
        let (group, ranks) = match transfer.axis {
            Axis::Replicate => (replicate, rank.replicate.0),
            _ => (shard, rank.shard.0),
        };
        if let Some((int8, quantised)) = exchange.int8(transfer, piece) {
            let own = exchange.sum_of(transfer, piece).map_err(|e| SimError::Cost(e.to_string()))?;
            int8.within(0, quantised, own).encode_parts().try_for_each(|op| self.writer.op(&op))?;
            let (bytes, received) = (quantised.bytes.len() as u64, quantised.received.len() as u64);
            let (kind, sent) = (CollectiveKind::AllToAll, quantised.most_sent());
            let traffic = Traffic { kind, bytes, sent, own: sent, ranks };
            return Ok(self.start(
                group,
                transfer,
                piece,
                traffic,
                Copied { read: bytes, written: received },
            ));
        }
        let piece_of = &exchange.pieces(transfer.flat)[piece];
        let (flat, (shards, me)) = (&data.flats[transfer.flat], rank.shard);
        let gathers = transfer.kind == CollectiveKind::AllGather;
        let gradients = flat.gradients.as_ref().unwrap_or(&flat.values);
        let element = if gathers { flat.values.dtype } else { gradients.dtype }.size() as u64;
        let all = piece_of.parts.len() as u64 * element;
        let own = piece_of.parts.range(me).len() as u64 * element;
        let (bytes, copied) = match transfer.axis {
            Axis::Replicate if shards > 1 => (own, Copied { read: own, written: own }),
            Axis::Replicate => (all, Copied { read: all, written: all }),
            _ if gathers => (all, Copied { read: own, written: all }),
            _ => (all, Copied { read: all, written: own }),
        };
        Ok(self.start(group, transfer, piece, Traffic::even(transfer.kind, bytes, ranks), copied))
    }

    fn end(
        &mut self,
        transfer: Transfer,
        piece: usize,
        leg: usize,
        Started { group, id }: Started,
    ) -> Result<Option<Started>, SimError> {
        self.writer.wait(group, id);
        let exchange = &self.of.exchange;
        let Some((int8, quantised)) = exchange.int8(transfer, piece) else { return Ok(None) };
        let own = exchange.sum_of(transfer, piece).map_err(|e| SimError::Cost(e.to_string()))?;
        let here = int8.within(0, quantised, own);
        if leg > 0 {
            return here.decode_parts().try_for_each(|op| self.writer.op(&op)).map(|()| None);
        }
        let ranks = quantised.views.len();
        here.decode_sum().try_for_each(|op| self.writer.op(&op))?;
        if transfer.kind == CollectiveKind::ReduceScatter {
            return here.round().map_or(Ok(()), |op| self.writer.op(&op)).map(|()| None);
        }
        here.encode_sum().try_for_each(|op| self.writer.op(&op))?;
        let (bytes, kind) = (quantised.bytes.len() as u64, CollectiveKind::AllGather);
        let sent = quantised.most_sent();
        let traffic = Traffic { kind, bytes, sent, own: sent, ranks };
        let copied = Copied { read: quantised_bytes(own.len()) as u64, written: bytes };
        Ok(Some(self.start(group, transfer, piece, traffic, copied)))
    }
}

impl WrittenPieces<'_, '_> {
    /// Begins a collective of a piece.
    fn start(
        &mut self,
        group: usize,
        transfer: Transfer,
        piece: usize,
        traffic: Traffic,
        copied: Copied,
    ) -> Started {
        let id = *self.next_id;
        *self.next_id += 1;
        let name = &self.of.exchange.pieces(transfer.flat)[piece].name;
        self.writer.start(group, id, name, traffic, copied);
        Started { group, id }
    }
}

impl Worker {
    /// The rank of the job at the other end of a message.
    fn peer(&self, message: &Message) -> usize {
        self.plan.rank(Coord { pipeline: message.peer, ..self.coord })
    }
}
