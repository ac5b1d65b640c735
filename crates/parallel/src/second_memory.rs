//! The second memory of a rank, and the thread that copies to it and from it concurrently with the computation.
//!
//! ```text
//! rank                                 thread
//! write(at, buffer) ─► queue ────────► writes, then the buffer is free again
//! read(at, buffer)  ─► queue ────────► reads, then the buffer waits for the rank, in the order of the queue
//! ```
//! The queue is served in its order, so a read finds earlier writes. Invariants: no buffer is used by both sides at once; no rank
//! waits for a thread that has ended. An error of the second memory ends the thread, and every later call of the
//! rank returns it.

use bessemer_tensor::TensorError;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Memory in which offloaded values wait: larger and slower than that of the device, such as a file.
pub trait SecondMemory: Send {
    /// Name in errors: "the file of train.offload in runs/a".
    fn name(&self) -> String;

    /// Writes bytes from byte `at` on.
    ///
    /// # Errors
    /// The system's.
    fn write_at(&mut self, at: u64, bytes: &[u8]) -> io::Result<()>;

    /// Reads bytes from byte `at` on, all of them.
    ///
    /// # Errors
    /// The system's.
    fn read_at(&mut self, at: u64, bytes: &mut [u8]) -> io::Result<()>;
}

/// Buffers by their bytes.
pub(crate) type Buffers = BTreeMap<usize, Vec<Vec<u8>>>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CopyKind {
    Write,
    Read,
}

#[derive(Debug)]
struct QueuedCopy {
    kind: CopyKind,
    at: u64,
    buffer: Vec<u8>,
}

#[derive(Debug, Default)]
struct CopyState {
    queue: VecDeque<QueuedCopy>,
    /// Buffers to write from that are free.
    free: Buffers,
    /// Reads that are done, the oldest first.
    read: VecDeque<Vec<u8>>,
    /// Why the thread has ended.
    failed: Option<String>,
    closing: bool,
}

#[derive(Debug)]
struct SharedCopies {
    state: Mutex<CopyState>,
    /// Signals that there is work, or that the queue closes.
    work: Condvar,
    /// Signals that a copy is done, or that the thread has ended.
    done: Condvar,
}

impl SharedCopies {
    fn state(&self) -> MutexGuard<'_, CopyState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The rank's side of the thread.
#[derive(Debug)]
pub(crate) struct CopyThread {
    shared: Arc<SharedCopies>,
    handle: Option<std::thread::JoinHandle<()>>,
}

fn outside(problem: &str) -> TensorError {
    TensorError::Outside(problem.into())
}

impl CopyThread {
    /// Starts the thread. `free`: the buffers to write from; at most `reads` reads are queued at a time.
    pub(crate) fn start(
        memory: Box<dyn SecondMemory>,
        free: Buffers,
        reads: usize,
    ) -> Result<CopyThread, TensorError> {
        let copies = reads + free.values().map(Vec::len).sum::<usize>();
        let state = CopyState {
            queue: VecDeque::with_capacity(copies),
            read: VecDeque::with_capacity(reads),
            free,
            ..CopyState::default()
        };
        let shared =
            Arc::new(SharedCopies { state: Mutex::new(state), work: Condvar::new(), done: Condvar::new() });
        let own = Arc::clone(&shared);
        let builder = std::thread::Builder::new().name("offload".into());
        let spawned = builder.spawn(move || serve(&own, memory));
        let handle =
            spawned.map_err(|e| outside(&format!("no thread for copies to the second memory: {e}")))?;
        Ok(CopyThread { shared, handle: Some(handle) })
    }

    /// A free buffer of so many bytes to write from; waits until one has been written.
    pub(crate) fn buffer(&self, bytes: usize) -> Result<Vec<u8>, TensorError> {
        let mut state = self.shared.state();
        loop {
            if let Some(problem) = &state.failed {
                return Err(outside(problem));
            }
            match state.free.get_mut(&bytes) {
                None => return Err(outside(&format!("no buffer was planned for a value of {bytes} bytes"))),
                Some(free) => {
                    if let Some(buffer) = free.pop() {
                        return Ok(buffer);
                    }
                }
            }
            state = self.shared.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Begins to write a buffer of [`CopyThread::buffer`].
    pub(crate) fn write(&self, at: u64, buffer: Vec<u8>) -> Result<(), TensorError> {
        self.enqueue(QueuedCopy { kind: CopyKind::Write, at, buffer })
    }

    /// Begins to read into a buffer.
    pub(crate) fn read(&self, at: u64, buffer: Vec<u8>) -> Result<(), TensorError> {
        self.enqueue(QueuedCopy { kind: CopyKind::Read, at, buffer })
    }

    /// The buffer of the oldest read that has not been taken; waits until it is read.
    pub(crate) fn finish_read(&self) -> Result<Vec<u8>, TensorError> {
        let mut state = self.shared.state();
        loop {
            if let Some(buffer) = state.read.pop_front() {
                return Ok(buffer);
            }
            if let Some(problem) = &state.failed {
                return Err(outside(problem));
            }
            state = self.shared.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn enqueue(&self, copy: QueuedCopy) -> Result<(), TensorError> {
        let mut state = self.shared.state();
        if let Some(problem) = &state.failed {
            return Err(outside(problem));
        }
        state.queue.push_back(copy);
        drop(state);
        self.shared.work.notify_one();
        Ok(())
    }
}

impl Drop for CopyThread {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.closing = true;
        state.queue.clear();
        drop(state);
        self.shared.work.notify_one();
        if let Some(handle) = self.handle.take() {
            // A panic of the thread has been reported to the rank.
            let _ = handle.join();
        }
    }
}

/// Reports the end of the thread when it is dropped, at the end of the thread or in a panic.
struct EndGuard<'a>(&'a SharedCopies);

impl Drop for EndGuard<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.failed.get_or_insert_with(|| "the thread that copies to the second memory ended".into());
        drop(state);
        self.0.done.notify_all();
    }
}

/// Serves the queue until it closes or a copy fails.
fn serve(shared: &SharedCopies, mut memory: Box<dyn SecondMemory>) {
    let _ended = EndGuard(shared);
    let mut state = shared.state();
    loop {
        let Some(mut copy) = state.queue.pop_front() else {
            if state.closing {
                return;
            }
            state = shared.work.wait(state).unwrap_or_else(PoisonError::into_inner);
            continue;
        };
        drop(state);
        let (result, verb) = match copy.kind {
            CopyKind::Write => (memory.write_at(copy.at, &copy.buffer), "write"),
            CopyKind::Read => (memory.read_at(copy.at, &mut copy.buffer), "read"),
        };
        state = shared.state();
        match (result, copy.kind) {
            (Ok(()), CopyKind::Write) => {
                let bytes = copy.buffer.len();
                state.free.entry(bytes).or_default().push(copy.buffer);
            }
            (Ok(()), CopyKind::Read) => state.read.push_back(copy.buffer),
            (Err(e), _) => {
                let (name, bytes, at) = (memory.name(), copy.buffer.len(), copy.at);
                state.failed = Some(format!(
                    "offloaded activations: {verb} of {bytes} bytes at byte {at} of {name}: {e}; check the disk, take another \
                     train.offload_dir, or train.offload = \"none\""
                ));
                return;
            }
        }
        shared.done.notify_all();
    }
}
