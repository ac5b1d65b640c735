//! Batches prepared ahead: the same as those read in the step, in a bounded ring.

use crate::support::{counting_split, document_lengths};

use bessemer_loader::{
    Batch, BatchReader, BatchRequest, BatchRequests, DocumentConfig, LoadError, Loader, PrefetchConfig,
    PrefetchShape, Prefetcher,
};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Sequences of a batch, and their tokens.
const SHAPE: PrefetchShape = PrefetchShape { sequences: 4, seq_len: 16, kept: 1 };
/// Bytes of a batch of that shape: inputs, targets and the origin of four sequences.
const BATCH: u64 = 4 * (16 * 8 + 32);

/// A loader whose reads take times that differ from request to request.
struct Slow {
    loader: Loader,
    /// Requests that were read, in the order in which reading began.
    begun: Mutex<Vec<u64>>,
    ended: AtomicU64,
    /// First sample of a batch that cannot be read.
    fails_at: Option<u64>,
    /// First sample of a batch whose preparation panics.
    panics_at: Option<u64>,
}

impl BatchReader for Slow {
    fn read_batch(&self, request: BatchRequest, out: &mut Batch) -> Result<(), LoadError> {
        self.begun.lock().unwrap().push(request.first);
        let prepares = std::thread::current().name() == Some("prepare batches");
        assert!(!prepares || self.panics_at != Some(request.first), "a planted panic");
        std::thread::sleep(Duration::from_micros(request.first.wrapping_mul(0x9e37_79b9) % 700));
        if self.fails_at == Some(request.first) {
            return Err(LoadError::Mixture(format!("planted at {}", request.first)));
        }
        let read = self.loader.batch(request.first, request.sequences, out);
        self.ended.fetch_add(1, SeqCst);
        read
    }

    fn batch_length(&self, request: BatchRequest) -> Result<usize, LoadError> {
        self.loader.padded_length(request.first, request.sequences)
    }
}

fn loader() -> (tempfile::TempDir, Loader) {
    let dir = tempfile::tempdir().unwrap();
    let set = counting_split(dir.path(), &document_lengths(3000), 700);
    (dir, Loader::new(set, 16, 5, true).unwrap())
}

fn slow(loader: &Loader) -> Slow {
    let (loader, ended) = (loader.clone(), AtomicU64::new(0));
    Slow { loader, begun: Mutex::default(), ended, fails_at: None, panics_at: None }
}

fn request(number: u64) -> BatchRequest {
    BatchRequest { first: 4 * number, sequences: 4 }
}

fn requests(numbers: std::ops::Range<u64>) -> BatchRequests {
    Box::new(numbers.map(request))
}

fn of(batches: u64, threads: usize) -> PrefetchConfig {
    PrefetchConfig { bytes: batches * BATCH, threads }
}

fn read(loader: &Loader, request: BatchRequest) -> Batch {
    let mut batch = Batch::new();
    loader.batch(request.first, request.sequences, &mut batch).unwrap();
    batch
}

/// Waits until `count` batches were read.
fn until_read(reader: &Slow, count: u64) {
    for _ in 0..20_000 {
        if reader.ended.load(SeqCst) >= count {
            return;
        }
        std::thread::sleep(Duration::from_micros(500));
    }
    panic!("{} batches were read, wanted {count}", reader.ended.load(SeqCst));
}

#[test]
fn batches_do_not_depend_on_depth_or_threads() {
    let (_dir, loader) = loader();
    for (batches, threads) in [(0, 1), (1, 1), (1, 3), (2, 2), (7, 1), (7, 4), (1000, 3)] {
        let mut prefetcher = Prefetcher::new(Arc::new(slow(&loader)), of(batches, threads), SHAPE).unwrap();
        for number in 0..60 {
            // As a trainer that begins each step, of three batches.
            if number % 3 == 0 {
                prefetcher.begin(request(number), || requests(number..60));
            }
            let got = prefetcher.get(request(number)).unwrap();
            assert_eq!(
                *got,
                read(&loader, request(number)),
                "{batches} ahead, {threads} threads, batch {number}"
            );
        }
    }
}

#[test]
fn no_more_is_prepared_than_the_bytes_hold() {
    assert_eq!(
        [0, 1, 3 * BATCH, 4 * BATCH - 1].map(|bytes| PrefetchConfig { bytes, threads: 1 }.depth(4, 16)),
        [0, 1, 3, 3]
    );
    assert_eq!(PrefetchConfig { bytes: u64::MAX, threads: 1 }.depth(4, 16), 256);
    assert_eq!(of(3, 1).memory(SHAPE), 4 * BATCH);
    let (_dir, loader) = loader();
    let reader = Arc::new(slow(&loader));
    let mut prefetcher = Prefetcher::new(reader.clone(), of(5, 2), SHAPE).unwrap();
    prefetcher.begin(request(0), || requests(0..20));
    until_read(&reader, 5);
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!(reader.begun.lock().unwrap().len(), 5);
    // All five are ready, so nothing waits; each delivery makes space for one.
    for number in 0..20 {
        prefetcher.get(request(number)).unwrap();
        let delivered = number + 1;
        until_read(&reader, 20.min(delivered + 5));
        assert_eq!(reader.begun.lock().unwrap().len() as u64, 20.min(delivered + 5));
    }
    assert_eq!(prefetcher.late(), 0);
}

#[test]
fn a_jump_empties_the_ring() {
    let (_dir, loader) = loader();
    let reader = Arc::new(slow(&loader));
    let mut prefetcher = Prefetcher::new(reader.clone(), of(6, 2), SHAPE).unwrap();
    // On, back, on from there, past a gap that was not announced, and behind one that was.
    for (from, announced) in
        [(0, 0..100), (30, 30..100), (10, 10..100), (16, 16..100), (90, 90..100), (5, 5..9)]
    {
        prefetcher.begin(request(from), || requests(announced));
        for number in from..from + 5 {
            assert_eq!(*prefetcher.get(request(number)).unwrap(), read(&loader, request(number)));
        }
    }
    // The next step of 5 batches is expected: what is prepared of it stays.
    prefetcher.begin(request(20), || requests(20..100));
    prefetcher.get(request(20)).unwrap();
    for _ in 0..20_000 {
        if reader.begun.lock().unwrap().contains(&(4 * 24)) {
            break;
        }
        std::thread::sleep(Duration::from_micros(500));
    }
    let asked = std::cell::Cell::new(false);
    prefetcher.begin(request(24), || {
        asked.set(true);
        requests(24..100)
    });
    assert!(!asked.get(), "the ring expects batch 24");
    assert_eq!(*prefetcher.get(request(24)).unwrap(), read(&loader, request(24)));
    prefetcher.empty();
    let before = reader.begun.lock().unwrap().len();
    std::thread::sleep(Duration::from_millis(3));
    // Reads that had begun may be among them, and no others.
    assert!(reader.begun.lock().unwrap().len() <= before + 2);
    assert_eq!(*prefetcher.get(request(40)).unwrap(), read(&loader, request(40)));
}

#[test]
fn another_reader_takes_over() {
    let (_dir, first) = loader();
    let second = Loader::new(first.shards().clone(), 16, 6, true).unwrap();
    let mut prefetcher = Prefetcher::new(Arc::new(slow(&first)), of(6, 2), SHAPE).unwrap();
    prefetcher.begin(request(0), || requests(0..50));
    prefetcher.get(request(0)).unwrap();
    prefetcher.replace(Arc::new(second.clone()));
    prefetcher.begin(request(0), || requests(0..50));
    for number in 0..20 {
        let got = prefetcher.get(request(number)).unwrap().clone();
        assert_eq!(got, read(&second, request(number)));
        assert_ne!(got, read(&first, request(number)));
    }
}

#[test]
fn requests_may_come_again_and_out_of_order() {
    let (_dir, loader) = loader();
    let reader = Arc::new(slow(&loader));
    let mut prefetcher =
        Prefetcher::new(reader.clone(), of(8, 2), PrefetchShape { kept: 4, ..SHAPE }).unwrap();
    for step in 0..4 {
        prefetcher.begin(request(8 * step), || requests(8 * step..40));
        until_read(&reader, 8 * (step + 1));
        // Two chunks of a rank: four batches each in turn; then two directions of a pipeline.
        for number in [0, 1, 2, 3, 0, 1, 2, 3, 4, 6, 5, 7, 7, 4] {
            let wanted = request(8 * step + number);
            assert_eq!(prefetcher.length(wanted).unwrap(), 16);
            assert_eq!(*prefetcher.get(wanted).unwrap(), read(&loader, wanted));
        }
    }
    drop(prefetcher);
    let begun = reader.begun.lock().unwrap();
    let (all, once) = (begun.len(), begun.iter().collect::<std::collections::HashSet<_>>().len());
    assert_eq!(all, once, "a batch that is kept is not read again");
}

#[test]
fn an_error_comes_with_its_batch() {
    let (_dir, loader) = loader();
    for (batches, threads) in [(0, 1), (1, 1), (9, 3)] {
        let reader = Slow { fails_at: Some(16), ..slow(&loader) };
        let mut prefetcher = Prefetcher::new(Arc::new(reader), of(batches, threads), SHAPE).unwrap();
        prefetcher.begin(request(0), || requests(0..30));
        for number in 0..12 {
            match prefetcher.get(request(number)) {
                Ok(got) if number != 4 => assert_eq!(*got, read(&loader, request(number))),
                Err(LoadError::Mixture(text)) if number == 4 => assert_eq!(text, "planted at 16"),
                other => panic!("batch {number}: {other:?}"),
            }
        }
    }
}

#[test]
fn a_panic_of_a_preparation_thread_does_not_hang_the_step() {
    let (_dir, loader) = loader();
    let reader = Slow { panics_at: Some(12), ..slow(&loader) };
    let mut prefetcher = Prefetcher::new(Arc::new(reader), of(4, 1), SHAPE).unwrap();
    prefetcher.begin(request(0), || requests(0..30));
    for number in 0..12 {
        assert_eq!(*prefetcher.get(request(number)).unwrap(), read(&loader, request(number)));
    }
}

#[test]
fn lengths_of_documents_come_from_the_ring() {
    let (_dir, windows) = loader();
    let config = DocumentConfig {
        seq_len: 16,
        shorter: vec![4, 8],
        micro_batch: 4,
        bucketed: true,
        separated: true,
        pairs: false,
    };
    let loader = Loader::of_documents(windows.shards().clone(), config, 5, true).unwrap();
    let reader = Arc::new(slow(&loader));
    let mut prefetcher = Prefetcher::new(reader.clone(), of(6, 2), SHAPE).unwrap();
    prefetcher.begin(request(0), || requests(0..20));
    until_read(&reader, 6);
    let mut seen = std::collections::HashSet::new();
    for number in 0..20 {
        let length = prefetcher.length(request(number)).unwrap();
        assert_eq!(length, loader.padded_length(4 * number, 4).unwrap());
        assert_eq!(prefetcher.get(request(number)).unwrap().seq_len, length);
        seen.insert(length);
    }
    assert!(seen.len() > 1, "one length only: {seen:?}");
}

#[test]
fn dropping_ends_the_threads() {
    let (_dir, loader) = loader();
    let reader = Arc::new(slow(&loader));
    let mut prefetcher = Prefetcher::new(reader.clone(), of(6, 4), SHAPE).unwrap();
    prefetcher.begin(request(0), || requests(0..1_000_000));
    prefetcher.get(request(0)).unwrap();
    drop(prefetcher);
    // Nobody else has the reader.
    assert_eq!(Arc::strong_count(&reader), 1);
}

/// A store that pauses: every eighth batch takes 24 ms, the others 1 ms. A step takes 8 ms.
struct Pausing(Loader);

impl BatchReader for Pausing {
    fn read_batch(&self, request: BatchRequest, out: &mut Batch) -> Result<(), LoadError> {
        let pause = if (request.first / 4).is_multiple_of(8) { 24 } else { 1 };
        std::thread::sleep(Duration::from_millis(pause));
        self.0.batch(request.first, request.sequences, out)
    }

    fn batch_length(&self, request: BatchRequest) -> Result<usize, LoadError> {
        self.0.padded_length(request.first, request.sequences)
    }
}

/// Share of the time that steps wait, after the first.
fn waited(loader: &Loader, config: PrefetchConfig) -> f64 {
    let mut prefetcher = Prefetcher::new(Arc::new(Pausing(loader.clone())), config, SHAPE).unwrap();
    prefetcher.begin(request(1), || requests(1..100));
    prefetcher.get(request(1)).unwrap();
    let begun = std::time::Instant::now();
    let mut waits = Duration::ZERO;
    for number in 2..60 {
        std::thread::sleep(Duration::from_millis(8));
        let fetch = std::time::Instant::now();
        prefetcher.get(request(number)).unwrap();
        waits += fetch.elapsed();
    }
    waits.as_secs_f64() / begun.elapsed().as_secs_f64()
}

#[test]
fn a_store_that_suffices_in_the_mean_holds_up_no_step() {
    let (_dir, loader) = loader();
    let without = waited(&loader, of(0, 0));
    // 31 ms of 95 ms; less where a busy machine makes the steps longer.
    assert!(without > 0.1, "{without}");
    // Another program may keep the thread from a core for longer than the ring lasts.
    let with = (0..4).map(|_| waited(&loader, of(12, 1))).fold(1.0, f64::min);
    assert!(with < 0.02, "waited {with} of the time, {without} without the ring");
}
