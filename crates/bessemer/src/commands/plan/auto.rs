//! `parallel.layout = "auto"`: the plan of the first process, as all processes of a job get it.

use crate::console::Console;
use crate::failure::Failure;
use crate::recipes::{home, source};
use crate::run_dir::{RECIPE, RunDir};
use bessemer_planner::{Host, plan_layout};
use bessemer_recipe::{LayoutPlan, Loaded, Recipe};
use bessemer_runlog::Plan;
use serde_json::Value;
use std::path::Path;

/// A plan as the first process tells it to the others: ranks, machine and settings, or code and message of a failure.
type PlanMessage = Result<(u64, String, Vec<(String, Value)>), (u8, String)>;

/// The recipe of a job with its layout.
pub(crate) struct LaidOut {
    pub(crate) loaded: Loaded<Recipe>,
    /// Record of a plan that was made now.
    pub(crate) record: Option<Plan>,
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
    let home = home();
    let stored = |recipe: &Recipe| RunDir::new(recipe.run.directory()).text(RECIPE).ok();
    Ok(plan_layout(source(path, sets, &home), &stored, host, &mut |line| console.detail(line))?)
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
            "cannot read the plan of the first process: {e}; start the same version of the program on every \
             machine"
        ))
    })?;
    match message {
        Ok((ranks, machine, settings)) => Ok(LayoutPlan { ranks, machine, settings }),
        Err((code, message)) => Err(Failure { code, message }),
    }
}
