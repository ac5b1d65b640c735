//! Counts what this process asks of the allocator, on all its threads. (What the MPI library takes is not seen.)
#![allow(unsafe_code, reason = "counting allocations means implementing GlobalAlloc")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

struct Counting;

static ASKED: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call is passed to System, whose contract is GlobalAlloc's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ASKED.fetch_add(1, Ordering::SeqCst);
        // SAFETY: the caller keeps GlobalAlloc's contract, which is System's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ASKED.fetch_add(1, Ordering::SeqCst);
        // SAFETY: as above.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Requests so far.
pub(crate) fn asked() -> u64 {
    ASKED.load(Ordering::SeqCst)
}
