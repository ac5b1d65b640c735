//! Reads of buffers by a thread, concurrently with the kernels: copies of state for checkpoints.
//!
//! Invariant: no buffer is written or freed while a thread reads it. A writer first calls
//! [`BackgroundReads::before_write`], and the arena outlives the reads.
#![allow(unsafe_code)] // reads of the arena by another thread

use crate::arena::Arena;
use crate::op::copy::load_row;
use bessemer_tensor::{PendingRead, ReadProgress, TensorError, View, all_finite};
use std::sync::Arc;
use std::thread::JoinHandle;

/// Values copied and looked at while they are in the processor's cache.
const PIECE: usize = 64 << 10;

/// Reads that are in progress.
#[derive(Default)]
pub(crate) struct BackgroundReads {
    reads: Vec<Read>,
}

struct Read {
    /// Numbers of the buffers, sorted.
    buffers: Vec<u32>,
    progress: Arc<ReadProgress>,
    thread: Option<JoinHandle<()>>,
}

/// A view and where its values go.
struct Source {
    base: *const u8,
    view: View,
    to: usize,
}

/// Sources of a read, in flight to its thread.
struct Sources(Vec<Source>);

// SAFETY: the addresses are in blocks of the arena, which do not move until `BackgroundReads` has ended its
// threads, and are only read; no thread writes them during that time (`before_write`).
unsafe impl Send for Sources {}

impl BackgroundReads {
    /// Begins to read views into `values`.
    pub(crate) fn begin(
        &mut self,
        arena: &Arena,
        sources: Vec<(View, usize)>,
        mut values: Vec<f32>,
    ) -> Result<PendingRead, TensorError> {
        let mut from = Vec::with_capacity(sources.len());
        for (view, to) in sources {
            arena.contains(&view)?;
            if to.checked_add(view.len()).is_none_or(|end| end > values.len()) {
                return Err(TensorError::Shape {
                    op: "begin_read",
                    operand: "values",
                    wanted: format!("room for {} values from {to} on", view.len()),
                    found: values.len().to_string(),
                });
            }
            from.push(Source { base: arena.address(&view), view, to });
        }
        let mut buffers: Vec<u32> = from.iter().map(|source| source.view.buffer.id).collect();
        buffers.sort_unstable();
        buffers.dedup();
        let progress = Arc::new(ReadProgress::default());
        let (from, ends) = (Sources(from), End(Arc::clone(&progress)));
        let run = move || {
            let from = from;
            let mut finite = true;
            for source in &from.0 {
                // SAFETY: the views are inside their buffers, which no thread writes until `ends` reports the end of the read.
                finite &= unsafe { read(source, &mut values) };
            }
            ends.0.end(Some((values, finite)));
        };
        let thread = std::thread::Builder::new().name("kernels-read".into()).spawn(run);
        let thread = thread.map_err(|e| TensorError::Device {
            during: "begin_read",
            problem: format!("no thread to read the state: {e}").into(),
        })?;
        self.end_those_that_are_over();
        self.reads.push(Read { buffers, progress: Arc::clone(&progress), thread: Some(thread) });
        Ok(PendingRead::new(progress))
    }

    /// Waits until no thread reads a buffer.
    pub(crate) fn before_write(&mut self, buffer: u32) {
        if self.reads.is_empty() {
            return;
        }
        for read in self.reads.iter().filter(|read| read.buffers.binary_search(&buffer).is_ok()) {
            read.progress.hold_up();
        }
        self.end_those_that_are_over();
    }

    fn end_those_that_are_over(&mut self) {
        self.reads.retain(|read| !read.progress.is_over());
    }
}

/// Copies a source to its destination, and returns whether its values are finite.
///
/// # Safety
/// The source is inside its buffer, which no thread writes.
unsafe fn read(source: &Source, values: &mut [f32]) -> bool {
    let Source { base, view, to } = source;
    let mut finite = true;
    for (r, row) in values[*to..*to + view.len()].chunks_exact_mut(view.cols.max(1)).enumerate() {
        for (number, piece) in row.chunks_mut(PIECE).enumerate() {
            // SAFETY: part of row r of the view.
            unsafe { load_row(view.dtype(), *base, r * view.stride + number * PIECE, piece) };
            finite &= all_finite(piece);
        }
    }
    finite
}

/// Ends a read, also by a panic of its thread.
struct End(Arc<ReadProgress>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.end(None);
    }
}

impl Drop for Read {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            // A panic has ended the read with an error.
            let _ = thread.join();
        }
    }
}
