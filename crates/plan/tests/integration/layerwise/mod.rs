//! Plans whose layers differ, with made-up prices.

mod complete;
mod price;
mod simulate;
mod solve;
mod walk;

use bessemer_plan::layerwise::{Degrees, LayerChoice, LayerPlan, Prices, Setting, UnitPrice};
use bessemer_plan::{Calibration, Efficiency, Machine, ParameterBytes};
use bessemer_tensor::rng::RngKey;

/// Numbers from a seed.
struct Numbers {
    key: RngKey,
    next: u64,
}

impl Numbers {
    fn new(seed: u64) -> Numbers {
        Numbers { key: RngKey::new(seed, 0, "prices"), next: 0 }
    }

    /// Uniform in [from, to).
    fn between(&mut self, from: f64, to: f64) -> f64 {
        self.next += 1;
        from + (to - from) * f64::from(self.key.uniform(self.next))
    }

    fn price(&mut self) -> UnitPrice {
        let forward = self.between(1e-3, 4e-3);
        UnitPrice {
            forward,
            backward: self.between(1.5, 3.0) * forward,
            waiting: 0.0,
            saved: self.between(1e8, 2e9),
            scratch: self.between(1e8, 1e9),
            parameters: self.between(1e7, 2e8),
        }
    }
}

/// Prices of `layers` layers of `kinds` kinds with `choices` choices, all random.
fn prices(seed: u64, layers: usize, kinds: usize, choices: usize) -> Prices {
    let mut numbers = Numbers::new(seed);
    let all = LayerChoice::all(2, false);
    Prices {
        choices: all[..choices].to_vec(),
        kinds: (0..kinds).map(|_| (0..choices).map(|_| numbers.price()).collect()).collect(),
        layers: (0..layers).map(|layer| layer % kinds).collect(),
        embedding: numbers.price(),
        head: numbers.price(),
        tied: 0.0,
        stream: 1e7,
    }
}

fn degrees(pipeline: usize, data: usize, zero: u8) -> Degrees {
    Degrees { tensor: 2, sequence: false, data, pipeline, micro_batch: 1, zero }
}

struct Devices {
    machine: Machine,
    efficiency: Efficiency,
}

impl Devices {
    fn new() -> Devices {
        let machine = Machine::named("a100-80gb").unwrap();
        Devices { machine, efficiency: Calibration::none().efficiency }
    }

    fn setting(&self, memory: f64) -> Setting<'_> {
        Setting {
            machine: &self.machine,
            efficiency: &self.efficiency,
            global_batch: 16,
            bytes: ParameterBytes::MIXED_ADAM,
            overlap: true,
            in_flight: bessemer_program::PiecesInFlight::DEFAULT,
            memory,
        }
    }
}

/// Every plan of these degrees.
fn every(degrees: Degrees, layers: usize, choices: usize) -> Vec<LayerPlan> {
    let mut splits = vec![Vec::new()];
    for stage in 0..degrees.pipeline {
        let longer = |split: &Vec<usize>| -> Vec<Vec<usize>> {
            let left = layers - split.iter().sum::<usize>();
            let last = stage + 1 == degrees.pipeline;
            let lengths = if last { left..=left } else { 1..=left };
            lengths.filter(|length| *length > 0).map(|length| [&split[..], &[length]].concat()).collect()
        };
        splits = splits.iter().flat_map(longer).collect();
    }
    let mut all = Vec::new();
    for stages in splits {
        for number in 0..choices.pow(layers as u32) {
            let choice = |layer: usize| number / choices.pow(layer as u32) % choices;
            all.push(LayerPlan {
                degrees,
                stages: stages.clone(),
                choices: (0..layers).map(choice).collect(),
            });
        }
    }
    all
}
