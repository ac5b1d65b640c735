//! Gradients and values on their way between data-parallel ranks.
//!
//! | stage | gradients, each step | values |
//! |---|---|---|
//! | ddp | all-reduce after the last micro-batch: 2 P | – |
//! | zero1 | reduce-scatter after the last micro-batch: P | all-gather after the update: P |
//! | zero2 | reduce-scatter after each of m micro-batches: m P | all-gather after the update: P |
//! | zero3 | reduce-scatter after each micro-batch: m P | all-gather before each forward and each backward: 2 m P |
//!
//! elements a rank, times (N-1)/N, in the type in which they are kept ; with copies of the cut model (hybrid sharding) gradients are then all-reduced between
//! the copies: 2 P/N. A layer's gradients leave as soon as its backward pass is done, the next layer's values are asked
//! for before this one's are used.

use crate::config::Stage;
use crate::flat::FlatUnit;
use crate::memory::{ParamMemory, Stretch};
use crate::piece::{Piece, pieces};
use crate::staging;
pub(crate) use bessemer_collectives::ViewError as ExchangeError;
use bessemer_collectives::{
    Collective, CollectiveQueue, HostBuffer, Pattern, Reduce, Ticket, read_view, write_view,
};
use bessemer_tensor::{Backend, View};
use bessemer_units::DType;
use std::collections::VecDeque;
use std::ops::Range;

/// Elements of a staging buffer: 32 MiB in f32.
pub(crate) const BUCKET: usize = 8 << 20;
/// Pieces of gradients that travel at once.
const GRADIENTS_AHEAD: usize = 3;
/// Pieces of values that travel at once.
const VALUES_AHEAD: usize = 2;

/// A collective that is under way.
#[derive(Debug)]
struct Flight {
    unit: usize,
    piece: usize,
    pending: Ticket,
}

/// Values of a unit on their way.
#[derive(Debug)]
struct Gathering {
    unit: usize,
    /// The next piece to start.
    next: usize,
}

/// The traffic of one rank on the data-parallel axes.
#[derive(Debug)]
pub(crate) struct Exchange {
    stage: Stage,
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
    /// What a reduced part is added to, on the host.
    sum: HostBuffer,
}

impl Exchange {
    pub(crate) fn new(
        stage: Stage,
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
            sum: HostBuffer::with_capacity(gradients.into(), if stage >= Stage::Zero2 { longest } else { 0 }),
            stage,
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

    /// The communicator of the shard axis, when nothing is under way.
    pub(crate) fn shard(&mut self) -> &mut CollectiveQueue {
        &mut self.shard
    }

    /// The communicator of the replicate axis, when nothing is under way.
    pub(crate) fn replicate(&mut self) -> &mut CollectiveQueue {
        &mut self.replicate
    }

    /// Bytes of staging memory, on the host.
    pub(crate) fn staging_bytes(&self) -> u64 {
        let all = self.free_for_gradients.iter().chain(&self.free_for_values).chain([&self.sum]);
        all.map(HostBuffer::capacity_bytes).sum()
    }

    /// Elements of a unit within this rank's part.
    fn own(&self, of: &[Stretch], unit: usize, range: &Range<usize>) -> View {
        // An empty stretch may start anywhere.
        let start = if range.is_empty() { 0 } else { range.start - self.own_start[unit] };
        of[unit].own.columns(start, range.len())
    }

    /// Sends a unit's gradients on their way; `add` says whether parts are added to what earlier micro-batches left.
    pub(crate) fn reduce(
        &mut self,
        backend: &mut dyn Backend,
        unit: usize,
        add: bool,
    ) -> Result<(), ExchangeError> {
        if self.shard.size() * self.replicate.size() == 1 {
            return Ok(());
        }
        for piece in 0..self.pieces[unit].len() {
            let mut values = match self.free_for_gradients.pop() {
                Some(values) => values,
                None => {
                    self.settle(backend, add)?;
                    self.gradient_buffer(unit)
                }
            };
            let p = &self.pieces[unit][piece];
            values.reset(values.element(), p.parts.len());
            for (r, range) in p.ranges.iter().enumerate() {
                let whole = self.gradients[unit].whole.columns(range.start, range.len());
                read_view(backend, whole, &mut values, p.parts.range(r))?;
            }
            let pending = if self.shard.size() > 1 {
                self.shard
                    .start(&Collective::new(&p.name, Pattern::ReduceScatter(&p.parts, Reduce::Sum)), values)?
            } else {
                self.replicate.start(&Collective::new(&p.name, Pattern::AllReduce(Reduce::Sum)), values)?
            };
            self.reducing.push_back(Flight { unit, piece, pending });
        }
        Ok(())
    }

    /// Waits for the oldest piece of gradients and puts it where it belongs.
    fn settle(&mut self, backend: &mut dyn Backend, add: bool) -> Result<(), ExchangeError> {
        let Some(Flight { unit, piece, pending }) = self.reducing.pop_front() else { return Ok(()) };
        let p = &self.pieces[unit][piece];
        if self.shard.size() == 1 {
            let values = self.replicate.finish(pending)?;
            let whole = self.gradients[unit].whole.columns(p.ranges[0].start, p.ranges[0].len());
            write_view(backend, whole, &values, 0..whole.len())?;
            self.free_for_gradients.push(values);
            return Ok(());
        }
        let mut values = self.shard.finish(pending)?;
        let me = self.shard.rank();
        let own = self.own(&self.gradients, unit, &p.ranges[me]);
        let mine = p.parts.range(me);
        // A kept gradient has been added up in place.
        if add && self.reduces_every_time() {
            self.sum.reset(self.sum.element(), mine.len());
            read_view(backend, own, &mut self.sum, 0..mine.len())?;
            staging::add(&mut values, mine.clone(), &self.sum);
        }
        write_view(backend, own, &values, mine)?;
        self.free_for_gradients.push(values);
        Ok(())
    }

    /// Waits for all gradients. After the last micro-batch of a step copies of a cut model add theirs up.
    pub(crate) fn finish_gradients(
        &mut self,
        backend: &mut dyn Backend,
        add: bool,
        last: bool,
    ) -> Result<(), ExchangeError> {
        while !self.reducing.is_empty() {
            self.settle(backend, add)?;
        }
        if !last || self.shard.size() == 1 || self.replicate.size() == 1 {
            return Ok(());
        }
        let me = self.shard.rank();
        for unit in 0..self.pieces.len() {
            for piece in 0..self.pieces[unit].len() {
                let p = &self.pieces[unit][piece];
                let own = self.own(&self.gradients, unit, &p.ranges[me]);
                let mut values = self.gradient_buffer(unit);
                let p = &self.pieces[unit][piece];
                values.reset(values.element(), own.len());
                read_view(backend, own, &mut values, 0..own.len())?;
                let pending = self
                    .replicate
                    .start(&Collective::new(&p.name, Pattern::AllReduce(Reduce::Sum)), values)?;
                let values = self.replicate.finish(pending)?;
                write_view(backend, own, &values, 0..own.len())?;
                self.free_for_gradients.push(values);
            }
        }
        Ok(())
    }

    /// A free staging buffer for a unit's gradients.
    fn gradient_buffer(&mut self, unit: usize) -> HostBuffer {
        let dtype = self.gradients[unit].whole.dtype();
        self.free_for_gradients.pop().unwrap_or_else(|| HostBuffer::with_capacity(dtype.into(), 0))
    }

    /// Whether gradients leave after every micro-batch.
    pub(crate) fn reduces_every_time(&self) -> bool {
        self.stage >= Stage::Zero2
    }

    /// Whether a unit's values must be gathered before they are used.
    pub(crate) fn gathers(&self) -> bool {
        self.stage == Stage::Zero3 && self.shard.size() > 1
    }

    /// Asks for a unit's values, as many pieces as there are buffers.
    pub(crate) fn ask(&mut self, backend: &mut dyn Backend, unit: usize) -> Result<(), ExchangeError> {
        if self.gathering.is_some() {
            return Ok(());
        }
        self.gathering = Some(Gathering { unit, next: 0 });
        while self.ask_more(backend)? {}
        Ok(())
    }

    /// Asks for one more piece, if there is one and a buffer for it.
    fn ask_more(&mut self, backend: &mut dyn Backend) -> Result<bool, ExchangeError> {
        let Some(Gathering { unit, next }) = self.gathering else { return Ok(false) };
        let Some(p) = self.pieces[unit].get(next) else { return Ok(false) };
        let Some(mut values) = self.free_for_values.pop() else { return Ok(false) };
        let me = self.shard.rank();
        values.reset(values.element(), p.parts.len());
        let own = self.own(&self.values, unit, &p.ranges[me]);
        read_view(backend, own, &mut values, p.parts.range(me))?;
        let pending = self.shard.start(&Collective::new(&p.name, Pattern::AllGather(&p.parts)), values)?;
        self.arriving.push_back(Flight { unit, piece: next, pending });
        self.gathering = Some(Gathering { unit, next: next + 1 });
        Ok(true)
    }

    /// Puts a unit's values in place, asking for them if nobody has yet.
    pub(crate) fn fetch(&mut self, backend: &mut dyn Backend, unit: usize) -> Result<(), ExchangeError> {
        if self.gathering.as_ref().is_some_and(|g| g.unit != unit) {
            // Asked for another one, which is not used after all (a pass that ended early).
            let asked = self.gathering.as_ref().map_or(unit, |g| g.unit);
            self.arrive(backend, asked)?;
        }
        self.ask(backend, unit)?;
        self.arrive(backend, unit)
    }

    fn arrive(&mut self, backend: &mut dyn Backend, unit: usize) -> Result<(), ExchangeError> {
        while let Some(Flight { piece, pending, .. }) = self.arriving.pop_front() {
            let values = self.shard.finish(pending)?;
            let p = &self.pieces[unit][piece];
            for (r, range) in p.ranges.iter().enumerate() {
                let whole = self.values[unit].whole.columns(range.start, range.len());
                write_view(backend, whole, &values, p.parts.range(r))?;
            }
            self.free_for_values.push(values);
            self.ask_more(backend)?;
        }
        self.gathering = None;
        Ok(())
    }

    /// After an update of this rank's parts: makes every unit whole again where units are kept whole.
    pub(crate) fn spread_values(&mut self, backend: &mut dyn Backend) -> Result<(), ExchangeError> {
        if self.shard.size() == 1 || !matches!(self.stage, Stage::Zero1 | Stage::Zero2) {
            return Ok(());
        }
        (0..self.pieces.len()).try_for_each(|unit| self.fetch(backend, unit))
    }
}
