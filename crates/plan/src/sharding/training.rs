//! What the options of a unit's decisions cost in a training: time and traffic of a micro-batch, its part of what a step does once, and
//! memory.
//!
//! A step sums gradients over data-parallel ranks and updates parameters once; a micro-batch is charged its part of that. ZeRO-2 and ZeRO-3 gather
//! and scatter beside the computation: the longer of both counts whole and a part e of the shorter is exposed. That is the larger of
//! C + e X and X + e C, of which a training is priced by the one that decides in its layers.

use super::exchange::Devices;
use super::graph::{CostGraph, Price};
use super::unit::{ShardOption, UnitGraph};
use crate::{ParameterBytes, Spread, ZeroStage, collective_seconds};
use bessemer_mesh::Axis;
use bessemer_mesh::formulas::Exchange;
use bessemer_program::CollectiveKind;

/// How a step is shared by data-parallel ranks, and what its elements take.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Training {
    /// Tensors that data-parallel ranks keep a part of.
    pub zero: ZeroStage,
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
    /// Seconds of operators, of collectives inside layers, and of the optimizer.
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

    /// Seconds for each byte of a collective over data-parallel ranks.
    fn per_byte(&self, kind: CollectiveKind, spread: Spread, axis: Axis) -> f64 {
        let Devices { machine, efficiency, .. } = self.devices;
        collective_seconds(kind, BUCKET, axis, spread, machine, efficiency) / BUCKET
    }

    /// Elements of an option's parameters whose gradients groups of ranks sum, and these groups: data-parallel ranks, and axes of the graph
    /// that share states. Of what one axis has summed each rank has a part for the next.
    fn shared(&self, option: &ShardOption) -> Vec<(f64, Spread, Axis)> {
        let Training { zero, data, .. } = self.training;
        let axis = if zero == ZeroStage::Ddp { Axis::Replicate } else { Axis::Shard };
        let own = (data.ranks > 1).then_some((option.elements, data, axis));
        let mut left = 1.0;
        let axes = self.devices.axes.iter().zip(&option.partial).filter(|(axis, _)| axis.shares_states);
        let axes = axes.map(|(axis, partial)| {
            let elements = partial * left;
            left *= 1.0 - partial / option.elements.max(1.0) * (1.0 - 1.0 / axis.spread.ranks as f64);
            (elements, axis.spread, axis.axis)
        });
        own.into_iter().chain(axes).collect()
    }

    /// Seconds of a micro-batch of an option.
    pub fn option(&self, option: &ShardOption) -> Seconds {
        let Training { zero, micro_batches, bytes, .. } = self.training;
        let Devices { machine, efficiency, axes } = self.devices;
        let m = micro_batches as f64;
        let passes = zero.passes(micro_batches, Exchange::EachMicroBatch);
        let each = |spread, axis| match zero {
            ZeroStage::Ddp => {
                // A scatter and a gather of gradients are one sum.
                passes.reduce_scatters
                    * bytes.gradient
                    * self.per_byte(CollectiveKind::AllReduce, spread, axis)
            }
            _ => {
                let scatter = self.per_byte(CollectiveKind::ReduceScatter, spread, axis);
                let gather = self.per_byte(CollectiveKind::AllGather, spread, axis);
                passes.reduce_scatters * bytes.gradient * scatter
                    + passes.all_gathers * bytes.parameter * gather
            }
        };
        let traffic: f64 = self
            .shared(option)
            .into_iter()
            .map(|(elements, spread, axis)| elements * each(spread, axis))
            .sum();
        let sums: f64 = (axes.iter().zip(&option.partial))
            .filter(|(axis, _)| !axis.shares_states)
            .map(|(axis, elements)| {
                let sum = self.per_byte(CollectiveKind::AllReduce, axis.spread, axis.axis);
                elements * bytes.gradient * sum
            })
            .sum();
        let own = match zero {
            ZeroStage::Ddp => option.elements,
            _ => self.own(option),
        };
        let update = own * efficiency.optimizer_bytes / machine.memory_bandwidth;
        Seconds { compute: option.seconds + (sums + update) / m, traffic: traffic / m }
    }

    /// Elements of which a rank has the only state.
    fn own(&self, option: &ShardOption) -> f64 {
        let others =
            |(elements, spread, _): (f64, Spread, Axis)| elements * (1.0 - 1.0 / spread.ranks as f64);
        option.elements - self.shared(option).into_iter().map(others).sum::<f64>()
    }

    /// Seconds of a micro-batch with all that is hidden.
    pub fn together(&self, seconds: Seconds) -> f64 {
        self.bound(seconds, BoundBy::Compute).max(self.bound(seconds, BoundBy::Traffic))
    }

    /// One of the two sums of which the larger is the time.
    fn bound(&self, Seconds { compute, traffic }: Seconds, by: BoundBy) -> f64 {
        let exposed = match self.training.zero {
            ZeroStage::Ddp | ZeroStage::Zero1 => 1.0,
            ZeroStage::Zero2 | ZeroStage::Zero3 => self.devices.efficiency.exposed.min(1.0),
        };
        match by {
            BoundBy::Compute => compute + exposed * traffic,
            BoundBy::Traffic => traffic + exposed * compute,
        }
    }

    /// Bytes of an option.
    fn memory(&self, option: &ShardOption) -> f64 {
        let Training { zero, in_flight, bytes, .. } = self.training;
        let (all, own) = (option.elements, self.own(option));
        // As if `all / own` ranks had a part of each element.
        let part = |shards: bool, bytes: f64| bytes * if shards { own } else { all };
        part(zero == ZeroStage::Zero3, bytes.parameter)
            + part(matches!(zero, ZeroStage::Zero2 | ZeroStage::Zero3), bytes.gradient)
            + part(zero != ZeroStage::Ddp, bytes.state)
            + in_flight as f64 * option.saved
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
