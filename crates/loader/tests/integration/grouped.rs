//! The grouped order: each window once, whole blocks group by group, and the uniform order where there is one group.

use crate::support::{counting_split, document_lengths, mixed_split};

use bessemer_loader::{
    Batch, EpochOrder, Grouping, Loader, LoaderConfig, LoaderState, Mixture, OrderKind, Permutation, Share,
};
use proptest::prelude::*;
use std::collections::{HashMap, HashSet};

fn windows(n: u64, seed: u64, epoch: u64, block: u64, group: u64) -> Vec<u64> {
    let order = EpochOrder::new(n, seed, epoch, Some(Grouping { block, group }));
    (0..n).map(|place| order.window(place)).collect()
}

/// Blocks of each group: a group ends where so many blocks have given all of their windows.
fn blocks_of_groups(n: u64, order: &[u64], block: u64, group: u64) -> Vec<HashSet<u64>> {
    let (mut groups, mut blocks, mut left) = (Vec::new(), HashSet::new(), 0);
    for window in order {
        let number = window / block;
        if blocks.insert(number) {
            left += (n - number * block).min(block);
        }
        left -= 1;
        if left == 0 && blocks.len() as u64 == group {
            groups.push(std::mem::take(&mut blocks));
        }
    }
    groups.extend((!blocks.is_empty()).then_some(blocks));
    groups
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
    #[test]
    fn inverse_permutations_undo(n in 1u64..=1 << 63, seed: u64, epoch in 0u64..9, x: u64) {
        let order = Permutation::new(n, seed, epoch);
        prop_assert_eq!(order.invert(order.apply(x % n)), x % n);
        prop_assert_eq!(order.apply(order.invert(x % n)), x % n);
    }

    #[test]
    fn every_window_comes_once_and_groups_are_whole_blocks(
        n in 1u64..2500, block in 1u64..60, group in 1u64..12, seed: u64, epoch in 0u64..5,
    ) {
        let order = windows(n, seed, epoch, block, group);
        prop_assert_eq!(order.iter().collect::<HashSet<_>>().len() as u64, n);
        prop_assert!(order.iter().all(|w| *w < n));
        let blocks = n.div_ceil(block);
        if blocks <= group {
            let uniform = Permutation::new(n, seed, epoch);
            prop_assert_eq!(order, (0..n).map(|place| uniform.apply(place)).collect::<Vec<_>>());
            return Ok(());
        }
        // Each group has its number of blocks, and no block is in two.
        let groups = blocks_of_groups(n, &order, block, group);
        prop_assert_eq!(groups.len() as u64, blocks.div_ceil(group));
        let (last, others) = groups.split_last().unwrap();
        prop_assert!(others.iter().all(|blocks| blocks.len() as u64 == group));
        prop_assert_eq!(last.len() as u64, (blocks - 1) % group + 1);
        prop_assert_eq!(groups.iter().flatten().collect::<HashSet<_>>().len() as u64, blocks);
    }

    #[test]
    fn large_epochs_are_addressed_at_once(n in 1u64 << 40..=1 << 62, seed: u64, start: u64) {
        let order = EpochOrder::new(n, seed, 1, Some(Grouping { block: 4096, group: 64 }));
        let from = start % (n - 600_000);
        let places: HashSet<u64> = (0..2000).map(|i| order.window(from + 300 * i)).collect();
        prop_assert_eq!(places.len(), 2000);
        prop_assert!(places.iter().all(|w| *w < n));
        // 262,144 places in a row are of one group or two.
        let blocks: HashSet<u64> = (0..2000).map(|i| order.window(from + 100 * i) / 4096).collect();
        prop_assert!(blocks.len() <= 128, "{}", blocks.len());
    }
}

/// Σ (observed − expected)² / expected over equally likely cells.
fn chi_square(counts: &[u64]) -> f64 {
    let expected = counts.iter().sum::<u64>() as f64 / counts.len() as f64;
    counts.iter().map(|&c| (c as f64 - expected).powi(2) / expected).sum()
}

#[test]
fn blocks_and_windows_of_a_group_are_uniform() {
    // 12 blocks of 10 windows, in groups of 3: block b comes k-th, and window w of its group's 30 comes k-th, equally often.
    let (mut blocks, mut within) = (vec![0u64; 12 * 4], vec![0u64; 10 * 30]);
    for seed in 0..4000 {
        let order = windows(120, seed, 0, 10, 3);
        for (place, window) in order.iter().enumerate() {
            if window % 10 == 0 {
                blocks[(window / 10) as usize * 4 + place / 30] += 1;
            }
            within[(window % 10) as usize * 30 + place % 30] += 1;
        }
    }
    for (what, counts, freedom) in [("blocks", &blocks, 33.0), ("places", &within, 261.0f64)] {
        let (value, spread) = (chi_square(counts), (2.0 * freedom).sqrt());
        assert!(
            (value - freedom).abs() < 5.0 * spread,
            "{what}: chi-square {value} with {freedom} degrees of freedom"
        );
    }
}

/// Neighbours in the text are a third of a group apart in the mean, and not a third of the epoch.
#[test]
fn neighbours_stay_within_their_group() {
    let apart = |order: &[u64]| {
        let place: HashMap<u64, u64> = order.iter().enumerate().map(|(p, w)| (*w, p as u64)).collect();
        let distances = (0..order.len() as u64 - 1)
            .filter(|w| w % 100 != 99)
            .map(|w| place[&w].abs_diff(place[&(w + 1)]) as f64)
            .collect::<Vec<_>>();
        distances.iter().sum::<f64>() / distances.len() as f64
    };
    for (group, n) in [(4u64, 400.0), (16, 1600.0), (100, 10_000.0)] {
        let mean = apart(&windows(10_000, 3, 1, 100, group));
        assert!((mean / (n / 3.0) - 1.0).abs() < 0.05, "{group} blocks a group: {mean}");
    }
}

/// The order is part of the format of checkpoints. Computed by an independent implementation that lists the windows of each group.
#[test]
fn the_grouped_order_is_the_one_of_version_1() {
    assert_eq!(windows(11, 7, 0, 2, 2), [0, 5, 4, 1, 8, 10, 9, 3, 2, 6, 7]);
    let order = EpochOrder::new(1_000_007, 42, 3, Some(Grouping { block: 512, group: 64 }));
    let places = [0, 1, 32_767, 32_768, 999_999, 1_000_006];
    assert_eq!(
        places.map(|place| order.window(place)),
        [490_104, 711_900, 895_055, 787_400, 541_901, 801_888]
    );
}

#[test]
fn each_sample_comes_once_an_epoch_for_1_to_16_ranks() {
    let dir = tempfile::tempdir().unwrap();
    let set = counting_split(dir.path(), &document_lengths(5000), 700);
    let grouping = Grouping { block: 13, group: 3 };
    let loader = Loader::new(set, 16, 5, true).unwrap().grouped(Some(grouping));
    let n = loader.samples_per_epoch();
    assert_eq!(loader.grouping(), Some(grouping));
    let whole: Vec<u64> = (0..2 * n).map(|c| loader.sample(c).unwrap().token).collect();
    for ranks in 1..=16u64 {
        let per_rank = 2;
        let mut batch = Batch::new();
        let mut tokens = Vec::new();
        // Steps of `ranks` ranks; the last of the epoch reaches into the next.
        for step in 0..n.div_ceil(ranks * per_rank) {
            for rank in 0..ranks {
                let first = (step * ranks + rank) * per_rank;
                loader.batch(first, per_rank as usize, &mut batch).unwrap();
                tokens.extend(batch.samples.iter().map(|s| s.token));
            }
        }
        assert_eq!(tokens[..], whole[..tokens.len()], "{ranks} ranks");
        assert_eq!(tokens[..n as usize].iter().collect::<HashSet<_>>().len() as u64, n);
    }
    // Epochs have orders of their own.
    assert_ne!(whole[..n as usize], whole[n as usize..]);
}

#[test]
fn components_have_groups_of_their_own() {
    let dir = tempfile::tempdir().unwrap();
    let set = mixed_split(dir.path(), &[("a", 3000), ("b", 300)]);
    let share = |name: &str, weight| Share { name: name.into(), weight: Some(weight), epochs: None };
    let mixture = || Mixture::new(&set, 16, &[share("a", 0.5), share("b", 0.5)], 1.0, 10_000).unwrap();
    let uniform = Loader::mixed(set.clone(), 1, true, mixture());
    let grouped =
        Loader::mixed(set.clone(), 1, true, mixture()).grouped(Some(Grouping { block: 10, group: 2 }));
    let samples = |loader: &Loader, component| -> Vec<u64> {
        let all = (0..800).map(|c| loader.sample(c).unwrap());
        all.filter(|s| s.component == component).map(|s| s.token).collect()
    };
    // 187 windows of the first are ten groups; 18 of the second are one.
    assert_ne!(samples(&uniform, 0), samples(&grouped, 0));
    assert_eq!(samples(&uniform, 1), samples(&grouped, 1));
    assert_eq!(samples(&grouped, 0)[..187].iter().collect::<HashSet<_>>().len(), 187);
}

#[test]
fn checkpoints_name_the_order() {
    let dir = tempfile::tempdir().unwrap();
    let set = counting_split(dir.path(), &document_lengths(5000), 700);
    let of = |grouping| Loader::new(set.clone(), 16, 5, true).unwrap().grouped(grouping);
    let uniform = of(None).state(40);
    // One group: the uniform order, also in checkpoints of programs without groups.
    let one = Grouping { block: 100, group: 4 };
    assert_eq!(of(Some(one)).state(40), uniform);
    assert!(!serde_json::to_string(&uniform).unwrap().contains("grouping"));
    let grouped = of(Some(Grouping { block: 13, group: 3 })).state(40);
    let text = serde_json::to_string(&grouped).unwrap();
    assert!(text.contains("\"grouping\":{\"block\":13,\"group\":3}"), "{text}");
    assert_eq!(serde_json::from_str::<LoaderState>(&text).unwrap(), grouped);
    let differences = uniform.differences(&grouped);
    assert_eq!(differences.len(), 1);
    assert_eq!(differences[0].before, "uniform");
    assert_eq!(differences[0].now, "grouped, 13 windows a block, 3 blocks a group");
    // Another order begins at its beginning.
    assert_eq!(uniform.replaced_by(&grouped).unwrap().given, [0]);
    assert_eq!(uniform.replaced_by(&uniform).unwrap().given, [40]);
}

#[test]
fn the_config_states_bytes() {
    let of = |block: &str, group: &str| LoaderConfig {
        order: OrderKind::Grouped,
        block: block.into(),
        group: group.into(),
        ..LoaderConfig::default()
    };
    assert_eq!(LoaderConfig::default().grouping(2048), None);
    assert_eq!(of("1MiB", "16MiB").grouping(2048), Some(Grouping { block: 512, group: 16 }));
    // A window that is larger than a block is one.
    assert_eq!(of("1kB", "2kB").grouping(2048), Some(Grouping { block: 1, group: 2 }));
    for (config, said) in [
        (of("0", "1MiB"), "a block of at least 1 byte"),
        (of("2MiB", "1MiB"), "at least one block"),
        (of("lots", "1MiB"), "block: \"lots\" is not a size"),
        (LoaderConfig { shuffle: false, ..of("1MiB", "2MiB") }, "shuffle = true"),
    ] {
        let error = config.check().unwrap_err();
        assert!(error.contains(said), "{error}");
    }
    of("8MiB", "8MiB").check().unwrap();
}
