//! Batches that threads prepare before they are wanted.
//!
//! ```text
//! requests ─► claimed in order ─► read by any thread ─► ring: | ready | in preparation | ready | ... ─► delivered in order
//!                                                             at most `PrefetchConfig::bytes`
//! ```
//!
//! The order of batches is known in advance, so the ring is a prediction and no more: [`Prefetcher::get`] delivers the
//! batch of a request whatever the ring holds, and reads it itself if the ring does not have it. A batch is a function of
//! its request ([`BatchReader`]), so neither depth nor number of threads nor timing changes any batch.
//!
//! A run that goes back, skips samples or continues elsewhere begins at a request that the ring does not expect
//! ([`Prefetcher::begin`]), or with another reader ([`Prefetcher::replace`]): the ring is emptied. An error is delivered with the
//! request whose batch could not be read, not earlier.
//!
//! Memory: all batches are made with the prefetcher; delivery exchanges them. A warm [`Prefetcher::get`] allocates nothing.

use crate::{Batch, EvaluationWindows, LoadError, Loader};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Most batches that are prepared ahead: with small batches the bytes would allow so many that filling the ring takes longer than
/// it helps.
pub const MOST_BATCHES_AHEAD: usize = 256;

/// Size of a ring of prepared batches and the threads that fill it. By default nothing is prepared ahead.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PrefetchConfig {
    /// Most bytes of batches that are prepared ahead; one batch is prepared ahead even if it is larger. 0: none is.
    pub bytes: u64,
    /// Preparation threads. 0: no batch is prepared ahead.
    pub threads: usize,
}

impl PrefetchConfig {
    /// Batches of `sequences` sequences of up to `seq_len` tokens that are prepared ahead.
    pub fn depth(&self, sequences: usize, seq_len: usize) -> usize {
        if self.bytes == 0 || self.threads == 0 {
            return 0;
        }
        let fit = self.bytes / Batch::most_bytes(sequences, seq_len).max(1);
        fit.clamp(1, MOST_BATCHES_AHEAD as u64) as usize
    }

    /// Bytes of all batches of a prefetcher of `shape`.
    pub fn memory(&self, shape: PrefetchShape) -> u64 {
        let PrefetchShape { sequences, seq_len, kept } = shape;
        let batches = self.depth(sequences, seq_len) + kept.max(1);
        Batch::most_bytes(sequences, seq_len).saturating_mul(batches as u64)
    }
}

/// Largest batch of a prefetcher, and how many delivered ones it keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrefetchShape {
    /// Sequences of a batch.
    pub sequences: usize,
    /// Most tokens of a sequence.
    pub seq_len: usize,
    /// Delivered batches that are kept for further requests of the same; at least the newest is.
    pub kept: usize,
}

/// Samples of a batch: `first .. first + sequences`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchRequest {
    /// Counter of the first sample, or number of the first window of an evaluation.
    pub first: u64,
    /// Sequences.
    pub sequences: usize,
}

/// Requests in the order in which batches will be wanted.
pub type BatchRequests = Box<dyn Iterator<Item = BatchRequest> + Send>;

/// Source of batches: a batch is a function of its request alone.
pub trait BatchReader: Send + Sync {
    /// Fills `out`. Allocates nothing once `out` has had this shape.
    ///
    /// # Errors
    /// Errors of the shards; the content of `out` is unspecified then.
    fn read_batch(&self, request: BatchRequest, out: &mut Batch) -> Result<(), LoadError>;

    /// Tokens of a sequence of the batch, with padding.
    ///
    /// # Errors
    /// Errors of the shards.
    fn batch_length(&self, request: BatchRequest) -> Result<usize, LoadError>;
}

impl BatchReader for Loader {
    fn read_batch(&self, request: BatchRequest, out: &mut Batch) -> Result<(), LoadError> {
        self.batch(request.first, request.sequences, out)
    }

    fn batch_length(&self, request: BatchRequest) -> Result<usize, LoadError> {
        self.padded_length(request.first, request.sequences)
    }
}

impl BatchReader for EvaluationWindows {
    fn read_batch(&self, request: BatchRequest, out: &mut Batch) -> Result<(), LoadError> {
        self.batch(request.first, request.sequences, out).map(|_| ())
    }

    fn batch_length(&self, _: BatchRequest) -> Result<usize, LoadError> {
        Ok(self.seq_len())
    }
}

/// A batch of the ring.
enum Prepared {
    /// A thread reads it.
    Reading,
    Ready(Batch),
    Failed(LoadError),
    /// Delivered out of order.
    Taken,
}

struct Entry {
    request: BatchRequest,
    prepared: Prepared,
}

/// The ring. Entries are numbered over the life of the prefetcher, so that a thread finds the one that it reads, and finds it gone
/// if the ring was emptied meanwhile.
struct Ring {
    reader: Arc<dyn BatchReader>,
    /// In the order of the requests.
    entries: VecDeque<Entry>,
    /// Number of the first entry.
    first: u64,
    /// Batches that no entry has.
    free: Vec<Batch>,
    /// Next request to be prepared.
    next: Option<BatchRequest>,
    /// Requests after it.
    requests: Option<BatchRequests>,
    /// The prefetcher is dropped.
    stopped: bool,
    /// A thread has panicked; the batch that it read will never be ready.
    panicked: bool,
}

impl Ring {
    /// Takes the next request and a batch for it, if there are both.
    fn claim(&mut self) -> Option<(u64, BatchRequest, Batch)> {
        let request = self.next?;
        let batch = self.free.pop()?;
        self.advance();
        self.entries.push_back(Entry { request, prepared: Prepared::Reading });
        Some((self.first + self.entries.len() as u64 - 1, request, batch))
    }

    /// Passes over the next request.
    fn advance(&mut self) {
        self.next = self.requests.as_mut().and_then(Iterator::next);
    }

    /// Notes how reading entry `number` ended.
    fn end_reading(&mut self, number: u64, batch: Batch, read: Result<(), LoadError>) {
        let at = number.checked_sub(self.first).and_then(|at| self.entries.get_mut(at as usize));
        match (at, read) {
            (Some(entry), Ok(())) => entry.prepared = Prepared::Ready(batch),
            (Some(entry), Err(e)) => {
                entry.prepared = Prepared::Failed(e);
                self.free.push(batch);
            }
            (None, _) => self.free.push(batch),
        }
    }

    /// Drops the first entry.
    fn discard_first(&mut self) {
        if let Some(entry) = self.entries.pop_front() {
            self.first += 1;
            if let Prepared::Ready(batch) = entry.prepared {
                self.free.push(batch);
            }
        }
    }

    /// Drops all entries and requests.
    fn empty(&mut self) {
        while !self.entries.is_empty() {
            self.discard_first();
        }
        (self.next, self.requests) = (None, None);
    }

    fn position(&self, request: BatchRequest) -> Option<usize> {
        self.entries.iter().position(|entry| entry.request == request)
    }
}

/// State that threads and consumer share.
struct Shared {
    ring: Mutex<Ring>,
    /// Something can be claimed, or the threads are to end.
    claimable: Condvar,
    /// A batch is ready or could not be read.
    ended: Condvar,
}

impl Shared {
    /// The lock protects no invariant that a panic could leave broken: every change of the ring is whole.
    fn lock(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Work of a preparation thread.
    fn prepare(&self) {
        let _noted = NotedPanic(self);
        let mut ring = self.lock();
        while !ring.stopped {
            let Some((number, request, mut batch)) = ring.claim() else {
                ring = self.claimable.wait(ring).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let reader = Arc::clone(&ring.reader);
            drop(ring);
            let read = reader.read_batch(request, &mut batch);
            ring = self.lock();
            ring.end_reading(number, batch, read);
            self.ended.notify_all();
        }
    }
}

/// Reports the panic of a preparation thread to the consumer, which would wait for its batch forever.
struct NotedPanic<'a>(&'a Shared);

impl Drop for NotedPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.lock().panicked = true;
            self.0.ended.notify_all();
        }
    }
}

/// A ring of batches that threads fill ahead of one consumer. Dropping it ends the threads.
pub struct Prefetcher {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    reader: Arc<dyn BatchReader>,
    /// The newest delivered batches, the newest last; those without a request hold none.
    delivered: VecDeque<(Option<BatchRequest>, Batch)>,
    /// Batches that were not ready when they were wanted.
    late: u64,
}

impl std::fmt::Debug for Prefetcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Prefetcher").field("threads", &self.threads.len()).finish_non_exhaustive()
    }
}

impl Prefetcher {
    /// Makes the batches and starts the threads, which wait for [`Prefetcher::begin`].
    ///
    /// # Errors
    /// [`LoadError::Thread`] if no thread can be started, [`LoadError::BatchTooLarge`].
    pub fn new(
        reader: Arc<dyn BatchReader>,
        config: PrefetchConfig,
        shape: PrefetchShape,
    ) -> Result<Prefetcher, LoadError> {
        let PrefetchShape { sequences, seq_len, kept } = shape;
        let depth = config.depth(sequences, seq_len);
        let batches = |count: usize| {
            let made = (0..count).map(|_| {
                let mut batch = Batch::new();
                batch.reserve(sequences, seq_len)?;
                Ok(batch)
            });
            made.collect::<Result<Vec<Batch>, LoadError>>()
        };
        let ring = Ring {
            reader: Arc::clone(&reader),
            entries: VecDeque::with_capacity(depth),
            first: 0,
            free: batches(depth)?,
            next: None,
            requests: None,
            stopped: false,
            panicked: false,
        };
        let shared =
            Arc::new(Shared { ring: Mutex::new(ring), claimable: Condvar::new(), ended: Condvar::new() });
        let delivered = batches(kept.max(1))?.into_iter().map(|batch| (None, batch)).collect();
        let mut prefetcher = Prefetcher { shared, threads: Vec::new(), reader, delivered, late: 0 };
        for _ in 0..config.threads.min(depth) {
            let shared = Arc::clone(&prefetcher.shared);
            let thread = std::thread::Builder::new().name("prepare batches".into());
            match thread.spawn(move || shared.prepare()) {
                Ok(thread) => prefetcher.threads.push(thread),
                // Fewer threads are slower and give the same batches.
                Err(_) if !prefetcher.threads.is_empty() => break,
                Err(cause) => return Err(LoadError::Thread { cause }),
            }
        }
        Ok(prefetcher)
    }

    /// Makes `first` the next request. Keeps what is prepared if the ring expects that request; else the ring is emptied and filled
    /// for `requests`, the first of which is `first`.
    pub fn begin(&mut self, first: BatchRequest, requests: impl FnOnce() -> BatchRequests) {
        if self.threads.is_empty() {
            return;
        }
        let mut ring = self.shared.lock();
        let passed = ring.position(first).or((ring.next == Some(first)).then_some(ring.entries.len()));
        match passed {
            Some(passed) => (0..passed).for_each(|_| ring.discard_first()),
            None => {
                ring.empty();
                let mut requests = requests();
                ring.next = requests.next();
                ring.requests = Some(requests);
            }
        }
        drop(ring);
        self.shared.claimable.notify_all();
    }

    /// Empties the ring and has nothing prepared until [`Prefetcher::begin`]. Reads that are in progress end by themselves.
    pub fn empty(&mut self) {
        self.shared.lock().empty();
        self.delivered.iter_mut().for_each(|delivered| delivered.0 = None);
    }

    /// Empties the ring and reads batches from another source from now on.
    pub fn replace(&mut self, reader: Arc<dyn BatchReader>) {
        self.empty();
        self.shared.lock().reader = Arc::clone(&reader);
        self.reader = reader;
    }

    /// The batch of a request: waits until it is ready, or reads it here if the ring does not have it.
    ///
    /// # Errors
    /// The error with which reading this batch ended.
    pub fn get(&mut self, request: BatchRequest) -> Result<&Batch, LoadError> {
        let newest = self.delivered.len() - 1;
        if let Some(at) = self.delivered.iter().position(|delivered| delivered.0 == Some(request)) {
            return Ok(&self.delivered[at].1);
        }
        self.delivered.rotate_left(1);
        let (delivered, batch) = &mut self.delivered[newest];
        *delivered = None;
        match self.shared.deliver(request, batch, &mut self.late) {
            Some(read) => read?,
            None => {
                self.late += 1;
                self.reader.read_batch(request, batch)?;
            }
        }
        *delivered = Some(request);
        Ok(&self.delivered[newest].1)
    }

    /// Tokens of a sequence of the batch of a request, with padding, without delivering it.
    ///
    /// # Errors
    /// If a file can no longer be read.
    pub fn length(&mut self, request: BatchRequest) -> Result<usize, LoadError> {
        if let Some(known) = self.delivered.iter().find(|delivered| delivered.0 == Some(request)) {
            return Ok(known.1.seq_len);
        }
        let (ring, at) = self.shared.wait_for(request, &mut self.late);
        if let Some(Prepared::Ready(batch)) = at.map(|at| &ring.entries[at].prepared) {
            return Ok(batch.seq_len);
        }
        drop(ring);
        self.reader.batch_length(request)
    }

    /// Batches so far that were not ready when they were wanted. Without threads all are.
    pub fn late(&self) -> u64 {
        self.late
    }
}

impl Shared {
    /// Exchanges `batch` for that of a request, once it is ready. None: the ring does not have it, and the threads leave it to the
    /// caller if it is the next one that they would read.
    fn deliver(
        &self,
        request: BatchRequest,
        batch: &mut Batch,
        late: &mut u64,
    ) -> Option<Result<(), LoadError>> {
        let (mut ring, at) = self.wait_for(request, late);
        let Some(at) = at else {
            if ring.next == Some(request) {
                ring.advance();
            }
            return None;
        };
        let delivered = match std::mem::replace(&mut ring.entries[at].prepared, Prepared::Taken) {
            Prepared::Ready(ready) => {
                let former = std::mem::replace(batch, ready);
                ring.free.push(former);
                Ok(())
            }
            Prepared::Failed(e) => Err(e),
            Prepared::Reading | Prepared::Taken => return None,
        };
        while matches!(ring.entries.front(), Some(Entry { prepared: Prepared::Taken, .. })) {
            ring.discard_first();
        }
        drop(ring);
        self.claimable.notify_all();
        Some(delivered)
    }

    /// Waits until the batch of a request is ready or has failed; the ring, and its place there. None: the ring does not have it. Counts
    /// it as late if it has to wait.
    fn wait_for(&self, request: BatchRequest, late: &mut u64) -> (MutexGuard<'_, Ring>, Option<usize>) {
        let mut ring = self.lock();
        let mut waited = false;
        // Threads only add entries behind, so the place stays.
        let at = ring.position(request);
        let found = loop {
            match at.map(|at| &ring.entries[at].prepared) {
                Some(Prepared::Ready(_) | Prepared::Failed(_)) => break at,
                Some(Prepared::Reading) if !ring.panicked => {
                    waited = true;
                    ring = self.ended.wait(ring).unwrap_or_else(PoisonError::into_inner);
                }
                _ => break None,
            }
        };
        *late += u64::from(waited);
        (ring, found)
    }
}

impl Drop for Prefetcher {
    fn drop(&mut self) {
        let mut ring = self.shared.lock();
        ring.stopped = true;
        ring.empty();
        drop(ring);
        self.shared.claimable.notify_all();
        for thread in self.threads.drain(..) {
            // A panic of the thread has been reported where it happened.
            let _ = thread.join();
        }
    }
}
