//! Pieces of rows that travel over the tensor axis while other rows are computed.

use bessemer_collectives::{HostBuffer, Ticket};
use bessemer_units::DType;
use std::collections::VecDeque;
use std::ops::Range;

/// What is under way, in order, and the buffers of what is not.
#[derive(Debug, Default)]
pub(crate) struct Flights {
    under_way: VecDeque<(Range<usize>, Ticket)>,
    free: Vec<HostBuffer>,
}

impl Flights {
    pub(crate) fn is_empty(&self) -> bool {
        self.under_way.is_empty()
    }

    /// A buffer of `len` values as they are stored.
    pub(crate) fn buffer(&mut self, dtype: DType, len: usize) -> HostBuffer {
        let mut buffer = self.free.pop().unwrap_or_else(|| HostBuffer::with_capacity(dtype.into(), len));
        buffer.reset(dtype.into(), len);
        buffer
    }

    pub(crate) fn begin(&mut self, rows: Range<usize>, ticket: Ticket) {
        self.under_way.push_back((rows, ticket));
    }

    /// The oldest.
    pub(crate) fn next(&mut self) -> Option<(Range<usize>, Ticket)> {
        self.under_way.pop_front()
    }

    /// A buffer that has been read.
    pub(crate) fn done(&mut self, buffer: HostBuffer) {
        self.free.push(buffer);
    }
}
