//! A warm batch allocates nothing.
//!
//! The only test of its file: other tests would allocate on other threads while it counts.
#![allow(clippy::unwrap_used)] // A failed unwrap in a test is a failed test with a backtrace.

#[path = "integration/support/mod.rs"]
mod support;

use bessemer_counting_alloc::{CountingAllocator, allocations};
use bessemer_loader::{
    Batch, BatchReader, BatchRequest, DocumentConfig, EvaluationWindows, LoadError, Loader, Mixture,
    PrefetchConfig, PrefetchShape, Prefetcher, Share,
};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use support::{counting_split, document_lengths, masked_split, mixed_split};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

thread_local! {
    static COUNTED: Cell<bool> = const { Cell::new(false) };
}

/// A loader that counts the threads that prepare batches.
struct Started {
    loader: Loader,
    threads: AtomicUsize,
}

impl BatchReader for Started {
    fn read_batch(&self, request: BatchRequest, out: &mut Batch) -> Result<(), LoadError> {
        if std::thread::current().name() == Some("prepare batches") {
            // A batch for each, or one thread may prepare them all.
            self.threads.fetch_add(usize::from(!COUNTED.replace(true)), SeqCst);
            while self.threads.load(SeqCst) < 2 {
                std::thread::yield_now();
            }
        }
        self.loader.read_batch(request, out)
    }

    fn batch_length(&self, request: BatchRequest) -> Result<usize, LoadError> {
        self.loader.batch_length(request)
    }
}

#[test]
fn a_warm_batch_allocates_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let set = counting_split(dir.path(), &document_lengths(5000), 500);
    let loader = Loader::new(set.clone(), 64, 1, true).unwrap();
    let windows = EvaluationWindows::new(set.clone(), 64, Some(0)).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mixed = mixed_split(folder.path(), &[("a", 3000), ("b", 1000)]);
    let share = |name: &str, weight| Share { name: name.into(), weight: Some(weight), epochs: None };
    let mixture = Mixture::new(&mixed, 64, &[share("a", 0.4), share("b", 0.6)], 1.0, 10_000).unwrap();
    let mixed = Loader::mixed(mixed, 1, true, mixture);
    let config = |bucketed| DocumentConfig {
        seq_len: 64,
        shorter: vec![16, 32],
        micro_batch: 4,
        bucketed,
        separated: true,
        pairs: false,
    };
    let documents =
        [false, true].map(|bucketed| Loader::of_documents(set.clone(), config(bucketed), 1, true).unwrap());
    let masked = tempfile::tempdir().unwrap();
    let masked = masked_split(masked.path(), &document_lengths(5000), 500, &|token| token % 11 > 6);
    let masked_windows = EvaluationWindows::new(masked.clone(), 64, Some(0)).unwrap();
    let masked = Loader::new(masked, 64, 1, true).unwrap();
    let count = allocations;
    let mut batch = Batch::new();
    let cold = count();
    loader.batch(0, 16, &mut batch).unwrap();
    assert!(count() > cold, "the counter does not count");
    let warm = count();
    for step in 1..100 {
        loader.batch(step * 16, 16, &mut batch).unwrap();
        mixed.batch(step * 16, 16, &mut batch).unwrap();
        masked.batch(step * 16, 16, &mut batch).unwrap();
        masked.count_targets(step * 16, 16).unwrap();
    }
    for (documents, step) in
        documents.iter().flat_map(|documents| (0..100).map(move |step| (documents, step)))
    {
        documents.batch(step * 4, 4, &mut batch).unwrap();
        documents.count_targets(step * 4, 4).unwrap();
    }
    for window in 0..windows.windows() {
        windows.batch(window, 16, &mut batch).unwrap();
        masked_windows.batch(window, 16, &mut batch).unwrap();
    }
    assert_eq!(count() - warm, 0);
    // Batches have their memory before the first is read; threads ask for some when they start.
    let config = PrefetchConfig { bytes: 64 << 10, threads: 2 };
    let shape = PrefetchShape { sequences: 4, seq_len: 64, kept: 2 };
    for loader in documents.into_iter().chain([loader]) {
        let reader = Arc::new(Started { loader, threads: AtomicUsize::new(0) });
        let mut prefetcher = Prefetcher::new(reader.clone(), config, shape).unwrap();
        let request = |number: u64| BatchRequest { first: 4 * number, sequences: 4 };
        let mut warm = 0;
        for number in 0..200 {
            prefetcher.begin(request(number), || Box::new((number..500).map(request)));
            prefetcher.length(request(number)).unwrap();
            prefetcher.get(request(number)).unwrap();
            if number == 40 {
                while reader.threads.load(SeqCst) < 2 {
                    std::thread::yield_now();
                }
                warm = count();
            }
        }
        assert_eq!(count() - warm, 0);
    }
}
