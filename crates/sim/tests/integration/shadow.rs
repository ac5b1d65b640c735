//! Routes of tokens to experts, and the experts that every rank computes for itself: golden values, hand calculations, all subsets.

use bessemer_sim::replay::{GroupChoices, Loads, RoutedRows};
use bessemer_sim::shadow::{ExpertSize, RowCounts, ShadowCosts, ShadowRates, choose};

fn assert_ms(found: &[f64], wanted: &[f64]) {
    assert_eq!(found.len(), wanted.len(), "{found:?}");
    for (found, wanted) in found.iter().zip(wanted) {
        assert!((1e3 * found - wanted).abs() < 5e-7, "{found} s, wanted {wanted} ms");
    }
}

/// The model of He et al. (2022): experts of two matrices of width 1024 and inner width 4096 in f32, one on each rank.
struct PublishedModel {
    rates: ShadowRates,
    /// Times that an expert travels for a shadow: 2, with its gradient; the published code counts 1.
    transfers: f64,
}

impl PublishedModel {
    /// Seconds where `most` is the load of the fullest rank.
    fn time(&self, most: u64, shadows: usize) -> f64 {
        let (matrix, ShadowRates { flops, bandwidth }) = (4.0 * 1024.0 * 1024.0, self.rates);
        let row = 12.0 * matrix / flops + 4.0 * 1024.0 * 4.0 / bandwidth;
        row * most as f64 + shadows as f64 * self.transfers * 2.0 * matrix * 4.0 / bandwidth
    }

    /// Seconds with the first 0, 1, 2, ... experts of descending loads shadowed, until the first choice that is not faster. All but that one
    /// are accepted.
    fn greedy(&self, loads: &[u64]) -> Vec<f64> {
        let mut times: Vec<f64> = Vec::new();
        for (shadows, load) in loads.iter().enumerate() {
            let next = self.time(*load, shadows);
            let falls = times.last().is_none_or(|last| next < *last);
            times.push(next);
            if !falls {
                break;
            }
        }
        times
    }

    /// Seconds of the best set of shadows of all that leave one expert.
    fn best(&self, loads: &[u64]) -> f64 {
        let left =
            |set: &Vec<u32>| (0..loads.len()).filter(|e| !set.contains(&(*e as u32))).map(|e| loads[e]).max();
        let times = subsets(loads.len()).filter_map(|set| Some(self.time(left(&set)?, set.len())));
        times.fold(f64::INFINITY, f64::min)
    }
}

/// The published greedy rule, with an expert that travels once, as published, and twice, as it does.
#[test]
fn the_published_rule_has_its_golden_values() {
    let loads = [6144, 4096, 2560, 1536, 1024, 512, 384, 128];
    let greedy = |bandwidth, transfers| {
        let rates = ShadowRates { flops: 11.5e12, bandwidth };
        PublishedModel { rates, transfers }.greedy(&loads)
    };
    assert_ms(&greedy(6.25e9, 1.0), &[42.996357, 34.032947, 28.652567, 26.855217, 28.640896]);
    assert_ms(&greedy(6.25e9, 2.0), &[42.996357, 39.401656, 39.389985, 42.961344]);
    assert_ms(&greedy(1.25e9, 1.0), &[107.420867, 98.457457, 98.445786, 107.385854]);
    assert_ms(&greedy(1.25e9, 2.0), &[107.420867, 125.301002]);
}

/// Time falls until the best number of shadows and rises behind it where each load is less below the one before than that was below its own,
/// as of a Zipf law: the greedy rule then finds the best of all sets. Of two equal loads it takes none, where both are best.
#[test]
fn the_published_rule_is_the_best_where_loads_fall_ever_slower() {
    for step in 0..60 {
        let rates = ShadowRates { flops: 11.5e12, bandwidth: 1e9 + 4e8 * f64::from(step) };
        let model = PublishedModel { rates, transfers: 2.0 };
        for exponent in [0.0, 0.3, 0.6, 1.2, 2.0] {
            let loads: Vec<u64> = (1..=8).map(|i| (8192.0 * f64::from(i).powf(-exponent)) as u64).collect();
            let least = model.greedy(&loads).into_iter().fold(f64::INFINITY, f64::min);
            assert!((least / model.best(&loads) - 1.0).abs() < 1e-12, "{rates:?}, exponent {exponent}");
        }
        let equal = [6144, 6144, 128, 128, 128, 128, 128, 128];
        assert_eq!(model.greedy(&equal).len(), 2);
        assert!(rates.bandwidth < 5e9 || model.best(&equal) < 0.8 * model.time(6144, 0), "{rates:?}");
    }
}

/// Rows of four ranks for eight experts.
fn golden_rows() -> RoutedRows {
    let more = |expert| match expert {
        0 => 700,
        5 => 260,
        _ => 0,
    };
    let rows = |rank: u64| {
        (0..8).map(move |expert| more(expert) + (37 * rank + 53 * expert + 11 * rank * expert) % 97)
    };
    RoutedRows::new(4, (0..4).flat_map(rows).collect()).unwrap()
}

/// Experts of two matrices between width d and 4 d, in f32.
fn costs(width: f64, rates: ShadowRates, ranks: usize) -> ShadowCosts {
    let elements = 2.0 * 4.0 * width * width;
    let size = ExpertSize { row_flops: 2.0 * elements, row_bytes: 4.0 * width, bytes: 4.0 * elements };
    ShadowCosts::shared(size, rates, ranks)
}

/// Every subset of the experts.
fn subsets(experts: usize) -> impl Iterator<Item = Vec<u32>> {
    (0..1usize << experts)
        .map(move |set| (0..experts as u32).filter(|expert| set >> expert & 1 == 1).collect())
}

#[test]
fn shadows_have_their_golden_values_and_are_the_best_of_all_subsets() {
    let rows = golden_rows();
    let of = |count: &dyn Fn(usize) -> u64| -> Vec<u64> { (0..4).map(count).collect() };
    assert_eq!(of(&|rank| rows.computed(rank, &[])), [3037, 379, 1464, 275]);
    assert_eq!(of(&|rank| rows.received(rank, &[])), [2284, 276, 1060, 196]);
    assert_eq!(of(&|rank| rows.sent(rank, &[])), [527, 1102, 920, 1267]);
    let costs = costs(1024.0, ShadowRates { flops: 1e12, bandwidth: 1.25e9 }, 4);
    let ms = |shadows: &[u32]| costs.time(&rows, shadows) as f64 * 1e-9;
    for (shadows, wanted) in [(&[][..], 182.794060), (&[0], 166.801179), (&[0, 5], 156.726460)] {
        assert!((ms(shadows) - wanted).abs() < 5e-7, "{shadows:?}: {}", ms(shadows));
    }
    let choice = choose(&rows, &costs, 4);
    assert_eq!(choice.experts, [0, 5]);
    assert_eq!((choice.time, choice.without), (costs.time(&rows, &[0, 5]), costs.time(&rows, &[])));
    assert_eq!(subsets(8).min_by_key(|set| costs.time(&rows, set)), Some(choice.experts));
    // Without room, and where an expert takes longer to travel than its rows.
    assert_eq!(choose(&rows, &costs, 0).experts, [] as [u32; 0]);
    assert_eq!(choose(&rows, &costs, 1).experts, [0]);
    let slow = ShadowCosts { shadow: 20 * costs.shadow, ..costs };
    assert_eq!(choose(&rows, &slow, 4).experts, [] as [u32; 0]);
}

/// Two ranks are equally hot: one shadow alone lowers no maximum, and takes time; both do.
#[test]
fn two_equally_hot_ranks_get_two_shadows() {
    let mut rows = vec![10; 16];
    for rank in 0..4 {
        (rows[4 * rank], rows[4 * rank + 1]) = (900, 900);
    }
    let rows = RoutedRows::new(4, rows).unwrap();
    let costs = costs(1024.0, ShadowRates { flops: 1e12, bandwidth: 1.25e9 }, 4);
    assert!(costs.time(&rows, &[0]) > costs.time(&rows, &[]));
    assert_eq!(choose(&rows, &costs, 2).experts, [0, 1]);
}

/// Hot experts anywhere: never worse than none, within an eighth of the best of all subsets, and mostly that. With one expert a rank always that.
#[test]
fn the_choice_is_between_none_and_the_best_subset() {
    for (ranks, experts) in [(2, 8), (4, 8), (8, 8)] {
        let (mut best, mut some) = (0, 0);
        for seed in 0..200u64 {
            let number = |at: u64| (seed * 7919 + at * 104_729 + at * at * 31 + seed * at * 17) % 257;
            let hot = |at: u64| number(at % 8).is_multiple_of(3);
            let load = |at: u64| if hot(at) { 40 * number(at + 50) } else { number(at) };
            let rows = RoutedRows::new(ranks, (0..(ranks * experts) as u64).map(load).collect()).unwrap();
            let rates = ShadowRates { flops: 1e12, bandwidth: 1e9 + seed as f64 * 1e8 };
            let costs = costs(512.0, rates, ranks);
            let choice = choose(&rows, &costs, experts);
            let least = subsets(experts).map(|set| costs.time(&rows, &set)).min().unwrap();
            assert!(least <= choice.time && choice.time <= choice.without);
            assert_eq!(choice.time, costs.time(&rows, &choice.experts));
            assert!(8 * choice.time <= 9 * least, "{ranks} ranks, {seed}: {} against {least}", choice.time);
            best += usize::from(choice.time == least);
            some += usize::from(!choice.experts.is_empty());
        }
        assert!(some > 50 && best > 100, "{ranks} ranks: {best} best, {some} with shadows");
        assert!(ranks < experts || best == 200, "{best} best");
    }
}

/// Where an owner sends its experts to all others and gets a gradient of each, two shadows of one owner take twice as long, and of two owners
/// as long as one.
#[test]
fn shadows_of_one_owner_wait_for_each_other() {
    let rows = golden_rows();
    let size = ExpertSize { row_flops: 0.0, row_bytes: 0.0, bytes: 5e6 };
    let costs = ShadowCosts::new(size, ShadowRates { flops: 1e12, bandwidth: 1e9 }, 4);
    // To three others and back: 2 x 3 x 5 ms.
    for (shadows, wanted) in [(&[][..], 0), (&[3], 30), (&[2, 3], 60), (&[1, 2], 30), (&[0, 1, 2, 4, 6], 60)]
    {
        assert_eq!(costs.time(&rows, shadows), wanted * 1_000_000_000, "{shadows:?}");
    }
    let shared = ShadowCosts::shared(size, ShadowRates { flops: 1e12, bandwidth: 1e9 }, 4);
    assert_eq!(shared.time(&rows, &[1, 2]), 15_000_000_000);
    // Rates that give no time give the longest, a million seconds.
    let longest = ShadowCosts::new(size, ShadowRates { flops: 0.0, bandwidth: f64::NAN }, 4);
    assert_eq!((longest.row_products, longest.owned), (10u64.pow(18), 4 * 10u64.pow(18)));
}

/// More room is never worse.
#[test]
fn time_does_not_rise_with_the_room_for_shadows() {
    let (rows, rates) = (golden_rows(), ShadowRates { flops: 1e12, bandwidth: 1.25e9 });
    for width in [64.0, 256.0, 1024.0, 4096.0] {
        let costs = costs(width, rates, 4);
        let times: Vec<u128> = (0..=8).map(|slots| choose(&rows, &costs, slots).time).collect();
        assert!(times.is_sorted_by(|less, more| less >= more), "{times:?}");
    }
}

#[test]
fn choices_are_dealt_to_ranks_evenly() {
    let rows = RoutedRows::dealt(4, &[10, 0, 3, 27]).unwrap();
    let of_rank = |rank| rows.brought(rank, &[]);
    assert_eq!((0..4).map(of_rank).collect::<Vec<u64>>(), [10; 4]);
    assert_eq!((0..4).map(|expert| rows.load(expert)).collect::<Vec<u64>>(), [10, 0, 3, 27]);
    // Choices 0 to 9, 10 to 12 and 13 to 39: rank 0 has every fourth from 0 on.
    assert_eq!(rows.computed(0, &[]), 10);
    assert_eq!((rows.sent(0, &[]), rows.received(0, &[])), (10 - 3, 10 - 3));
    assert!(RoutedRows::dealt(4, &[1, 2, 3]).unwrap_err().to_string().contains("12 counts of 4 ranks"));
}

#[test]
fn loads_are_whole_numbers_that_sum_to_all_choices() {
    let group = |experts, tokens, choices| GroupChoices { ranks: 2, experts, tokens, choices };
    let counts = |loads: &Loads, experts, tokens, choices| -> Vec<u64> {
        let rows = loads.rows(0, group(experts, tokens, choices)).unwrap();
        assert_eq!(rows.brought(0, &[]) + rows.brought(1, &[]), tokens * choices);
        (0..experts).map(|expert| rows.load(expert)).collect()
    };
    assert_eq!(counts(&Loads::Balanced, 8, 64, 2), [16; 8]);
    assert_eq!(counts(&Loads::Zipf(0.0), 8, 64, 2), [16; 8]);
    // 120 / (1 + 1/2 + 1/3 + 1/4) = 57.6 choices of the first expert.
    assert_eq!(counts(&Loads::Zipf(1.0), 4, 120, 1), [58, 28, 20, 14]);
    // No token chooses an expert twice: of 240 choices the first has 120, and the others share 120 by 1/8, 1/27, 1/64.
    assert_eq!(counts(&Loads::Zipf(3.0), 4, 120, 2), [120, 84, 25, 11]);
    assert_eq!(counts(&Loads::Zipf(1.0), 4, 120, 2), [115, 58, 38, 29]);
    let recorded = Loads::Recorded(vec![vec![7, 0, 90, 3], Vec::new()]);
    assert_eq!(counts(&recorded, 4, 50, 2), [35, 0, 50, 15]);
    assert_eq!(counts(&recorded, 4, 100, 1), [7, 0, 90, 3]);
    assert_eq!(counts(&recorded, 4, 1000, 1), [70, 0, 900, 30]);
    for (layer, experts, found) in
        [(0, 8, "100 choices of 4"), (1, 4, "0 choices of 0"), (5, 4, "0 choices of 0")]
    {
        let error = recorded.rows(layer, group(experts, 10, 1)).unwrap_err().to_string();
        assert!(error.contains(found) && error.contains(&format!("layer {layer}")), "{error}");
    }
    assert!(Loads::Zipf(-1.0).rows(0, group(4, 10, 1)).unwrap_err().to_string().contains("exponent -1"));
}
