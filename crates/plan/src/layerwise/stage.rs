//! Cost of a unit in a pipeline stage, as sums over units can use it, and what a stage holds besides them.
//!
//! Gradients of a unit travel beside the backward pass of the unit below, as many pieces of them as the runtime has memory for, so a unit
//! adds the other pieces, and what these take longer than its own backward pass; with ZeRO-2 and ZeRO-3 it does so for each
//! micro-batch, with ZeRO-3 parameters too. The simulation of the whole
//! step says what a plan really takes.

use super::{Degrees, Prices, Setting, UnitPrice};
use crate::{Spread, ZeroStage, collective_seconds};
use bessemer_mesh::{Axis, Mesh, MeshConfig};
use bessemer_program::{BUCKET, CollectiveKind, piece_width};

/// Cost of units.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub(super) struct StageCost {
    /// Seconds of the two passes of a micro-batch.
    pub pass: f64,
    /// Seconds once a step, behind the last backward pass.
    pub tail: f64,
    /// Bytes.
    pub memory: f64,
}

impl std::ops::Add for StageCost {
    type Output = StageCost;

    fn add(self, other: StageCost) -> StageCost {
        StageCost {
            pass: self.pass + other.pass,
            tail: self.tail + other.tail,
            memory: self.memory + other.memory,
        }
    }
}

/// Seconds of a transfer between data-parallel ranks.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub(super) struct TransferSeconds {
    /// Pieces that may run beside the computation of another unit.
    pub(super) beside: f64,
    /// The other pieces, for which the rank waits.
    pub(super) waited: f64,
}

impl TransferSeconds {
    fn all(self) -> f64 {
        self.beside + self.waited
    }

    /// Seconds that it adds to a computation of so many seconds.
    fn behind(self, computes: f64, overlap: bool) -> f64 {
        if overlap { self.waited + (self.beside - computes).max(0.0) } else { self.all() }
    }
}

impl std::ops::Add for TransferSeconds {
    type Output = TransferSeconds;

    fn add(self, other: TransferSeconds) -> TransferSeconds {
        TransferSeconds { beside: self.beside + other.beside, waited: self.waited + other.waited }
    }
}

/// Seconds of what data-parallel ranks exchange about a unit, and of its optimizer step.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub(super) struct DataSeconds {
    /// An all-gather of its parameters.
    pub(super) gather: TransferSeconds,
    /// A reduction of its gradients.
    pub(super) reduce: TransferSeconds,
    /// The update of what the rank has.
    pub(super) update: f64,
}

/// Everything that plans of these degrees have in common.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stages<'a> {
    pub(super) setting: &'a Setting<'a>,
    pub(super) prices: &'a Prices,
    pub(super) degrees: Degrees,
    data: Spread,
}

impl<'a> Stages<'a> {
    pub(super) fn new(setting: &'a Setting<'a>, prices: &'a Prices, degrees: Degrees) -> Stages<'a> {
        Stages { setting, prices, degrees, data: spread(&degrees, Axis::Shard, setting.machine.node) }
    }

    pub(super) fn micro_batches(&self) -> usize {
        self.setting.micro_batches(&self.degrees)
    }

    /// Micro-batches between their passes on a stage at a time: 1F1B.
    fn in_flight(&self, stage: usize) -> usize {
        self.micro_batches().min(self.degrees.pipeline - stage)
    }

    /// Seconds of a message from a stage to the next.
    pub(super) fn message(&self) -> f64 {
        if self.degrees.pipeline == 1 {
            return 0.0;
        }
        let Setting { machine, efficiency, .. } = self.setting;
        let spread = spread(&self.degrees, Axis::Pipeline, machine.node);
        let kind = CollectiveKind::Permute;
        collective_seconds(kind, self.prices.stream, Axis::Pipeline, spread, machine, efficiency)
    }

    pub(super) fn data(&self, parameters: f64) -> DataSeconds {
        let Setting { machine, efficiency, bytes, in_flight, .. } = self.setting;
        // In the pieces in which a flat parameter travels.
        let ranks = self.degrees.data;
        let piece = (piece_width(BUCKET, ranks) * ranks) as f64;
        let seconds = |kind, element: f64, ahead: f64| {
            let of = |elements: f64| {
                let bytes = elements * element;
                collective_seconds(kind, bytes, Axis::Shard, self.data, machine, efficiency)
            };
            let all = (parameters / piece).floor() * of(piece) + of(parameters % piece);
            let beside = all.min(ahead * of(piece.min(parameters)));
            TransferSeconds { beside, waited: all - beside }
        };
        let zero = self.degrees.data_parallel();
        let reduction = match zero {
            ZeroStage::Ddp => CollectiveKind::AllReduce,
            _ => CollectiveKind::ReduceScatter,
        };
        let held = if zero == ZeroStage::Ddp { parameters } else { parameters / ranks as f64 };
        DataSeconds {
            gather: match zero {
                ZeroStage::Ddp => TransferSeconds::default(),
                _ => seconds(CollectiveKind::AllGather, bytes.parameter, in_flight.values as f64),
            },
            reduce: seconds(reduction, bytes.gradient, in_flight.gradients as f64),
            update: held * efficiency.optimizer_bytes / machine.memory_bandwidth,
        }
    }

    /// Bytes of parameters, gradients and optimizer state.
    fn states(&self, parameters: f64) -> f64 {
        let data = self.degrees.data;
        self.degrees.data_parallel().bytes(self.setting.bytes, parameters, data)
    }

    /// Cost of a unit in a stage.
    pub(super) fn unit(&self, price: &UnitPrice, stage: usize) -> StageCost {
        let DataSeconds { gather, reduce, update } = self.data(price.parameters);
        let behind = |traffic: TransferSeconds, computes| traffic.behind(computes, self.setting.overlap);
        let computes = price.forward + price.backward;
        let (pass, tail) = match self.degrees.data_parallel() {
            ZeroStage::Ddp => (computes, behind(reduce, price.backward)),
            ZeroStage::Zero1 => (computes, behind(reduce, price.backward) + gather.all()),
            ZeroStage::Zero2 => (computes + behind(reduce, price.backward), gather.all()),
            ZeroStage::Zero3 => {
                (computes + behind(gather, price.forward) + behind(gather + reduce, price.backward), 0.0)
            }
        };
        let saved = self.in_flight(stage) as f64 * price.saved;
        StageCost { pass, tail: tail + update, memory: self.states(price.parameters) + saved }
    }

    /// Cost of what a stage has besides its layers: embedding and head, messages, buffers that its layers share.
    pub(super) fn besides(&self, stage: usize) -> StageCost {
        let (first, last) = (stage == 0, stage + 1 == self.degrees.pipeline);
        let mut cost = StageCost::default();
        if first {
            cost = cost + self.unit(&self.prices.embedding, stage);
        }
        if last {
            cost = cost + self.unit(&self.prices.head, stage);
        }
        if first && last {
            cost.memory -= self.states(self.prices.tied);
        }
        let ends = usize::from(!first) + usize::from(!last);
        cost.pass += ends as f64 * self.message();
        // The stream behind the last layer, and its gradient.
        let streams = if last { 2.0 } else { 1.0 };
        cost.memory += streams * self.in_flight(stage) as f64 * self.prices.stream;
        cost
    }

    /// Bytes of a stage with these layers.
    pub(super) fn held(&self, stage: usize, layers: &[&UnitPrice]) -> f64 {
        let shared = layers.iter().map(|unit| self.shared(stage, unit.scratch, unit.parameters));
        let units = layers.iter().map(|unit| self.unit(unit, stage).memory);
        self.besides(stage).memory + units.sum::<f64>() + shared.fold(0.0, f64::max)
    }

    /// Bytes of buffers that the units of a stage share. `parameters`: of its largest layer.
    pub(super) fn shared(&self, stage: usize, scratch: f64, parameters: f64) -> f64 {
        let (mut scratch, mut ends) = (scratch, 0.0);
        for (end, here) in
            [(&self.prices.embedding, stage == 0), (&self.prices.head, stage + 1 == self.degrees.pipeline)]
        {
            if here {
                scratch = scratch.max(end.scratch);
                ends += end.parameters;
            }
        }
        // The layer that computes and the one that travels; embedding and head are gathered in memory of their own.
        let parameters = 2.0 * parameters;
        let bytes = self.setting.bytes;
        let gathered = match self.degrees.data_parallel() {
            _ if self.degrees.data == 1 => 0.0,
            ZeroStage::Ddp | ZeroStage::Zero1 => 0.0,
            ZeroStage::Zero2 => parameters * bytes.gradient,
            ZeroStage::Zero3 => parameters * (bytes.parameter + bytes.gradient) + ends * bytes.parameter,
        };
        scratch + gathered
    }
}

/// How the ranks of an axis lie on the nodes.
pub(super) fn spread(degrees: &Degrees, axis: Axis, node: usize) -> Spread {
    let config = MeshConfig::new()
        .with(Axis::Tensor, degrees.tensor)
        .with(Axis::Shard, degrees.data)
        .with(Axis::Pipeline, degrees.pipeline);
    let ranks = degrees.tensor * degrees.data * degrees.pipeline;
    match Mesh::new(&config, ranks) {
        Ok(mesh) => Spread::of(&mesh, axis, node),
        Err(_) => Spread::consecutive(1, node),
    }
}
