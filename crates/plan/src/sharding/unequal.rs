//! Stages on submeshes of different sizes, as Alpa has them (Zheng et al. 2022, section 5): what they would gain. No run has them.
//!
//! Every stage has the tensor-parallel ranks of a plan; the other devices of its submesh are data-parallel ranks, so that more of them share
//! the sequences of a micro-batch in a larger stage. Submeshes are those of the paper, with nodes in powers of two: 1, 2, 4, …
//! devices of a node, or 1, 2, 4, … nodes. The dynamic programme is that of [`stages`]. Stages are adjacent, so values go over
//! the network unless all devices are of one node; of two stages with different data-parallel ranks the larger slices count.

use super::exchange::{Devices, ShardAxis};
use super::graph::Entangled;
use super::pareto::Traces;
use super::search::{
    MeshCase, ShardingError, ShardingLayout, ShardingQuestion, Spreads, StageFronts, UnitPrograms, Units,
};
use super::unit::Layouts;
use crate::{Spread, StageCosts, StagePlan, StageQuestion, ZeroStage, collective_seconds, stages};
use bessemer_mesh::Axis;
use bessemer_program::CollectiveKind;
use bessemer_units::Recompute;
use std::ops::Range;

/// Most devices of a question about unequal submeshes.
pub const MOST_UNEQUAL_DEVICES: usize = 64;

/// A stage on a submesh of its own.
#[derive(Debug, Clone, PartialEq)]
pub struct UnequalStage {
    /// Layers of the model.
    pub layers: usize,
    /// Tensor-parallel ranks.
    pub tensor: usize,
    /// Data-parallel ranks.
    pub data: usize,
    /// Seconds of a micro-batch, with what it sends the next stage.
    pub seconds: f64,
}

/// The fastest pipeline of stages on submeshes that may differ.
#[derive(Debug, Clone, PartialEq)]
pub struct UnequalStages {
    /// From the first stage to the last.
    pub stages: Vec<UnequalStage>,
    /// Seconds of a step.
    pub seconds: f64,
    /// Seconds of the fastest pipeline whose stages have the same submesh, by the same prices; infinite where none fits.
    pub equal: f64,
}

/// A size of stages with all that they may compute.
struct Submesh<'a> {
    question: ShardingQuestion<'a>,
    axes: [ShardAxis; 1],
    spreads: Spreads,
    units: Units,
    layout: ShardingLayout,
    traces: Traces,
    /// By micro-batches in flight less one.
    fronts: Vec<StageFronts>,
}

impl<'a> Submesh<'a> {
    fn new(
        question: &ShardingQuestion<'a>,
        layout: ShardingLayout,
        programs: &UnitPrograms,
        most_in_flight: usize,
    ) -> Result<Submesh<'a>, Entangled> {
        let question = ShardingQuestion { devices: layout.tensor * layout.data, ..question.clone() };
        let spreads = question.spreads(layout.tensor, 1, layout.data);
        let axes = [ShardAxis::tensor(spreads.tensor)];
        let devices = Devices { machine: question.machine, efficiency: question.efficiency, axes: &axes };
        let units = Units::new(programs, devices, Layouts::Partition { sequence: layout.sequence });
        let (traces, fronts) = (Traces::default(), Vec::new());
        let mut submesh = Submesh { question, axes, spreads, units, layout, traces, fronts };
        let mut traces = Traces::default();
        for in_flight in 1..=most_in_flight {
            let mesh = submesh.mesh(in_flight);
            let Some((by, _)) = mesh.least()? else { break };
            let fronts = StageFronts::new(&mesh, by, &mut traces)?;
            submesh.fronts.push(fronts);
        }
        submesh.traces = traces;
        Ok(submesh)
    }

    /// A mesh of so many stages of this size, the first of which holds as many micro-batches at a time.
    fn mesh(&self, stages: usize) -> MeshCase<'_> {
        let Submesh { question, axes, spreads, units, layout, .. } = self;
        let devices = Devices { machine: question.machine, efficiency: question.efficiency, axes };
        let layout = ShardingLayout { pipeline: stages, ..*layout };
        MeshCase { question, layout, spreads: *spreads, devices, units }
    }

    /// Seconds of a micro-batch by the bound that the fronts are of.
    fn stage(&self, units: Range<usize>, in_flight: usize) -> Option<f64> {
        Some(self.fronts.get(in_flight - 1)?.point(units, in_flight)?.price.seconds)
    }

    /// Seconds of a micro-batch with all that is hidden.
    fn exact(&self, units: Range<usize>, in_flight: usize) -> Option<f64> {
        let point = self.fronts.get(in_flight - 1)?.point(units.clone(), in_flight)?;
        Some(self.mesh(in_flight).priced(&self.traces, point, units.start, in_flight).seconds)
    }

    /// Bytes that a rank sends the next stage.
    fn sends(&self) -> f64 {
        let parts = if self.layout.sequence { self.layout.tensor } else { 1 };
        self.units.layer.stream_bytes / parts as f64
    }
}

/// Some of the sizes of stages of a question.
struct Submeshes<'a> {
    all: Vec<&'a Submesh<'a>>,
    /// Devices of the question.
    devices: usize,
}

impl StageCosts for Submeshes<'_> {
    fn stage(&self, units: Range<usize>, submesh: usize, in_flight: usize) -> f64 {
        self.all[submesh].stage(units, in_flight).unwrap_or(f64::INFINITY)
    }

    fn transfer(&self, from: usize, to: usize) -> f64 {
        let [from, to] = [from, to].map(|submesh| self.all[submesh]);
        let ShardingQuestion { machine, efficiency, .. } = from.question;
        let inside = self.devices <= machine.node;
        let (per_node, sharing) = if inside { (2, 1) } else { (1, machine.node) };
        let spread = Spread { ranks: 2, per_node, sharing };
        let (kind, bytes) = (CollectiveKind::Permute, from.sends().max(to.sends()));
        2.0 * collective_seconds(kind, bytes, Axis::Pipeline, spread, machine, efficiency)
    }
}

impl Submeshes<'_> {
    /// The fastest pipeline, with the seconds of all that is hidden.
    fn solve(&self, layers: usize, micro_batches: usize) -> Option<StagePlan> {
        let question = StageQuestion {
            layers: layers + 2,
            devices: self.devices,
            submeshes: self.all.iter().map(|submesh| submesh.question.devices).collect(),
            micro_batches,
        };
        let mut plan = stages(&question, self)?;
        let count = plan.stages.len();
        for number in 0..count {
            let next = plan.stages.get(number + 1).map(|next| next.submesh);
            let stage = &mut plan.stages[number];
            let in_flight = (count - number).min(micro_batches);
            let own = self.all[stage.submesh].exact(stage.layers.clone(), in_flight)?;
            stage.seconds = own + next.map_or(0.0, |next| self.transfer(stage.submesh, next));
        }
        let seconds = |stage: &crate::Stage| stage.seconds;
        let slowest = plan.stages.iter().map(seconds).fold(0.0, f64::max);
        let all: f64 = plan.stages.iter().map(seconds).sum();
        plan.seconds = all + (micro_batches as f64 - 1.0) * slowest;
        Some(plan)
    }
}

/// Returns the fastest pipeline of stages on submeshes that may differ, with the tensor-parallel ranks, ZeRO's stage, recomputation and sequences of a
/// micro-batch of a plan. None where nothing fits, for more than [`MOST_UNEQUAL_DEVICES`] devices, and where embedding and head share
/// a parameter. `programs` records the units for micro-batches of so many sequences.
///
/// # Errors
/// Errors of `programs`; graphs too entangled to be solved.
pub fn unequal_stages<E>(
    question: &ShardingQuestion<'_>,
    plan: &ShardingLayout,
    mut programs: impl FnMut(usize, Recompute) -> Result<UnitPrograms, E>,
) -> Result<Option<UnequalStages>, ShardingError<E>> {
    let (devices, node) = (question.devices, question.machine.node);
    let sequences = plan.micro_batch * plan.data;
    let micro_batches = question.sequences / sequences.max(1);
    if question.tied.is_some() || devices > MOST_UNEQUAL_DEVICES || micro_batches == 0 {
        return Ok(None);
    }
    let sizes = StageQuestion::submeshes(devices.div_ceil(node), node).into_iter().filter(|size| {
        *size <= devices
            && (*size < node || (size / node).is_power_of_two())
            && size.is_multiple_of(plan.tensor)
    });
    let sizes: Vec<usize> = sizes.filter(|size| sequences.is_multiple_of(size / plan.tensor)).collect();
    let smallest = sizes.first().copied().unwrap_or(devices).max(1);
    let most_in_flight = (devices / smallest).min(question.layers + 2).min(micro_batches);
    let mut all = Vec::new();
    for size in &sizes {
        let data = size / plan.tensor;
        let layout = ShardingLayout {
            data,
            micro_batch: sequences / data,
            zero: if data == 1 { ZeroStage::Ddp } else { plan.zero },
            ..*plan
        };
        let programs = programs(layout.micro_batch, layout.recompute).map_err(ShardingError::Programs)?;
        all.push(Submesh::new(question, layout, &programs, most_in_flight)?);
    }
    let solve = |all: Vec<_>| Submeshes { all, devices }.solve(question.layers, micro_batches);
    let equal =
        all.iter().filter_map(|submesh| Some(solve(vec![submesh])?.seconds)).fold(f64::INFINITY, f64::min);
    let Some(found) = solve(all.iter().collect()) else { return Ok(None) };
    let of_stage = |stage: &crate::Stage| {
        let (Range { start, end }, layout) = (stage.layers.clone(), &all[stage.submesh].layout);
        UnequalStage {
            layers: end.min(question.layers + 1) - start.max(1),
            tensor: layout.tensor,
            data: layout.data,
            seconds: stage.seconds,
        }
    };
    Ok(Some(UnequalStages {
        stages: found.stages.iter().map(of_stage).collect(),
        seconds: found.seconds,
        equal,
    }))
}
