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
//! the parts of gradients are then all-reduced between the replicas: 2 P/N.
//!
//! A flat unit travels in pieces of at most [`BUCKET`] elements through a few staging buffers on the host. When
//! a piece begins and ends, [`crate::flow`] says.

use crate::flat::FlatUnit;
use crate::flow::{GRADIENTS_AHEAD, PieceFlow, PieceWork, VALUES_AHEAD};
use crate::memory::{ParamMemory, Stretch};
use crate::piece::{Piece, pieces};
pub(crate) use bessemer_collectives::ViewError as ExchangeError;
use bessemer_collectives::{
    Collective, CollectiveQueue, HostBuffer, Pattern, Reduce, Ticket, read_view, write_view,
};
use bessemer_mesh::Axis;
use bessemer_program::{CollectiveKind, Transfer};
use bessemer_tensor::op::{Add, Op};
use bessemer_tensor::{Backend, TensorError, View};
use bessemer_units::DType;
use std::ops::Range;

/// Elements of a staging buffer: 32 MiB in f32.
pub(crate) const BUCKET: usize = 8 << 20;

/// The transfers of one rank on the data-parallel axes.
#[derive(Debug)]
pub(crate) struct Exchange {
    flow: PieceFlow<Ticket>,
    staged: StagedPieces,
}

/// Pieces of values and gradients between the memory of the device and collectives.
#[derive(Debug)]
struct StagedPieces {
    shard: CollectiveQueue,
    replicate: CollectiveQueue,
    /// By unit.
    pieces: Vec<Vec<Piece>>,
    values: Vec<Stretch>,
    gradients: Vec<Stretch>,
    /// First element of this rank's part, by unit.
    own_start: Vec<usize>,
    /// Staging buffers that no collective has.
    free_for_gradients: Vec<HostBuffer>,
    free_for_values: Vec<HostBuffer>,
    /// As [`ParamMemory::term`].
    term: Option<View>,
}

impl Exchange {
    pub(crate) fn new(
        shard: CollectiveQueue,
        replicate: CollectiveQueue,
        units: &[FlatUnit],
        memory: &ParamMemory,
    ) -> Exchange {
        let cut = |(unit, parts)| pieces(unit, parts, BUCKET);
        let pieces: Vec<Vec<Piece>> = units.iter().zip(&memory.parts).map(cut).collect();
        let longest = pieces.iter().flatten().map(|p| p.parts.len()).max().unwrap_or(0);
        let silent = shard.size() * replicate.size() == 1;
        let dtype = |of: &[Stretch]| of.first().map_or(DType::F32, |s| s.whole.dtype());
        let (values, gradients) = (dtype(&memory.values), dtype(&memory.gradients));
        let buffers = |count: usize, dtype: DType, idle: bool| -> Vec<HostBuffer> {
            let count = if idle { 0 } else { count };
            (0..count).map(|_| HostBuffer::with_capacity(dtype.into(), longest)).collect()
        };
        let own_start = memory.parts.iter().map(|p| p.range(shard.rank()).start).collect();
        let staged = StagedPieces {
            free_for_gradients: buffers(GRADIENTS_AHEAD, gradients, silent),
            free_for_values: buffers(VALUES_AHEAD, values, shard.size() == 1),
            term: memory.term,
            shard,
            replicate,
            pieces,
            values: memory.values.clone(),
            gradients: memory.gradients.clone(),
            own_start,
        };
        Exchange { flow: PieceFlow::default(), staged }
    }

    /// The communicator of the shard axis, for calls while no transfer is in flight.
    pub(crate) fn shard(&mut self) -> &mut CollectiveQueue {
        &mut self.staged.shard
    }

    /// The communicator of the replicate axis, for calls while no transfer is in flight.
    pub(crate) fn replicate(&mut self) -> &mut CollectiveQueue {
        &mut self.staged.replicate
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
        self.flow.start(&mut DevicePieces { staged: &mut self.staged, backend }, transfer)
    }

    /// Completes a transfer.
    pub(crate) fn wait(
        &mut self,
        backend: &mut dyn Backend,
        transfer: Transfer,
    ) -> Result<(), ExchangeError> {
        self.flow.wait(&mut DevicePieces { staged: &mut self.staged, backend }, transfer)
    }

    /// The pieces of a unit.
    pub(crate) fn pieces(&self, unit: usize) -> &[Piece] {
        &self.staged.pieces[unit]
    }

    /// The operator of [`bessemer_program::PassNode::Add`]. The sum is formed in f32 and rounded to the type of gradients.
    pub(crate) fn addition(&self, unit: usize) -> Result<Op, TensorError> {
        let sum = self.staged.gradients[unit].own;
        Ok(Add { a: self.staged.term(unit)?, b: sum, out: sum }.into())
    }
}

impl StagedPieces {
    /// Where the term of a unit's gradients lies that is added to earlier ones.
    fn term(&self, unit: usize) -> Result<View, TensorError> {
        let whole = self.term.ok_or_else(|| {
            TensorError::Outside("no memory was planned for gradients of several micro-batches".into())
        })?;
        Ok(whole.columns(0, self.gradients[unit].own.len()))
    }

    /// Elements of a unit within this rank's part.
    fn own(&self, part: View, unit: usize, range: &Range<usize>) -> View {
        // An empty stretch may start anywhere.
        let start = if range.is_empty() { 0 } else { range.start - self.own_start[unit] };
        part.columns(start, range.len())
    }

    /// What an all-reduce sums of a piece: this rank's part, if the shard axis has summed it before.
    fn summed(&self, unit: usize, piece: &Piece) -> View {
        match self.shard.size() {
            1 => self.gradients[unit].whole.columns(piece.ranges[0].start, piece.ranges[0].len()),
            _ => self.own(self.gradients[unit].own, unit, &piece.ranges[self.shard.rank()]),
        }
    }

    /// Copies a piece to a staging buffer and starts its collective.
    fn begin(
        &mut self,
        backend: &mut dyn Backend,
        transfer: Transfer,
        piece: usize,
    ) -> Result<Ticket, ExchangeError> {
        let unit = transfer.flat;
        let (free, of) = match transfer.kind {
            CollectiveKind::AllGather => (&mut self.free_for_values, &self.values),
            _ => (&mut self.free_for_gradients, &self.gradients),
        };
        let dtype = of[unit].whole.dtype();
        let mut values = free.pop().unwrap_or_else(|| HostBuffer::with_capacity(dtype.into(), 0));
        let p = &self.pieces[unit][piece];
        if transfer.axis == Axis::Replicate {
            let summed = self.summed(unit, p);
            values.reset(values.element(), summed.len());
            read_view(backend, summed, &mut values, 0..summed.len())?;
            let sum = Collective::new(&p.name, Pattern::AllReduce(Reduce::Sum));
            return Ok(self.replicate.start(&sum, values)?);
        }
        values.reset(values.element(), p.parts.len());
        let pattern = match transfer.kind {
            CollectiveKind::AllGather => {
                let me = self.shard.rank();
                let own = self.own(self.values[unit].own, unit, &p.ranges[me]);
                read_view(backend, own, &mut values, p.parts.range(me))?;
                Pattern::AllGather(&p.parts)
            }
            _ => {
                for (r, range) in p.ranges.iter().enumerate() {
                    let whole = self.gradients[unit].whole.columns(range.start, range.len());
                    read_view(backend, whole, &mut values, p.parts.range(r))?;
                }
                Pattern::ReduceScatter(&p.parts, Reduce::Sum)
            }
        };
        Ok(self.shard.start(&Collective::new(&p.name, pattern), values)?)
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
        let p = &self.pieces[unit][piece];
        if transfer.axis == Axis::Replicate {
            let values = self.replicate.finish(pending)?;
            let summed = self.summed(unit, p);
            write_view(backend, summed, &values, 0..summed.len())?;
            self.free_for_gradients.push(values);
            return Ok(());
        }
        let values = self.shard.finish(pending)?;
        if transfer.kind == CollectiveKind::AllGather {
            for (r, range) in p.ranges.iter().enumerate() {
                let whole = self.values[unit].whole.columns(range.start, range.len());
                write_view(backend, whole, &values, p.parts.range(r))?;
            }
            self.free_for_values.push(values);
            return Ok(());
        }
        let me = self.shard.rank();
        let part = if transfer.term { self.term(unit)? } else { self.gradients[unit].own };
        write_view(backend, self.own(part, unit, &p.ranges[me]), &values, p.parts.range(me))?;
        self.free_for_gradients.push(values);
        Ok(())
    }
}

/// Pieces of the transfers that run on a device.
struct DevicePieces<'a> {
    staged: &'a mut StagedPieces,
    backend: &'a mut dyn Backend,
}

impl PieceWork for DevicePieces<'_> {
    type Ticket = Ticket;
    type Error = ExchangeError;

    fn pieces(&self, transfer: Transfer) -> usize {
        self.staged.pieces[transfer.flat].len()
    }

    fn begin(&mut self, transfer: Transfer, piece: usize) -> Result<Ticket, ExchangeError> {
        self.staged.begin(&mut *self.backend, transfer, piece)
    }

    fn end(&mut self, transfer: Transfer, piece: usize, ticket: Ticket) -> Result<(), ExchangeError> {
        self.staged.end(&mut *self.backend, transfer, piece, ticket)
    }
}
