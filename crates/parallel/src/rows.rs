//! Pieces of rows that travel over the tensor axis while other rows are computed.

use bessemer_collectives::{Buffer, Ticket};
use bessemer_tensor::{Backend, TensorError, View};
use bessemer_units::DType;
use half::bf16;
use std::collections::VecDeque;
use std::ops::Range;

/// What is under way, in order, and the buffers of what is not.
#[derive(Debug, Default)]
pub(crate) struct Flights {
    under_way: VecDeque<(Range<usize>, Ticket)>,
    free: Vec<Vec<f32>>,
    free_short: Vec<Vec<bf16>>,
}

impl Flights {
    pub(crate) fn is_empty(&self) -> bool {
        self.under_way.is_empty()
    }

    /// A buffer of `len` values as they are stored.
    pub(crate) fn buffer(&mut self, dtype: DType, len: usize) -> Buffer {
        if dtype == DType::Bf16 {
            let mut values = self.free_short.pop().unwrap_or_default();
            values.resize(len, bf16::ZERO);
            return Buffer::Bf16(values);
        }
        let mut values = self.free.pop().unwrap_or_default();
        values.resize(len, 0.0);
        Buffer::F32(values)
    }

    pub(crate) fn begin(&mut self, rows: Range<usize>, ticket: Ticket) {
        self.under_way.push_back((rows, ticket));
    }

    /// The oldest.
    pub(crate) fn next(&mut self) -> Option<(Range<usize>, Ticket)> {
        self.under_way.pop_front()
    }

    /// A buffer that has been read.
    pub(crate) fn done(&mut self, buffer: Buffer) {
        match buffer {
            Buffer::F32(values) => self.free.push(values),
            Buffer::Bf16(values) => self.free_short.push(values),
        }
    }
}

/// Puts `view` into a stretch of a buffer. `host` is scratch.
pub(crate) fn fill(
    backend: &mut dyn Backend,
    view: View,
    (buffer, at): (&mut Buffer, Range<usize>),
    host: &mut Vec<f32>,
) -> Result<(), TensorError> {
    match buffer {
        Buffer::F32(values) => backend.read_f32(view, &mut values[at]),
        Buffer::Bf16(values) => {
            host.resize(view.len(), 0.0);
            backend.read_f32(view, host)?;
            values[at].iter_mut().zip(host).for_each(|(to, from)| *to = bf16::from_f32(*from));
            Ok(())
        }
    }
}

/// Puts a stretch of a buffer into `view`. `host` is scratch.
pub(crate) fn put(
    backend: &mut dyn Backend,
    (buffer, at): (&Buffer, Range<usize>),
    view: View,
    host: &mut Vec<f32>,
) -> Result<(), TensorError> {
    match buffer {
        Buffer::F32(values) => backend.write_f32(view, &values[at]),
        Buffer::Bf16(values) => {
            host.clear();
            host.extend(values[at].iter().map(|v| v.to_f32()));
            backend.write_f32(view, host)
        }
    }
}
