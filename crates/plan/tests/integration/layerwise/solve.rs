//! The dynamic program beside enumeration.

use super::{Devices, Numbers, degrees, every, prices};
use bessemer_plan::layerwise::{priced, solve, uniform};

#[test]
fn the_answer_is_that_of_enumeration() {
    let devices = Devices::new();
    let (mut fits, mut fails, mut uneven, mut mixed) = (0, 0, 0, 0);
    for seed in 0..60 {
        let (layers, choices) = (4, 3);
        let prices = prices(seed, layers, 1 + seed as usize % 2, choices);
        let data = [1, 4][seed as usize / 2 % 2];
        for (pipeline, zero) in [(1, 0), (2, 1), (3, 3), (2, 2), (4, 0)] {
            let degrees = degrees(pipeline, data, zero);
            // Limits around what plans hold, so that some bind.
            let memory = Numbers::new(1000 + seed).between(0.4, 1.3) * 2.4e10 / pipeline as f64;
            let setting = devices.setting(memory);
            let all = every(degrees, layers, choices);
            let best = all.iter().filter_map(|plan| priced(&setting, &prices, plan));
            let best = best.min_by(|a, b| a.seconds.total_cmp(&b.seconds));
            let found = solve(&setting, &prices, degrees);
            let Some((best, found)) = best.as_ref().zip(found.as_ref()) else {
                assert_eq!(best.is_some(), found.is_some(), "seed {seed}, {degrees:?}");
                fails += 1;
                continue;
            };
            fits += 1;
            assert!((found.seconds / best.seconds - 1.0).abs() < 1e-12, "{} {}", found.seconds, best.seconds);
            let again = priced(&setting, &prices, &found.plan).unwrap();
            assert!((again.seconds / found.seconds - 1.0).abs() < 1e-12);
            for (bytes, other) in again.memory.iter().zip(&found.memory) {
                assert!((bytes / other - 1.0).abs() < 1e-12 && *bytes <= memory);
            }
            uneven += usize::from(found.plan.stages.iter().any(|length| *length != layers / pipeline));
            mixed += usize::from(found.plan.choices.windows(2).any(|pair| pair[0] != pair[1]));
        }
    }
    // Memory binds in some cases, and stages and layers are unequal in some answers.
    assert!(fits > 100 && fails > 20 && uneven > 20 && mixed > 20, "{fits} {fails} {uneven} {mixed}");
}

#[test]
fn no_uniform_plan_is_faster() {
    let devices = Devices::new();
    let (mut compared, mut faster) = (0, 0);
    for seed in 0..20 {
        let prices = prices(seed, 32, 1, 10);
        for (pipeline, zero) in [(1, 3), (2, 1), (4, 0), (8, 1), (5, 2)] {
            let degrees = degrees(pipeline, 4, zero);
            for share in [0.3, 0.6, 1.0] {
                let setting = devices.setting(share * 1.5e11 / pipeline as f64);
                let Some(alike) = uniform(&setting, &prices, degrees) else { continue };
                let found = solve(&setting, &prices, degrees).expect("what a uniform plan fits into");
                assert!(found.seconds <= alike.seconds * (1.0 + 1e-12), "{degrees:?}, seed {seed}");
                assert!(priced(&setting, &prices, &found.plan).is_some());
                compared += 1;
                faster += usize::from(found.seconds < 0.999 * alike.seconds);
            }
        }
    }
    assert!(compared > 100 && faster > compared / 2, "{faster} of {compared}");
}

#[test]
fn long_fronts_lose_little() {
    // Of 40 layers on one stage the exact answer is known where memory does not bind, and bounded by it where it does.
    let devices = Devices::new();
    for seed in 0..10 {
        let prices = prices(seed, 40, 1, 10);
        let degrees = degrees(1, 1, 0);
        let free = solve(&devices.setting(1e15), &prices, degrees).unwrap();
        let fastest = |choice: &usize| prices.kinds[0][*choice].forward + prices.kinds[0][*choice].backward;
        let least = (0..10).map(|choice| fastest(&choice)).fold(f64::INFINITY, f64::min);
        let sum: f64 = free.plan.choices.iter().map(fastest).sum();
        // The update of more parameters may cost more than a faster pass gains.
        assert!(sum <= 40.0 * least * 1.01, "{sum} {least}");
        let mut before = free.seconds;
        for share in [0.9, 0.7, 0.5, 0.4] {
            let Some(found) = solve(&devices.setting(share * free.memory[0]), &prices, degrees) else {
                break;
            };
            assert!(found.seconds >= before * (1.0 - 1e-3), "less memory is faster");
            before = found.seconds;
        }
    }
}

#[test]
fn what_has_too_few_layers_has_no_plan() {
    let devices = Devices::new();
    let prices = prices(1, 3, 1, 3);
    assert!(solve(&devices.setting(1e15), &prices, degrees(4, 1, 0)).is_none());
    assert!(solve(&devices.setting(1.0), &prices, degrees(2, 1, 0)).is_none());
    assert!(uniform(&devices.setting(1.0), &prices, degrees(2, 1, 0)).is_none());
}
