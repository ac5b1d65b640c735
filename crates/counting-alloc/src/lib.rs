//! A global allocator for tests: it counts allocations and knows the most bytes that were held at once.
//!
//! A test program installs it, alone in its file, because allocations of other tests would be counted too:
//! ```ignore
//! #[global_allocator]
//! static ALLOCATOR: CountingAllocator = CountingAllocator;
//! ```
//! Every number is of the whole process, all threads together. Memory that C libraries take is not seen.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
#![allow(unsafe_code, reason = "counting allocations means implementing GlobalAlloc")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static LIVE: AtomicU64 = AtomicU64::new(0);
static PEAK: AtomicU64 = AtomicU64::new(0);

/// Allocations and reallocations since the process began.
pub fn allocations() -> u64 {
    ALLOCATIONS.load(Ordering::SeqCst)
}

/// Bytes that are allocated now.
pub fn live_bytes() -> u64 {
    LIVE.load(Ordering::SeqCst)
}

/// Most bytes that were allocated at once since the process began, or since [`reset_peak`].
pub fn peak_bytes() -> u64 {
    PEAK.load(Ordering::SeqCst)
}

/// Lets [`peak_bytes`] begin anew with what is allocated now.
pub fn reset_peak() {
    PEAK.store(live_bytes(), Ordering::SeqCst);
}

/// The system's allocator, with counters.
pub struct CountingAllocator;

fn add(bytes: usize) {
    ALLOCATIONS.fetch_add(1, Ordering::SeqCst);
    let live = LIVE.fetch_add(bytes as u64, Ordering::SeqCst) + bytes as u64;
    PEAK.fetch_max(live, Ordering::SeqCst);
}

// SAFETY: every call is passed to System unchanged, whose contract is GlobalAlloc's; the counters allocate nothing.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size());
        // SAFETY: the caller keeps GlobalAlloc's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        add(layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size() as u64, Ordering::SeqCst);
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        LIVE.fetch_sub(layout.size() as u64, Ordering::SeqCst);
        add(size);
        // SAFETY: as above.
        unsafe { System.realloc(at, layout, size) }
    }
}
