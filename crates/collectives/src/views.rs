//! Collectives over views of a device ([`DeviceCommunicator`]), and the engine that stages them through host memory.
//!
//! This is the one place where values of a device are copied for a collective. They travel in the type in which they are stored, bit
//! by bit.

use crate::error::CallSite;
use crate::queue::{CollectiveQueue, Idle, Ticket};
use crate::{Collective, CollectiveError, ElementType, HostBuffer, Pattern};
use bessemer_tensor::{Backend, Stream, TensorError, View};
use bessemer_units::DType;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Errors of a collective over views.
#[derive(Debug, thiserror::Error)]
pub enum ViewError {
    /// The collective failed.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// The device failed.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

/// A collective that was started over views.
#[derive(Debug)]
#[must_use = "the views are free, and have their values, after DeviceCommunicator::finish"]
pub struct Started(u64);

/// One rank's end of a group of ranks that exchange values in the memory of devices. Every rank of the group starts the same
/// collectives in the same order.
///
/// ```text
/// start    what has been launched on Stream::Compute ─► stream: the collective reads `from` and writes `to`
/// release  (if `from` is written before the finish)     stream ─► what is launched on Stream::Compute from now on may write `from`
/// finish                                                stream ─► what is launched on Stream::Compute from now on may use both
/// ```
/// An engine reads and writes the views at any time between the first and the last call. Threads, messages and MPI work on host memory,
/// to which [`StagedCommunicator`] copies; an engine that works on addresses of the device puts the collective into the stream, and
/// orders the streams by the same events.
pub trait DeviceCommunicator: Send + std::fmt::Debug {
    /// Returns the position of this rank in the group.
    fn rank(&self) -> usize;

    /// Number of ranks in the group.
    fn size(&self) -> usize;

    /// Starts a collective on `stream` that reads the views `from` and writes the views `to`, each list taken as one after the other.
    ///
    /// `from` is what the pattern's values are on this rank before it, `to` what they are after it: of an all-gather `from` is this
    /// rank's part and `to` the whole, of a reduce-scatter the other way round, of an all-reduce both are the whole. A send has no
    /// `to`, a receive no `from`; of a broadcast either may be missing. All views have one type, or nothing is reduced and the
    /// pattern's parts count bytes.
    ///
    /// # Errors
    /// Views that do not fit the pattern; an error of the device, of this collective or of an earlier one.
    fn start(
        &mut self,
        backend: &mut dyn Backend,
        stream: Stream,
        collective: &Collective<'_>,
        from: &[View],
        to: &[View],
    ) -> Result<Started, ViewError>;

    /// Orders what is launched on [`Stream::Compute`] from now on behind what a collective reads, so that `from` may be written.
    ///
    /// # Errors
    /// An error of the device.
    fn release(&mut self, backend: &mut dyn Backend, started: &Started) -> Result<(), ViewError>;

    /// Orders what is launched on [`Stream::Compute`] from now on behind a collective. Each is finished once, in any order.
    ///
    /// # Errors
    /// An error of the device, of this collective or of an earlier one.
    fn finish(&mut self, backend: &mut dyn Backend, started: Started) -> Result<(), ViewError>;

    /// Starts a collective and finishes it.
    ///
    /// # Errors
    /// As [`DeviceCommunicator::start`].
    fn run(
        &mut self,
        backend: &mut dyn Backend,
        stream: Stream,
        collective: &Collective<'_>,
        from: &[View],
        to: &[View],
    ) -> Result<(), ViewError> {
        let started = self.start(backend, stream, collective, from, to)?;
        self.finish(backend, started)
    }

    /// Returns the communicator of the same ranks for values in host memory, as soon as every collective that was started is done.
    ///
    /// # Errors
    /// An error of an earlier collective.
    fn host(&mut self) -> Result<Idle<'_>, CollectiveError>;
}

/// Host memory in which values of a device wait for collectives. It is used again: collectives no larger than earlier ones allocate
/// nothing. Clones share it.
#[derive(Debug, Default, Clone)]
pub struct HostStaging(Arc<Mutex<Vec<HostBuffer>>>);

impl HostStaging {
    /// Plans buffers for `count` collectives at a time, of `elements` values of type `dtype` each ([`HostBuffer::planned`]).
    pub fn plan(&self, count: usize, dtype: DType, elements: usize) {
        self.free().extend((0..count).map(|_| HostBuffer::planned(dtype.into(), elements)));
    }

    /// Allocates the buffers that are planned.
    pub fn allocate(&self) {
        self.free().iter_mut().for_each(HostBuffer::allocate);
    }

    /// Bytes of the buffers that no collective has, allocated or planned.
    pub fn capacity_bytes(&self) -> u64 {
        self.free().iter().map(HostBuffer::capacity_bytes).sum()
    }

    /// A buffer of `len` elements: one that is large enough, of the same type, the smallest; else the largest.
    fn take(&self, element: ElementType, len: usize) -> HostBuffer {
        let mut free = self.free();
        let wanted = (len * element.size()) as u64;
        let best = (0..free.len()).min_by_key(|at| {
            let (room, other) = (free[*at].capacity_bytes(), free[*at].element() != element);
            if room >= wanted { (false, other, room) } else { (true, other, u64::MAX - room) }
        });
        let buffer = best.map(|at| free.swap_remove(at));
        drop(free);
        let mut buffer = buffer.unwrap_or_else(|| HostBuffer::with_capacity(element, len));
        buffer.reset(element, len);
        buffer
    }

    fn give(&self, buffer: HostBuffer) {
        self.free().push(buffer);
    }

    fn free(&self) -> MutexGuard<'_, Vec<HostBuffer>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A collective between its start and its finish.
#[derive(Debug)]
struct UnderWay {
    number: u64,
    ticket: Ticket,
    stream: Stream,
    /// Elements of the buffer that belong to the views.
    received: Range<usize>,
    to: Vec<View>,
}

/// The engine over a [`crate::Communicator`]: values are copied to host memory when a collective starts, and back when it finishes.
#[derive(Debug)]
pub struct StagedCommunicator {
    queue: CollectiveQueue,
    /// For collectives that run to their end, and for those that are started.
    waited: HostStaging,
    in_flight: HostStaging,
    started: u64,
    under_way: Vec<UnderWay>,
    /// Lists of finished collectives, whose memory is used again.
    spare: Vec<Vec<View>>,
}

impl StagedCommunicator {
    /// Runs collectives in `queue`. Buffers of [`DeviceCommunicator::run`] come from `waited`, those of collectives that were started from
    /// `in_flight`.
    pub fn new(queue: CollectiveQueue, waited: &HostStaging, in_flight: &HostStaging) -> StagedCommunicator {
        let (waited, in_flight) = (waited.clone(), in_flight.clone());
        StagedCommunicator { queue, waited, in_flight, started: 0, under_way: Vec::new(), spare: Vec::new() }
    }

    fn at(&self, Started(number): &Started) -> Result<usize, TensorError> {
        let foreign =
            || TensorError::Outside(format!("collective {number} was started in another group").into());
        self.under_way.iter().position(|other| other.number == *number).ok_or_else(foreign)
    }
}

impl DeviceCommunicator for StagedCommunicator {
    fn rank(&self) -> usize {
        self.queue.rank()
    }

    fn size(&self) -> usize {
        self.queue.size()
    }

    fn start(
        &mut self,
        backend: &mut dyn Backend,
        stream: Stream,
        collective: &Collective<'_>,
        from: &[View],
        to: &[View],
    ) -> Result<Started, ViewError> {
        let staged = StagedValues::of(self.queue.rank(), collective, from, to)?;
        let values = staged.load(backend, stream, &self.in_flight, from)?;
        let ticket = self.queue.start(collective, values)?;
        let mut list = self.spare.pop().unwrap_or_default();
        list.extend_from_slice(to);
        let (number, received) = (self.started, staged.written);
        self.started += 1;
        self.under_way.push(UnderWay { number, ticket, stream, received, to: list });
        Ok(Started(number))
    }

    /// The values have been read when the collective was started.
    fn release(&mut self, backend: &mut dyn Backend, started: &Started) -> Result<(), ViewError> {
        Ok(backend.order(self.under_way[self.at(started)?].stream, Stream::Compute)?)
    }

    fn finish(&mut self, backend: &mut dyn Backend, started: Started) -> Result<(), ViewError> {
        let at = self.at(&started)?;
        let UnderWay { ticket, stream, received, mut to, .. } = self.under_way.swap_remove(at);
        let values = self.queue.finish(ticket)?;
        store(backend, stream, &values, received, &to)?;
        self.in_flight.give(values);
        to.clear();
        self.spare.push(to);
        Ok(())
    }

    /// On the caller's thread.
    fn run(
        &mut self,
        backend: &mut dyn Backend,
        stream: Stream,
        collective: &Collective<'_>,
        from: &[View],
        to: &[View],
    ) -> Result<(), ViewError> {
        let staged = StagedValues::of(self.queue.rank(), collective, from, to)?;
        let mut values = staged.load(backend, stream, &self.waited, from)?;
        self.queue.idle()?.run(collective, collective.memory(values.lend()))?;
        store(backend, stream, &values, staged.written, to)?;
        self.waited.give(values);
        Ok(())
    }

    fn host(&mut self) -> Result<Idle<'_>, CollectiveError> {
        self.queue.idle()
    }
}

/// The buffer of a collective.
struct StagedValues {
    element: ElementType,
    len: usize,
    /// Elements that the views are read to, and written from.
    read: Range<usize>,
    written: Range<usize>,
}

impl StagedValues {
    fn of(
        rank: usize,
        collective: &Collective<'_>,
        from: &[View],
        to: &[View],
    ) -> Result<StagedValues, CollectiveError> {
        let mut types = from.iter().chain(to).map(View::dtype);
        let dtype = types.next().filter(|dtype| types.all(|other| other == *dtype));
        let element = match (dtype, collective.reduce()) {
            (Some(dtype), _) => Some(dtype.into()),
            (None, None) => Some(ElementType::U8),
            (None, Some(_)) => None,
        };
        let size = element.map_or(1, ElementType::size) as u64;
        let len = |views: &[View]| (views.iter().map(View::bytes).sum::<u64>() / size) as usize;
        let (sent, received) = (len(from), len(to));
        let (whole, read, written) = match collective.pattern {
            Pattern::ReduceScatter(parts, _) => (parts.len(), 0..sent, parts.range(rank)),
            Pattern::AllGather(parts) => (parts.len(), parts.range(rank), 0..received),
            Pattern::AllToAll { .. } => (sent + received, 0..sent, sent..sent + received),
            Pattern::Receive { .. } | Pattern::Broadcast { .. } => (sent.max(received), 0..sent, 0..received),
            _ => (sent, 0..sent, 0..received),
        };
        let fits = read.len() == sent && written.len() == received && whole >= read.end.max(written.end);
        match element.filter(|_| fits) {
            Some(element) => Ok(StagedValues { element, len: whole, read, written }),
            None => {
                let problem = format!(
                    "wanted views of one type that fit it, found {sent} elements to read and {received} to write"
                );
                let (collective, name) = (collective.kind().name(), collective.name.to_owned());
                let site = Box::new(CallSite { group: "of views".into(), rank, collective, name });
                Err(CollectiveError::Call { site, problem: problem.into() })
            }
        }
    }

    /// Reads views on `stream`, as they are after what has been launched.
    fn load(
        &self,
        backend: &mut dyn Backend,
        stream: Stream,
        staging: &HostStaging,
        from: &[View],
    ) -> Result<HostBuffer, TensorError> {
        backend.order(Stream::Compute, stream)?;
        let mut values = staging.take(self.element, self.len);
        let mut at = self.read.start;
        for view in from.iter().filter(|view| !view.is_empty()) {
            let end = at + view.bytes() as usize / self.element.size();
            backend.read_bytes(stream, *view, values.bytes_mut(self.element, at..end))?;
            at = end;
        }
        Ok(values)
    }
}

/// Writes elements of a buffer to views on `stream`. What is launched from now on comes after it, and after what was read.
fn store(
    backend: &mut dyn Backend,
    stream: Stream,
    values: &HostBuffer,
    received: Range<usize>,
    to: &[View],
) -> Result<(), TensorError> {
    let (element, mut at) = (values.element(), received.start);
    for view in to.iter().filter(|view| !view.is_empty()) {
        let end = at + view.bytes() as usize / element.size();
        backend.write_bytes(stream, *view, values.bytes(element, at..end))?;
        at = end;
    }
    backend.order(stream, Stream::Compute)
}
