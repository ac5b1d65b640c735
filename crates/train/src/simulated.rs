//! Predicted time of a step that is not run: the lists of its ranks on null devices, with the cost of each node.

use crate::TrainError;
use crate::memory::with_job;
use bessemer_arch::Model;
use bessemer_collectives::NullCommunicator;
use bessemer_mesh::Axis;
use bessemer_parallel::{Job, MemoryPlan, ParallelError, Worker};
use bessemer_recipe::Recipe;
use bessemer_sim::SimError;
use bessemer_sim::replay::{NodeCosts, RankWriter, Replay, RoutingProfile, StepEvents, replay};
use bessemer_sim::shadow::ShadowChoice;
use bessemer_tensor::null::NullBackend;
use std::collections::BTreeMap;

/// Ranks whose lists are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SimulatedRanks {
    /// All ranks.
    All,
    /// One rank for each set of ranks that do the same at the same time: the first data-parallel, tensor-parallel and context-parallel one of
    /// each pipeline rank. All ranks of tensor-parallel grids; of the shard axis where an optimizer needs whole matrices; of the context axis where
    /// some compute longer than others, and its first few where media of the others' traffic repeat theirs.
    Representatives,
}

/// A simulated step.
#[derive(Debug, Clone, PartialEq)]
pub struct SimulatedStep {
    /// Lists of its ranks.
    pub events: StepEvents,
    /// Time of every event.
    pub replay: Replay,
    /// Shadows of experts by layer, the same for every group of ranks; empty without shadowing.
    pub shadows: BTreeMap<usize, ShadowChoice>,
}

impl SimulatedStep {
    /// Seconds of the step.
    pub fn seconds(&self) -> f64 {
        self.replay.seconds()
    }
}

/// Simulates a step of a recipe over `ranks` ranks, with batches of whole sequences and as many tokens for every expert.
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
    with_job(recipe, ranks, model, |job| simulate(job, which, &RoutingProfile::default(), costs))
}

/// Simulates a step of a job whose tokens are routed to experts as in a profile.
///
/// # Errors
/// Same errors as [`simulated_step`]; loads of another model.
pub fn simulate(
    job: &Job<'_>,
    which: SimulatedRanks,
    routing: &RoutingProfile,
    costs: &mut dyn NodeCosts,
) -> Result<SimulatedStep, TrainError> {
    let job_ranks = job.plan.ranks();
    let listed = match which {
        SimulatedRanks::All => (0..job_ranks).collect(),
        SimulatedRanks::Representatives => representatives(job, costs),
    };
    let mut events = StepEvents::of_some(job_ranks, listed);
    let mut shadows = BTreeMap::new();
    for rank in events.ranks().to_vec() {
        shadows.extend(write_rank(job, rank, &mut events, routing, costs)?);
    }
    let replay = replay(&events).map_err(unknown)?;
    Ok(SimulatedStep { events, replay, shadows })
}

/// Queries the cost of every node of one rank's step, for [costs that count](NodeCosts::counts) their queries.
///
/// # Errors
/// Same errors as [`simulated_step`].
pub fn ask_costs(
    recipe: &Recipe,
    ranks: usize,
    model: &Model,
    rank: usize,
    costs: &mut dyn NodeCosts,
) -> Result<(), TrainError> {
    let mut events = StepEvents::of_some(ranks, vec![rank]);
    with_job(recipe, ranks, model, |job| {
        write_rank(job, rank, &mut events, &RoutingProfile::default(), costs).map(drop)
    })
}

/// Writes the list of a rank. Returns its shadows of experts by layer.
fn write_rank(
    job: &Job<'_>,
    rank: usize,
    events: &mut StepEvents,
    routing: &RoutingProfile,
    costs: &mut dyn NodeCosts,
) -> Result<BTreeMap<usize, ShadowChoice>, TrainError> {
    let mut null = NullBackend::new();
    let world = Box::new(NullCommunicator::new("world", rank, job.plan.ranks()));
    let mut worker = Worker::dry(&mut null, job, None, world)?;
    let update = worker.update_ops(&mut null)?;
    let mut writer = RankWriter::new(events, costs, rank).routed(routing.clone());
    worker.write_events(&mut writer, &update).map_err(unknown)?;
    Ok(writer.finish())
}

fn unknown(cause: SimError) -> TrainError {
    ParallelError::Layout(format!("a step cannot be simulated: {cause}")).into()
}

/// Ranks that represent all of a job.
fn representatives(job: &Job<'_>, costs: &mut dyn NodeCosts) -> Vec<usize> {
    let (mesh, all_shards) = (&job.plan.mesh, !MemoryPlan::alike(job));
    let first = |rank: usize, axis| mesh.coord(rank).at(axis) == 0;
    let mut ranks: Vec<usize> = (0..job.plan.ranks())
        .filter(|rank| first(*rank, Axis::Replicate) && first(*rank, Axis::Tensor))
        .filter(|rank| all_shards || first(*rank, Axis::Shard))
        .collect();
    if let Some(period) = context_period(job, &ranks, costs) {
        ranks.retain(|rank| first(*rank, Axis::ContextHeads) && mesh.coord(*rank).at(Axis::Context) < period);
    }
    ranks
}

/// Period on the context axis after which ranks do the same at the same time: they compute and send as much, and the same media carry
/// it. `None` if no rank is like another.
fn context_period(job: &Job<'_>, ranks: &[usize], costs: &mut dyn NodeCosts) -> Option<usize> {
    let mesh = &job.plan.mesh;
    let sharers = mesh.degree(Axis::Context);
    if !job.plan.context.even(job.shape.seq, sharers) || job.model.window.is_some() {
        return None;
    }
    let mut carriers = |rank: usize| {
        Axis::ALL.map(|axis| {
            let group = mesh.group(rank, &[axis]);
            let neighbour = match axis {
                Axis::Pipeline => true,
                Axis::Context => job.plan.context.method.by_blocks(),
                _ => false,
            };
            let next = group[(mesh.coord(rank).at(axis) + 1) % group.len()];
            (costs.medium(&group), neighbour.then(|| costs.medium(&[rank, next])))
        })
    };
    let of_rank: BTreeMap<usize, _> = ranks.iter().map(|rank| (*rank, carriers(*rank))).collect();
    let alike = |rank: usize, period: usize| {
        let at = mesh.coord(rank);
        let first = at.with(Axis::ContextHeads, 0).with(Axis::Context, at.at(Axis::Context) % period);
        of_rank.get(&rank) == of_rank.get(&mesh.rank(&first))
    };
    (1..=sharers)
        .filter(|period| sharers.is_multiple_of(*period))
        .find(|period| ranks.iter().all(|rank| alike(*rank, *period)))
}
