//! Stages by dynamic programming against the enumeration of all pipelines.

use bessemer_plan::{StageCosts, StagePlan, StageQuestion, stages};
use std::ops::Range;

/// Layers of different lengths, of which larger submeshes compute less than their share; states and activations take memory.
struct Costs {
    work: Vec<f64>,
    state: Vec<f64>,
    activation: Vec<f64>,
    memory: f64,
    submeshes: Vec<usize>,
    send: f64,
    /// Stages of an odd number of layers take twice as long.
    odd: bool,
}

impl StageCosts for Costs {
    fn stage(&self, layers: Range<usize>, submesh: usize, in_flight: usize) -> f64 {
        let devices = self.submeshes[submesh] as f64;
        let of = |values: &[f64]| values[layers.clone()].iter().sum::<f64>();
        let held = (of(&self.state) + in_flight as f64 * of(&self.activation)) / devices;
        let slower = if self.odd && layers.len() % 2 == 1 { 2.0 } else { 1.0 };
        if held > self.memory { f64::INFINITY } else { slower * of(&self.work) / devices.powf(0.4) }
    }

    fn transfer(&self, from: usize, to: usize) -> f64 {
        self.send * (1.0 + from.abs_diff(to) as f64)
    }
}

/// Tries every cut and every submesh of each stage.
struct Enumeration<'a> {
    question: &'a StageQuestion,
    costs: &'a dyn StageCosts,
    stages: Vec<(Range<usize>, usize)>,
    best: Option<f64>,
}

impl Enumeration<'_> {
    fn from(&mut self, first: usize, devices: usize) {
        if first == self.question.layers {
            if devices == 0 {
                self.compare();
            }
            return;
        }
        for end in first + 1..=self.question.layers {
            for (mesh, size) in
                self.question.submeshes.iter().enumerate().filter(|(_, size)| **size <= devices)
            {
                self.stages.push((first..end, mesh));
                self.from(end, devices - size);
                self.stages.pop();
            }
        }
    }

    fn compare(&mut self) {
        let count = self.stages.len();
        let seconds = |at: usize| {
            let (layers, mesh) = self.stages[at].clone();
            let own = self.costs.stage(layers, mesh, (count - at).min(self.question.micro_batches));
            own + self.stages.get(at + 1).map_or(0.0, |next| self.costs.transfer(mesh, next.1))
        };
        let seconds: Vec<f64> = (0..count).map(seconds).collect();
        let slowest = seconds.iter().copied().fold(0.0, f64::max);
        let all = seconds.iter().sum::<f64>() + (self.question.micro_batches as f64 - 1.0) * slowest;
        if all.is_finite() && self.best.is_none_or(|best| all < best) {
            self.best = Some(all);
        }
    }
}

fn by_enumeration(question: &StageQuestion, costs: &dyn StageCosts) -> Option<f64> {
    let mut all = Enumeration { question, costs, stages: Vec::new(), best: None };
    all.from(0, question.devices);
    all.best
}

/// Numbers that look random.
fn numbers(seed: &mut u64, count: usize, most: f64) -> Vec<f64> {
    let mut next = || {
        *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*seed >> 33) as f64 / (1u64 << 31) as f64 * most
    };
    (0..count).map(|_| next()).collect()
}

fn check(question: &StageQuestion, costs: &Costs) -> Option<StagePlan> {
    let (found, wanted) = (stages(question, costs), by_enumeration(question, costs));
    match (&found, wanted) {
        (Some(found), Some(wanted)) => {
            assert!((found.seconds / wanted - 1.0).abs() < 1e-12, "{} for {wanted}", found.seconds);
            let ends: Vec<usize> = found.stages.iter().map(|stage| stage.layers.end).collect();
            let starts: Vec<usize> = found.stages.iter().map(|stage| stage.layers.start).collect();
            assert_eq!(starts[1..], ends[..ends.len() - 1]);
            assert_eq!((starts[0], ends[ends.len() - 1]), (0, question.layers));
            let used: usize = found.stages.iter().map(|stage| question.submeshes[stage.submesh]).sum();
            assert_eq!(used, question.devices);
        }
        (None, None) => {}
        (found, wanted) => panic!("{found:?} for {wanted:?}"),
    }
    found
}

#[test]
fn pipelines_are_the_best_of_all_cuts_and_submeshes() {
    let mut seed = 7;
    let (mut fits, mut uneven, mut mixed) = (0, 0, 0);
    for round in 0..120 {
        let layers = 2 + round % 5;
        let submeshes = if round % 2 == 0 { vec![1, 2, 4] } else { StageQuestion::submeshes(2, 2) };
        let question = StageQuestion {
            layers,
            devices: 4,
            submeshes: submeshes.clone(),
            micro_batches: 1 + 5 * (round % 7),
        };
        let costs = Costs {
            work: numbers(&mut seed, layers, 5.0),
            state: numbers(&mut seed, layers, 4.0),
            activation: numbers(&mut seed, layers, 2.0),
            memory: [f64::INFINITY, 6.0, 4.0][round % 3],
            submeshes,
            send: numbers(&mut seed, 1, 0.5)[0],
            odd: round % 4 == 3,
        };
        let Some(found) = check(&question, &costs) else { continue };
        fits += 1;
        let count = |of: &dyn Fn(&bessemer_plan::Stage) -> usize| {
            let mut all: Vec<usize> = found.stages.iter().map(of).collect();
            all.sort_unstable();
            all.dedup();
            all.len()
        };
        uneven += usize::from(count(&|stage| stage.layers.len()) > 1);
        mixed += usize::from(count(&|stage| stage.submesh) > 1);
    }
    assert!(
        fits > 60 && fits < 120 && uneven > 20 && mixed > 10,
        "{fits} fit, {uneven} uneven, {mixed} mixed"
    );
}

/// A wide last layer makes its stage short.
#[test]
fn stages_are_uneven_where_layers_are() {
    let question = StageQuestion { layers: 5, devices: 2, submeshes: vec![1], micro_batches: 8 };
    let costs = Costs {
        work: vec![1.0, 1.0, 1.0, 1.0, 3.5],
        state: vec![0.0; 5],
        activation: vec![0.0; 5],
        memory: 1.0,
        submeshes: vec![1],
        send: 0.0,
        odd: false,
    };
    let found = check(&question, &costs).unwrap();
    let lengths: Vec<usize> = found.stages.iter().map(|stage| stage.layers.len()).collect();
    // 4 + 3.5 seconds, and 7 more rounds of the slower stage.
    assert_eq!((lengths, found.seconds), (vec![4, 1], 7.5 + 7.0 * 4.0));
}

#[test]
fn submeshes_are_powers_of_two_and_whole_nodes() {
    assert_eq!(StageQuestion::submeshes(3, 8), [1, 2, 4, 8, 16, 24]);
    assert_eq!(StageQuestion::submeshes(1, 1), [1]);
}
