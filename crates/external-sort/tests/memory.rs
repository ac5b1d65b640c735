//! A sort keeps to its memory. Alone in its program, because the allocator counts the whole process.
#![allow(clippy::unwrap_used)] // A failed unwrap in a test is a failed test with a backtrace.

use bessemer_counting_alloc::{CountingAllocator, live_bytes, peak_bytes, reset_peak};
use bessemer_durable::ConfinedDir;
use bessemer_external_sort::{SortMemory, WordSorter};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

#[test]
fn ten_times_the_records_take_the_same_memory() {
    const LIMIT: u64 = 4 << 20;
    let peak = |count: u64| {
        let folder = tempfile::tempdir().unwrap();
        let dir = ConfinedDir::open(folder.path()).unwrap();
        let before = live_bytes();
        reset_peak();
        let memory = SortMemory::new(LIMIT as usize, &dir, 2);
        let mut sorter = WordSorter::<3>::new(&memory);
        for at in 0..count {
            sorter.push([at.wrapping_mul(0x9E37_79B9_7F4A_7C15), at, at]).unwrap();
        }
        let mut sorted = sorter.finish();
        let mut second = WordSorter::<3>::new(&memory);
        while let Some(record) = sorted.next().unwrap() {
            second.push(record).unwrap();
        }
        drop(sorted);
        let mut sorted = second.finish();
        let mut records = 0;
        while sorted.next().unwrap().is_some() {
            records += 1;
        }
        assert_eq!(records, count);
        assert!(memory.spilled() >= 24 * count);
        peak_bytes() - before
    };
    // The limit; an eighth of it for the second sorter and one for the blocks of the merge; 64 KiB for lists of runs and the threads.
    let bound = LIMIT + LIMIT / 4 + (64 << 10);
    for records in [400_000, 4_000_000] {
        let peak = peak(records);
        assert!(peak <= bound, "{records} records: {peak} bytes, wanted at most {bound}");
        assert!(peak > LIMIT / 2, "{records} records: {peak} bytes, so the memory was not used");
    }
}
