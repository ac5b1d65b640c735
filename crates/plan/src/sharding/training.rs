//! What the options of a unit's decisions cost in a training: time and traffic of a micro-batch, its part of what a step does once, and
//! memory.
//!
//! A step sums gradients over data-parallel ranks and updates parameters once; a micro-batch is charged its part of that. ZeRO-2 and ZeRO-3 gather
//! and scatter beside the computation: the longer of both counts whole and a part e of the shorter is exposed. That is the larger of
//! C + e X and X + e C, of which a training is priced by the one that decides in its layers.

use super::exchange::Devices;
use super::graph::{CostGraph, Price};
use super::operators::{ShardOption, UnitGraph};
use crate::{DataParallel, Efficiency, Machine, ParameterBytes, Spread, collective_seconds};
use bessemer_mesh::Axis;
use bessemer_mesh::formulas::Exchange;
use bessemer_program::CollectiveKind;

/// How a step is shared by data-parallel ranks, and what its elements take.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Training {
    /// What data-parallel ranks keep a part of.
    pub zero: DataParallel,
    /// Data-parallel ranks, and how they lie.
    pub data: Spread,
    /// Micro-batches of a step on a rank.
    pub micro_batches: usize,
    /// Micro-batches between their forward and their backward pass at a time.
    pub in_flight: usize,
    /// Bytes of a parameter, its gradient and its state.
    pub bytes: ParameterBytes,
}

/// Seconds of a micro-batch.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Seconds {
    /// Operators, collectives of the layers, the optimizer.
    pub compute: f64,
    /// Gradients and parameters between data-parallel ranks.
    pub traffic: f64,
}

impl std::ops::AddAssign for Seconds {
    fn add_assign(&mut self, other: Seconds) {
        self.compute += other.compute;
        self.traffic += other.traffic;
    }
}

/// What decides how long a micro-batch takes where data-parallel ranks communicate beside the computation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BoundBy {
    /// Computation.
    Compute,
    /// Communication of data-parallel ranks.
    Traffic,
}

/// Prices of a training on devices.
#[derive(Debug, Clone, Copy)]
pub struct Prices<'a> {
    training: Training,
    devices: Devices<'a>,
}

/// Bytes of a collective of gradients or parameters: of large ones the time grows with the bytes.
const BUCKET: f64 = 64e6;

impl<'a> Prices<'a> {
    /// Prices of a training on devices.
    pub fn new(training: Training, devices: Devices<'a>) -> Prices<'a> {
        Prices { training, devices }
    }

    /// Seconds for each byte of a reduce-scatter or all-gather over data-parallel ranks.
    fn per_byte(&self, spread: Spread, axis: Axis) -> f64 {
        let Devices { machine, efficiency, .. } = self.devices;
        let kind = CollectiveKind::ReduceScatter;
        collective_seconds(kind, BUCKET, axis, spread, machine, efficiency) / BUCKET
    }

    /// Seconds of a micro-batch of an option.
    pub fn option(&self, option: &ShardOption) -> Seconds {
        let Training { zero, data, micro_batches, bytes, .. } = self.training;
        let Devices { machine, efficiency, axes } = self.devices;
        let m = micro_batches as f64;
        let passes = zero.passes(micro_batches, Exchange::EachMicroBatch);
        let axis = if zero == DataParallel::Ddp { Axis::Replicate } else { Axis::Shard };
        let each = passes.reduce_scatters * bytes.gradient
            // Halves of an all-reduce are of gradients both.
            + passes.all_gathers * if zero == DataParallel::Ddp { bytes.gradient } else { bytes.parameter };
        let traffic = match data.ranks {
            1 => 0.0,
            _ => option.elements * each * self.per_byte(data, axis) / m,
        };
        let sums: f64 = (axes.iter().zip(&option.partial))
            .map(|(axis, elements)| 2.0 * elements * bytes.gradient * self.per_byte(axis.spread, axis.axis))
            .sum();
        let update = update_seconds(option.elements, zero, data.ranks, machine, efficiency);
        Seconds { compute: option.seconds + (sums + update) / m, traffic }
    }

    /// Seconds of a micro-batch with all that is hidden.
    pub fn together(&self, seconds: Seconds) -> f64 {
        self.bound(seconds, BoundBy::Compute).max(self.bound(seconds, BoundBy::Traffic))
    }

    /// One of the two sums of which the larger is the time.
    fn bound(&self, Seconds { compute, traffic }: Seconds, by: BoundBy) -> f64 {
        let exposed = match self.training.zero {
            DataParallel::Ddp | DataParallel::Zero1 => 1.0,
            DataParallel::Zero2 | DataParallel::Zero3 => self.devices.efficiency.exposed.min(1.0),
        };
        match by {
            BoundBy::Compute => compute + exposed * traffic,
            BoundBy::Traffic => traffic + exposed * compute,
        }
    }

    /// What decides in a unit with its fastest options.
    pub fn decides(&self, seconds: Seconds) -> BoundBy {
        match self.bound(seconds, BoundBy::Traffic) > self.bound(seconds, BoundBy::Compute) {
            true => BoundBy::Traffic,
            false => BoundBy::Compute,
        }
    }

    /// Bytes of an option.
    fn memory(&self, option: &ShardOption) -> f64 {
        let Training { zero, data, in_flight, bytes, .. } = self.training;
        zero.bytes(bytes, option.elements, data.ranks) + in_flight as f64 * option.saved
    }

    /// The unit's decisions with their prices.
    pub fn graph(&self, unit: &UnitGraph, by: BoundBy) -> CostGraph {
        let mut graph = CostGraph::default();
        for decision in &unit.decisions {
            let price = |option: &ShardOption| Price {
                seconds: self.bound(self.option(option), by),
                memory: self.memory(option),
            };
            graph.add(decision.options.iter().map(price).collect());
        }
        for passage in &unit.passages {
            let [a, b] = passage.nodes;
            let of = |seconds: f64| self.bound(Seconds { compute: seconds, traffic: 0.0 }, by);
            let seconds: Vec<f64> = passage.traffic.iter().map(|traffic| of(traffic.seconds)).collect();
            graph.join(a, b, &seconds);
        }
        graph
    }

    /// Seconds of a micro-batch of a unit with these options.
    pub fn unit(&self, unit: &UnitGraph, options: &[usize]) -> Seconds {
        let mut all = Seconds::default();
        for (decision, option) in unit.decisions.iter().zip(options) {
            all += self.option(&decision.options[*option]);
        }
        let own: f64 = unit.decisions.iter().zip(options).map(|(d, option)| d.options[*option].seconds).sum();
        all.compute += unit.micro_batch(options).seconds - own;
        all
    }
}

/// Seconds of the update of a rank's parameters.
fn update_seconds(
    elements: f64,
    zero: DataParallel,
    ranks: usize,
    machine: &Machine,
    efficiency: &Efficiency,
) -> f64 {
    let own = if zero == DataParallel::Ddp { elements } else { elements / ranks as f64 };
    own * efficiency.optimizer_bytes / machine.memory_bandwidth
}
