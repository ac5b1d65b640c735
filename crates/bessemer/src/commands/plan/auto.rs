//! `parallel.layout = "auto"`: a recipe whose layout is planned before the first step.
//!
//! ```text
//! first process    recipe ─► plan of the run directory, if it still holds ─┐
//!                         └► machine, search ────────────────────────────┴─► keys ─► all other processes
//! ```
//! A run directory's plan holds for as many ranks of the same machine, with the same model, batch and keys of the user's. Another number of
//! ranks is planned anew: checkpoints load into any layout.

use super::explain::Explained;
use super::search::{LEAST_PLANNED, MadeOnce, Search};
use super::training::Training;
use super::{here, machine_of};
use crate::console::Console;
use crate::failure::Failure;
use crate::recipes::{load_planned, load_recipe_for};
use crate::run_dir::{RECIPE, RunDir};
use bessemer_parallel::LayoutChoice;
use bessemer_plan::Calibration;
use bessemer_recipe::{LayoutPlan, Loaded, Recipe, RecipeUse, parse_recipe};
use bessemer_runlog::Plan;
use bessemer_units::Bytes;
use serde_json::Value;
use std::path::Path;

/// The key that names the machine.
const KEY: &str = "parallel.machine";
/// Share of the available memory that a plan leaves for what is no part of it: the data, and what other programs take meanwhile.
const RESERVE: f64 = 0.1;

/// Place in which the ranks of a job run.
#[derive(Debug, Clone)]
pub(crate) struct Host {
    /// Ranks of the job.
    pub(crate) ranks: usize,
    /// Ranks on this machine.
    pub(crate) local: usize,
    /// Threads of each.
    pub(crate) threads: usize,
    /// Memory that each may take.
    pub(crate) memory: Bytes,
}

/// A plan as the first process tells it to the others: ranks, machine and settings, or code and message of a failure.
type PlanMessage = Result<(u64, String, Vec<(String, Value)>), (u8, String)>;

/// The recipe of a job with its layout.
pub(crate) struct LaidOut {
    pub(crate) loaded: Loaded<Recipe>,
    /// Record of a plan that was made now.
    pub(crate) record: Option<Plan>,
}

/// Whether a plan decides the layout of a recipe.
pub(crate) fn is_auto(recipe: &Recipe) -> bool {
    recipe.parallel.layout == LayoutChoice::Auto
}

/// Plans the layout of a recipe, or takes the plan of its run directory.
///
/// # Errors
/// A machine that is not there, or constraints that no layout meets: which one binds, and by how much.
pub(crate) fn plan(
    path: &Path,
    sets: &[String],
    host: &Host,
    console: &mut Console,
) -> Result<(LayoutPlan, Option<Plan>), Failure> {
    let loaded = load_recipe_for(path, sets, RecipeUse::Layout)?;
    let recipe = &loaded.value;
    let named = recipe.parallel.machine.as_str();
    let subject = if named.is_empty() { here::name(host) } else { machine_of(KEY, named)?.name };
    let directory = RunDir::new(recipe.run.directory());
    if let Some(plan) = earlier(path, sets, &loaded, &directory, host, &subject) {
        return Ok((plan, None));
    }
    let training = Training::new(&loaded)?;
    let (mut machine, calibration) = match named.is_empty() {
        true => {
            let of = here::Measured {
                model: &training.model,
                activations: recipe.train.storage.dtype(),
                matmul: recipe.train.matmul_precision,
            };
            let machine = here::measure(host, &of, &mut |what| console.detail(what))?;
            (machine, Calibration::with(here::efficiency()))
        }
        false => (machine_of(KEY, named)?, Calibration::none()),
    };
    // Whatever the machine could hold, the ranks run here.
    machine.memory = machine.memory.min((1.0 - RESERVE) * host.memory.0 as f64);
    let search = Search {
        training: &training,
        machine: &machine,
        calibration: &calibration,
        devices: host.ranks,
        top: LEAST_PLANNED,
        elsewhere: false,
        threads: host.threads,
        grids: training.grids(host.ranks),
        only: |_| true,
        made_once: MadeOnce::default(),
    };
    let found = search.run(console)?;
    let record = Explained::new(&search, &found, console).record;
    let layout = &found.planned[0].candidate.job.layout;
    let settings = training.settings(layout, host.ranks);
    Ok((LayoutPlan { ranks: host.ranks as u64, machine: subject, settings }, Some(record)))
}

/// The plan of the run directory, if it is still what the recipe asks for on this host.
fn earlier(
    path: &Path,
    sets: &[String],
    loaded: &Loaded<Recipe>,
    directory: &RunDir,
    host: &Host,
    subject: &str,
) -> Option<LayoutPlan> {
    let text = directory.text(RECIPE).ok()?;
    let stored = parse_recipe("recipe.toml", &text, &[]).ok()?;
    let plan = LayoutPlan::of(&stored)?;
    let asked = plan.settings.iter().all(|(key, _)| loaded.is_free(key));
    if plan.ranks != host.ranks as u64 || plan.machine != subject || !asked {
        return None;
    }
    let again = load_planned(path, sets, &plan, RecipeUse::Layout).ok()?;
    (what_counts(&again.value) == what_counts(&stored.value)).then_some(plan)
}

/// What a plan depends on: not how long the training is, nor what it tells on its way.
fn what_counts(recipe: &Recipe) -> Recipe {
    let Recipe { model, tokenizer, parallel, train, optim, .. } = recipe.clone();
    let train = bessemer_recipe::TrainConfig { steps: 1, tokens: 0, epochs: 0.0, log_every: 1, ..train };
    Recipe { model, tokenizer, parallel, train, optim, ..Recipe::default() }
}

/// Bytes that tell a plan to other processes.
///
/// # Errors
/// None of a plan whose values are those of a recipe.
pub(crate) fn tell(planned: &Result<(LayoutPlan, Option<Plan>), Failure>) -> Result<Vec<u8>, Failure> {
    let message: PlanMessage = match planned {
        Ok((LayoutPlan { ranks, machine, settings }, _)) => Ok((*ranks, machine.clone(), settings.clone())),
        Err(Failure { code, message }) => Err((*code, message.clone())),
    };
    Ok(serde_json::to_vec(&message)?)
}

/// Reads what [`tell`] has written.
///
/// # Errors
/// The failure that the first process met; bytes that are no plan, as of another version of the program.
pub(crate) fn hear(bytes: &[u8]) -> Result<LayoutPlan, Failure> {
    let message: PlanMessage = serde_json::from_slice(bytes).map_err(|e| {
        Failure::new(format!(
            "the plan of the first process cannot be read: {e}; wanted the same program on every machine"
        ))
    })?;
    match message {
        Ok((ranks, machine, settings)) => Ok(LayoutPlan { ranks, machine, settings }),
        Err((code, message)) => Err(Failure { code, message }),
    }
}
