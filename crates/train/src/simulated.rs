//! The time of a step that nobody runs: the lists of its ranks on null devices, with what each node costs.

use crate::TrainError;
use crate::memory::with_job;
use bessemer_arch::Model;
use bessemer_collectives::NullCommunicator;
use bessemer_mesh::Axis;
use bessemer_parallel::{Job, MemoryPlan, ParallelError, Plan, Worker};
use bessemer_recipe::Recipe;
use bessemer_sim::SimError;
use bessemer_sim::replay::{NodeCosts, RankWriter, Replay, StepEvents, replay};
use bessemer_tensor::null::NullBackend;

/// Ranks whose lists are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SimulatedRanks {
    /// All ranks.
    All,
    /// Of ranks that do the same at the same time, one: the first data-parallel and the first tensor-parallel one of each pipeline
    /// and context rank. All ranks of tensor-parallel grids and, where an optimizer needs whole matrices, of the shard axis.
    Representatives,
}

/// A simulated step.
#[derive(Debug, Clone, PartialEq)]
pub struct SimulatedStep {
    /// Lists of its ranks.
    pub events: StepEvents,
    /// Time of every event.
    pub replay: Replay,
}

impl SimulatedStep {
    /// Seconds of the step.
    pub fn seconds(&self) -> f64 {
        self.replay.seconds()
    }
}

/// Simulates a step of a recipe over `ranks` ranks, with batches of whole sequences.
///
/// # Errors
/// A layout that does not fit the ranks, the model or the batch; an operator whose cost is not known; work in bubbles.
pub fn simulated_step(
    recipe: &Recipe,
    ranks: usize,
    model: &Model,
    which: SimulatedRanks,
    costs: &mut dyn NodeCosts,
) -> Result<SimulatedStep, TrainError> {
    with_job(recipe, ranks, model, |job| simulate(job, which, costs))
}

/// Simulates a step of a job.
///
/// # Errors
/// As [`simulated_step`].
pub fn simulate(
    job: &Job<'_>,
    which: SimulatedRanks,
    costs: &mut dyn NodeCosts,
) -> Result<SimulatedStep, TrainError> {
    let job_ranks = job.plan.ranks();
    let listed = match which {
        SimulatedRanks::All => (0..job_ranks).collect(),
        SimulatedRanks::Representatives => representatives(job.plan, MemoryPlan::alike(job)),
    };
    let mut events = StepEvents::of_some(job_ranks, listed);
    for rank in events.ranks().to_vec() {
        let mut null = NullBackend::new();
        let world = Box::new(NullCommunicator::new("world", rank, job_ranks));
        let mut worker = Worker::dry(&mut null, job, None, world)?;
        let update = worker.update_ops(&mut null)?;
        let mut writer = RankWriter::new(&mut events, costs, rank);
        worker.write_events(&mut writer, &update).map_err(unknown)?;
        writer.finish();
    }
    let replay = replay(&events).map_err(unknown)?;
    Ok(SimulatedStep { events, replay })
}

fn unknown(cause: SimError) -> TrainError {
    ParallelError::Layout(format!("a step cannot be simulated: {cause}")).into()
}

/// Ranks that stand for all of a plan.
fn representatives(plan: &Plan, alike: bool) -> Vec<usize> {
    let first = |rank: &usize| {
        let at = plan.mesh.coord(*rank);
        let shard = !alike || at.at(Axis::Shard) == 0;
        shard && at.at(Axis::Replicate) == 0 && at.at(Axis::Tensor) == 0
    };
    (0..plan.ranks()).filter(first).collect()
}
