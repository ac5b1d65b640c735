//! The Markov chain beside enumeration.

use super::{Devices, degrees, every, prices};
use bessemer_plan::layerwise::{Degrees, LayerPlan, Prices, step, wander};

#[test]
fn a_small_space_is_searched_to_its_optimum() {
    let devices = Devices::new();
    let (layers, choices) = (3, 4);
    let setting = devices.setting(1.2e10);
    let spaces: Vec<(Degrees, Prices)> = [(1, 4, 0), (2, 2, 1), (1, 4, 3)]
        .iter()
        .enumerate()
        .map(|(seed, (pipeline, data, zero))| {
            (degrees(*pipeline, *data, *zero), prices(20 + seed as u64, layers, 1, choices))
        })
        .collect();
    let mut best = f64::INFINITY;
    let (mut all, mut fitting) = (0, 0);
    for (degrees, prices) in &spaces {
        for plan in every(*degrees, layers, choices) {
            let found = step(&setting, prices, &plan).unwrap();
            all += 1;
            if found.memory.iter().all(|bytes| *bytes <= setting.memory) {
                fitting += 1;
                best = best.min(found.seconds);
            }
        }
    }
    assert!(fitting > 10 && fitting < all, "{fitting} of {all} fit");
    let spaces: Vec<(Degrees, &Prices)> = spaces.iter().map(|(degrees, prices)| (*degrees, prices)).collect();
    let start = LayerPlan { degrees: spaces[0].0, stages: vec![layers], choices: vec![0; layers] };
    for seed in 0..8 {
        let walk = wander(&setting, &spaces, start.clone(), seed, 3000).unwrap();
        assert!(walk.fits && (walk.step.seconds / best - 1.0).abs() < 1e-9, "{} {best}", walk.step.seconds);
        let p = walk.proposals;
        let kinds = [p.random, p.propagated, p.stages, p.degrees];
        assert_eq!(kinds.iter().map(|kind| kind.proposed).sum::<usize>(), 3000);
        assert!(kinds.iter().all(|kind| kind.accepted <= kind.proposed), "{p:?}");
        assert!(p.random.accepted < p.random.proposed && p.degrees.accepted > 0, "{p:?}");
        assert!(walk.progress.len() > 1 && walk.progress.is_sorted_by_key(|(number, _)| *number));
        assert_eq!(walk, wander(&setting, &spaces, start.clone(), seed, 3000).unwrap());
    }
}

#[test]
fn no_budget_is_the_start() {
    let devices = Devices::new();
    let prices = prices(1, 4, 1, 3);
    let spaces = [(degrees(1, 1, 0), &prices)];
    let start = LayerPlan { degrees: spaces[0].0, stages: vec![4], choices: vec![1; 4] };
    let walk = wander(&devices.setting(1e15), &spaces, start.clone(), 1, 0).unwrap();
    assert_eq!((walk.plan, walk.progress.len()), (start.clone(), 1));
    let elsewhere = LayerPlan { degrees: degrees(2, 1, 0), ..start };
    assert!(wander(&devices.setting(1e15), &spaces, elsewhere, 1, 0).is_err());
}
