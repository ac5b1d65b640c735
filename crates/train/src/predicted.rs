//! The time of a simulated step by the work of its ranks.

use crate::TrainError;
use crate::memory::with_job;
use crate::simulated::{SimulatedRanks, simulate};
use crate::trainer::item_of_group;
use bessemer_arch::Model;
use bessemer_collectives::NullCommunicator;
use bessemer_parallel::{ParallelError, Worker};
use bessemer_recipe::Recipe;
use bessemer_runlog::{CostItem, StepCosts};
use bessemer_sim::replay::{NodeCosts, RoutingProfile};
use bessemer_sim::shadow::ShadowChoice;
use bessemer_tensor::null::NullBackend;
use std::collections::BTreeMap;

/// A predicted step: means over the ranks that were simulated.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PredictedStep {
    /// Seconds of the step.
    pub seconds: f64,
    /// Seconds of operators and copies of the passes.
    pub compute: f64,
    /// Seconds of the operators of the update.
    pub optimizer: f64,
    /// Seconds that nothing hides of collectives, with waiting for other ranks, by label of the group; of messages under "messages".
    pub exposed: BTreeMap<String, f64>,
    /// Seconds that a rank waits at the end for the last one.
    pub idle: f64,
    /// Events that were simulated.
    pub events: usize,
    /// Shadows of experts by layer.
    pub shadows: BTreeMap<usize, ShadowChoice>,
}

impl PredictedStep {
    /// Seconds by the items that are measured.
    pub fn items(&self) -> Vec<CostItem> {
        let mut sums: BTreeMap<&str, f64> = BTreeMap::new();
        for (label, seconds) in &self.exposed {
            *sums.entry(item_of_group(label)).or_insert(0.0) += seconds;
        }
        // Without messages no rank waits for a pipeline.
        let idle =
            if sums.contains_key(StepCosts::PIPELINE) { StepCosts::PIPELINE } else { StepCosts::OTHER };
        *sums.entry(idle).or_insert(0.0) += self.idle;
        let own = [(StepCosts::COMPUTE, self.compute), (StepCosts::OPTIMIZER, self.optimizer)];
        let all = own.into_iter().chain(sums).filter(|(_, seconds)| *seconds > 0.0);
        all.map(|(name, seconds)| CostItem::new(name, seconds)).collect()
    }
}

/// Simulates a step of a recipe over `ranks` ranks on a machine; ranks with the same work are simulated once. All experts have as many
/// tokens.
///
/// # Errors
/// A layout that does not fit the ranks, the model or the batch; an operator whose cost is not known; work in bubbles.
pub fn predicted_step(
    recipe: &Recipe,
    ranks: usize,
    model: &Model,
    costs: &mut dyn NodeCosts,
) -> Result<PredictedStep, TrainError> {
    predicted_routed_step(recipe, ranks, model, &RoutingProfile::default(), costs)
}

/// [`predicted_step`] of a recipe whose tokens are routed to experts as in a profile.
///
/// # Errors
/// Same errors as [`predicted_step`]; loads of another model.
pub fn predicted_routed_step(
    recipe: &Recipe,
    ranks: usize,
    model: &Model,
    routing: &RoutingProfile,
    costs: &mut dyn NodeCosts,
) -> Result<PredictedStep, TrainError> {
    with_job(recipe, ranks, model, |job| {
        let step = simulate(job, SimulatedRanks::Representatives, routing, costs)?;
        let mut null = NullBackend::new();
        let world = Box::new(NullCommunicator::new("world", 0, ranks));
        let update = Worker::dry(&mut null, job, None, world)?.update_ops(&mut null)?;
        let mut optimizer = 0.0;
        for op in update.updates() {
            optimizer += costs.op(op).map_err(|e| ParallelError::Layout(e.to_string()))?;
        }
        let lists = step.replay.events.len();
        let share = 1.0 / lists.max(1) as f64;
        let events = step.replay.events.iter().map(Vec::len).sum();
        let shadows = step.shadows.clone();
        let mut predicted =
            PredictedStep { seconds: step.seconds(), optimizer, events, shadows, ..PredictedStep::default() };
        for list in 0..lists {
            let end = step.replay.events[list].last().map_or(0.0, |last| last.end);
            let exposed = step.replay.exposed(&step.events, list);
            let waited: f64 = exposed.values().sum();
            predicted.compute += share * (end - waited - optimizer).max(0.0);
            predicted.idle += share * (predicted.seconds - end);
            for (label, seconds) in exposed.into_iter().filter(|(_, seconds)| *seconds > 0.0) {
                *predicted.exposed.entry(label.to_owned()).or_insert(0.0) += share * seconds;
            }
        }
        Ok(predicted)
    })
}
