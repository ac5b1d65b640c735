//! Chunks that are at hand: the one read last, and those that threads read and verify before somebody asks for them.
//!
//! ```text
//! threads: next wanted chunk ─► read, hashed in pieces while they are in the processor's cache ─► done ─┐ at most `window` chunks
//! reader:  asks for a chunk  ─► done: takes it · in progress: waits · not begun: reads it itself     ◄──┘
//! ```
//! What must never happen: a reader waits for a chunk that no thread reads (a thread that ends leaves an answer), or threads wait for
//! a reader that is gone (its end stops them).

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Most threads that read and hash for one reader: with four, hashing is faster than most disks.
const MOST_THREADS: usize = 4;
/// Bytes that are read ahead, unless the threads' chunks together are more.
const AHEAD_BYTES: u64 = 64 << 20;
/// Most chunks that are read ahead.
const MOST_AHEAD: u64 = 64;

/// Threads that read and hash beside a reader.
pub(crate) fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).clamp(2, MOST_THREADS)
}

/// Content of a lock; no code that holds one of these locks can panic half-way.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A chunk of one of a checkpoint's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ChunkId {
    pub(crate) file: usize,
    pub(crate) index: u64,
}

/// Reads a chunk into memory.
pub(crate) type ReadChunk<'a> = dyn Fn(ChunkId, &mut Vec<u8>) -> io::Result<()> + Sync + 'a;

/// State of a chunk that is to be read ahead.
#[derive(Debug)]
enum Ahead {
    Wanted,
    InProgress,
    Done(io::Result<Vec<u8>>),
}

/// State of a [`ChunkCache`].
#[derive(Debug, Default)]
struct CacheState {
    last: Option<(ChunkId, Vec<u8>)>,
    /// Chunks to read ahead, in the order in which they will be asked for, and the next of them.
    order: Vec<ChunkId>,
    next: usize,
    /// Chunks of the order that are announced, or need not be.
    announced: usize,
    ahead: HashMap<ChunkId, Ahead>,
    /// Chunks in progress or done, and how many there may be.
    held: usize,
    window: usize,
    spare: Vec<Vec<u8>>,
}

/// What the files of one checkpoint share: the chunk read last, chunks that are read ahead, and the bytes that were asked of the
/// file system.
#[derive(Debug, Default)]
pub(crate) struct ChunkCache {
    state: Mutex<CacheState>,
    changed: Condvar,
    read: AtomicU64,
}

/// Result of looking for a chunk.
enum Found {
    Bytes(Vec<u8>),
    /// Memory to read the chunk into: it is not at hand.
    Memory(Vec<u8>),
    /// The chunk is intact and not at hand.
    Intact,
}

impl ChunkCache {
    pub(crate) fn bytes_read(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }

    pub(crate) fn count(&self, bytes: usize) {
        self.read.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Gives `take` the bytes of a chunk and returns true: the chunk read last, one that was read ahead, or what `read` reads. False if
    /// the chunk is known to be `intact` and not at hand.
    pub(crate) fn with_chunk(
        &self,
        id: ChunkId,
        intact: bool,
        read: impl FnOnce(&mut Vec<u8>) -> io::Result<()>,
        take: impl FnOnce(&[u8]),
    ) -> io::Result<bool> {
        let bytes = match self.find(id, intact)? {
            Found::Intact => return Ok(false),
            Found::Bytes(bytes) => bytes,
            Found::Memory(mut bytes) => {
                read(&mut bytes)?;
                bytes
            }
        };
        take(&bytes);
        let mut state = locked(&self.state);
        if let Some((_, old)) = state.last.replace((id, bytes))
            && state.spare.len() < state.window
        {
            state.spare.push(old);
        }
        Ok(true)
    }

    fn find(&self, id: ChunkId, intact: bool) -> io::Result<Found> {
        let mut state = locked(&self.state);
        if let Some((_, bytes)) = state.last.take_if(|last| last.0 == id) {
            return Ok(Found::Bytes(bytes));
        }
        while matches!(state.ahead.get(&id), Some(Ahead::InProgress)) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        match state.ahead.remove(&id) {
            Some(Ahead::Done(result)) => {
                state.held -= 1;
                self.changed.notify_all();
                result.map(Found::Bytes)
            }
            _ if intact => Ok(Found::Intact),
            // The memory of the chunk read last: whatever comes of the read, that one is gone.
            _ => {
                let last = state.last.take().map(|(_, bytes)| bytes);
                Ok(Found::Memory(last.or_else(|| state.spare.pop()).unwrap_or_default()))
            }
        }
    }

    /// Runs `reader` while threads read the chunks of `order`, of at most `chunk_bytes` each, with `read`, before it asks for them. `reader` may leave some of them
    /// out and take others. Without threads, or while another reader has them, it reads everything itself. Chunks that will be read next are announced,
    /// so that the disk works while threads hash: several of them at several places of a file are no sequence that the system sees.
    pub(crate) fn reading_ahead<T>(
        &self,
        order: Vec<ChunkId>,
        chunk_bytes: u64,
        announce: &(dyn Fn(ChunkId) + Sync),
        read: &ReadChunk<'_>,
        reader: impl FnOnce() -> T,
    ) -> T {
        let threads = threads().min(order.len());
        {
            let mut state = locked(&self.state);
            if threads == 0 || !state.order.is_empty() {
                drop(state);
                return reader();
            }
            let fits = (AHEAD_BYTES / chunk_bytes.max(1)).min(MOST_AHEAD) as usize;
            state.window = fits.max(threads + 1);
            state.ahead = order.iter().map(|id| (*id, Ahead::Wanted)).collect();
            (state.order, state.next, state.announced, state.held) = (order, 0, 0, 0);
        }
        std::thread::scope(|scope| {
            // Dropped before the threads are waited for, also by a panic.
            let _stop = Stop(self);
            for _ in 0..threads {
                let run = || {
                    while let Some((claim, later)) = self.claim() {
                        later.into_iter().for_each(announce);
                        claim.run(read);
                    }
                };
                let thread = std::thread::Builder::new().name("checkpoint-read".into());
                if thread.spawn_scoped(scope, run).is_err() {
                    break;
                }
            }
            reader()
        })
    }

    /// Takes the next chunk that nobody reads yet, as soon as there is space, and names those of the next `window` chunks that were not named before. None
    /// when all are read, or the reader has ended.
    fn claim(&self) -> Option<(Claim<'_>, Vec<ChunkId>)> {
        let mut state = locked(&self.state);
        loop {
            let id = *state.order.get(state.next)?;
            if state.held >= state.window {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            state.next += 1;
            if let Some(wanted @ Ahead::Wanted) = state.ahead.get_mut(&id) {
                *wanted = Ahead::InProgress;
                state.held += 1;
                let from = state.announced.max(state.next);
                state.announced = (state.next + state.window).min(state.order.len()).max(from);
                let later = state.order[from..state.announced].to_vec();
                return Some((Claim { cache: self, id, result: None }, later));
            }
        }
    }
}

/// A chunk that a thread reads.
struct Claim<'a> {
    cache: &'a ChunkCache,
    id: ChunkId,
    result: Option<io::Result<Vec<u8>>>,
}

impl Claim<'_> {
    fn run(mut self, read: &ReadChunk<'_>) {
        let mut bytes = locked(&self.cache.state).spare.pop().unwrap_or_default();
        self.result = Some(read(self.id, &mut bytes).map(|()| bytes));
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let panicked = || Err(io::Error::other("the thread that read it ahead panicked"));
        let result = self.result.take().unwrap_or_else(panicked);
        // Not if the reader has ended.
        if let Some(ahead) = locked(&self.cache.state).ahead.get_mut(&self.id) {
            *ahead = Ahead::Done(result);
        }
        self.cache.changed.notify_all();
    }
}

/// Ends the threads that read ahead.
struct Stop<'a>(&'a ChunkCache);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        let mut state = locked(&self.0.state);
        (state.order, state.next, state.held, state.window) = (Vec::new(), 0, 0, 0);
        (state.ahead, state.spare) = (HashMap::new(), Vec::new());
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    fn ids(count: u64) -> Vec<ChunkId> {
        (0..count).map(|index| ChunkId { file: 0, index }).collect()
    }

    /// Readers that take all chunks in order, only some, or in another order get the right bytes, and each is read once.
    #[test]
    fn a_reader_gets_what_it_asks_for_whatever_was_read_ahead() {
        let order = ids(200);
        let backwards: Vec<_> = order.iter().rev().copied().collect();
        let some: Vec<_> = order.iter().copied().filter(|id| id.index % 7 == 3).collect();
        for wanted in [&order, &backwards, &some] {
            let (cache, reads) = (ChunkCache::default(), AtomicUsize::new(0));
            let read = |id: ChunkId, bytes: &mut Vec<u8>| {
                reads.fetch_add(1, Ordering::Relaxed);
                bytes.clear();
                bytes.resize(100, id.index as u8);
                Ok(())
            };
            let (most, announced) = (AHEAD_BYTES / 5, Mutex::new(Vec::new()));
            let announce = |id: ChunkId| locked(&announced).push(id.index);
            cache.reading_ahead(order.clone(), most, &announce, &read, || {
                for id in wanted {
                    // The second time from the chunk read last.
                    for _ in 0..2 {
                        let mut found = Vec::new();
                        let take = |bytes: &[u8]| found.extend_from_slice(bytes);
                        assert!(cache.with_chunk(*id, false, |bytes| read(*id, bytes), take).unwrap());
                        assert_eq!(found, vec![id.index as u8; 100]);
                    }
                }
                assert!(locked(&cache.state).held <= 5 && locked(&cache.state).spare.len() <= 5);
            });
            let mut announced = locked(&announced).clone();
            announced.sort_unstable();
            assert!(announced.is_sorted_by(|a, b| a < b), "each at most once: {announced:?}");
            let reads = reads.into_inner();
            assert!(reads >= wanted.len() && reads <= wanted.len() + 5, "{reads} of {}", wanted.len());
            assert!(locked(&cache.state).ahead.is_empty() && locked(&cache.state).order.is_empty());
        }
    }

    #[test]
    fn an_error_or_a_panic_of_a_thread_reaches_the_reader() {
        let cache = ChunkCache::default();
        let read = |id: ChunkId, bytes: &mut Vec<u8>| match id.index {
            3 => Err(io::ErrorKind::InvalidData.into()),
            _ => {
                bytes.push(0);
                Ok(())
            }
        };
        let not_here = |_: &mut Vec<u8>| Err(io::ErrorKind::NotFound.into());
        let announced = Mutex::new(Vec::new());
        let announce = |id: ChunkId| locked(&announced).push(id.index);
        cache.reading_ahead(ids(8), 1, &announce, &read, || {
            while !matches!(locked(&cache.state).ahead[&ids(4)[3]], Ahead::Done(_)) {
                std::thread::yield_now();
            }
            let e = cache.with_chunk(ids(4)[3], false, not_here, |_| ()).unwrap_err();
            assert_eq!(e.kind(), io::ErrorKind::InvalidData);
        });
        // The first one is read at once.
        assert!(!locked(&announced).is_empty() && !locked(&announced).contains(&0));
        let panics = |_: ChunkId, _: &mut Vec<u8>| -> io::Result<()> { panic!("on purpose") };
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            cache.reading_ahead(ids(1), 1, &|_| (), &panics, || {
                while !matches!(locked(&cache.state).ahead[&ids(1)[0]], Ahead::Done(_)) {
                    std::thread::yield_now();
                }
                let e = cache.with_chunk(ids(1)[0], false, not_here, |_| ()).unwrap_err();
                assert!(e.to_string().contains("panicked"), "{e}");
            });
        }));
        assert!(ended.is_err(), "the panic goes on");
        assert!(locked(&cache.state).order.is_empty());
    }

    #[test]
    fn a_reader_that_panics_ends_the_threads() {
        let cache = ChunkCache::default();
        let read = |_: ChunkId, bytes: &mut Vec<u8>| {
            bytes.push(0);
            Ok(())
        };
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            cache.reading_ahead(ids(500), AHEAD_BYTES, &|_| (), &read, || panic!("on purpose"));
        }));
        assert!(ended.is_err());
    }
}
