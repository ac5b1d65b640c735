//! The search for repeated substrings keeps to its memory. Alone in its program, because the allocator counts the whole process.
#![allow(clippy::unwrap_used)] // A failed unwrap in a test is a failed test with a backtrace.

use bessemer_counting_alloc::{CountingAllocator, live_bytes, peak_bytes, reset_peak};
use bessemer_dedup::substring::{Finder, Limits};
use bessemer_durable::ConfinedDir;
use std::sync::atomic::AtomicBool;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const MEMORY: usize = 16 << 20;
const DOCUMENT: usize = 4 << 10;

/// Letters; every tenth document begins like an earlier one.
fn document(number: u64, text: &mut Vec<u8>) {
    text.clear();
    let mut state = number;
    while text.len() < DOCUMENT {
        if text.len() == 1024 {
            state = number ^ 1 << 40;
        } else if text.is_empty() && number % 10 == 9 {
            state = number - 5;
        }
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        text.extend((state >> 8).to_le_bytes().map(|byte| b'a' + byte % 26));
    }
}

#[test]
fn ten_times_the_text_takes_the_same_memory() {
    let peak = |documents: u64| {
        let folder = tempfile::tempdir().unwrap();
        let before = live_bytes();
        reset_peak();
        let limits = Limits { threads: 2, memory: MEMORY, spill: ConfinedDir::open(folder.path()).unwrap() };
        let mut finder = Finder::new(200, limits).unwrap();
        let mut text = Vec::new();
        for number in 0..documents {
            document(number, &mut text);
            finder.push(&text).unwrap();
        }
        let found = finder.finish(&AtomicBool::new(false)).unwrap();
        assert_eq!(found.documents().len() as u64, documents / 10);
        (found.spilled_bytes, peak_bytes() - before)
    };
    for documents in [1500, 15_000] {
        let (spilled, peak) = peak(documents);
        // 8 bytes for a document, 64 for one with repeats, and both grow by doubling.
        let bound = MEMORY as u64 + 32 * documents;
        assert!(peak <= bound, "{documents} documents: {peak} bytes, wanted at most {bound}");
        assert!(spilled as usize > documents as usize * DOCUMENT * 9 / 10 || documents == 1500);
    }
}
