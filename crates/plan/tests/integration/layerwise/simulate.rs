//! A simulated step beside closed forms.

use super::{Devices, degrees, prices};
use bessemer_plan::layerwise::{LayerPlan, Prices, UnitPrice, step};

/// Layers that are alike, an embedding and a head that cost nothing.
fn alike(layers: usize) -> Prices {
    let nothing = UnitPrice::default();
    let mut prices = prices(3, layers, 1, 2);
    prices.kinds[0][0] = UnitPrice { forward: 1.0, backward: 2.0, parameters: 1e6, ..nothing };
    (prices.embedding, prices.head, prices.stream) = (nothing, nothing, 0.0);
    prices
}

fn plan(pipeline: usize, data: usize, zero: u8, layers: usize) -> LayerPlan {
    LayerPlan {
        degrees: degrees(pipeline, data, zero),
        stages: vec![layers / pipeline; pipeline],
        choices: vec![0; layers],
    }
}

#[test]
fn equal_stages_take_the_closed_form() {
    let devices = Devices::new();
    let setting = devices.setting(1e15);
    let constant = devices.efficiency.step_seconds;
    for pipeline in [1, 2, 4] {
        let found = step(&setting, &alike(8), &plan(pipeline, 1, 0, 8)).unwrap();
        let stage = 3.0 * 8.0 / pipeline as f64;
        let update = found.seconds - constant - (16 + pipeline - 1) as f64 * stage;
        let bytes = 8e6 / pipeline as f64 * devices.efficiency.optimizer_bytes;
        assert!((update - bytes / devices.machine.memory_bandwidth).abs() < 1e-9, "{update}");
    }
}

#[test]
fn collectives_hide_behind_the_backward_pass_only_where_they_may() {
    let devices = Devices::new();
    let setting = devices.setting(1e15);
    let alone = step(&setting, &alike(8), &plan(1, 1, 0, 8)).unwrap();
    for zero in 0..4 {
        // 64 ranks with as many sequences each.
        let with = |overlap| {
            let setting = bessemer_plan::layerwise::Setting { overlap, global_batch: 16 * 64, ..setting };
            step(&setting, &alike(8), &plan(1, 64, zero, 8)).unwrap().seconds
        };
        let (hidden, exposed) = (with(true), with(false));
        assert!(hidden < exposed, "ZeRO-{zero}: {hidden} {exposed}");
        assert!(hidden >= alone.compute * 0.99 && hidden < alone.seconds * 1.05, "ZeRO-{zero}: {hidden}");
    }
}

#[test]
fn a_changed_link_changes_the_answer() {
    let devices = Devices::new();
    let slow = bessemer_plan::Machine { network_bandwidth: 1e8, ..devices.machine.clone() };
    let setting = devices.setting(1e15);
    let slower = bessemer_plan::layerwise::Setting { machine: &slow, ..setting };
    let prices = prices(5, 8, 1, 2);
    for (pipeline, data, zero) in [(1, 16, 0), (8, 2, 0), (1, 16, 3)] {
        let plan = plan(pipeline, data, zero, 8);
        let (fast, slow) = (step(&setting, &prices, &plan).unwrap(), step(&slower, &prices, &plan).unwrap());
        assert!(slow.seconds > fast.seconds, "{pipeline} {data} {zero}");
    }
}
