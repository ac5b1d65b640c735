//! Reads of buffers by a thread, beside the kernels: copies of state for checkpoints.
//!
//! What must never happen: a buffer is written while a thread reads it, or goes while it does. Whoever writes asks first
//! ([`BackgroundReads::before_write`]), and the arena outlives the reads.
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

/// Sources of a read, on their way to its thread.
struct Sources(Vec<Source>);

// SAFETY: the addresses lie in blocks of the arena, which stay where they are until `BackgroundReads` has ended its
// threads, and are only read; nobody writes them meanwhile (`before_write`).
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
                // SAFETY: the views lie inside their buffers, and nobody writes those until `ends` says that the read is over.
                finite &= unsafe { read(source, &mut values) };
            }
            ends.0.end(Some((values, finite)));
        };
        let thread = std::thread::Builder::new().name("kernels-read".into()).spawn(run);
        let thread =
            thread.map_err(|e| TensorError::Outside(format!("no thread to read the state: {e}").into()))?;
        self.end_those_that_are_over();
        self.reads.push(Read { buffers, progress: Arc::clone(&progress), thread: Some(thread) });
        Ok(PendingRead::new(progress))
    }

    /// Waits until nobody reads a buffer.
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

/// Copies a source to its place, and returns whether its values are finite.
///
/// # Safety
/// The source lies inside its buffer, which nobody writes.
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

#[cfg(test)]
mod tests {
    use crate::{CpuBackend, CpuConfig};
    use bessemer_tensor::op::{Fill, Op};
    use bessemer_tensor::{Backend, BufferSpec, Stream, TensorError};
    use bessemer_units::DType;

    /// Whatever is launched meanwhile, a read has the values of the moment at which it began.
    #[test]
    fn a_read_beside_launches_has_the_values_of_its_beginning() {
        let mut cpu = CpuBackend::new(CpuConfig { threads: 2, ..CpuConfig::default() }).unwrap();
        let len = 3 << 20;
        let mut alloc = |name, dtype| {
            cpu.alloc(BufferSpec { class: "weights", name, dtype, len }).unwrap().matrix(3, 1 << 20)
        };
        let (a, b, c) = (alloc("a", DType::F32), alloc("b", DType::Bf16), alloc("c", DType::F32));
        let fill = |cpu: &mut CpuBackend, dst, value| {
            cpu.launch(Stream(0), &Op::Fill(Fill { dst, value })).unwrap();
        };
        let mut memory = vec![0.0; 2 * len];
        for round in 0..20 {
            let now = round as f32;
            fill(&mut cpu, a, now);
            fill(&mut cpu, b, now + 1.0);
            let pending = cpu.begin_read(vec![(a, 0), (b, len)], memory).unwrap();
            fill(&mut cpu, c, 5.0);
            match round % 3 {
                0 => fill(&mut cpu, b, -1.0),
                1 => cpu.write_f32(a, &vec![-1.0; len]).unwrap(),
                _ => {}
            }
            let read = pending.wait().unwrap();
            assert!(read.finite);
            assert!(read.values[..len].iter().all(|v| *v == now), "{round}");
            assert!(read.values[len..].iter().all(|v| *v == now + 1.0), "{round}");
            memory = read.values;
        }
        fill(&mut cpu, b, f32::INFINITY);
        assert!(!cpu.begin_read(vec![(a, 0), (b, len)], memory).unwrap().wait().unwrap().finite);
        let e = cpu.begin_read(vec![(a, 1)], vec![0.0; len]).unwrap_err();
        assert!(matches!(e, TensorError::Shape { .. }), "{e}");
        // A backend that goes waits for its reads.
        let pending = cpu.begin_read(vec![(c, 0)], vec![0.0; len]).unwrap();
        drop(cpu);
        assert!(pending.wait().unwrap().values.iter().all(|v| *v == 5.0));
    }
}
