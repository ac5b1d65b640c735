//! Pieces of rows that travel over the tensor axis while other rows are computed.

use bessemer_collectives::{HostBuffer, Ticket};
use bessemer_program::CollectiveKind;
use bessemer_units::DType;
use std::collections::VecDeque;
use std::ops::Range;

/// A collective of some rows that is in flight.
#[derive(Debug)]
pub(crate) struct Flight {
    /// Its number in the program.
    pub(crate) id: usize,
    pub(crate) kind: CollectiveKind,
    pub(crate) rows: Range<usize>,
    /// Rows of the whole matrix.
    pub(crate) total: usize,
    pub(crate) ticket: Ticket,
}

/// Collectives in flight, in order, and the free buffers.
#[derive(Debug, Default)]
pub(crate) struct Flights {
    under_way: VecDeque<Flight>,
    free: Vec<HostBuffer>,
}

impl Flights {
    /// A buffer of `len` values as they are stored.
    pub(crate) fn buffer(&mut self, dtype: DType, len: usize) -> HostBuffer {
        let mut buffer = self.free.pop().unwrap_or_else(|| HostBuffer::with_capacity(dtype.into(), len));
        buffer.reset(dtype.into(), len);
        buffer
    }

    pub(crate) fn begin(&mut self, flight: Flight) {
        self.under_way.push_back(flight);
    }

    /// The oldest.
    pub(crate) fn next(&mut self) -> Option<Flight> {
        self.under_way.pop_front()
    }

    /// A buffer that has been read.
    pub(crate) fn done(&mut self, buffer: HostBuffer) {
        self.free.push(buffer);
    }
}
