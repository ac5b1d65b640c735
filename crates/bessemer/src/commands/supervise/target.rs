//! The run that a command works on.

use crate::cli::{Cli, Command, SuperviseArgs};
use crate::failure::Failure;
use crate::recipes::load_recipe;
use bessemer_durable::ConfinedDir;
use bessemer_recipe::Recipe;
use bessemer_supervise::{Hosts, fill_templates};
use clap::Parser;
use std::path::{Path, PathBuf};

/// The run that is supervised.
#[derive(Debug)]
pub(super) struct Target {
    /// Its directory.
    pub(super) run: PathBuf,
    /// Its recipe, if the command names it.
    pub(super) recipe: Option<Recipe>,
}

/// The run that is supervised, with its directory.
#[derive(Debug)]
pub(super) struct OpenTarget {
    pub(super) target: Target,
    /// The open run directory.
    pub(super) run: ConfinedDir,
}

impl Target {
    /// The run of the recipe in the command, or the directory that was given.
    ///
    /// # Errors
    /// A recipe that is wrong, which no restart would change; neither a recipe nor a directory.
    pub(super) fn of(args: &SuperviseArgs, hosts: Option<&Hosts>) -> Result<Target, Failure> {
        // Any number: the run is the same.
        let ranks = hosts.map_or(1, |hosts| hosts.active().len() * args.ranks_per_host);
        let command =
            fill_templates(&args.command, hosts.map(|hosts| (hosts, ranks))).map_err(Failure::usage)?;
        let recipe = match trains(&command) {
            Some(train) => Some(load_recipe(&train.recipe, &train.overrides())?.value),
            None => None,
        };
        let of_recipe = recipe.as_ref().map(|recipe| recipe.run.directory());
        match args.run_dir.clone().or(of_recipe) {
            Some(run) => Ok(Target { run, recipe }),
            None => Err(Failure::usage(
                "the command has no `bessemer run RECIPE` or `bessemer train RECIPE` in it: wanted the run directory as --run-dir DIR",
            )),
        }
    }

    /// Whether the recipe can be trained by so many ranks. Without a recipe, and with a layout that is still to be planned, any number
    /// is tried.
    pub(super) fn allows(&self, ranks: usize) -> bool {
        let Some(recipe) = &self.recipe else { return true };
        recipe.parallel.awaits_plan() || bessemer_train::refuse_what_cannot_run(recipe, ranks).is_ok()
    }
}

/// The arguments of the first `bessemer run` or `bessemer train` in a command.
fn trains(command: &[String]) -> Option<crate::cli::RecipeArgs> {
    (0..command.len()).find_map(|at| {
        let name = Path::new(&command[at]).file_name()?;
        if !name.to_string_lossy().starts_with("bessemer") {
            return None;
        }
        match Cli::try_parse_from(&command[at..]).ok()?.command {
            Command::Run(args) | Command::Train(args) => Some(args.recipe),
            _ => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_recipe_is_found_behind_a_launcher() {
        let found = |text: &str| {
            let words: Vec<String> = text.split(' ').map(str::to_owned).collect();
            trains(&words).map(|recipe| (recipe.recipe, recipe.sets))
        };
        let wanted = Some((PathBuf::from("r.toml"), vec!["run.name=x".to_owned()]));
        assert_eq!(found("mpirun -n 4 ./target/bessemer run r.toml --set run.name=x"), wanted);
        assert_eq!(found("bessemer train r.toml --set run.name=x --ranks 2"), wanted);
        assert_eq!(found("bash job.sh"), None);
        assert_eq!(found("bessemer doctor"), None);
        assert_eq!(found("env bessemer"), None);
    }
}
