//! Failures of machines: published values, the exact expectation against simulated runs.

use bessemer_cluster::{
    FailingRun, PUBLISHED_RATES, best_interval, daly_interval, first_order_ettr, young_interval,
};
use proptest::prelude::*;

fn near(found: f64, wanted: f64, relative: f64) {
    assert!((found - wanted).abs() <= relative * wanted.abs(), "{found} for {wanted}");
}

fn run(nodes: f64, per_thousand: f64, save: f64, restart: f64) -> FailingRun {
    FailingRun { nodes, failures_per_node_day: per_thousand / 1000.0, save, restart, work: 30.0 * 86_400.0 }
}

#[test]
fn intervals_of_young_and_daly() {
    for (save, mttf, young, daly) in [(60.0, 3600.0, 657.27, 617.88), (10.0, 86_400.0, 1314.53, 1307.88)] {
        near(young_interval(save, mttf), young, 1e-5);
        near(daly_interval(save, mttf), daly, 1e-5);
        // Daly's is an expansion of the exact one.
        near(best_interval(save, mttf), daly, 1e-4);
    }
    assert_eq!(daly_interval(8000.0, 3600.0), 3600.0);
}

/// The planning table for one restart of 60 s and of 300 s: nodes, failures per 1,000 node-days, hours to a failure, then for saves
/// of 0.1, 1, 10 and 60 s the interval and both ratios.
#[test]
fn the_planning_table() {
    type Row = (f64, f64, f64, [(f64, f64, f64); 4]);
    let table: [Row; 6] = [
        (
            4.0,
            20.0,
            300.0,
            [
                (465.0, 0.9995, 0.9993),
                (1470.0, 0.9986, 0.9984),
                (4648.0, 0.9957, 0.9954),
                (11384.0, 0.9895, 0.9892),
            ],
        ),
        (
            16.0,
            20.0,
            75.0,
            [
                (232.0, 0.9989, 0.9980),
                (735.0, 0.9971, 0.9962),
                (2324.0, 0.9912, 0.9903),
                (5692.0, 0.9789, 0.9780),
            ],
        ),
        (
            128.0,
            6.5,
            28.8,
            [
                (144.0, 0.9980, 0.9957),
                (456.0, 0.9950, 0.9927),
                (1441.0, 0.9856, 0.9833),
                (3530.0, 0.9660, 0.9637),
            ],
        ),
        (
            128.0,
            20.0,
            9.4,
            [
                (82.0, 0.9958, 0.9887),
                (260.0, 0.9906, 0.9835),
                (822.0, 0.9742, 0.9672),
                (2012.0, 0.9404, 0.9335),
            ],
        ),
        (
            1250.0,
            6.5,
            3.0,
            [
                (46.0, 0.9900, 0.9675),
                (146.0, 0.9808, 0.9584),
                (461.0, 0.9520, 0.9299),
                (1130.0, 0.8938, 0.8723),
            ],
        ),
        (
            1250.0,
            20.0,
            1.0,
            [
                (26.0, 0.9751, 0.9059),
                (83.0, 0.9591, 0.8905),
                (263.0, 0.9100, 0.8431),
                (644.0, 0.8137, 0.7501),
            ],
        ),
    ];
    for (nodes, rate, hours, cells) in table {
        for (save, (interval, short, long)) in [0.1, 1.0, 10.0, 60.0].into_iter().zip(cells) {
            let [fast, slow] = [60.0, 300.0].map(|restart| run(nodes, rate, save, restart));
            let mttf = 1.0 / fast.failure_rate();
            assert!((mttf / 3600.0 - hours).abs() <= 0.06, "{mttf}");
            let dt = young_interval(save, mttf);
            assert!((dt - interval).abs() <= 0.51, "{dt} for {interval}");
            for (run, wanted) in [(fast, short), (slow, long)] {
                let first = first_order_ettr(&run, dt);
                assert!((first - wanted).abs() < 6e-5, "{run:?}: {first} for {wanted}");
                // The other drops terms of second order in what a failure may hit.
                let exact = run.expect().unwrap().ettr();
                let order = (run.restart + dt + save) / mttf;
                assert!((exact - first).abs() < order * order, "{run:?}: {exact} for {wanted}");
            }
        }
    }
    let rates = PUBLISHED_RATES.map(|r| r.per_thousand_node_days);
    assert!(rates.is_sorted() && rates[0] >= 2.3 && rates[4] <= 24.0);
    near(419.0 / 54.0 / 2.048, rates[1], 0.01);
}

proptest! {
    #[test]
    fn no_other_interval_is_better(save in 0.01f64..500.0, mttf in 100.0f64..1e7, factor in 0.2f64..5.0) {
        let run = FailingRun { nodes: 1.0, failures_per_node_day: 86_400.0 / mttf, save, restart: 30.0, work: 1e7 };
        let best = best_interval(save, mttf);
        prop_assert!(best > 0.0 && best < mttf);
        let at = |interval: f64| run.expect_with(interval).map(|e| e.total);
        if let (Ok(least), Ok(other)) = (at(best), at(best * factor)) {
            prop_assert!(least <= other * (1.0 + 1e-12));
        }
        // The parts are the whole, and more failures never help.
        if let Ok(e) = run.expect() {
            prop_assert!((run.work + e.saving + e.redone + e.restarting - e.total).abs() <= 1e-9 * e.total);
            prop_assert!((e.ettr() - run.work / e.total).abs() < 1e-9);
            let more = FailingRun { nodes: 2.0, ..run };
            prop_assert!(more.expect().map_or(true, |m| m.total >= e.total));
        }
    }
}

/// A random source that is the same in every run (xorshift64*).
struct Dice(u64);

impl Dice {
    fn exponential(&mut self, mean: f64) -> f64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let unit = ((self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
        -unit.ln() * mean
    }
}

/// One run, second by second of its events: work, saves, failures at any time, restarts that fail.
fn simulated(run: &FailingRun, interval: f64, segments: u32, dice: &mut Dice) -> (f64, u32) {
    let mean = 1.0 / run.failure_rate();
    let (mut now, mut failures) = (0.0, 0);
    let mut next = dice.exponential(mean);
    let mut attempt = |now: &mut f64, seconds: f64, failures: &mut u32| {
        if *now + seconds <= next {
            *now += seconds;
            return true;
        }
        *now = next;
        next = *now + dice.exponential(mean);
        *failures += 1;
        false
    };
    for _ in 0..segments {
        while !attempt(&mut now, interval + run.save, &mut failures) {
            while !attempt(&mut now, run.restart, &mut failures) {}
        }
    }
    (now, failures)
}

#[test]
fn simulated_runs_take_what_is_expected() {
    for (mttf, save, restart, seed) in [
        (3600.0, 60.0, 300.0, 1),
        (1000.0, 100.0, 400.0, 2),
        (100_000.0, 10.0, 60.0, 3),
        (500.0, 2.0, 1.0, 4),
    ] {
        let interval = best_interval(save, mttf);
        let segments = 200;
        let work = interval * f64::from(segments);
        let run =
            FailingRun { nodes: 8.0, failures_per_node_day: 86_400.0 / mttf / 8.0, save, restart, work };
        let wanted = run.expect_with(interval).unwrap();
        near(
            wanted.total,
            mttf * (restart / mttf).exp() * ((interval + save) / mttf).exp_m1() * f64::from(segments),
            1e-12,
        );
        let runs = 4000;
        let mut dice = Dice(seed);
        let times: Vec<(f64, u32)> =
            (0..runs).map(|_| simulated(&run, interval, segments, &mut dice)).collect();
        let statistics = |value: &dyn Fn(&(f64, u32)) -> f64| {
            let mean = times.iter().map(value).sum::<f64>() / f64::from(runs);
            let variance = times.iter().map(|t| (value(t) - mean).powi(2)).sum::<f64>() / f64::from(runs - 1);
            (mean, (variance / f64::from(runs)).sqrt())
        };
        // Four standard errors of the mean of 4,000 runs; the seeds are fixed.
        let (time, error) = statistics(&|t| t.0);
        assert!((time - wanted.total).abs() < 4.0 * error, "{time} +- {error} for {}", wanted.total);
        assert!(error < 0.005 * time, "the test can tell: {error}");
        let (failures, error) = statistics(&|t| f64::from(t.1));
        assert!(
            (failures - wanted.failures).abs() < 4.0 * error,
            "{failures} +- {error} for {}",
            wanted.failures
        );
    }
}

#[test]
fn edges_and_bad_figures() {
    let calm = FailingRun { failures_per_node_day: 0.0, ..run(1000.0, 0.0, 10.0, 60.0) };
    let e = calm.expect().unwrap();
    assert_eq!((e.total, e.failures, e.ettr()), (calm.work, 0.0, 1.0));
    assert_eq!(calm.expect_with(1000.0).unwrap().saving, calm.work / 100.0);
    // Saves that cost nothing lose nothing but restarts.
    let free = run(1250.0, 20.0, 0.0, 300.0);
    let e = free.expect().unwrap();
    assert_eq!((e.interval, e.saving, e.redone), (0.0, 0.0, 0.0));
    near(e.total, free.work * (free.restart * free.failure_rate()).exp(), 1e-12);
    let hopeless = run(1e6, 1e5, 60.0, 300.0).expect().unwrap_err().to_string();
    assert!(hopeless.contains("save faster") && hopeless.contains("1000000 nodes"), "{hopeless}");
    let wrong = FailingRun { save: -1.0, ..free }.expect().unwrap_err().to_string();
    assert!(wrong.contains("seconds of a save") && wrong.contains("-1"), "{wrong}");
    assert!(run(1.0, 1.0, 1.0, f64::NAN).expect().is_err());
    assert!(run(4.0, 1.0, 1.0, 1.0).expect_with(0.0).is_err());
}
