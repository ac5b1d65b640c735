//! Pieces of rows that travel over the tensor axis, and messages over the context axis, while others are computed.

use bessemer_collectives::{HostBuffer, Ticket};
use bessemer_program::{Collective, CollectiveKind, Node, Phase, UnitProgram};
use bessemer_units::DType;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;

/// A collective of some rows, or what a rank does in a permutation, that is in flight.
#[derive(Debug)]
pub(crate) struct Flight {
    /// Its number in the program.
    pub(crate) id: usize,
    pub(crate) kind: CollectiveKind,
    pub(crate) rows: Range<usize>,
    /// Rows of the whole matrix.
    pub(crate) total: usize,
    /// A message that this rank sends.
    pub(crate) sent: Option<Ticket>,
    /// Values that this rank receives.
    pub(crate) ticket: Option<Ticket>,
}

/// Collectives in flight, in order, and the free buffers.
#[derive(Debug, Default)]
pub(crate) struct Flights {
    under_way: VecDeque<Flight>,
    free: Vec<HostBuffer>,
}

impl Flights {
    /// A buffer of `len` values as they are stored: the smallest that is large enough, else the largest.
    pub(crate) fn buffer(&mut self, dtype: DType, len: usize) -> HostBuffer {
        let (room, bytes) = (HostBuffer::capacity_bytes, (len * dtype.size()) as u64);
        let of = |fits: bool| self.free.iter().enumerate().filter(move |(_, b)| fits == (room(b) >= bytes));
        let best = of(true).min_by_key(|(_, b)| room(b)).or_else(|| of(false).max_by_key(|(_, b)| room(b)));
        let mut buffer = match best.map(|(at, _)| at) {
            Some(at) => self.free.swap_remove(at),
            None => HostBuffer::with_capacity(dtype.into(), len),
        };
        buffer.reset(dtype.into(), len);
        buffer
    }

    pub(crate) fn begin(&mut self, flight: Flight) {
        self.under_way.push_back(flight);
    }

    /// The oldest, if it has this number.
    pub(crate) fn take(&mut self, id: usize) -> Option<Flight> {
        self.under_way.pop_front_if(|flight| flight.id == id)
    }

    /// A buffer that has been read.
    pub(crate) fn done(&mut self, buffer: HostBuffer) {
        self.free.push(buffer);
    }
}

/// Host memory of a collective that is in flight. A message lies at its receiver until it is read.
fn host_bytes(c: &Collective) -> u64 {
    match c.kind {
        CollectiveKind::Permute => c.src.bytes() + 2 * c.dst.bytes(),
        _ => (c.rows.len() * c.src.cols * c.src.dtype().size()) as u64,
    }
}

/// The most host memory that collectives in flight take in a list of one of the programs.
pub(crate) fn most_in_flight<'p>(programs: impl Iterator<Item = &'p UnitProgram>) -> u64 {
    let of_list = |list: &[Node]| {
        let (mut held, mut sum, mut most) = (HashMap::new(), 0, 0);
        for node in list {
            match node {
                Node::Start(c) => {
                    held.insert(c.id, host_bytes(c));
                    sum += host_bytes(c);
                }
                Node::Wait { id, .. } => sum -= held.remove(id).unwrap_or(0),
                Node::Launch(_) | Node::Collective(_) | Node::Offload(_) | Node::Reload(_) => {}
            }
            most = most.max(sum);
        }
        most
    };
    let lists = programs.flat_map(|program| Phase::ALL.map(|phase| program.list(phase)));
    lists.map(of_list).max().unwrap_or(0)
}
