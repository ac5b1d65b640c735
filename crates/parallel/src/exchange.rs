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
//! A flat unit travels in pieces of at most [`BUCKET`] elements through a few staging buffers on the host. Where all buffers are in
//! flight, the oldest piece is waited for.

use crate::flat::FlatUnit;
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
use std::collections::VecDeque;
use std::ops::Range;

/// Elements of a staging buffer: 32 MiB in f32.
pub(crate) const BUCKET: usize = 8 << 20;
/// Pieces of gradients that travel at once.
pub(crate) const GRADIENTS_AHEAD: usize = 3;
/// Pieces of values that travel at once.
pub(crate) const VALUES_AHEAD: usize = 2;

/// A piece of a transfer that is in flight.
#[derive(Debug)]
struct Flight {
    transfer: Transfer,
    piece: usize,
    pending: Ticket,
}

/// A gather of a unit's values that is in flight.
#[derive(Debug)]
struct Gathering {
    unit: usize,
    /// The next piece to start.
    next: usize,
}

/// The transfers of one rank on the data-parallel axes.
#[derive(Debug)]
pub(crate) struct Exchange {
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
    reducing: VecDeque<Flight>,
    gathering: Option<Gathering>,
    arriving: VecDeque<Flight>,
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
        Exchange {
            free_for_gradients: buffers(GRADIENTS_AHEAD, gradients, silent),
            free_for_values: buffers(VALUES_AHEAD, values, shard.size() == 1),
            term: memory.term,
            shard,
            replicate,
            pieces,
            values: memory.values.clone(),
            gradients: memory.gradients.clone(),
            own_start,
            reducing: VecDeque::with_capacity(GRADIENTS_AHEAD),
            gathering: None,
            arriving: VecDeque::with_capacity(VALUES_AHEAD),
        }
    }

    /// The communicator of the shard axis, for calls while no transfer is in flight.
    pub(crate) fn shard(&mut self) -> &mut CollectiveQueue {
        &mut self.shard
    }

    /// The communicator of the replicate axis, for calls while no transfer is in flight.
    pub(crate) fn replicate(&mut self) -> &mut CollectiveQueue {
        &mut self.replicate
    }

    /// Bytes of staging memory, on the host.
    pub(crate) fn staging_bytes(&self) -> u64 {
        let all = self.free_for_gradients.iter().chain(&self.free_for_values);
        all.map(HostBuffer::capacity_bytes).sum()
    }

    /// Begins a transfer.
    pub(crate) fn start(
        &mut self,
        backend: &mut dyn Backend,
        transfer: Transfer,
    ) -> Result<(), ExchangeError> {
        match transfer.kind {
            CollectiveKind::AllGather => self.ask(backend, transfer),
            _ => self.reduce(backend, transfer),
        }
    }

    /// Completes a transfer.
    pub(crate) fn wait(
        &mut self,
        backend: &mut dyn Backend,
        transfer: Transfer,
    ) -> Result<(), ExchangeError> {
        if transfer.kind == CollectiveKind::AllGather {
            return self.fetch(backend, transfer);
        }
        while self.reducing.iter().any(|flight| flight.transfer == transfer) {
            self.settle(backend)?;
        }
        Ok(())
    }

    /// The operator of [`bessemer_program::PassNode::Add`]. The sum is formed in f32 and rounded to the type of gradients.
    pub(crate) fn addition(&self, unit: usize) -> Result<Op, TensorError> {
        let sum = self.gradients[unit].own;
        Ok(Add { a: self.term(unit)?, b: sum, out: sum }.into())
    }

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

    fn reduce(&mut self, backend: &mut dyn Backend, transfer: Transfer) -> Result<(), ExchangeError> {
        let unit = transfer.flat;
        for piece in 0..self.pieces[unit].len() {
            let mut values = match self.free_for_gradients.pop() {
                Some(values) => values,
                None => {
                    self.settle(backend)?;
                    self.gradient_buffer(unit)
                }
            };
            let p = &self.pieces[unit][piece];
            let pending = if transfer.axis == Axis::Shard {
                values.reset(values.element(), p.parts.len());
                for (r, range) in p.ranges.iter().enumerate() {
                    let whole = self.gradients[unit].whole.columns(range.start, range.len());
                    read_view(backend, whole, &mut values, p.parts.range(r))?;
                }
                let scatter = Collective::new(&p.name, Pattern::ReduceScatter(&p.parts, Reduce::Sum));
                self.shard.start(&scatter, values)?
            } else {
                let summed = self.summed(unit, p);
                values.reset(values.element(), summed.len());
                read_view(backend, summed, &mut values, 0..summed.len())?;
                self.replicate.start(&Collective::new(&p.name, Pattern::AllReduce(Reduce::Sum)), values)?
            };
            self.reducing.push_back(Flight { transfer, piece, pending });
        }
        Ok(())
    }

    /// Waits for the oldest piece of gradients and puts it where it belongs.
    fn settle(&mut self, backend: &mut dyn Backend) -> Result<(), ExchangeError> {
        let Some(Flight { transfer, piece, pending }) = self.reducing.pop_front() else { return Ok(()) };
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
        let me = self.shard.rank();
        let part = if transfer.term { self.term(unit)? } else { self.gradients[unit].own };
        write_view(backend, self.own(part, unit, &p.ranges[me]), &values, p.parts.range(me))?;
        self.free_for_gradients.push(values);
        Ok(())
    }

    /// A free staging buffer for a unit's gradients.
    fn gradient_buffer(&mut self, unit: usize) -> HostBuffer {
        let dtype = self.gradients[unit].whole.dtype();
        self.free_for_gradients.pop().unwrap_or_else(|| HostBuffer::with_capacity(dtype.into(), 0))
    }

    /// Starts the gather of a unit's values, as many pieces as there are buffers.
    fn ask(&mut self, backend: &mut dyn Backend, transfer: Transfer) -> Result<(), ExchangeError> {
        if self.gathering.is_some() {
            return Ok(());
        }
        self.gathering = Some(Gathering { unit: transfer.flat, next: 0 });
        while self.ask_more(backend, transfer)? {}
        Ok(())
    }

    /// Starts the gather of one more piece, if there is one and a buffer for it.
    fn ask_more(&mut self, backend: &mut dyn Backend, transfer: Transfer) -> Result<bool, ExchangeError> {
        let Some(Gathering { unit, next }) = self.gathering else { return Ok(false) };
        let Some(p) = self.pieces[unit].get(next) else { return Ok(false) };
        let Some(mut values) = self.free_for_values.pop() else { return Ok(false) };
        let me = self.shard.rank();
        values.reset(values.element(), p.parts.len());
        let own = self.own(self.values[unit].own, unit, &p.ranges[me]);
        read_view(backend, own, &mut values, p.parts.range(me))?;
        let pending = self.shard.start(&Collective::new(&p.name, Pattern::AllGather(&p.parts)), values)?;
        self.arriving.push_back(Flight { transfer, piece: next, pending });
        self.gathering = Some(Gathering { unit, next: next + 1 });
        Ok(true)
    }

    /// Completes the gather of a unit's values, after starting it if no entry of the list has.
    fn fetch(&mut self, backend: &mut dyn Backend, transfer: Transfer) -> Result<(), ExchangeError> {
        let asked = self.gathering.as_ref().map(|g| Transfer { flat: g.unit, ..transfer });
        if let Some(other) = asked.filter(|asked| *asked != transfer) {
            // A pass that ended early has started another gather, whose values nobody uses.
            self.arrive(backend, other)?;
        }
        self.ask(backend, transfer)?;
        self.arrive(backend, transfer)
    }

    fn arrive(&mut self, backend: &mut dyn Backend, transfer: Transfer) -> Result<(), ExchangeError> {
        while let Some(Flight { piece, pending, .. }) = self.arriving.pop_front() {
            let values = self.shard.finish(pending)?;
            let p = &self.pieces[transfer.flat][piece];
            for (r, range) in p.ranges.iter().enumerate() {
                let whole = self.values[transfer.flat].whole.columns(range.start, range.len());
                write_view(backend, whole, &values, p.parts.range(r))?;
            }
            self.free_for_values.push(values);
            self.ask_more(backend, transfer)?;
        }
        self.gathering = None;
        Ok(())
    }
}
