//! Inter-operator parallelism by the method of Alpa (Zheng et al. 2022, section 5): layers are cut into stages of a pipeline, each of which gets a
//! part of the devices.
//!
//! A step of B micro-batches over stages of t_1, ..., t_S seconds takes `t_1 + ... + t_S + (B - 1) max t`. For every bound on the slowest stage the least sum
//! is found by dynamic programming from the last stage to the first: over the stages so far, the layer at which they begin, the devices that
//! they have and those of the first of them. Bounds are tried upward; once even the least sum of all stages with the next bound is no better
//! than the best step, none is.
//!
//! Beside the paper: a stage's time includes what it sends the next one, which depends on the devices of both, and the micro-batches that a stage holds
//! at a time (as many as there are stages from it to the end, in 1F1B) are known to whoever says whether it fits.

use std::ops::Range;

/// Prices of stages.
pub trait StageCosts {
    /// Seconds of a micro-batch, forward and backward, in a stage of these layers on submesh number `submesh` that holds `in_flight` micro-batches
    /// at a time; infinite where it does not fit.
    fn stage(&self, layers: Range<usize>, submesh: usize, in_flight: usize) -> f64;

    /// Seconds of a micro-batch between a stage and the next: values, and their gradients back.
    fn transfer(&self, from: usize, to: usize) -> f64;
}

/// Layers and devices to be cut into stages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StageQuestion {
    /// Layers.
    pub layers: usize,
    /// Devices, all of which are used.
    pub devices: usize,
    /// Devices of each submesh that a stage may have.
    pub submeshes: Vec<usize>,
    /// Micro-batches of a step.
    pub micro_batches: usize,
}

/// One stage.
#[derive(Debug, Clone, PartialEq)]
pub struct Stage {
    /// Its layers.
    pub layers: Range<usize>,
    /// Number of its submesh.
    pub submesh: usize,
    /// Seconds of a micro-batch, with what it sends the next stage.
    pub seconds: f64,
}

/// A pipeline.
#[derive(Debug, Clone, PartialEq)]
pub struct StagePlan {
    /// From the first stage to the last.
    pub stages: Vec<Stage>,
    /// Seconds of a step.
    pub seconds: f64,
}

impl StageQuestion {
    /// The submeshes of the paper for `nodes` nodes of `per_node` devices: a node's devices in powers of two, or some whole nodes.
    pub fn submeshes(nodes: usize, per_node: usize) -> Vec<usize> {
        let within = (0..).map(|power| 1 << power).take_while(|devices| *devices < per_node);
        within.chain((1..=nodes).map(|nodes| nodes * per_node)).collect()
    }
}

/// The part of a step after some layer: least sum of seconds, and the first stage of it.
#[derive(Clone, Copy)]
struct Suffix {
    seconds: f64,
    end: usize,
    next: usize,
}

const NONE: Suffix = Suffix { seconds: f64::INFINITY, end: 0, next: 0 };

/// Seconds of all stages that may be.
struct Tables<'a> {
    question: &'a StageQuestion,
    /// Devices of each submesh and in all, in units that divide them.
    sizes: Vec<usize>,
    devices: usize,
    most_stages: usize,
    /// By micro-batches in flight, first layer, end and submesh.
    stage: Vec<f64>,
    /// By submesh and that of the next stage.
    transfer: Vec<f64>,
    /// Whether no stage takes less time for another layer at its end.
    grows: bool,
}

impl Tables<'_> {
    fn new<'a>(question: &'a StageQuestion, costs: &dyn StageCosts) -> Tables<'a> {
        let divisor = question.submeshes.iter().fold(question.devices, |a, b| gcd(a, *b)).max(1);
        let sizes: Vec<usize> = question.submeshes.iter().map(|devices| devices / divisor).collect();
        let devices = question.devices / divisor;
        let smallest = sizes.iter().copied().min().unwrap_or(1).max(1);
        let most_stages = question.layers.min(devices / smallest);
        let (layers, meshes) = (question.layers, sizes.len());
        let mut stage = Vec::with_capacity(most_stages * layers * (layers + 1) * meshes);
        for stages in 1..=most_stages {
            for first in 0..layers {
                for end in 0..=layers {
                    let in_flight = stages.min(question.micro_batches);
                    let seconds = |mesh: usize| match first < end {
                        true => costs.stage(first..end, mesh, in_flight),
                        false => f64::INFINITY,
                    };
                    stage.extend((0..meshes).map(seconds));
                }
            }
        }
        let transfer = (0..meshes * meshes).map(|at| costs.transfer(at / meshes, at % meshes)).collect();
        let mut tables = Tables { question, sizes, devices, most_stages, stage, transfer, grows: false };
        tables.grows = tables.grows();
        tables
    }

    fn grows(&self) -> bool {
        let layers = self.question.layers;
        (1..=self.most_stages).all(|stages| {
            (0..layers).all(|first| {
                let grows = |end: usize, mesh: usize| {
                    self.stage(stages, first..end, mesh) <= self.stage(stages, first..end + 1, mesh)
                };
                // A stage up to the last layer may be of another kind.
                (first + 1..layers.saturating_sub(1))
                    .all(|end| (0..self.sizes.len()).all(|mesh| grows(end, mesh)))
            })
        })
    }

    fn stage(&self, stages: usize, layers: Range<usize>, mesh: usize) -> f64 {
        let count = self.question.layers;
        self.stage
            [(((stages - 1) * count + layers.start) * (count + 1) + layers.end) * self.sizes.len() + mesh]
    }

    fn transfer(&self, from: usize, to: usize) -> f64 {
        self.transfer[from * self.sizes.len() + to]
    }

    /// Every time that a stage may take, ascending.
    fn bounds(&self) -> Vec<f64> {
        let meshes = self.sizes.len();
        let mut bounds: Vec<f64> = Vec::new();
        for (at, seconds) in self.stage.iter().enumerate().filter(|(_, seconds)| seconds.is_finite()) {
            bounds.push(*seconds);
            bounds.extend((0..meshes).map(|next| seconds + self.transfer(at % meshes, next)));
        }
        bounds.sort_by(f64::total_cmp);
        bounds.dedup();
        bounds.retain(|bound| bound.is_finite());
        bounds
    }

    /// The least sum of seconds where no stage takes more than `bound`.
    fn best(&self, bound: f64) -> Option<Vec<Stage>> {
        let (layers, devices, meshes) = (self.question.layers, self.devices, self.sizes.len());
        let at = |layer: usize, used: usize, mesh: usize| (layer * (devices + 1) + used) * meshes + mesh;
        // By number of stages.
        let mut tables: Vec<Vec<Suffix>> = vec![Vec::new()];
        let mut reached: Vec<usize> = vec![0];
        for stages in 1..=self.most_stages {
            let mut table = vec![NONE; (layers + 1) * (devices + 1) * meshes];
            let mut reaches: Vec<usize> = Vec::new();
            for mesh in 0..meshes {
                for before in &reached {
                    let used = before + self.sizes[mesh];
                    if used > devices {
                        continue;
                    }
                    for first in 0..layers {
                        let mut least = table[at(first, used, mesh)];
                        if stages == 1 {
                            let seconds = self.stage(1, first..layers, mesh);
                            if seconds <= bound && seconds < least.seconds {
                                least = Suffix { seconds, end: layers, next: mesh };
                            }
                        } else {
                            for end in first + 1..layers {
                                let own = self.stage(stages, first..end, mesh);
                                if own > bound || own.is_infinite() {
                                    if self.grows {
                                        break;
                                    }
                                    continue;
                                }
                                for next in 0..meshes {
                                    let after = tables[stages - 1][at(end, *before, next)].seconds;
                                    let own = own + self.transfer(mesh, next);
                                    if own <= bound && own + after < least.seconds {
                                        least = Suffix { seconds: own + after, end, next };
                                    }
                                }
                            }
                        }
                        if least.seconds.is_finite() {
                            reaches.push(used);
                        }
                        table[at(first, used, mesh)] = least;
                    }
                }
            }
            reaches.sort_unstable();
            reaches.dedup();
            reached = reaches;
            tables.push(table);
        }
        let ends = (1..=self.most_stages)
            .flat_map(|stages| (0..meshes).map(move |mesh| (stages, mesh)))
            .map(|(stages, mesh)| (tables[stages][at(0, devices, mesh)].seconds, stages, mesh));
        let (seconds, mut stages, mut mesh) = ends.min_by(|a, b| a.0.total_cmp(&b.0))?;
        if seconds.is_infinite() {
            return None;
        }
        let (mut first, mut used, mut found) = (0, devices, Vec::new());
        while stages > 0 {
            let Suffix { end, next, .. } = tables[stages][at(first, used, mesh)];
            let sends = if stages > 1 { self.transfer(mesh, next) } else { 0.0 };
            let seconds = self.stage(stages, first..end, mesh) + sends;
            found.push(Stage { layers: first..end, submesh: mesh, seconds });
            used -= self.sizes[mesh];
            (first, mesh, stages) = (end, next, stages - 1);
        }
        Some(found)
    }
}

/// Returns the fastest pipeline, or none where nothing fits.
pub fn stages(question: &StageQuestion, costs: &dyn StageCosts) -> Option<StagePlan> {
    if question.layers == 0 || question.submeshes.contains(&0) || question.micro_batches == 0 {
        return None;
    }
    let tables = Tables::new(question, costs);
    let bounds = tables.bounds();
    let sum = |stages: &[Stage]| stages.iter().map(|stage| stage.seconds).sum::<f64>();
    let least = sum(&tables.best(f64::INFINITY)?);
    let others = question.micro_batches as f64 - 1.0;
    // The lowest bound that leaves any pipeline.
    let first = bounds.partition_point(|bound| tables.best(*bound).is_none());
    let mut best: Option<StagePlan> = None;
    for bound in &bounds[first..] {
        if best.as_ref().is_some_and(|best| least + others * bound >= best.seconds) {
            break;
        }
        let Some(found) = tables.best(*bound) else { continue };
        let slowest = found.iter().map(|stage| stage.seconds).fold(0.0, f64::max);
        let seconds = sum(&found) + others * slowest;
        if best.as_ref().is_none_or(|best| seconds < best.seconds) {
            best = Some(StagePlan { stages: found, seconds });
        }
    }
    best
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}
