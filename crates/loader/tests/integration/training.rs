//! Training samples: exactly once, the same for every batch size, resumable anywhere.

use crate::support;

use bessemer_loader::{Batch, LoadError, Loader, LoaderConfig, LoaderState, OrderOrigin};
use bessemer_shards::ShardSet;
use proptest::prelude::*;
use std::sync::Arc;
use support::{counting_split, document_lengths};

fn split(tokens: u64) -> (tempfile::TempDir, Arc<ShardSet>) {
    let dir = tempfile::tempdir().unwrap();
    let set = counting_split(dir.path(), &document_lengths(tokens), 400);
    (dir, set)
}

fn batch(loader: &Loader, first: u64, n: usize) -> Batch {
    let mut out = Batch::new();
    loader.batch(first, n, &mut out).unwrap();
    out
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    #[test]
    fn every_token_is_a_target_at_most_once_in_an_epoch_and_all_but_the_remainder_are(
        tokens in 2u64..900, seq_len in 1usize..40, seed: u64, shuffle: bool, epoch in 0u64..5,
    ) {
        prop_assume!(tokens > seq_len as u64);
        let (_dir, set) = split(tokens);
        let loader = Loader::new(set, seq_len, seed, shuffle).unwrap();
        let n = loader.samples_per_epoch();
        let got = batch(&loader, epoch * n, n as usize);
        let mut times = vec![0u32; tokens as usize];
        for (&input, &target) in got.inputs.iter().zip(&got.targets) {
            prop_assert_eq!(target, input + 1);
            times[target as usize] += 1;
        }
        prop_assert!(times.iter().all(|&t| t <= 1));
        let scored = u64::from(times.iter().sum::<u32>());
        prop_assert_eq!(scored, got.scored);
        prop_assert_eq!(scored, n * seq_len as u64);
        prop_assert_eq!(scored, tokens - 1 - (tokens - 1) % seq_len as u64);
        prop_assert!(got.samples.iter().all(|s| s.epoch == epoch));
        // What is left out lies before the first and after the last window, never between.
        let first = times.iter().position(|&t| t == 1).unwrap();
        prop_assert!(times[first..first + scored as usize].iter().all(|&t| t == 1));
    }

    #[test]
    fn samples_do_not_depend_on_batch_size_or_on_how_ranks_share_them(
        first in 0u64..500, n in 1usize..20, ranks in 1usize..5, seed: u64,
    ) {
        let (_dir, set) = split(500);
        let loader = Loader::new(set, 16, seed, true).unwrap();
        let whole = batch(&loader, first, n * ranks);
        for rank in 0..ranks {
            let part = batch(&loader, first + (rank * n) as u64, n);
            let range = rank * n * 16..(rank + 1) * n * 16;
            prop_assert_eq!(&part.inputs, &whole.inputs[range.clone()]);
            prop_assert_eq!(&part.targets, &whole.targets[range]);
            prop_assert_eq!(&part.samples, &whole.samples[rank * n..(rank + 1) * n]);
        }
    }
}

#[test]
fn a_reused_batch_is_as_a_fresh_one() {
    let (_dir, set) = split(1000);
    let loader = Loader::new(set, 32, 3, true).unwrap();
    let mut reused = Batch::new();
    for (first, n) in [(0, 8), (100, 3), (5, 8), (0, 0), (31, 31)] {
        loader.batch(first, n, &mut reused).unwrap();
        assert_eq!(reused, batch(&loader, first, n));
    }
}

#[test]
fn the_order_does_not_depend_on_the_cut_into_files() {
    let lengths = document_lengths(1000);
    let sets = [200, 1 << 20].map(|file_bytes| {
        let dir = tempfile::tempdir().unwrap();
        let set = counting_split(dir.path(), &lengths, file_bytes);
        batch(&Loader::new(set, 32, 9, true).unwrap(), 0, 60)
    });
    assert_eq!(sets[0], sets[1]);
}

#[test]
fn epochs_and_seeds_differ_and_the_remainder_moves() {
    let (_dir, set) = split(1000);
    let of = |seed, epoch: u64| {
        let loader = Loader::new(set.clone(), 64, seed, true).unwrap();
        batch(&loader, epoch * loader.samples_per_epoch(), 15)
            .samples
            .iter()
            .map(|s| s.token)
            .collect::<Vec<_>>()
    };
    assert_ne!(of(1, 0), of(1, 1));
    assert_ne!(of(1, 0), of(2, 0));
    assert_eq!(of(1, 0), of(1, 0));
    // 999 = 15 · 64 + 39: the shift takes many of 40 values, and never another.
    let shifts: std::collections::HashSet<u64> = (0..200).map(|epoch| of(1, epoch)[0] % 64).collect();
    assert!(shifts.len() > 35 && shifts.iter().all(|&s| s < 40), "{shifts:?}");
}

#[test]
fn without_shuffling_windows_come_from_front_to_back_in_every_epoch() {
    let (_dir, set) = split(100);
    let loader = Loader::new(set, 10, 1, false).unwrap();
    let tokens: Vec<u64> = (0..18).map(|c| loader.sample(c).unwrap().token).collect();
    assert_eq!(tokens[..9], [0, 10, 20, 30, 40, 50, 60, 70, 80]);
    assert_eq!(tokens[9..], tokens[..9]);
}

#[test]
fn resuming_far_into_a_run_costs_what_the_first_batch_costs() {
    // A loader that stepped through the order would need years for these counters.
    let (_dir, set) = split(1000);
    let loader = Loader::new(set, 64, 1, true).unwrap();
    for first in [1 << 40, 1 << 60, u64::MAX - 8] {
        let got = batch(&loader, first, 8);
        assert_eq!(got.samples[7], loader.sample(first + 7).unwrap());
        assert_eq!(got.samples[0].epoch, first / 15);
    }
    let past = loader.batch(u64::MAX - 7, 8, &mut Batch::new());
    assert!(matches!(past, Err(LoadError::CounterOverflow { .. })));
}

#[test]
fn too_few_tokens_are_told_with_numbers() {
    for tokens in [0, 1, 64] {
        let (_dir, set) = split(tokens);
        let error = Loader::new(set, 64, 1, true).unwrap_err();
        assert!(matches!(error, LoadError::TooFewTokens { .. }));
        let told = error.to_string();
        assert!(told.contains(&format!("{tokens} tokens")) && told.contains("65"), "{told}");
    }
    let (_dir, set) = split(65);
    assert_eq!(Loader::new(set.clone(), 64, 1, true).unwrap().samples_per_epoch(), 1);
    assert!(matches!(Loader::new(set.clone(), 0, 1, true), Err(LoadError::SequenceLength { .. })));
    assert!(matches!(Loader::new(set.clone(), usize::MAX, 1, true), Err(LoadError::SequenceLength { .. })));
    let huge = Loader::new(set, 64, 1, true).unwrap().batch(0, usize::MAX / 2, &mut Batch::new());
    assert!(matches!(huge, Err(LoadError::BatchTooLarge { .. })));
}

#[test]
fn another_order_is_named_and_begins_anew_behind_the_samples_consumed() {
    let (_dir, set) = split(1000);
    let loader = Loader::new(set.clone(), 64, 1, true).unwrap();
    let state = loader.state(1234);
    assert_eq!((state.samples, state.epoch), (1234, 1234 / 15));
    assert!(state.differences(&loader.state(0)).is_empty());
    let changed = |loader: &Loader, state: &LoaderState| {
        let now = loader.state(0);
        let found: Vec<_> = state.differences(&now).iter().map(|d| d.what).collect();
        // Sample 1234 of the run is then the first of the new order, and it goes on from there.
        let origin = state.replaced_by(&now).unwrap();
        assert_eq!(origin, OrderOrigin { samples: 1234, given: vec![0] });
        let anew = loader.clone().from_origin(origin);
        let at = |loader: &Loader, counter: u64| {
            let sample = loader.sample(counter).unwrap();
            (sample.epoch, sample.token)
        };
        assert!((0..40).all(|i| at(&anew, 1234 + i) == at(loader, i)));
        let (mut a, mut b) = (Batch::new(), Batch::new());
        anew.batch(1240, 3, &mut a).unwrap();
        loader.batch(6, 3, &mut b).unwrap();
        assert_eq!((a.inputs, a.targets), (b.inputs, b.targets));
        // Saved there, it is itself.
        let saved = anew.state(1300);
        assert!(saved.differences(&anew.state(0)).is_empty() && saved.epoch == loader.state(66).epoch);
        assert_eq!(anew.seen(1240).unwrap().count(), 6);
        found.join(", ")
    };
    let (_other_dir, other) = split(999);
    let other = changed(&Loader::new(other, 64, 1, true).unwrap(), &state);
    assert_eq!(other, "tokens of the training split, checksum of the shards");
    assert_eq!(changed(&Loader::new(set.clone(), 32, 1, true).unwrap(), &state), "sequence length");
    assert_eq!(changed(&Loader::new(set.clone(), 64, 2, true).unwrap(), &state), "seed of the sample order");
    assert_eq!(changed(&Loader::new(set, 64, 1, false).unwrap(), &state), "loader.shuffle");
    let other = LoaderState { data_checksum: "0".repeat(16), ..state.clone() };
    assert_eq!(changed(&loader, &other), "checksum of the shards");
    let other = LoaderState { order_version: 2, ..state };
    assert_eq!(changed(&loader, &other), "version of the sample order");
}

#[test]
fn a_damaged_block_is_an_error_that_names_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let set = counting_split(dir.path(), &[1000], 1 << 20);
    drop(set);
    let file = dir.path().join("train/00000.shard");
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[500] ^= 4;
    std::fs::write(&file, bytes).unwrap();
    let set = Arc::new(ShardSet::open(dir.path(), "train").unwrap());
    let error = Loader::new(set, 64, 1, true).unwrap().batch(0, 4, &mut Batch::new()).unwrap_err();
    assert!(error.to_string().contains("00000.shard") && error.to_string().contains("block 0"), "{error}");
}

#[test]
fn the_config_says_what_it_allows() {
    let config = LoaderConfig::default();
    assert!(config.shuffle && config.check().is_ok());
    assert_eq!(config.seed_or(5), 5);
    assert_eq!(LoaderConfig { seed: Some(7), ..config.clone() }.seed_or(5), 7);
    assert!(LoaderConfig { seed: Some(u64::MAX), ..config }.check().unwrap_err().contains("seed"));
}
