//! The memory budget that spools and operators share.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Counts the bytes that spools and operators hold in memory.
pub(crate) struct Budget {
    limit: usize,
    used: AtomicUsize,
    spilled: AtomicU64,
    files: AtomicU64,
}

impl Budget {
    pub(crate) fn new(limit: usize) -> Self {
        Budget { limit, used: AtomicUsize::new(0), spilled: AtomicU64::new(0), files: AtomicU64::new(0) }
    }

    /// Adds to what is held; false when the limit is passed and the caller must spill.
    pub(crate) fn hold(&self, bytes: usize) -> bool {
        self.used.fetch_add(bytes, Ordering::Relaxed) + bytes <= self.limit
    }

    /// Bytes that may be held.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Bytes that are held.
    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Gives back what [`Budget::hold`] took.
    pub(crate) fn release(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Counts bytes written to disk.
    pub(crate) fn count_spill(&self, bytes: u64) {
        self.spilled.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes written to disk so far.
    pub(crate) fn spilled(&self) -> u64 {
        self.spilled.load(Ordering::Relaxed)
    }

    /// A number no other spill file of this run has.
    pub(crate) fn file_number(&self) -> u64 {
        self.files.fetch_add(1, Ordering::Relaxed)
    }
}
