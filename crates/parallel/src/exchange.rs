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
//! A flat unit is sent in pieces of at most [`BUCKET`] elements through a few staging buffers on the host.
//! [`crate::flow`] defines when a piece begins and ends.

use crate::flat::FlatUnit;
use crate::flow::{PieceFlow, PieceWork};
use crate::int8::{Int8, QuantisedPiece};
use crate::memory::{ParamMemory, Stretch};
use crate::piece::{Piece, pieces};
pub(crate) use bessemer_collectives::ViewError as ExchangeError;
use bessemer_collectives::{Collective, DeviceCommunicator, HostStaging, Parts, Pattern, Reduce, Started};
use bessemer_mesh::{Axis, even};
use bessemer_program::{BUCKET, CollectiveKind, DataRank, PiecesInFlight, Transfer};
use bessemer_tensor::op::{Add, Op};
use bessemer_tensor::{Backend, Stream, TensorError, View};
use bessemer_units::{DType, ReduceDType};
use std::ops::Range;

/// The data-parallel ranks of one group of parameters.
#[derive(Debug)]
pub(crate) struct DataGroups {
    /// Ranks over which the group is sharded.
    pub(crate) shard: Box<dyn DeviceCommunicator>,
    /// Ranks with replicas: for other data, and mirrored holders.
    pub(crate) replicate: Box<dyn DeviceCommunicator>,
}

impl DataGroups {
    /// Position of this rank on both data axes.
    pub(crate) fn rank(&self) -> DataRank {
        let at = |group: &dyn DeviceCommunicator| (group.size(), group.rank());
        DataRank { shard: at(&*self.shard), replicate: at(&*self.replicate) }
    }

    fn over(&mut self, axis: Axis) -> &mut dyn DeviceCommunicator {
        if axis == Axis::Replicate { &mut *self.replicate } else { &mut *self.shard }
    }
}

/// The transfers of one rank on the data-parallel axes.
#[derive(Debug)]
pub(crate) struct Exchange {
    flow: PieceFlow<(Started, usize)>,
    data: DataPieces,
    staging: HostStaging,
    /// Indexed by slot of pieces in 8 bits: no piece in flight uses it.
    free_slots: Vec<bool>,
    /// Quantisation, if gradients are sent in 8 bits.
    int8: Option<Int8>,
}

/// Pieces of values and gradients, and the ranks among which they travel.
#[derive(Debug)]
struct DataPieces {
    /// Indexed by group of parameters.
    groups: Vec<DataGroups>,
    /// Indexed by unit: its group.
    group_of: Vec<usize>,
    /// Indexed by unit.
    pieces: Vec<Vec<Piece>>,
    values: Vec<Stretch>,
    gradients: Vec<Option<Stretch>>,
    /// First element of this rank's part, by unit.
    own_start: Vec<usize>,
    /// Memory of a term, as [`ParamMemory::term`].
    term: Option<View>,
    /// Inputs and outputs of a collective.
    views: [Vec<View>; 2],
}

impl Exchange {
    /// Allocates the device memory of the transfers, and plans their staging buffers. `reduce_dtype`: the type in which gradients are
    /// sent. At most `most` pieces have a staging buffer, and never more than there can be.
    ///
    /// # Errors
    /// An error of the device.
    pub(crate) fn new(
        backend: &mut dyn Backend,
        (groups, staging): (Vec<DataGroups>, HostStaging),
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
        let group_of: Vec<usize> = units.iter().map(|unit| unit.group).collect();
        let start = |(parts, group): (&Parts, &usize)| parts.range(groups[*group].shard.rank()).start;
        let own_start = memory.parts.iter().zip(&group_of).map(start).collect();
        let data = DataPieces {
            term: memory.term,
            groups,
            group_of,
            pieces,
            values: memory.values.clone(),
            gradients: memory.gradients.clone(),
            own_start,
            views: Default::default(),
        };
        let int8 = match reduce_dtype {
            ReduceDType::Int8 if !silent => {
                let of = &data;
                let at = |unit: usize| of.groups[of.group_of[unit]].rank();
                let whole = |unit: usize| of.gradients[unit].map(|gradients| gradients.whole);
                Some(Int8::alloc(backend, most.gradients, &of.pieces, &at, &whole, &|unit, piece| {
                    of.summed(unit, piece).ok()
                })?)
            }
            _ => None,
        };
        if gathers {
            staging.plan(most.values, values, longest);
        }
        match &int8 {
            _ if silent => {}
            Some(int8) => staging.plan(most.gradients, DType::U8, int8.most_staged()),
            None => staging.plan(most.gradients, gradients, longest),
        }
        let free_slots = vec![true; most.gradients];
        Ok(Exchange { flow: PieceFlow::new(most), data, staging, int8, free_slots })
    }

    /// The ranks of a group of parameters, for calls while no transfer is in flight.
    pub(crate) fn group(&mut self, group: usize) -> &mut DataGroups {
        &mut self.data.groups[group]
    }

    /// Most pieces that travel at once.
    pub(crate) fn in_flight(&self) -> PiecesInFlight {
        self.flow.most()
    }

    /// Host memory of the pieces in flight.
    pub(crate) fn staging(&self) -> &HostStaging {
        &self.staging
    }

    /// Begins a transfer.
    pub(crate) fn start(
        &mut self,
        backend: &mut dyn Backend,
        transfer: Transfer,
    ) -> Result<(), ExchangeError> {
        let Exchange { flow, data, int8, free_slots, .. } = self;
        flow.start(&mut DevicePieces { data, int8: int8.as_ref(), free_slots, backend }, transfer)
    }

    /// Completes a transfer.
    pub(crate) fn wait(
        &mut self,
        backend: &mut dyn Backend,
        transfer: Transfer,
    ) -> Result<(), ExchangeError> {
        let Exchange { flow, data, int8, free_slots, .. } = self;
        flow.wait(&mut DevicePieces { data, int8: int8.as_ref(), free_slots, backend }, transfer)
    }

    /// The pieces of a unit.
    pub(crate) fn pieces(&self, unit: usize) -> &[Piece] {
        &self.data.pieces[unit]
    }

    /// Quantisation of a piece in 8 bits; none if gradients are sent in their own type.
    pub(crate) fn int8(&self, transfer: Transfer, piece: usize) -> Option<(&Int8, &QuantisedPiece)> {
        let int8 = self.int8.as_ref().filter(|_| transfer.dtype == ReduceDType::Int8)?;
        Some((int8, int8.piece(transfer.axis, transfer.flat, piece)))
    }

    /// Place of the sum of a piece on this rank.
    ///
    /// # Errors
    /// A term for which no memory was planned.
    pub(crate) fn sum_of(&self, transfer: Transfer, piece: usize) -> Result<View, TensorError> {
        self.data.sum_of(transfer, piece)
    }

    /// The operator of [`bessemer_program::PassNode::Add`]. The sum is formed in f32 and rounded to the type of gradients.
    pub(crate) fn addition(&self, unit: usize) -> Result<Op, TensorError> {
        let sum = self.data.gradient(unit)?.own;
        Ok(Add { a: self.data.term(unit)?, b: sum, out: sum }.into())
    }
}

impl DataPieces {
    /// The gradients of a unit.
    fn gradient(&self, unit: usize) -> Result<Stretch, TensorError> {
        let frozen = || TensorError::Outside(format!("unit {unit} is frozen and has no gradients").into());
        self.gradients[unit].ok_or_else(frozen)
    }

    /// Memory of the term of a unit's gradients that is added to earlier ones.
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

    /// Input of an all-reduce of a piece: this rank's part, if the shard axis has summed it before.
    fn summed(&self, unit: usize, piece: &Piece) -> Result<View, TensorError> {
        let (gradients, shard) = (self.gradient(unit)?, &self.ranks(unit).shard);
        Ok(match shard.size() {
            1 if !gradients.apart() => gradients.whole.columns(piece.ranges[0].start, piece.ranges[0].len()),
            _ => self.own(gradients.own, unit, &piece.ranges[shard.rank()]),
        })
    }

    /// The ranks of a unit's group.
    fn ranks(&self, unit: usize) -> &DataGroups {
        &self.groups[self.group_of[unit]]
    }

    /// Destination of the sum of a piece on this rank: for an all-reduce its part of the summed range.
    fn sum_of(&self, transfer: Transfer, piece: usize) -> Result<View, TensorError> {
        let unit = transfer.flat;
        if transfer.kind == CollectiveKind::AllReduce {
            let rank = self.ranks(unit).rank();
            let (ranks, me) = if transfer.axis == Axis::Replicate { rank.replicate } else { rank.shard };
            let summed = self.summed(unit, &self.pieces[unit][piece])?;
            let own = even(summed.len(), ranks, me);
            return Ok(summed.columns(own.start, own.len));
        }
        let part = if transfer.term { self.term(unit)? } else { self.gradient(unit)?.own };
        Ok(self.own(part, unit, &self.pieces[unit][piece].ranges[self.ranks(unit).shard.rank()]))
    }

    /// Starts a collective of a piece from the first list of views to the second.
    fn collective(
        &mut self,
        backend: &mut dyn Backend,
        (transfer, piece): (Transfer, usize),
        pattern: Pattern<'_>,
    ) -> Result<Started, ExchangeError> {
        let Transfer { flat, axis, .. } = transfer;
        let collective = Collective::new(&self.pieces[flat][piece].name, pattern);
        let [from, to] = &self.views;
        self.groups[self.group_of[flat]].over(axis).start(backend, stream(axis), &collective, from, to)
    }

    /// The ranks of a transfer.
    fn over(&mut self, transfer: Transfer) -> &mut dyn DeviceCommunicator {
        self.groups[self.group_of[transfer.flat]].over(transfer.axis)
    }

    /// Encodes every rank's part of a piece and starts their all-to-all.
    fn begin_int8(
        &mut self,
        backend: &mut dyn Backend,
        (int8, slot): (&Int8, usize),
        (transfer, piece): (Transfer, usize),
    ) -> Result<Started, ExchangeError> {
        let quantised = int8.piece(transfer.axis, transfer.flat, piece);
        let here = int8.within(slot, quantised, self.sum_of(transfer, piece)?);
        launch(backend, here.encode_parts())?;
        let [from, to] = &mut self.views;
        fill(from, here.parts());
        fill(to, here.incoming());
        let pattern = Pattern::AllToAll { send: &quantised.bytes, receive: &quantised.received };
        self.collective(backend, (transfer, piece), pattern)
    }

    /// Decodes the result of an all-to-all, and sums it; for an all-reduce encodes the sum and starts its all-gather. Or decodes the
    /// result of that all-gather.
    fn end_int8(
        &mut self,
        backend: &mut dyn Backend,
        (int8, slot): (&Int8, usize),
        (transfer, piece, leg): (Transfer, usize, usize),
    ) -> Result<Option<Started>, ExchangeError> {
        let quantised = int8.piece(transfer.axis, transfer.flat, piece);
        let here = int8.within(slot, quantised, self.sum_of(transfer, piece)?);
        if leg > 0 {
            launch(backend, here.decode_parts())?;
            return Ok(None);
        }
        launch(backend, here.decode_sum())?;
        if transfer.kind == CollectiveKind::ReduceScatter {
            launch(backend, here.round())?;
            return Ok(None);
        }
        launch(backend, here.encode_sum())?;
        let [from, to] = &mut self.views;
        fill(from, here.mine());
        fill(to, here.parts());
        self.collective(backend, (transfer, piece), Pattern::AllGather(&quantised.bytes)).map(Some)
    }

    /// Starts the collective of a piece.
    fn begin(
        &mut self,
        backend: &mut dyn Backend,
        transfer: Transfer,
        piece: usize,
    ) -> Result<Started, ExchangeError> {
        let Transfer { flat: unit, axis, kind, .. } = transfer;
        let [mut from, mut to] = std::mem::take(&mut self.views);
        let Piece { name, ranges, parts } = &self.pieces[unit][piece];
        let each = |of: View| ranges.iter().map(move |range| of.columns(range.start, range.len()));
        // The next layer writes its gradients where those of this one are read.
        let mut takes_turns = false;
        let pattern = if axis == Axis::Replicate {
            let summed = self.summed(unit, &self.pieces[unit][piece])?;
            fill(&mut from, [summed]);
            fill(&mut to, [summed]);
            Pattern::AllReduce(Reduce::Sum)
        } else if kind == CollectiveKind::AllGather {
            let Stretch { whole, own } = self.values[unit];
            fill(&mut from, [self.own(own, unit, &ranges[self.ranks(unit).shard.rank()])]);
            fill(&mut to, each(whole));
            Pattern::AllGather(parts)
        } else {
            let gradients = self.gradient(unit)?;
            takes_turns = gradients.apart();
            fill(&mut from, each(gradients.whole));
            fill(&mut to, [self.sum_of(transfer, piece)?]);
            Pattern::ReduceScatter(parts, Reduce::Sum)
        };
        let group = self.groups[self.group_of[unit]].over(axis);
        let started = group.start(backend, stream(axis), &Collective::new(name, pattern), &from, &to)?;
        if takes_turns {
            group.release(backend, &started)?;
        }
        self.views = [from, to];
        Ok(started)
    }
}

/// The stream of collectives along an axis.
pub(crate) fn stream(axis: Axis) -> Stream {
    Stream::Axis(axis as u8)
}

/// Replaces a list.
pub(crate) fn fill(list: &mut Vec<View>, views: impl IntoIterator<Item = View>) {
    list.clear();
    list.extend(views);
}

fn launch(backend: &mut dyn Backend, ops: impl IntoIterator<Item = Op>) -> Result<(), TensorError> {
    ops.into_iter().try_for_each(|op| backend.launch(Stream::Compute, &op))
}

/// Pieces of the transfers that run on a device.
struct DevicePieces<'a> {
    data: &'a mut DataPieces,
    int8: Option<&'a Int8>,
    free_slots: &'a mut [bool],
    backend: &'a mut dyn Backend,
}

impl<'a> DevicePieces<'a> {
    fn int8(&self, transfer: Transfer) -> Option<&'a Int8> {
        self.int8.filter(|_| transfer.dtype == ReduceDType::Int8)
    }
}

impl PieceWork for DevicePieces<'_> {
    /// Handle of a piece in flight, with its slot if it is in 8 bits.
    type Ticket = (Started, usize);
    type Error = ExchangeError;

    fn pieces(&self, transfer: Transfer) -> usize {
        self.data.pieces[transfer.flat].len()
    }

    fn begin(&mut self, transfer: Transfer, piece: usize) -> Result<(Started, usize), ExchangeError> {
        let int8 = self.int8(transfer);
        let backend = &mut *self.backend;
        let Some(int8) = int8 else { return Ok((self.data.begin(backend, transfer, piece)?, 0)) };
        // The first: each step has the same.
        let slot = self.free_slots.iter().position(|free| *free).ok_or_else(|| {
            TensorError::Outside("more pieces in 8 bits are in flight than were planned".into())
        })?;
        self.free_slots[slot] = false;
        Ok((self.data.begin_int8(backend, (int8, slot), (transfer, piece))?, slot))
    }

    fn end(
        &mut self,
        transfer: Transfer,
        piece: usize,
        leg: usize,
        (started, slot): (Started, usize),
    ) -> Result<Option<(Started, usize)>, ExchangeError> {
        let int8 = self.int8(transfer);
        let backend = &mut *self.backend;
        self.data.over(transfer).finish(backend, started)?;
        let Some(int8) = int8 else { return Ok(None) };
        let next = self.data.end_int8(backend, (int8, slot), (transfer, piece, leg))?;
        if next.is_none() {
            self.free_slots[slot] = true;
        }
        Ok(next.map(|started| (started, slot)))
    }
}
