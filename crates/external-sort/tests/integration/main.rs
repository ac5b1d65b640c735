//! Records come back in order whatever the memory, the threads and the number of runs.
#![allow(clippy::unwrap_used)] // A failed unwrap in a test is a failed test with a backtrace.

use bessemer_durable::ConfinedDir;
use bessemer_external_sort::{
    BUCKETS, Error, Merge, RecordWidth, RecordWriter, SortMemory, SortedRun, Sorter, WordSorter,
    merge_in_groups,
};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// Pseudo-random words.
fn mixed(at: u64) -> u64 {
    let word = (at + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    word ^ (word >> 27)
}

fn files_in(folder: &Path) -> usize {
    std::fs::read_dir(folder).unwrap().count()
}

#[test]
fn memory_and_threads_do_not_change_the_order_of_words() {
    let records = || (0..300_000).map(|at| [mixed(at) % 50, mixed(at ^ 77) % 1000, at % 7]);
    let mut expected: Vec<[u64; 3]> = records().collect();
    expected.sort_unstable();
    // The least memory makes more runs than one merge takes.
    for (limit, threads) in [(0, 1), (0, 3), (500_000, 2), (1 << 30, 1), (1 << 30, 3)] {
        let folder = tempfile::tempdir().unwrap();
        let dir = ConfinedDir::open(folder.path()).unwrap();
        let memory = SortMemory::new(limit, &dir, threads);
        let mut sorter = WordSorter::<3>::new(&memory);
        records().for_each(|record| sorter.push(record).unwrap());
        assert_eq!(sorter.pushed(), 300_000);
        let mut sorted = sorter.finish();
        let mut found = Vec::new();
        while let Some(record) = sorted.next().unwrap() {
            found.push(record);
        }
        assert!(found == expected, "limit {limit}, threads {threads}");
        let bytes = 24 * 300_000;
        match limit {
            // Each record is written once, and again by the merge of runs.
            0 => assert!(memory.spilled() > bytes + bytes / 2, "{}", memory.spilled()),
            500_000 => assert!((bytes / 2..bytes + bytes / 2).contains(&memory.spilled())),
            _ => assert_eq!(memory.spilled(), 0),
        }
        assert_eq!(files_in(folder.path()), 0);
    }
}

#[test]
fn several_threads_fill_and_read_the_buckets() {
    let total = 1 << 20;
    let record = |at: u64| [mixed(at) % total, mixed(at ^ 5) % 3];
    let mut expected: Vec<[u64; 2]> = (0..200_000).map(record).collect();
    expected.sort_unstable();
    for (limit, memory) in [(1 << 30, 1 << 30), (400_000, 1 << 20), (0, 0)] {
        let folder = tempfile::tempdir().unwrap();
        let dir = ConfinedDir::open(folder.path()).unwrap();
        let space = SortMemory::new(limit, &dir, 2);
        let sorter = Sorter::partitioned(&space, RecordWidth::words::<2>(), total);
        std::thread::scope(|scope| {
            for thread in 0..2 {
                let mut feed = sorter.feed();
                scope.spawn(move || {
                    for at in (thread..200_000).step_by(2) {
                        feed.push(&record(at)).unwrap();
                    }
                    feed.finish().unwrap();
                });
            }
        });
        assert_eq!(space.spilled() > 0, limit < 1 << 30);
        let buckets: Vec<Mutex<Vec<[u64; 2]>>> = (0..BUCKETS).map(|_| Mutex::default()).collect();
        std::thread::scope(|scope| {
            for half in 0..2 {
                let (sorter, buckets) = (&sorter, &buckets);
                scope.spawn(move || {
                    for index in (half..BUCKETS).step_by(2) {
                        let mut bucket = buckets[index].lock().unwrap();
                        let take = |record: &[u64]| {
                            bucket.push(record.try_into().unwrap());
                            Ok::<(), Error>(())
                        };
                        sorter.drain(index, memory, take).unwrap();
                    }
                });
            }
        });
        let found: Vec<[u64; 2]> =
            buckets.into_iter().flat_map(|bucket| bucket.into_inner().unwrap()).collect();
        assert!(found == expected, "limit {limit}");
        assert_eq!(sorter.held_bytes(), 0);
        assert!(sorter.finish().next().unwrap().is_none());
    }
}

#[test]
fn records_of_equal_key_are_summed_with_and_without_runs() {
    let folder = tempfile::tempdir().unwrap();
    let dir = ConfinedDir::open(folder.path()).unwrap();
    let sums = |limit: usize, moved: bool| {
        let memory = SortMemory::new(limit, &dir, 1);
        let mut sorter = Sorter::new(&memory, RecordWidth::bytes::<12>()).summing();
        for at in 0..100_000 {
            let key = (mixed(at) % 30_000) as u32;
            sorter.push(&[&key.to_be_bytes()[..], &(at % 300).to_le_bytes()].concat()).unwrap();
            if moved && at % 30_000 == 0 {
                sorter.spill().unwrap();
                assert_eq!(sorter.held_bytes(), 0);
            }
        }
        let mut sorted = sorter.finish();
        let mut found = Vec::new();
        while let Some(record) = sorted.next().unwrap() {
            let (key, count) = record.split_at(4);
            found.push((
                u32::from_be_bytes(key.try_into().unwrap()),
                u64::from_le_bytes(count.try_into().unwrap()),
            ));
        }
        (found, memory.spilled())
    };
    let (wanted, spilled) = sums(1 << 30, false);
    assert_eq!(spilled, 0);
    assert!(wanted.is_sorted_by(|a, b| a.0 < b.0) && wanted.len() > 25_000);
    assert_eq!(wanted.iter().map(|sum| sum.1).sum::<u64>(), (0..100_000).map(|at| at % 300).sum());
    for (limit, moved) in [(0, false), (100_000, false), (1 << 30, true)] {
        let (found, spilled) = sums(limit, moved);
        assert!(found == wanted, "limit {limit}");
        assert!(spilled > 0);
    }
    assert_eq!(files_in(folder.path()), 0);
}

#[test]
fn a_record_file_is_read_as_often_as_needed() {
    let folder = tempfile::tempdir().unwrap();
    let dir = ConfinedDir::open(folder.path()).unwrap();
    let mut writer = RecordWriter::create(&dir, 12).unwrap();
    let record = |at: u32| at.to_be_bytes().repeat(3);
    (0..20_000).for_each(|at| writer.push(&record(at)).unwrap());
    let file = writer.finish().unwrap();
    assert_eq!(file.records(), 20_000);
    for _ in 0..2 {
        let mut reader = file.read();
        (0..20_000).for_each(|at| assert_eq!(reader.next().unwrap(), Some(&record(at)[..])));
        (0..2).for_each(|_| assert_eq!(reader.next().unwrap(), None));
    }
}

#[test]
fn the_stop_flag_and_a_missing_folder_end_a_sort() {
    let stop = AtomicBool::new(false);
    let folder = tempfile::tempdir().unwrap();
    let dir = ConfinedDir::open(folder.path()).unwrap();
    std::fs::remove_dir(folder.path()).unwrap();
    let memory = SortMemory::new(0, &dir, 1).with_stop(&stop);
    let mut sorter = WordSorter::<2>::new(&memory);
    let mut push_many = || (0..10_000).try_for_each(|at| sorter.push([at, at]));
    let message = push_many().unwrap_err().to_string();
    let named = format!("create {}", folder.path().display());
    assert!(message.contains(&named), "{message}");
    stop.store(true, Ordering::Relaxed);
    assert!(matches!(push_many(), Err(Error::Stopped)));
    assert!(matches!(sorter.finish().next(), Err(Error::Stopped)));
}

/// Keys of any length.
#[derive(Debug, Clone, PartialEq)]
struct Words(Vec<Vec<u8>>);

impl SortedRun for Words {
    type Unit = u8;
    type Error = std::convert::Infallible;

    fn key(&self) -> Option<&[u8]> {
        self.0.last().map(Vec::as_slice)
    }

    fn advance(&mut self) -> Result<(), Self::Error> {
        self.0.pop();
        Ok(())
    }
}

/// The keys in order, each with the index of its run.
fn merged(runs: Vec<Words>) -> Vec<(Vec<u8>, usize)> {
    let mut merge = Merge::new(runs);
    let mut found = Vec::new();
    while let Some(run) = merge.smallest() {
        found.push((merge.run(run).key().unwrap().to_vec(), run));
        merge.advance().unwrap();
    }
    found
}

#[test]
fn keys_of_any_length_are_merged_and_equal_ones_keep_the_order_of_the_runs() {
    let mut expected = Vec::new();
    let runs: Vec<Words> = (0..13)
        .map(|run| {
            let mut keys: Vec<Vec<u8>> = (0..40 * (run % 4))
                .map(|at| {
                    let length = mixed(run * 1000 + at) as usize % 12;
                    // Zeros at the end of a key count.
                    (0..length as u64).map(|byte| (mixed(at ^ (byte << 20)) % 2) as u8).collect()
                })
                .collect();
            expected.extend(keys.iter().map(|key| (key.clone(), run as usize)));
            keys.sort_unstable_by(|a, b| b.cmp(a));
            Words(keys)
        })
        .collect();
    expected.sort();
    assert_eq!(merged(runs.clone()), expected);
    for fan_in in [0, 2, 3, 12, 13] {
        let together = |group: Vec<Words>| {
            assert!((2..=fan_in.max(2)).contains(&group.len()));
            Ok::<Words, Error>(Words(merged(group).into_iter().rev().map(|found| found.0).collect()))
        };
        let left = merge_in_groups(runs.clone(), |_| fan_in, together).unwrap();
        assert!(left.len() <= fan_in.max(2));
        let keys = |found: Vec<(Vec<u8>, usize)>| found.into_iter().map(|found| found.0).collect::<Vec<_>>();
        assert_eq!(keys(merged(left)), keys(expected.clone()), "{fan_in} runs at once");
    }
}
