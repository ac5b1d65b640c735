//! The transfers of one rank on the data-parallel axes, as [`bessemer_program::DataProgram`] lists them.
//!
//! | data-parallel stage | gradients, each step | values |
//! |---|---|---|
//! | ddp | all-reduce after the last micro-batch: 2 P | – |
//! | zero1 | reduce-scatter after the last micro-batch: P | all-gather after the update: P |
//! | zero2 | reduce-scatter after each of m micro-batches: m P | all-gather after the update: P |
//! | zero3 | reduce-scatter after each micro-batch: m P | all-gather before each forward and each backward: 2 m P |
//!
//! elements a rank, times (N-1)/N, in the type in which they are kept; with replicas of the sharded model (hybrid sharding)
//! the parts of gradients are then all-reduced between the replicas: 2 P/N. Gradients may travel in 8 bits instead: [`crate::int8`].
//!
//! A flat unit travels in pieces of at most [`BUCKET`] elements through a few staging buffers on the host. When
//! a piece begins and ends, [`crate::flow`] says.

use crate::flat::FlatUnit;
use crate::flow::{PieceFlow, PieceWork};
use crate::int8::{Int8, QuantisedPiece};
use crate::memory::{ParamMemory, Stretch};
use crate::piece::{Piece, pieces};
pub(crate) use bessemer_collectives::ViewError as ExchangeError;
use bessemer_collectives::{
    Collective, CollectiveQueue, ElementType, HostBuffer, Parts, Pattern, Reduce, Ticket, read_view,
    write_view,
};
use bessemer_mesh::{Axis, even};
use bessemer_program::{BUCKET, CollectiveKind, DataRank, PiecesInFlight, Transfer};
use bessemer_tensor::op::{Add, Op};
use bessemer_tensor::{Backend, Stream, TensorError, View};
use bessemer_units::{DType, ReduceDType};
use std::ops::Range;

/// Queues of the data-parallel ranks of one group of parameters.
#[derive(Debug)]
pub(crate) struct DataQueues {
    /// Ranks over which the group is sharded.
    pub(crate) shard: CollectiveQueue,
    /// Ranks with replicas: for other data, and mirrored holders.
    pub(crate) replicate: CollectiveQueue,
}

impl DataQueues {
    /// This rank's position.
    pub(crate) fn rank(&self) -> DataRank {
        let at = |queue: &CollectiveQueue| (queue.size(), queue.rank());
        DataRank { shard: at(&self.shard), replicate: at(&self.replicate) }
    }

    fn over(&mut self, axis: Axis) -> &mut CollectiveQueue {
        if axis == Axis::Replicate { &mut self.replicate } else { &mut self.shard }
    }
}

/// The transfers of one rank on the data-parallel axes.
#[derive(Debug)]
pub(crate) struct Exchange {
    flow: PieceFlow<Ticket>,
    staged: StagedPieces,
    /// If gradients travel in 8 bits.
    int8: Option<Int8>,
}

/// Pieces of values and gradients between the memory of the device and collectives.
#[derive(Debug)]
struct StagedPieces {
    /// By group of parameters.
    groups: Vec<DataQueues>,
    /// By unit: its group.
    group_of: Vec<usize>,
    /// By unit.
    pieces: Vec<Vec<Piece>>,
    values: Vec<Stretch>,
    gradients: Vec<Option<Stretch>>,
    /// First element of this rank's part, by unit.
    own_start: Vec<usize>,
    /// Staging buffers that no collective has.
    free_for_gradients: Vec<HostBuffer>,
    free_for_values: Vec<HostBuffer>,
    /// As [`ParamMemory::term`].
    term: Option<View>,
}

impl Exchange {
    /// Allocates what the transfers need on the device, and plans their staging buffers. `reduce_dtype`: the type in which gradients travel. As many pieces as `most` says have a staging buffer,
    /// but no more than there can be.
    ///
    /// # Errors
    /// An error of the device.
    pub(crate) fn new(
        backend: &mut dyn Backend,
        groups: Vec<DataQueues>,
        units: &[FlatUnit],
        memory: &ParamMemory,
        reduce_dtype: ReduceDType,
        most: PiecesInFlight,
    ) -> Result<Exchange, TensorError> {
        let cut = |(unit, parts)| pieces(unit, parts, BUCKET);
        let pieces: Vec<Vec<Piece>> = units.iter().zip(&memory.parts).map(cut).collect();
        let longest = pieces.iter().flatten().map(|p| p.parts.len()).max().unwrap_or(0);
        // Units are gathered one after the other, and their gradients may travel together. More buffers than usual are there for pieces that there are.
        let usual = PiecesInFlight::DEFAULT;
        let (unit, all) = (pieces.iter().map(Vec::len).max().unwrap_or(0), pieces.iter().map(Vec::len).sum());
        let most = PiecesInFlight {
            values: most.values.min(usual.values.max(unit)),
            gradients: most.gradients.min(usual.gradients.max(all)),
        };
        let silent = groups.iter().all(|group| group.shard.size() * group.replicate.size() == 1);
        let gathers = groups.iter().any(|group| group.shard.size() > 1);
        let dtype = |of: Option<&Stretch>| of.map_or(DType::F32, |s| s.whole.dtype());
        let (values, gradients) =
            (dtype(memory.values.first()), dtype(memory.gradients.iter().flatten().next()));
        let buffers = |count: usize, dtype: DType, len: usize, idle: bool| -> Vec<HostBuffer> {
            let count = if idle { 0 } else { count };
            (0..count).map(|_| HostBuffer::planned(dtype.into(), len)).collect()
        };
        let group_of: Vec<usize> = units.iter().map(|unit| unit.group).collect();
        let start = |(parts, group): (&Parts, &usize)| parts.range(groups[*group].shard.rank()).start;
        let own_start = memory.parts.iter().zip(&group_of).map(start).collect();
        let mut staged = StagedPieces {
            free_for_gradients: Vec::new(),
            free_for_values: buffers(most.values, values, longest, !gathers),
            term: memory.term,
            groups,
            group_of,
            pieces,
            values: memory.values.clone(),
            gradients: memory.gradients.clone(),
            own_start,
        };
        let int8 = match reduce_dtype {
            ReduceDType::Int8 if !silent => {
                let of = &staged;
                let at = |unit: usize| of.groups[of.group_of[unit]].rank();
                let whole = |unit: usize| of.gradients[unit].map(|gradients| gradients.whole);
                Some(Int8::alloc(backend, &of.pieces, &at, &whole, &|unit, piece| {
                    of.summed(unit, piece).ok()
                })?)
            }
            _ => None,
        };
        staged.free_for_gradients = match &int8 {
            Some(int8) => buffers(most.gradients, DType::U8, int8.most_staged(), silent),
            None => buffers(most.gradients, gradients, longest, silent),
        };
        Ok(Exchange { flow: PieceFlow::new(most), staged, int8 })
    }

    /// The queues of a group of parameters, for calls while no transfer is in flight.
    pub(crate) fn group(&mut self, group: usize) -> &mut DataQueues {
        &mut self.staged.groups[group]
    }

    /// Most pieces that travel at once.
    pub(crate) fn in_flight(&self) -> PiecesInFlight {
        self.flow.most()
    }

    /// Allocates the staging buffers that are planned.
    pub(crate) fn allocate(&mut self) {
        let StagedPieces { free_for_gradients, free_for_values, .. } = &mut self.staged;
        free_for_gradients.iter_mut().chain(free_for_values).for_each(HostBuffer::allocate);
    }

    /// Bytes of staging memory, on the host.
    pub(crate) fn staging_bytes(&self) -> u64 {
        let all = self.staged.free_for_gradients.iter().chain(&self.staged.free_for_values);
        all.map(HostBuffer::capacity_bytes).sum()
    }

    /// Begins a transfer.
    pub(crate) fn start(
        &mut self,
        backend: &mut dyn Backend,
        transfer: Transfer,
    ) -> Result<(), ExchangeError> {
        let Exchange { flow, staged, int8 } = self;
        flow.start(&mut DevicePieces { staged, int8: int8.as_ref(), backend }, transfer)
    }

    /// Completes a transfer.
    pub(crate) fn wait(
        &mut self,
        backend: &mut dyn Backend,
        transfer: Transfer,
    ) -> Result<(), ExchangeError> {
        let Exchange { flow, staged, int8 } = self;
        flow.wait(&mut DevicePieces { staged, int8: int8.as_ref(), backend }, transfer)
    }

    /// The pieces of a unit.
    pub(crate) fn pieces(&self, unit: usize) -> &[Piece] {
        &self.staged.pieces[unit]
    }

    /// What a transfer in 8 bits does with a piece; none if gradients travel as they are stored.
    pub(crate) fn int8(&self, transfer: Transfer, piece: usize) -> Option<(&Int8, &QuantisedPiece)> {
        let int8 = self.int8.as_ref().filter(|_| transfer.dtype == ReduceDType::Int8)?;
        Some((int8, int8.piece(transfer.axis, transfer.flat, piece)))
    }

    /// Place of the sum of a piece on this rank.
    ///
    /// # Errors
    /// A term for which no memory was planned.
    pub(crate) fn sum_of(&self, transfer: Transfer, piece: usize) -> Result<View, TensorError> {
        self.staged.sum_of(transfer, piece)
    }

    /// The operator of [`bessemer_program::PassNode::Add`]. The sum is formed in f32 and rounded to the type of gradients.
    pub(crate) fn addition(&self, unit: usize) -> Result<Op, TensorError> {
        let sum = self.staged.gradient(unit)?.own;
        Ok(Add { a: self.staged.term(unit)?, b: sum, out: sum }.into())
    }
}

impl StagedPieces {
    /// The gradients of a unit.
    fn gradient(&self, unit: usize) -> Result<Stretch, TensorError> {
        let frozen = || TensorError::Outside(format!("unit {unit} is frozen and has no gradients").into());
        self.gradients[unit].ok_or_else(frozen)
    }

    /// Where the term of a unit's gradients lies that is added to earlier ones.
    fn term(&self, unit: usize) -> Result<View, TensorError> {
        let whole = self.term.ok_or_else(|| {
            TensorError::Outside("no memory was planned for gradients of several micro-batches".into())
        })?;
        Ok(whole.columns(0, self.gradient(unit)?.own.len()))
    }

    /// Elements of a unit within this rank's part.
    fn own(&self, part: View, unit: usize, range: &Range<usize>) -> View {
        // An empty stretch may start anywhere.
        let start = if range.is_empty() { 0 } else { range.start - self.own_start[unit] };
        part.columns(start, range.len())
    }

    /// What an all-reduce sums of a piece: this rank's part, if the shard axis has summed it before.
    fn summed(&self, unit: usize, piece: &Piece) -> Result<View, TensorError> {
        let (gradients, shard) = (self.gradient(unit)?, &self.queues(unit).shard);
        Ok(match shard.size() {
            1 => gradients.whole.columns(piece.ranges[0].start, piece.ranges[0].len()),
            _ => self.own(gradients.own, unit, &piece.ranges[shard.rank()]),
        })
    }

    /// The queues of a unit's group.
    fn queues(&self, unit: usize) -> &DataQueues {
        &self.groups[self.group_of[unit]]
    }

    fn queue(&mut self, transfer: Transfer) -> &mut CollectiveQueue {
        self.groups[self.group_of[transfer.flat]].over(transfer.axis)
    }

    /// Where the sum of a piece belongs on this rank: of an all-reduce its part of what is summed.
    fn sum_of(&self, transfer: Transfer, piece: usize) -> Result<View, TensorError> {
        let unit = transfer.flat;
        if transfer.kind == CollectiveKind::AllReduce {
            let rank = self.queues(unit).rank();
            let (ranks, me) = if transfer.axis == Axis::Replicate { rank.replicate } else { rank.shard };
            let summed = self.summed(unit, &self.pieces[unit][piece])?;
            let own = even(summed.len(), ranks, me);
            return Ok(summed.columns(own.start, own.len));
        }
        let part = if transfer.term { self.term(unit)? } else { self.gradient(unit)?.own };
        Ok(self.own(part, unit, &self.pieces[unit][piece].ranges[self.queues(unit).shard.rank()]))
    }

    /// Encodes the quantised of a piece and starts their all-to-all.
    fn begin_int8(
        &mut self,
        backend: &mut dyn Backend,
        int8: &Int8,
        (transfer, piece): (Transfer, usize),
    ) -> Result<Ticket, ExchangeError> {
        let quantised = int8.piece(transfer.axis, transfer.flat, piece);
        let empty = || HostBuffer::with_capacity(ElementType::U8, 0);
        let mut values = self.free_for_gradients.pop().unwrap_or_else(empty);
        values.reset(ElementType::U8, quantised.bytes.len() + quantised.received.len());
        for (rank, part) in quantised.views.iter().enumerate() {
            int8.scratch.encode(*part).try_for_each(|op| backend.launch(Stream::Compute, &op))?;
            let bytes = &mut values.as_mut_slice::<u8>()[quantised.bytes.range(rank)];
            int8.scratch.read(backend, part.len(), bytes)?;
        }
        let pattern = Pattern::AllToAll { send: &quantised.bytes, receive: &quantised.received };
        let name = &self.pieces[transfer.flat][piece].name;
        let queue = self.groups[self.group_of[transfer.flat]].over(transfer.axis);
        Ok(queue.start(&Collective::new(name, pattern), values)?)
    }

    /// Decodes what an all-to-all has brought, and sums it; of an all-reduce encodes the sum and starts its all-gather. Or decodes what
    /// that has brought.
    fn end_int8(
        &mut self,
        backend: &mut dyn Backend,
        int8: &Int8,
        (transfer, piece, leg): (Transfer, usize, usize),
        pending: Ticket,
    ) -> Result<Option<Ticket>, ExchangeError> {
        let (scratch, quantised) = (&int8.scratch, int8.piece(transfer.axis, transfer.flat, piece));
        let mut values = self.queue(transfer).finish(pending)?;
        let launch = |backend: &mut dyn Backend, op: Op| backend.launch(Stream::Compute, &op);
        if leg > 0 {
            for (rank, part) in quantised.views.iter().enumerate() {
                scratch.write(backend, part.len(), &values.as_slice()[quantised.bytes.range(rank)])?;
                scratch.decode(*part, false).try_for_each(|op| launch(backend, op))?;
            }
            self.free_for_gradients.push(values);
            return Ok(None);
        }
        let own = self.sum_of(transfer, piece)?;
        let sum = scratch.sum_of(own);
        let received = &values.as_slice::<u8>()[quantised.bytes.len()..];
        for rank in 0..quantised.received.count() {
            scratch.write(backend, own.len(), &received[quantised.received.range(rank)])?;
            scratch.decode(sum, rank > 0).try_for_each(|op| launch(backend, op))?;
        }
        if transfer.kind == CollectiveKind::ReduceScatter {
            scratch.round(own).into_iter().try_for_each(|op| launch(backend, op))?;
            self.free_for_gradients.push(values);
            return Ok(None);
        }
        scratch.encode(sum).try_for_each(|op| launch(backend, op))?;
        values.reset(ElementType::U8, quantised.bytes.len());
        let queue = self.groups[self.group_of[transfer.flat]].over(transfer.axis);
        let bytes = &mut values.as_mut_slice::<u8>()[quantised.bytes.range(queue.rank())];
        scratch.read(backend, own.len(), bytes)?;
        let name = &self.pieces[transfer.flat][piece].name;
        Ok(Some(queue.start(&Collective::new(name, Pattern::AllGather(&quantised.bytes)), values)?))
    }

    /// Copies a piece to a staging buffer and starts its collective.
    fn begin(
        &mut self,
        backend: &mut dyn Backend,
        transfer: Transfer,
        piece: usize,
    ) -> Result<Ticket, ExchangeError> {
        let unit = transfer.flat;
        let (free, whole) = match transfer.kind {
            CollectiveKind::AllGather => (&mut self.free_for_values, self.values[unit].whole),
            _ => {
                let gradients = self.gradient(unit)?.whole;
                (&mut self.free_for_gradients, gradients)
            }
        };
        let dtype = whole.dtype();
        let mut values = free.pop().unwrap_or_else(|| HostBuffer::with_capacity(dtype.into(), 0));
        let p = &self.pieces[unit][piece];
        if transfer.axis == Axis::Replicate {
            let summed = self.summed(unit, p)?;
            values.reset(values.element(), summed.len());
            read_view(backend, summed, &mut values, 0..summed.len())?;
            let sum = Collective::new(&p.name, Pattern::AllReduce(Reduce::Sum));
            return Ok(self.groups[self.group_of[unit]].replicate.start(&sum, values)?);
        }
        values.reset(values.element(), p.parts.len());
        let pattern = match transfer.kind {
            CollectiveKind::AllGather => {
                let me = self.queues(unit).shard.rank();
                let own = self.own(self.values[unit].own, unit, &p.ranges[me]);
                read_view(backend, own, &mut values, p.parts.range(me))?;
                Pattern::AllGather(&p.parts)
            }
            _ => {
                for (r, range) in p.ranges.iter().enumerate() {
                    let part = whole.columns(range.start, range.len());
                    read_view(backend, part, &mut values, p.parts.range(r))?;
                }
                Pattern::ReduceScatter(&p.parts, Reduce::Sum)
            }
        };
        Ok(self.groups[self.group_of[unit]].shard.start(&Collective::new(&p.name, pattern), values)?)
    }

    /// Waits for a piece's collective and puts its result where it belongs.
    fn end(
        &mut self,
        backend: &mut dyn Backend,
        transfer: Transfer,
        piece: usize,
        pending: Ticket,
    ) -> Result<(), ExchangeError> {
        let unit = transfer.flat;
        let values = self.queue(transfer).finish(pending)?;
        let p = &self.pieces[unit][piece];
        if transfer.axis == Axis::Replicate {
            let summed = self.summed(unit, p)?;
            write_view(backend, summed, &values, 0..summed.len())?;
            self.free_for_gradients.push(values);
            return Ok(());
        }
        if transfer.kind == CollectiveKind::AllGather {
            for (r, range) in p.ranges.iter().enumerate() {
                let whole = self.values[unit].whole.columns(range.start, range.len());
                write_view(backend, whole, &values, p.parts.range(r))?;
            }
            self.free_for_values.push(values);
            return Ok(());
        }
        let own = self.sum_of(transfer, piece)?;
        write_view(backend, own, &values, p.parts.range(self.queues(unit).shard.rank()))?;
        self.free_for_gradients.push(values);
        Ok(())
    }
}

/// Pieces of the transfers that run on a device.
struct DevicePieces<'a> {
    staged: &'a mut StagedPieces,
    int8: Option<&'a Int8>,
    backend: &'a mut dyn Backend,
}

impl PieceWork for DevicePieces<'_> {
    type Ticket = Ticket;
    type Error = ExchangeError;

    fn pieces(&self, transfer: Transfer) -> usize {
        self.staged.pieces[transfer.flat].len()
    }

    fn begin(&mut self, transfer: Transfer, piece: usize) -> Result<Ticket, ExchangeError> {
        let backend = &mut *self.backend;
        match self.int8.filter(|_| transfer.dtype == ReduceDType::Int8) {
            Some(int8) => self.staged.begin_int8(backend, int8, (transfer, piece)),
            None => self.staged.begin(backend, transfer, piece),
        }
    }

    fn end(
        &mut self,
        transfer: Transfer,
        piece: usize,
        leg: usize,
        ticket: Ticket,
    ) -> Result<Option<Ticket>, ExchangeError> {
        let backend = &mut *self.backend;
        match self.int8.filter(|_| transfer.dtype == ReduceDType::Int8) {
            Some(int8) => self.staged.end_int8(backend, int8, (transfer, piece, leg), ticket),
            None => self.staged.end(backend, transfer, piece, ticket).map(|()| None),
        }
    }
}
