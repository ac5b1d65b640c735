//! What is asked for is counted. Alone in its file.

use bessemer_counting_alloc::{CountingAllocator, allocations, live_bytes, peak_bytes, reset_peak};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

#[test]
fn allocations_and_bytes_are_counted() {
    let before = (allocations(), live_bytes());
    let mut bytes: Vec<u8> = Vec::with_capacity(1 << 20);
    bytes.resize(1 << 20, 1);
    assert!(allocations() > before.0);
    assert!(live_bytes() >= before.1 + (1 << 20));
    bytes.reserve_exact(3 << 20);
    assert!(peak_bytes() >= before.1 + (4 << 20));
    drop(bytes);
    reset_peak();
    assert!(peak_bytes() < before.1 + (1 << 20), "what was given back no longer counts");
}
