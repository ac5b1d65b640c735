//! Masks of scored tokens in every kind of batch, held against a plain function of the token; they change no order.

use crate::support::{counting_split, document_lengths, masked_mixed_split, masked_split, mixed_split};

use bessemer_loader::{
    Batch, BatchRequest, DocumentConfig, EvaluationWindows, Grouping, IGNORED, LoadError, Loader, Mixture,
    PrefetchConfig, PrefetchShape, Prefetcher, Share, TargetCounts,
};
use bessemer_shards::ShardSet;
use proptest::prelude::*;
use std::sync::Arc;

/// Whether a token is scored: all of some stretches, none of others, every second of the rest.
fn scored(token: u32) -> bool {
    match token / 50 % 4 {
        0 => true,
        1 | 2 => false,
        _ => token.is_multiple_of(2),
    }
}

/// A batch of `whole`, which has no mask, as the mask makes it.
fn masked(whole: &Batch) -> Batch {
    let mut batch = whole.clone();
    batch
        .targets
        .iter_mut()
        .filter(|target| **target != IGNORED && !scored(**target))
        .for_each(|t| *t = IGNORED);
    batch.scored = batch.targets.iter().filter(|target| **target != IGNORED).count() as u64;
    batch
}

fn batch(loader: &Loader, first: u64, n: usize) -> Batch {
    let mut out = Batch::new();
    loader.batch(first, n, &mut out).unwrap();
    out
}

/// What a batch counts as.
fn counts(whole: &Batch, masked: &Batch) -> TargetCounts {
    let some = |row: &[u32]| row.iter().any(|target| *target != IGNORED);
    TargetCounts {
        targets: whole.scored,
        scored: masked.scored,
        unscored_samples: masked.targets.chunks(masked.seq_len).filter(|row| !some(row)).count() as u64,
    }
}

/// Compares the batches of two loaders, of whose splits one has the mask. Returns the samples without a scored target.
fn compare(whole: &Loader, with: &Loader, first: u64, n: usize) -> u64 {
    let (before, found) = (batch(whole, first, n), batch(with, first, n));
    let wanted = masked(&before);
    assert_eq!(found, wanted);
    assert_eq!(with.count_targets(first, n as u64).unwrap(), counts(&before, &wanted));
    let all = TargetCounts { scored: before.scored, ..counts(&before, &wanted) };
    assert_eq!(whole.count_targets(first, n as u64).unwrap(), TargetCounts { unscored_samples: 0, ..all });
    counts(&before, &wanted).unscored_samples
}

/// Splits without and with the mask.
fn splits(lengths: &[u64]) -> ([tempfile::TempDir; 2], [Arc<ShardSet>; 2]) {
    let dirs = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let sets =
        [counting_split(dirs[0].path(), lengths, 700), masked_split(dirs[1].path(), lengths, 700, &scored)];
    assert!(!sets[0].has_mask() && sets[1].has_mask());
    (dirs, sets)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    #[test]
    fn windows(seq_len in 1usize..70, seed: u64, shuffle: bool, first in 0u64..900, n in 0usize..20) {
        let (_dirs, sets) = splits(&document_lengths(900));
        let [whole, with] = sets.map(|set| Loader::new(set, seq_len, seed, shuffle).unwrap());
        compare(&whole, &with, first, n);
        let group = Some(Grouping { block: 2, group: 3 });
        compare(&whole.grouped(group), &with.grouped(group), first, n);
    }

    #[test]
    fn documents(
        lengths in prop::collection::vec(0u64..90, 8..120), seq_len in 4usize..60, seed: u64, shuffle: bool,
        bucketed: bool, separated: bool, number in 0u64..200,
    ) {
        prop_assume!(lengths.iter().sum::<u64>() > 400 && lengths.iter().filter(|length| **length > 1).count() > 4);
        let (_dirs, sets) = splits(&lengths);
        let shorter = vec![seq_len / 4, seq_len / 2];
        let config = DocumentConfig { seq_len, shorter, micro_batch: 3, bucketed, separated, pairs: false };
        let [whole, with] = sets.map(|set| Loader::of_documents(set, config.clone(), seed, shuffle).unwrap());
        assert_eq!(whole.samples_per_epoch(), with.samples_per_epoch());
        compare(&whole, &with, 3 * number, 3);
    }

    #[test]
    fn evaluation_windows(seq_len in 1usize..70, first in 0u64..40, n in 1usize..9, with_context: bool) {
        let (_dirs, sets) = splits(&document_lengths(900));
        let context = with_context.then_some(5);
        let [whole, with] = sets.map(|set| EvaluationWindows::new(set, seq_len, context).unwrap());
        let read = |windows: &EvaluationWindows, first| {
            let mut out = Batch::new();
            (windows.batch(first, n, &mut out).unwrap(), out)
        };
        let first = first.min(whole.windows());
        let ((here, before), (found_here, found)) = (read(&whole, first), read(&with, first));
        prop_assert_eq!(here, found_here);
        prop_assert_eq!(&found, &masked(&before));
        let count: u64 = (first..first + n as u64).map(|window| with.count_scored(window).unwrap()).sum();
        prop_assert_eq!(count, found.scored);
    }
}

/// In an epoch the scored targets are those of the mask, and each is one once.
#[test]
fn an_epoch_has_the_targets_of_the_mask() {
    let (_dirs, [whole, with]) = splits(&document_lengths(901));
    // 900 targets: no window is left out.
    let [whole, with] = [whole, with].map(|set| Loader::new(set, 20, 3, true).unwrap());
    let n = with.samples_per_epoch();
    assert!(compare(&whole, &with, n, n as usize) > 10, "samples without a scored target keep their place");
    let mut targets: Vec<u32> = batch(&with, n, n as usize).targets;
    targets.retain(|target| *target != IGNORED);
    targets.sort_unstable();
    assert_eq!(targets, (1..901).filter(|token| scored(*token)).collect::<Vec<u32>>());
    // The mask is part of the data that a run resumes on; the order is that of the split without it.
    let (before, now) = (whole.state(40), with.state(0));
    let differences: Vec<_> = before.differences(&now).iter().map(|d| d.what).collect();
    assert_eq!(differences, ["checksum of the shards"]);
    let dir = tempfile::tempdir().unwrap();
    let other = masked_split(dir.path(), &document_lengths(901), 700, &|token| token == 60 || scored(token));
    assert!(!with.state(40).differences(&Loader::new(other, 20, 3, true).unwrap().state(0)).is_empty());
    assert!(with.state(40).differences(&with.state(0)).is_empty());
}

#[test]
fn mixtures() {
    let dirs = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let components = [("a", 700), ("b", 410), ("c", 90)];
    let sets =
        [mixed_split(dirs[0].path(), &components), masked_mixed_split(dirs[1].path(), &components, &scored)];
    let share = |name: &str, weight| Share { name: name.into(), weight: Some(weight), epochs: None };
    let shares = [share("a", 0.5), share("b", 0.3), share("c", 0.2)];
    let [whole, with] = sets.map(|set| {
        let mixture = Mixture::new(&set, 24, &shares, 1.0, 4000).unwrap();
        Loader::mixed(set, 7, true, mixture)
    });
    for first in (0..2000).step_by(61) {
        compare(&whole, &with, first, 7);
    }
    // A component with a share, but nothing to learn from.
    let dir = tempfile::tempdir().unwrap();
    let set = masked_mixed_split(dir.path(), &components, &|token| !(700..1110).contains(&token));
    let error = Mixture::new(&set, 24, &shares, 1.0, 4000).unwrap_err().to_string();
    assert!(error.contains("component \"b\" has 410 tokens and none of its targets is scored"), "{error}");
    let shares = [share("a", 0.5), share("b", 0.0), share("c", 0.2)];
    assert!(Mixture::new(&set, 24, &shares, 1.0, 4000).is_ok());
}

#[test]
fn batches_prepared_ahead() {
    let (_dirs, [_, with]) = splits(&document_lengths(3000));
    let loader = Loader::new(with, 16, 5, true).unwrap();
    let shape = PrefetchShape { sequences: 4, seq_len: 16, kept: 1 };
    let config = PrefetchConfig { bytes: 8 << 10, threads: 2 };
    let mut prefetcher = Prefetcher::new(Arc::new(loader.clone()), config, shape).unwrap();
    let request = |number: u64| BatchRequest { first: 4 * number, sequences: 4 };
    prefetcher.begin(request(0), || Box::new((0..90).map(request)));
    for number in 0..90 {
        assert_eq!(*prefetcher.get(request(number)).unwrap(), batch(&loader, 4 * number, 4));
    }
}

#[test]
fn splits_without_a_scored_target_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let lengths = document_lengths(600);
    // The first token of a split is no target of a window.
    let set = masked_split(dir.path(), &lengths, 1 << 20, &|token| token == 0);
    let config = DocumentConfig {
        seq_len: 16,
        shorter: Vec::new(),
        micro_batch: 2,
        bucketed: false,
        separated: true,
        pairs: false,
    };
    for error in [
        Loader::new(set.clone(), 16, 1, true).unwrap_err(),
        Loader::of_documents(set.clone(), config, 1, true).unwrap_err(),
        EvaluationWindows::new(set.clone(), 16, None).unwrap_err(),
    ] {
        assert!(matches!(error, LoadError::NothingScored { tokens: 600, .. }), "{error}");
        assert!(error.to_string().contains("none of its targets is scored"), "{error}");
    }
    // With a context token, it is one.
    let windows = EvaluationWindows::new(set, 16, Some(3)).unwrap();
    assert_eq!([0, 1, 1000].map(|window| windows.count_scored(window).unwrap()), [1, 0, 0]);
    assert_eq!(windows.target_tokens(), 600);
}

#[test]
fn a_damaged_mask_is_an_error_that_names_the_file() {
    let dir = tempfile::tempdir().unwrap();
    drop(masked_split(dir.path(), &[1000], 1 << 20, &scored));
    let file = dir.path().join("train/00000.shard");
    let mut bytes = std::fs::read(&file).unwrap();
    // Before the table of four sections and the trailer: the last word of the mask.
    let last = bytes.len() - 40 - (4 * 32 + 8) - 1;
    bytes[last] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let set = Arc::new(ShardSet::open(dir.path(), "train").unwrap());
    // Found where a loader first looks for a scored token.
    let error = Loader::new(set, 64, 1, true).unwrap_err().to_string();
    assert!(error.contains("00000.shard") && error.contains("the mask of scored tokens"), "{error}");
}
