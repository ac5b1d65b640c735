//! The memory that several sorters share.

use crate::error::{Error, Result};
use bessemer_durable::ConfinedDir;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Bytes that a sorter may hold whatever the limit, so that runs do not become tiny.
const MIN_HELD: usize = 64 << 10;
/// Smallest block that is read from a run at once.
const MIN_BLOCK: usize = 16 << 10;
/// Largest block that is read from a run at once.
const MAX_BLOCK: usize = 128 << 10;

/// Memory, folder and threads of the sorters of one task.
pub struct SortMemory<'a> {
    limit: usize,
    folder: &'a ConfinedDir,
    threads: usize,
    stop: Option<&'a AtomicBool>,
    held: AtomicUsize,
    spilled: AtomicU64,
}

impl<'a> SortMemory<'a> {
    /// Memory of `limit` bytes, an open folder for spill files, and the threads that sort in memory.
    pub fn new(limit: usize, folder: &'a ConfinedDir, threads: usize) -> Self {
        let (held, spilled) = (AtomicUsize::new(0), AtomicU64::new(0));
        SortMemory { limit, folder, threads: threads.max(1), stop: None, held, spilled }
    }

    /// Ends every sort with [`Error::Stopped`] after `stop` was raised.
    #[must_use]
    pub fn with_stop(mut self, stop: &'a AtomicBool) -> Self {
        self.stop = Some(stop);
        self
    }

    /// Bytes that the sorters may hold together.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Bytes written to disk so far.
    pub fn spilled(&self) -> u64 {
        self.spilled.load(Ordering::Relaxed)
    }

    pub(crate) fn folder(&self) -> &ConfinedDir {
        self.folder
    }

    pub(crate) fn threads(&self) -> usize {
        self.threads
    }

    pub(crate) fn check_stop(&self) -> Result<()> {
        match self.stop {
            Some(stop) if stop.load(Ordering::Relaxed) => Err(Error::Stopped),
            _ => Ok(()),
        }
    }

    pub(crate) fn count_spill(&self, bytes: u64) {
        self.spilled.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes for the blocks of one merge. The minimum is 16 blocks.
    pub(crate) fn merge_bytes(&self) -> usize {
        (self.limit / 8).max(16 * MIN_BLOCK)
    }

    /// Bytes of a block where so many runs are merged within `memory` bytes.
    pub(crate) fn block_bytes(memory: usize, runs: usize) -> usize {
        (memory / runs.max(1)).clamp(MIN_BLOCK, MAX_BLOCK)
    }

    /// Runs that can be merged at once within `memory` bytes.
    pub(crate) fn fan_in(memory: usize) -> usize {
        (memory / MIN_BLOCK).max(16)
    }
}

/// Bytes that one sorter holds, counted in the shared memory too.
pub(crate) struct HeldBytes<'s> {
    memory: &'s SortMemory<'s>,
    own: AtomicUsize,
}

impl<'s> HeldBytes<'s> {
    pub(crate) fn new(memory: &'s SortMemory<'s>) -> Self {
        HeldBytes { memory, own: AtomicUsize::new(0) }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.own.load(Ordering::Relaxed)
    }

    /// Bytes that the sorter may hold besides: what the limit leaves, or what remains of an eighth of the limit
    /// if other sorters hold more.
    pub(crate) fn room(&self) -> usize {
        let left = self.memory.limit.saturating_sub(self.memory.held.load(Ordering::Relaxed));
        left.max((self.memory.limit / 8).max(MIN_HELD).saturating_sub(self.bytes()))
    }

    pub(crate) fn add(&self, bytes: usize) {
        self.own.fetch_add(bytes, Ordering::Relaxed);
        self.memory.held.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn release(&self, bytes: usize) {
        self.own.fetch_sub(bytes, Ordering::Relaxed);
        self.memory.held.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for HeldBytes<'_> {
    fn drop(&mut self) {
        self.release(self.bytes());
    }
}
