//! `bessemer config`: what a recipe means.

use crate::cli::{ConfigCommand, RecipeArgs};
use crate::commands::ranks::Job;
use crate::console::{Console, print};
use crate::failure::Failure;
use crate::recipes::load_recipe_for;
use bessemer_recipe::{Loaded, Recipe, RecipeUse, json_schema, show_diff, to_toml};
use serde_json::json;
use std::num::NonZeroUsize;
use std::time::Duration;

pub(crate) fn run(command: &ConfigCommand, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    match command {
        ConfigCommand::Show { recipe, origin, ranks } => {
            let loaded = resolved(recipe, *ranks, console)?;
            let text = match (as_json, origin) {
                (true, false) => serde_json::to_string(&loaded.value)?,
                (true, true) => {
                    let list: Vec<_> = loaded
                        .settings()
                        .into_iter()
                        .map(|s| json!({ "key": s.key, "value": s.value, "origin": s.origin.to_string() }))
                        .collect();
                    serde_json::to_string(&list)?
                }
                (false, true) => loaded.show_origins(),
                (false, false) => to_toml(&loaded.value)?,
            };
            print(&text)?;
        }
        ConfigCommand::Schema => print(&serde_json::to_string(&json_schema::<Recipe>())?)?,
        ConfigCommand::Diff { a, b, sets } => {
            let (left, right) =
                (load_recipe_for(a, sets, RecipeUse::Layout)?, load_recipe_for(b, sets, RecipeUse::Layout)?);
            let differences = left.diff(&right);
            let text = if as_json {
                let list: Vec<_> = differences
                    .iter()
                    .map(|d| json!({ "key": d.key, "left": d.left, "right": d.right }))
                    .collect();
                serde_json::to_string(&list)?
            } else {
                show_diff(&differences)
            };
            print(&text)?;
        }
    }
    Ok(())
}

/// The recipe as so many ranks of this machine would train it. Without their number, a layout that a plan decides is left open, unless the
/// recipe carries a plan.
fn resolved(
    args: &RecipeArgs,
    ranks: Option<NonZeroUsize>,
    console: &mut Console,
) -> Result<Loaded<Recipe>, Failure> {
    match ranks {
        Some(ranks) => {
            Ok(Job::threads(ranks.get(), Duration::ZERO)?.lay_out(args, RecipeUse::Layout, console)?.loaded)
        }
        None => Ok(load_recipe_for(&args.recipe, &args.overrides(), RecipeUse::Layout)?),
    }
}
