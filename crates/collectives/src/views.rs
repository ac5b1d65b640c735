//! Collectives over views of a [`Backend`], through host memory.
//!
//! This is the one place where values of a device are copied for a collective. They travel in the type in which they are
//! stored, bit by bit.

use crate::error::CallSite;
use crate::{Collective, CollectiveError, CollectiveKind, Communicator, HostBuffer, Memory, Pattern};
use bessemer_tensor::{Backend, Stream, TensorError, View};
use bessemer_units::DType;
use std::ops::Range;

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

/// Host memory in which values of a device wait for a collective. It is used again by the next one: collectives no larger
/// than earlier ones allocate nothing.
#[derive(Debug, Default)]
pub struct ViewStaging {
    free: Vec<HostBuffer>,
}

impl ViewStaging {
    /// Plans buffers for `count` collectives at a time, of `elements` values of type `dtype` each ([`HostBuffer::planned`]).
    pub fn plan(&mut self, count: usize, dtype: DType, elements: usize) {
        self.free.extend((0..count).map(|_| HostBuffer::planned(dtype.into(), elements)));
    }

    /// Allocates the buffers that are planned.
    pub fn allocate(&mut self) {
        self.free.iter_mut().for_each(HostBuffer::allocate);
    }

    /// Bytes of the buffers that no collective has, allocated or planned.
    pub fn capacity_bytes(&self) -> u64 {
        self.free.iter().map(HostBuffer::capacity_bytes).sum()
    }

    /// Runs a collective that reads the views `from` and writes the views `to`, each list taken as one after the other.
    ///
    /// `from` is what the pattern's values are on this rank before it, `to` what they are after it: of an all-gather
    /// `from` is this rank's part and `to` the whole, of a reduce-scatter the other way round, of an all-reduce or a
    /// broadcast both are the whole. A send has no `to`, a receive no `from`. All views have one type.
    ///
    /// # Errors
    /// An error of the collective or of the device.
    pub fn run(
        &mut self,
        backend: &mut dyn Backend,
        group: &mut dyn Communicator,
        collective: &Collective<'_>,
        from: &[View],
        to: &[View],
    ) -> Result<(), ViewError> {
        let (mut values, received) = self.load(backend, group.rank(), collective, from, to)?;
        match collective.pattern {
            Pattern::AllToAll { receive, .. } => {
                let mut received = self.take();
                received.reset(values.element(), receive.len());
                let memory = Memory::Exchange { send: values.lend().into_slice(), receive: received.lend() };
                group.run(collective, memory)?;
                self.free.push(std::mem::replace(&mut values, received));
            }
            _ => group.run(collective, collective.memory(values.lend()))?,
        }
        self.store(backend, values, received, to)
    }

    fn take(&mut self) -> HostBuffer {
        self.free.pop().unwrap_or_else(|| HostBuffer::with_capacity(DType::F32.into(), 0))
    }

    /// Reads `from` into a buffer. Returns it with the elements of it that belong to `to` afterwards.
    fn load(
        &mut self,
        backend: &mut dyn Backend,
        rank: usize,
        collective: &Collective<'_>,
        from: &[View],
        to: &[View],
    ) -> Result<(HostBuffer, Range<usize>), ViewError> {
        let len = |views: &[View]| views.iter().map(View::len).sum::<usize>();
        let (sent, received) = (len(from), len(to));
        let (whole, read, written) = match collective.pattern {
            Pattern::ReduceScatter(parts, _) => (parts.len(), 0..sent, parts.range(rank)),
            Pattern::AllGather(parts) => (parts.len(), parts.range(rank), 0..received),
            Pattern::AllToAll { .. } | Pattern::Send { .. } => (sent, 0..sent, 0..received),
            Pattern::Receive { .. } => (received, 0..0, 0..received),
            _ => (sent, 0..sent, 0..received),
        };
        let fits = whole >= read.end && read.len() == sent && written.len() == received;
        let fits = fits && (collective.kind() == CollectiveKind::AllToAll || whole >= written.end);
        let mut types = from.iter().chain(to).map(View::dtype);
        let one_type = types.next().filter(|dtype| types.all(|other| other == *dtype));
        let Some(dtype) = one_type.filter(|_| fits) else {
            let problem = format!(
                "wanted views of one type that fit it, found {sent} elements to read and {received} to write"
            );
            let (collective, name) = (collective.kind().name(), collective.name.to_owned());
            let site = Box::new(CallSite { group: "of views".into(), rank, collective, name });
            return Err(CollectiveError::Call { site, problem: problem.into() }.into());
        };
        let mut values = self.take();
        values.reset(dtype.into(), whole);
        let mut at = read.start;
        for view in from {
            read_view(backend, *view, &mut values, at..at + view.len())?;
            at += view.len();
        }
        Ok((values, written))
    }

    fn store(
        &mut self,
        backend: &mut dyn Backend,
        values: HostBuffer,
        received: Range<usize>,
        to: &[View],
    ) -> Result<(), ViewError> {
        let mut at = received.start;
        for view in to {
            write_view(backend, *view, &values, at..at + view.len())?;
            at += view.len();
        }
        self.free.push(values);
        Ok(())
    }
}

/// Copies a view from the device to elements `to` of a buffer of its type.
///
/// # Errors
/// An error of the device.
pub fn read_view(
    backend: &mut dyn Backend,
    from: View,
    buffer: &mut HostBuffer,
    to: Range<usize>,
) -> Result<(), TensorError> {
    backend.read_bytes(Stream::Compute, from, buffer.bytes_mut(from.dtype().into(), to))
}

/// Copies elements `from` of a buffer to a view of its type on the device.
///
/// # Errors
/// An error of the device.
pub fn write_view(
    backend: &mut dyn Backend,
    to: View,
    buffer: &HostBuffer,
    from: Range<usize>,
) -> Result<(), TensorError> {
    backend.write_bytes(Stream::Compute, to, buffer.bytes(to.dtype().into(), from))
}
