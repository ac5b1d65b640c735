//! Mixtures: shares at every prefix, caps, samples within their component, resuming.

use crate::support;

use bessemer_loader::{Batch, Loader, Mixture, OrderOrigin, Share};
use bessemer_shards::ShardSet;
use std::collections::BTreeSet;
use std::sync::Arc;
use support::mixed_split;

const SEQ: usize = 10;

fn share(name: &str, weight: Option<f64>, epochs: Option<f64>) -> Share {
    Share { name: name.into(), weight, epochs }
}

/// web: 2,000 tokens, 199 samples; books: 501 tokens, 50 samples; notes: 95 tokens, 9 samples.
fn split() -> (tempfile::TempDir, Arc<ShardSet>) {
    let dir = tempfile::tempdir().unwrap();
    let set = mixed_split(dir.path(), &[("web", 2000), ("books", 501), ("notes", 95)]);
    (dir, set)
}

#[test]
fn the_share_of_each_component_follows_the_weights_at_every_prefix() {
    let (_dir, set) = split();
    let weights = [0.62, 0.3, 0.08];
    let shares: Vec<Share> =
        set.components().iter().zip(weights).map(|(c, weight)| share(&c.name, Some(weight), None)).collect();
    let mixture = Mixture::new(&set, SEQ, &shares, 1.0, 5000).unwrap();
    let loader = Loader::mixed(set.clone(), 7, true, mixture);
    let mut taken = [0_u64; 3];
    let mut seen: Vec<BTreeSet<(u64, u64)>> = vec![BTreeSet::new(); 3];
    for counter in 0..5000 {
        let sample = loader.sample(counter).unwrap();
        taken[sample.component] += 1;
        for (weight, taken) in weights.iter().zip(taken) {
            let off = weight * (counter + 1) as f64 - taken as f64;
            // 5,000 samples of weights that are rounded to 2^-20 may be off by a two-hundredth more than the blend.
            assert!(off > -1.005 && off < 2.005, "{weight} after {counter}: {off}");
        }
        // A window lies within its component, and none comes twice in an epoch.
        let tokens = &set.components()[sample.component].tokens;
        assert!(tokens.contains(&sample.token) && sample.token + (SEQ as u64) < tokens.end);
        assert!(seen[sample.component].insert((sample.epoch, sample.token)));
    }
    assert_eq!(loader.mixture().unwrap().taken(5000).iter().map(|t| t.samples).collect::<Vec<_>>(), taken);
    for (component, n) in [(0, 199), (1, 50), (2, 9)] {
        let first: Vec<_> = seen[component].iter().filter(|(epoch, _)| *epoch == 0).collect();
        assert_eq!(first.len(), n, "a whole epoch of component {component}");
    }
}

#[test]
fn two_components_stay_within_one_sample_of_their_weights() {
    let dir = tempfile::tempdir().unwrap();
    let set = mixed_split(dir.path(), &[("web", 2000), ("books", 501)]);
    for weight in [0.5, 0.7, 0.997] {
        let shares = [share("web", Some(weight), None), share("books", Some(1.0 - weight), None)];
        let loader =
            Loader::mixed(set.clone(), 7, true, Mixture::new(&set, SEQ, &shares, 1.0, 5000).unwrap());
        let mut web = 0.0;
        for counter in 0..5000 {
            web += f64::from(u8::from(loader.sample(counter).unwrap().component == 0));
            let off = weight * (counter + 1) as f64 - web;
            assert!(off.abs() < 1.005, "{weight} after {counter}: {off}");
        }
    }
}

#[test]
fn the_temperature_flattens_and_epochs_are_capped_within_the_run() {
    let (_dir, set) = split();
    let ask = |epochs: [Option<f64>; 3], weights: [Option<f64>; 3]| -> Vec<Share> {
        let names = ["web", "books", "notes"];
        (0..3).map(|d| share(names[d], weights[d], epochs[d])).collect()
    };
    // By size at temperature 1; by roots of the sizes at 2 (Conneau & Lample 2019).
    for (temperature, powers) in [(1.0, [199.0, 50.0, 9.0]), (2.0, [199f64.sqrt(), 50f64.sqrt(), 3.0])] {
        let mixture = Mixture::new(&set, SEQ, &ask([None; 3], [None; 3]), temperature, 1000).unwrap();
        let sum: f64 = powers.iter().sum();
        for (taken, power) in mixture.taken(1000).iter().zip(powers) {
            assert!((taken.weight - power / sum).abs() < 1e-6, "{taken:?}");
        }
    }
    // Halves, but the notes at most twice and the books at most four times: the web takes the rest.
    let shares = ask([None, Some(4.0), Some(2.0)], [Some(0.2), Some(0.4), Some(0.4)]);
    let total = 1000;
    let loader = Loader::mixed(set.clone(), 1, true, Mixture::new(&set, SEQ, &shares, 1.0, total).unwrap());
    let taken: Vec<u64> = loader.mixture().unwrap().taken(total).iter().map(|t| t.samples).collect();
    assert_eq!(taken, [total - 200 - 18, 200, 18]);
    let last =
        (0..total).map(|c| loader.sample(c).unwrap()).filter(|s| s.component == 2).map(|s| s.epoch).max();
    assert_eq!(last, Some(1));
    // Caps under which there is not enough.
    let shares = ask([Some(1.0), Some(1.0), Some(1.0)], [None; 3]);
    assert!(Mixture::new(&set, SEQ, &shares, 1.0, 259).unwrap_err().to_string().contains("258"));
    let whole = Mixture::new(&set, SEQ, &shares, 1.0, 258).unwrap();
    assert_eq!(whole.taken(258).iter().map(|t| t.samples).collect::<Vec<_>>(), [199, 50, 9]);
}

#[test]
fn samples_do_not_depend_on_batches_or_ranks_and_resume_anywhere() {
    let (_dir, set) = split();
    let shares =
        [share("web", Some(3.0), None), share("books", Some(2.0), None), share("notes", Some(0.0), None)];
    let mixture = || Mixture::new(&set, SEQ, &shares, 1.0, 10_000).unwrap();
    let loader = Loader::mixed(set.clone(), 5, true, mixture());
    let mut whole = Batch::new();
    loader.batch(37, 24, &mut whole).unwrap();
    for i in 0..24 {
        let mut one = Batch::new();
        loader.batch(37 + i as u64, 1, &mut one).unwrap();
        assert_eq!(one.inputs, whole.inputs[i * SEQ..(i + 1) * SEQ]);
        assert_eq!(one.targets, whole.targets[i * SEQ..(i + 1) * SEQ]);
        assert_eq!(one.samples[0], whole.samples[i]);
        // Token at offset i is i.
        assert_eq!(u64::from(one.inputs[0]), one.samples[0].token);
        assert_eq!(one.targets[SEQ - 1], one.inputs[0] + SEQ as u32);
    }
    let state = loader.state(61);
    let text = format!("{state:?}");
    assert!(state.differences(&Loader::mixed(set.clone(), 5, true, mixture()).state(0)).is_empty());
    let other =
        [share("web", Some(3.5), None), share("books", Some(2.0), None), share("notes", Some(0.0), None)];
    let changed = Loader::mixed(set.clone(), 5, true, Mixture::new(&set, SEQ, &other, 1.0, 10_000).unwrap());
    let found = state.differences(&changed.state(0));
    assert!(
        found.len() == 1 && found[0].what.contains("mixture") && found[0].now.contains("web"),
        "{found:?}"
    );
    let windows = Loader::new(set.clone(), SEQ, 5, true).unwrap();
    assert!(!state.differences(&windows.state(0)).is_empty(), "{text}");
    // What was read, for baselines: of the first two epochs of each, which are all tokens.
    let seen: BTreeSet<u64> = loader.seen(10_000).unwrap().map(|range| range.start).collect();
    let starts: BTreeSet<u64> =
        (0..10_000).map(|c| loader.sample(c).unwrap()).filter(|s| s.epoch < 2).map(|s| s.token).collect();
    assert_eq!(seen, starts);
}

/// Samples of each component, by their numbers in it.
fn numbers(loader: &Loader, counters: std::ops::Range<u64>) -> [Vec<u64>; 3] {
    let mut out = [Vec::new(), Vec::new(), Vec::new()];
    for counter in counters {
        let sample = loader.sample(counter).unwrap();
        out[sample.component].push(sample.token);
    }
    out
}

/// The weights change after 100 samples and again after 137: each component gives every sample of its order once.
#[test]
fn a_changed_mixture_takes_nothing_twice_and_leaves_nothing_out() {
    let (_dir, set) = split();
    let weighted = |weights: [f64; 3]| {
        let names = ["web", "books", "notes"];
        (0..3).map(|d| share(names[d], Some(weights[d]), None)).collect::<Vec<_>>()
    };
    let of = |weights: [f64; 3], origin: OrderOrigin| {
        let mixture = Mixture::after(&set, SEQ, &weighted(weights), 1.0, 300, &origin.given).unwrap();
        Loader::mixed(set.clone(), 5, true, mixture).from_origin(origin)
    };
    let first = of([0.6, 0.3, 0.05], OrderOrigin::default());
    let second = [0.2, 0.2, 0.1];
    let origin = first.state(100).replaced_by(&of(second, OrderOrigin::default()).state(0)).unwrap();
    assert_eq!((origin.samples, origin.given.iter().sum::<u64>()), (100, 100));
    let second = of(second, origin);
    let origin =
        second.state(137).replaced_by(&of([1.0, 0.0, 0.05], OrderOrigin::default()).state(0)).unwrap();
    let third = of([1.0, 0.0, 0.05], origin);
    let parts = [numbers(&first, 0..100), numbers(&second, 100..137), numbers(&third, 137..200)];
    let taken = third.taken(200);
    for component in 0..3 {
        let found: Vec<u64> = parts.iter().flat_map(|part| part[component].clone()).collect();
        // A component's order does not depend on its weight.
        let mut weights = [0.0; 3];
        weights[component] = 1.0;
        let alone = numbers(&of(weights, OrderOrigin::default()), 0..found.len() as u64);
        assert_eq!(found, alone[component], "component {component}");
        assert_eq!(taken[component].samples, found.len() as u64);
    }
    let seen: BTreeSet<u64> = third.seen(200).unwrap().map(|range| range.start).collect();
    assert_eq!(seen, parts.iter().flatten().flatten().copied().collect());
}

/// What a component has given counts towards its epochs; a state that no loader wrote is refused.
#[test]
fn epochs_are_those_of_the_whole_run_where_the_mixture_changes() {
    let (_dir, set) = split();
    let shares = [share("web", None, None), share("books", None, Some(2.0)), share("notes", None, Some(1.0))];
    let mixture = Mixture::after(&set, SEQ, &shares, 1.0, 500, &[10, 60, 9]).unwrap();
    let taken: Vec<u64> = mixture.taken(500).iter().map(|t| t.samples).collect();
    assert_eq!(taken[2], 0, "all of it was given");
    assert_eq!(taken[1], 40);
    let shares =
        [share("web", None, Some(1.0)), share("books", None, Some(1.0)), share("notes", None, Some(1.0))];
    let e = Mixture::after(&set, SEQ, &shares, 1.0, 200, &[60, 0, 9]).unwrap_err().to_string();
    assert!(e.contains("189") && e.contains("allow more epochs"), "{e}");
    let loader = Loader::mixed(set.clone(), 5, true, Mixture::new(&set, SEQ, &shares, 1.0, 200).unwrap());
    let mut state = loader.state(20);
    state.mixture[0].slots = u64::MAX;
    assert!(state.replaced_by(&loader.state(0)).unwrap_err().to_string().contains("places of a period"));
}

#[test]
fn orders_of_components_differ_and_do_not_hang_on_their_neighbours() {
    let dir = tempfile::tempdir().unwrap();
    let set = mixed_split(dir.path(), &[("a", 1001), ("b", 1001)]);
    let weights = |a, b| [share("a", Some(a), None), share("b", Some(b), None)];
    let starts = |loader: &Loader, component: usize, shift: u64| -> Vec<u64> {
        let samples =
            (0..400).map(|c| loader.sample(c).unwrap()).filter(|s| s.component == component && s.epoch == 0);
        samples.map(|s| s.token - shift).take(50).collect()
    };
    let even =
        Loader::mixed(set.clone(), 3, true, Mixture::new(&set, SEQ, &weights(0.5, 0.5), 1.0, 400).unwrap());
    let odd =
        Loader::mixed(set.clone(), 3, true, Mixture::new(&set, SEQ, &weights(0.8, 0.2), 1.0, 400).unwrap());
    assert_ne!(starts(&even, 0, 0), starts(&even, 1, 1001));
    assert_eq!(starts(&even, 0, 0), starts(&odd, 0, 0));
    assert_eq!(starts(&even, 1, 0), starts(&odd, 1, 0));
}

#[test]
fn what_is_no_mixture_of_these_shards_is_explained() {
    let (_dir, set) = split();
    let refused = |shares: &[Share], word: &str| {
        let error = Mixture::new(&set, SEQ, shares, 1.0, 100).unwrap_err().to_string();
        assert!(error.contains(word), "{error} should speak of {word}");
    };
    refused(&[share("web", None, None)], "books");
    refused(&[share("web", None, None), share("books", None, None), share("note", None, None)], "note");
    refused(
        &[share("web", Some(1.0), None), share("books", None, None), share("notes", Some(1.0), None)],
        "no weight",
    );
    let dir = tempfile::tempdir().unwrap();
    let small = mixed_split(dir.path(), &[("web", 200), ("tiny", 10)]);
    let shares = [share("web", Some(0.5), None), share("tiny", Some(0.5), None)];
    let error = Mixture::new(&small, SEQ, &shares, 1.0, 100).unwrap_err().to_string();
    assert!(error.contains("tiny") && error.contains("10 tokens"), "{error}");
    // Without weights, what has no sample gives none.
    let shares = [share("web", None, None), share("tiny", None, None)];
    let mixture = Mixture::new(&small, SEQ, &shares, 3.0, 100).unwrap();
    assert_eq!(mixture.taken(100)[1].samples, 0);
    let plain = support::counting_split(tempfile::tempdir().unwrap().path(), &[300], 1 << 20);
    assert!(Mixture::new(&plain, SEQ, &[share("web", None, None)], 1.0, 10).is_err());
}
