//! Bytes that epochs read from files, with caches of blocks under both orders.

use crate::support::counting_split;

use bessemer_loader::{Batch, Grouping, Loader};
use bessemer_shards::{CacheConfig, CachePolicy, ReadCounters, ShardSet};
use std::collections::HashSet;
use std::sync::Arc;

const MIB: u64 = 1 << 20;
/// Tokens of a window: 64 KiB, a sixteenth of a block.
const SEQ: usize = 16_384;
/// Blocks of the split, and of the cache.
const BLOCKS: u64 = 24;
const HELD: u64 = 8;

/// Bytes of each of three epochs.
fn epochs(set: &Arc<ShardSet>, grouping: Option<Grouping>) -> (Loader, Vec<ReadCounters>) {
    let loader = Loader::new(set.clone(), SEQ, 3, true).unwrap().grouped(grouping);
    let n = loader.samples_per_epoch();
    let mut batch = Batch::new();
    let mut all = Vec::new();
    let mut before = set.counters();
    for epoch in 0..3 {
        for sample in 0..n {
            loader.batch(epoch * n + sample, 1, &mut batch).unwrap();
            assert!(batch.inputs.iter().zip(&batch.targets).all(|(input, target)| *target == input + 1));
        }
        let now = set.counters();
        all.push(ReadCounters {
            requested: now.requested - before.requested,
            hit: now.hit - before.hit,
            storage: now.storage - before.storage,
            evicted: now.evicted - before.evicted,
        });
        before = now;
    }
    (loader, all)
}

/// Bytes of the windows of an epoch that are in blocks outside of the first `HELD` that the order touches.
fn outside(loader: &Loader, epoch: u64) -> u64 {
    let n = loader.samples_per_epoch();
    let bytes = |sample: u64| {
        let token = loader.sample(sample).unwrap().token;
        4 * token..4 * (token + SEQ as u64 + 1)
    };
    let mut held = HashSet::new();
    for sample in 0..n {
        for block in bytes(sample).start / MIB..=(bytes(sample).end - 1) / MIB {
            if (held.len() as u64) < HELD {
                held.insert(block);
            }
        }
    }
    let of_block = |bytes: &std::ops::Range<u64>, block: u64| {
        bytes.end.min((block + 1) * MIB) - bytes.start.max(block * MIB)
    };
    let of_sample = |bytes: std::ops::Range<u64>| {
        let blocks = bytes.start / MIB..=(bytes.end - 1) / MIB;
        blocks.filter(|block| !held.contains(block)).map(|block| of_block(&bytes, block)).sum::<u64>()
    };
    (epoch * n..(epoch + 1) * n).map(|sample| of_sample(bytes(sample))).sum()
}

/// One file of 24 MiB and a cache of a third of it. Least recently used under the uniform order reads the split many times an epoch, under
/// the grouped order about once; fixed membership reads exactly the bytes of windows that are not in it.
#[test]
fn bytes_of_epochs_by_policy_and_order() {
    let tokens = BLOCKS * MIB / 4;
    let groups = Grouping { block: 16, group: 4 };
    let mut table = Vec::new();
    for (policy, grouping) in [
        (CachePolicy::Fixed, None),
        (CachePolicy::Fixed, Some(groups)),
        (CachePolicy::Lru, None),
        (CachePolicy::Lru, Some(groups)),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let set = counting_split(dir.path(), &[tokens], 1 << 30);
        set.cache_blocks(CacheConfig { bytes: HELD * MIB + 5, policy });
        let (loader, epochs) = epochs(&set, grouping);
        for (epoch, read) in epochs.iter().enumerate() {
            assert_eq!(read.requested, loader.samples_per_epoch() * 4 * (SEQ as u64 + 1));
            if policy == CachePolicy::Fixed && epoch > 0 {
                assert_eq!(read.storage, outside(&loader, epoch as u64), "{grouping:?}, epoch {epoch}");
                assert_eq!(read.hit, read.requested - read.storage);
                assert_eq!(read.evicted, 0);
            }
            if policy == CachePolicy::Lru {
                // A block comes in whole, with its checksum.
                assert_eq!(read.storage % (MIB + 8), 0);
                assert!(epoch == 0 || read.evicted == read.storage / (MIB + 8) * MIB);
            }
        }
        table.push(epochs[2].storage as f64 / (BLOCKS * MIB) as f64);
    }
    println!(
        "times the split is read in the third epoch: fixed, fixed grouped, lru, lru grouped: {table:.3?}"
    );
    let share = 1.0 - HELD as f64 / BLOCKS as f64;
    assert!((table[0] - share).abs() < 0.03 && (table[1] - share).abs() < 0.03, "{table:?}");
    // 16 windows share a block, and each misses with the share of the blocks that are not held; a window in two blocks misses twice.
    assert!(table[2] > 9.0 && table[2] < 13.0, "{table:?}");
    // Four blocks of the order reach into four to eight of the file; some stay for the next group.
    assert!(table[3] < 2.0, "{table:?}");
}
