//! Caches of blocks: counts of the literature, closed forms, real files, threads.

use crate::cache::{BlockCache, CacheRead};
use crate::{CachePolicy, Fingerprint, ShardError, ShardMeta, ShardReader, ShardWriter};
use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// A linear congruential generator (Knuth's MMIX).
struct Random(u64);

impl Random {
    fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            items.swap(i, ((self.0 >> 33) % (i as u64 + 1)) as usize);
        }
    }
}

/// Requests that were not hits.
fn misses(cache: &BlockCache, requests: &[u64]) -> usize {
    let load = |_: &mut Vec<u8>| Ok(());
    requests.iter().filter(|key| cache.read(**key, load, |_| ()).unwrap() != CacheRead::Hit).count()
}

fn of(policy: CachePolicy, blocks: usize) -> BlockCache {
    BlockCache::new(policy, blocks, 8)
}

/// Misses of the policy that evicts the block whose next use is last, or leaves the new one outside (Belady 1966).
fn fewest_misses(requests: &[u64], blocks: usize) -> usize {
    let next = |key: u64, from: usize| requests[from..].iter().position(|k| *k == key).unwrap_or(usize::MAX);
    let (mut held, mut misses) = (HashSet::new(), 0);
    for (at, key) in requests.iter().enumerate() {
        if held.contains(key) {
            continue;
        }
        misses += 1;
        held.insert(*key);
        if held.len() > blocks {
            let last = *held.iter().max_by_key(|key| (next(**key, at + 1), **key)).unwrap();
            held.remove(&last);
        }
    }
    misses
}

/// Each epoch has each item once: least recently used, fixed, and the best possible.
#[test]
fn misses_of_exact_epochs_are_those_of_the_tables() {
    let epochs = [[3, 0, 5, 1, 7, 2, 6, 4], [6, 1, 4, 0, 3, 7, 5, 2], [2, 7, 0, 6, 5, 3, 1, 4]];
    for (blocks, lru, fixed) in
        [(2, [8, 7, 7], [8, 6, 6]), (4, [8, 6, 6], [8, 4, 4]), (6, [8, 5, 3], [8, 2, 2])]
    {
        for (policy, wanted) in [(CachePolicy::Lru, lru), (CachePolicy::Fixed, fixed)] {
            let cache = of(policy, blocks);
            assert_eq!(epochs.map(|epoch| misses(&cache, &epoch)), wanted, "{policy:?}, {blocks} blocks");
        }
        assert_eq!(fewest_misses(epochs.as_flattened(), blocks), fixed.iter().sum::<usize>());
    }
}

/// Where a block is used twice, fixed membership is not the best.
#[test]
fn misses_of_blocks_that_are_used_twice_are_those_of_the_table() {
    let requests = [0, 3, 1, 0, 2, 5, 4, 1, 3, 7, 6, 2, 5, 7, 4, 6];
    for (blocks, lru, fixed, best) in [(2, 16, 14, 12), (3, 15, 13, 10), (4, 14, 12, 9)] {
        assert_eq!(misses(&of(CachePolicy::Lru, blocks), &requests), lru);
        assert_eq!(misses(&of(CachePolicy::Fixed, blocks), &requests), fixed);
        assert_eq!(fewest_misses(&requests, blocks), best);
    }
}

/// Fixed: 1 - f of the requests, exactly. Least recently used: (1 - f)(1 - ln(1 - f)), within 1 %.
#[test]
fn shares_of_misses_are_the_closed_forms() {
    const BLOCKS: u64 = 20_000;
    for f in [0.2, 0.35, 0.5, 0.65, 0.8, 0.9] {
        let held = (f * BLOCKS as f64) as usize;
        let caches = [CachePolicy::Fixed, CachePolicy::Lru].map(|policy| of(policy, held));
        let (mut order, mut random) = ((0..BLOCKS).collect::<Vec<u64>>(), Random(7));
        let mut all = [0, 0];
        const EPOCHS: usize = 6;
        for epoch in 0..=EPOCHS {
            random.shuffle(&mut order);
            let of_epoch = [0, 1].map(|policy| misses(&caches[policy], &order));
            if epoch == 0 {
                assert_eq!(of_epoch, [BLOCKS as usize; 2]);
                continue;
            }
            assert_eq!(of_epoch[0], BLOCKS as usize - held);
            all = [0, 1].map(|policy| all[policy] + of_epoch[policy]);
        }
        let share = all[1] as f64 / (EPOCHS as f64 * BLOCKS as f64);
        let wanted = (1.0 - f) * (1.0 - (1.0f64 - f).ln());
        assert!((share / wanted - 1.0).abs() < 0.01, "f {f}: {share}, wanted {wanted}");
    }
}

/// 50 blocks of 64 bytes and a shorter one.
fn written(path: &Path) -> Vec<u32> {
    let meta =
        ShardMeta { vocab_size: 1000, tokenizer: Fingerprint([7; 32]), split: "train".into(), ordinal: 3 };
    let tokens: Vec<u32> = (0..50 * 32 + 5).map(|i| (i * 7919 + 13) % 1000).collect();
    let mut writer = ShardWriter::create_with_blocks(path, meta, 64).unwrap();
    writer.push_document([1; 16], 1, &tokens).unwrap();
    writer.finish().unwrap();
    tokens
}

/// Epochs over the blocks of a real file: bytes from the file are those of the closed form, exactly, and tokens those of the file.
#[test]
fn bytes_of_a_file_are_those_that_the_cache_lacks() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("00003.shard");
    let tokens = written(&path);
    for (policy, held) in [(CachePolicy::Fixed, 20u64), (CachePolicy::Lru, 20), (CachePolicy::Fixed, 60)] {
        let reader = ShardReader::open(&path).unwrap();
        reader.use_cache(&Arc::new(BlockCache::new(policy, held as usize, 64)), 0);
        let mut random = Random(1);
        let mut order: Vec<usize> = (0..50).collect();
        let mut before = reader.counters();
        let mut last = HashMap::new();
        for epoch in 0..4 {
            random.shuffle(&mut order);
            let mut reused = 0;
            for (at, block) in order.iter().enumerate() {
                let mut out = [0; 32];
                reader.read(32 * *block as u64, &mut out).unwrap();
                assert_eq!(out, tokens[32 * block..32 * (block + 1)]);
                // Least recently used hits if fewer than `held` others came between.
                let now = epoch * 50 + at;
                let between = last.insert(*block, now).map(|before| {
                    let since: HashSet<_> =
                        last.iter().filter(|(_, at)| **at > before).map(|(b, _)| b).collect();
                    since.len() as u64 - 1
                });
                reused += u64::from(between.is_some_and(|between| between < held));
            }
            let now = reader.counters();
            let (storage, hit) = (now.storage - before.storage, now.hit - before.hit);
            assert_eq!(now.requested - before.requested, 50 * 64);
            let hits = match (policy, epoch) {
                (_, 0) => 0,
                (CachePolicy::Fixed, _) => held.min(50),
                (CachePolicy::Lru, _) => reused,
            };
            assert_eq!(hit, 64 * hits, "{policy:?}, epoch {epoch}");
            // A block that comes in is verified, one that stays outside only in the first epoch: 8 bytes of checksum each, and its bytes again.
            let outside = if policy == CachePolicy::Fixed { 50u64.saturating_sub(held) } else { 0 };
            let verified = match (policy, epoch) {
                (CachePolicy::Fixed, 0) => 8 * 50 + 64 * outside,
                (CachePolicy::Fixed, _) => 0,
                (CachePolicy::Lru, _) => 8 * (50 - hits),
            };
            assert_eq!(storage, 64 * (50 - hits) + verified, "{policy:?}, epoch {epoch}");
            before = now;
        }
        // Ranges over borders of blocks, and the short one at the end.
        for (start, length) in [(0, 100), (31, 2), (1590, 15), (1600, 5), (7, 0)] {
            let mut out = vec![0; length];
            reader.read(start as u64, &mut out).unwrap();
            assert_eq!(out, tokens[start..start + length]);
        }
    }
}

#[test]
fn a_damaged_block_never_comes_into_the_cache() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("00003.shard");
    let tokens = written(&path);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[128 + 64 + 3] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let reader = ShardReader::open(&path).unwrap();
    reader.use_cache(&Arc::new(BlockCache::new(CachePolicy::Lru, 1, 64)), 0);
    let mut out = [0; 32];
    for _ in 0..3 {
        let error = reader.read(32, &mut out).unwrap_err();
        assert!(
            matches!(error, ShardError::Checksum { .. }) && error.to_string().contains("block 1 of 51"),
            "{error}"
        );
        // Its place is free for others.
        reader.read(64, &mut out).unwrap();
        assert_eq!(out, tokens[64..96]);
    }
}

#[test]
fn requests_at_the_same_time_load_a_block_once() {
    for (policy, held) in [(CachePolicy::Lru, 8), (CachePolicy::Fixed, 8), (CachePolicy::Lru, 2)] {
        let (cache, loads) = (of(policy, held), [(); 8].map(|()| AtomicU64::new(0)));
        std::thread::scope(|scope| {
            for thread in 0..6 {
                let (cache, loads) = (&cache, &loads);
                scope.spawn(move || {
                    for i in 0..200 {
                        let key = (i * (thread + 1)) % 8;
                        let load = |block: &mut Vec<u8>| {
                            loads[key as usize].fetch_add(1, SeqCst);
                            std::thread::sleep(std::time::Duration::from_micros(20));
                            *block = vec![key as u8; 8];
                            Ok(())
                        };
                        cache.read(key, load, |block| assert_eq!(block, [key as u8; 8])).unwrap();
                    }
                });
            }
        });
        if held == 8 {
            assert!(loads.iter().all(|loads| loads.load(SeqCst) == 1), "{policy:?}: {loads:?}");
        }
    }
}
