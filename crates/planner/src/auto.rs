//! `parallel.layout = "auto"`: a recipe whose layout is planned before the first step.
//!
//! ```text
//! first process    recipe ─► plan of the run directory, if it still holds ─┐
//!                         └► machine, search ────────────────────────────┴─► keys ─► all other processes
//! ```
//! A run directory's plan holds for as many ranks of the same machine, with the same model, batch and keys of the user's. Another number of
//! ranks is planned anew: checkpoints load into any layout.

use crate::explain::Explained;
use crate::search::{LEAST_PLANNED, MadeOnce, Search};
use crate::{PlannerError, RecipeSource, Training, here, named_machine};
use bessemer_parallel::LayoutChoice;
use bessemer_plan::Calibration;
use bessemer_recipe::{LayoutPlan, Loaded, Recipe, parse_recipe};
use bessemer_runlog::Plan;
use bessemer_units::Bytes;

/// The key that names the machine.
const KEY: &str = "parallel.machine";
/// Share of the available memory that a plan leaves for what is no part of it: the data, and what other programs take meanwhile.
const RESERVE: f64 = 0.1;

/// Place in which the ranks of a job run.
#[derive(Debug, Clone)]
pub struct Host {
    /// Ranks of the job.
    pub ranks: usize,
    /// Ranks on this machine.
    pub local: usize,
    /// Threads of each.
    pub threads: usize,
    /// Memory that each may take.
    pub memory: Bytes,
}

/// Whether a plan decides the layout of a recipe.
pub fn is_auto(recipe: &Recipe) -> bool {
    recipe.parallel.layout == LayoutChoice::Auto
}

/// Plans the layout of a recipe, or takes the plan of its run directory; `stored` reads the recipe that is there.
///
/// # Errors
/// A machine that is not there, or constraints that no layout meets: which one binds, and by how much.
pub fn plan_layout(
    source: RecipeSource<'_>,
    stored: &dyn Fn(&Recipe) -> Option<String>,
    host: &Host,
    detail: &mut dyn FnMut(&str),
) -> Result<(LayoutPlan, Option<Plan>), PlannerError> {
    let loaded = source.load(&[])?;
    let recipe = &loaded.value;
    let named = recipe.parallel.machine.as_str();
    let subject = if named.is_empty() { here::name(host) } else { named_machine(KEY, named)?.name };
    if let Some(plan) = stored(recipe).and_then(|text| earlier(source, &loaded, &text, host, &subject)) {
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
            let machine = here::measure(host, &of, detail)?;
            (machine, Calibration::with(here::efficiency()))
        }
        false => (named_machine(KEY, named)?, Calibration::none()),
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
    let found = search.run(detail)?;
    let record = Explained::new(&search, &found, detail).record;
    let layout = &found.planned[0].candidate.job.layout;
    let settings = training.settings(layout, host.ranks);
    Ok((LayoutPlan { ranks: host.ranks as u64, machine: subject, settings }, Some(record)))
}

/// The plan of the run directory, if it is still what the recipe asks for on this host.
fn earlier(
    source: RecipeSource<'_>,
    loaded: &Loaded<Recipe>,
    text: &str,
    host: &Host,
    subject: &str,
) -> Option<LayoutPlan> {
    let stored = parse_recipe("recipe.toml", text, &[]).ok()?;
    let plan = LayoutPlan::of(&stored)?;
    let asked = plan.settings.iter().all(|(key, _)| loaded.is_free(key));
    if plan.ranks != host.ranks as u64 || plan.machine != subject || !asked {
        return None;
    }
    let again = source.load_planned(&plan).ok()?;
    (what_counts(&again.value) == what_counts(&stored.value)).then_some(plan)
}

/// What a plan depends on: not how long the training is, nor what it tells on its way.
fn what_counts(recipe: &Recipe) -> Recipe {
    let Recipe { model, tokenizer, parallel, train, optim, .. } = recipe.clone();
    let train = bessemer_recipe::TrainConfig { steps: 1, tokens: 0, epochs: 0.0, log_every: 1, ..train };
    Recipe { model, tokenizer, parallel, train, optim, ..Recipe::default() }
}
