//! A step of a plan, simulated: one rank of each pipeline stage, whose lists are those of 1F1B.
//!
//! Units compute one after the other. What data-parallel ranks exchange about a unit runs on a stream of its own: a gather begins
//! while the unit before computes, a reduction when the backward pass of the unit has ended. All ranks of a stage do the same at the
//! same time, so one stands for them.

use super::stage::{DataSeconds, Stages, TransferSeconds};
use super::{LayerPlan, Prices, Setting, UnitPrice};
use crate::ZeroStage;
use bessemer_schedule::{Flow, Instruction, Kind, Pass, Program, Shape, generate};
use bessemer_sim::SimError;
use bessemer_sim::replay::{Medium, Progress, RankEvent, ReplayGroup, StepEvents, replay};
use serde::Serialize;

/// A simulated step.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SimulatedStep {
    /// Seconds until the last rank is done.
    pub seconds: f64,
    /// Of these, seconds in which the busiest rank computes.
    pub compute: f64,
    /// Bytes of each stage.
    pub memory: Vec<f64>,
}

/// Simulates a step. `seconds` is infinite where a layer cannot have its choice.
///
/// # Errors
/// A schedule that does not fit.
pub fn step(setting: &Setting<'_>, prices: &Prices, plan: &LayerPlan) -> Result<SimulatedStep, SimError> {
    let stages = Stages::new(setting, prices, plan.degrees);
    let count = plan.degrees.pipeline;
    let program = generate(Kind::OneFOneB, &Shape::new(count, stages.micro_batches().max(1)))
        .map_err(|cause| SimError::Cost(cause.to_string()))?;
    let mut events = StepEvents::new(count);
    let mut memory = Vec::with_capacity(count);
    let mut compute = 0.0_f64;
    let mut first = 0;
    for (stage, length) in plan.stages.iter().enumerate() {
        let mut units: Vec<&UnitPrice> =
            (first..first + length).map(|layer| prices.layer(layer, plan.choices[layer])).collect();
        first += length;
        if units.iter().any(|unit| !unit.forward.is_finite()) {
            return Ok(SimulatedStep { seconds: f64::INFINITY, compute: 0.0, memory: vec![f64::INFINITY] });
        }
        memory.push(stages.held(stage, &units));
        if stage == 0 {
            units.insert(0, &prices.embedding);
        }
        if stage + 1 == count {
            units.push(&prices.head);
        }
        let data: Vec<DataSeconds> = units.iter().map(|unit| stages.data(unit.parameters)).collect();
        let writing =
            Writing { stages: &stages, stage, units, data, group: 0, begun: 0, reducing: Vec::new() };
        compute = compute.max(writing.write(&program, &mut events));
    }
    Ok(SimulatedStep {
        seconds: replay(&events)?.seconds() + setting.efficiency.step_seconds,
        compute,
        memory,
    })
}

/// One rank's list while it is written.
struct Writing<'a> {
    stages: &'a Stages<'a>,
    stage: usize,
    units: Vec<&'a UnitPrice>,
    data: Vec<DataSeconds>,
    /// The stream of the data-parallel ranks.
    group: usize,
    /// Collectives on it so far.
    begun: usize,
    /// Reductions that nobody has waited for.
    reducing: Vec<usize>,
}

impl Writing<'_> {
    /// Writes the list; returns the seconds in which the rank computes.
    fn write(mut self, program: &Program, events: &mut StepEvents) -> f64 {
        let progress = if self.stages.setting.overlap { Progress::Thread } else { Progress::Caller };
        let group = ReplayGroup {
            label: "data".into(),
            number: self.stage,
            ranks: vec![self.stage],
            progress,
            medium: Medium::Own,
        };
        self.group = events.group(group);
        let list = &mut events.lists[self.stage];
        let message = self.stages.message();
        let last_backward = |micro: usize| micro + 1 == program.micro_batches();
        let tag = |flow: Flow, micro: usize| 2 * micro as u64 + u64::from(flow == Flow::Gradient);
        for instruction in &program.lists[self.stage] {
            match *instruction {
                Instruction::Forward(_) => self.forward(list),
                Instruction::Backward(Pass { micro, .. }) => self.backward(list, last_backward(micro)),
                Instruction::Send { flow, micro, to, .. } => {
                    let (to, tag) = (to.rank, tag(flow, micro));
                    list.push(RankEvent::Send { to, tag, busy: message, latency: 0.0, medium: Medium::Own });
                }
                Instruction::Receive { flow, micro, from, .. } => {
                    list.push(RankEvent::Receive { from: from.rank, tag: tag(flow, micro) });
                }
                Instruction::Reduce { .. } => self.settle(list),
                Instruction::Step { .. } => {
                    let seconds = self.data.iter().map(|data| data.update).sum();
                    list.push(RankEvent::Compute { seconds });
                }
                _ => {}
            }
        }
        self.spread(list);
        list.iter().map(|event| if let RankEvent::Compute { seconds } = event { *seconds } else { 0.0 }).sum()
    }

    fn start(&mut self, list: &mut Vec<RankEvent>, seconds: f64) -> usize {
        list.push(RankEvent::Start { group: self.group, seconds, name: 0 });
        self.begun += 1;
        self.begun - 1
    }

    /// Pieces that no computation hides.
    fn exposed(&mut self, list: &mut Vec<RankEvent>, seconds: f64) {
        if seconds > 0.0 {
            let number = self.start(list, seconds);
            self.wait(list, number);
        }
    }

    fn wait(&self, list: &mut Vec<RankEvent>, number: usize) {
        list.push(RankEvent::Wait { group: self.group, number });
    }

    fn zero(&self) -> ZeroStage {
        match self.stages.degrees.data {
            1 => ZeroStage::Ddp,
            _ => self.stages.degrees.data_parallel(),
        }
    }

    fn forward(&mut self, list: &mut Vec<RankEvent>) {
        let seconds: Vec<f64> = self.units.iter().map(|unit| unit.forward).collect();
        self.pass(list, seconds.into_iter().enumerate().collect(), false);
    }

    /// `complete`: no pass adds to the gradients after this one.
    fn backward(&mut self, list: &mut Vec<RankEvent>, complete: bool) {
        let reduces = self.stages.degrees.data > 1
            && (complete || matches!(self.zero(), ZeroStage::Zero2 | ZeroStage::Zero3));
        let seconds: Vec<f64> = self.units.iter().map(|unit| unit.backward).collect();
        self.pass(list, seconds.into_iter().enumerate().rev().collect(), reduces);
    }

    /// A pass of units in their order, each with its seconds.
    fn pass(&mut self, list: &mut Vec<RankEvent>, units: Vec<(usize, f64)>, reduces: bool) {
        let gathers = self.zero() == ZeroStage::Zero3;
        if !gathers && !reduces {
            let seconds = units.iter().map(|unit| unit.1).sum();
            list.push(RankEvent::Compute { seconds });
            return;
        }
        let mut coming = gathers.then(|| self.start(list, self.data[units[0].0].gather.beside));
        for (at, (unit, seconds)) in units.iter().enumerate() {
            if let Some(number) = coming.take() {
                self.wait(list, number);
                self.exposed(list, self.data[*unit].gather.waited);
                let next = units.get(at + 1).map(|(next, _)| self.data[*next].gather.beside);
                coming = next.map(|seconds| self.start(list, seconds));
            }
            list.push(RankEvent::Compute { seconds: *seconds });
            if reduces {
                // Pieces of the reduction before end first, and all but the last ones of this one.
                self.settle(list);
                let TransferSeconds { beside, waited } = self.data[*unit].reduce;
                self.exposed(list, waited);
                let number = self.start(list, beside);
                self.reducing.push(number);
            }
        }
    }

    /// Waits for all reductions.
    fn settle(&mut self, list: &mut Vec<RankEvent>) {
        for number in std::mem::take(&mut self.reducing) {
            self.wait(list, number);
        }
    }

    /// Gathers updated parameters.
    fn spread(&mut self, list: &mut Vec<RankEvent>) {
        if matches!(self.zero(), ZeroStage::Zero1 | ZeroStage::Zero2) {
            for unit in 0..self.units.len() {
                let TransferSeconds { beside, waited } = self.data[unit].gather;
                self.exposed(list, beside + waited);
            }
        }
    }
}
