//! Recipes as this program loads them: `~` at the beginning of a path is the home directory.

use bessemer_planner::RecipeSource;
use bessemer_recipe::{LayoutPlan, Loaded, Recipe, RecipeError, RecipeUse};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The home directory of the user, if the system tells.
pub(crate) fn home() -> Option<PathBuf> {
    std::env::home_dir().filter(|home| !home.as_os_str().is_empty())
}

/// A recipe file with `--set` overrides, for the planner.
pub(crate) fn source<'a>(path: &'a Path, sets: &'a [String], home: &'a Option<PathBuf>) -> RecipeSource<'a> {
    RecipeSource { path, sets, home: home.as_deref(), check_corpus: bessemer_corpus::check }
}

/// Loads a recipe with `--set` overrides.
///
/// # Errors
/// A recipe that cannot be read, or is wrong.
pub fn load_recipe(path: &Path, sets: &[String]) -> Result<Loaded<Recipe>, RecipeError> {
    load_recipe_for(path, sets, RecipeUse::Training)
}

/// Loads a recipe with `--set` overrides, for a command that uses some of its sections.
pub(crate) fn load_recipe_for(
    path: &Path,
    sets: &[String],
    recipe_use: RecipeUse,
) -> Result<Loaded<Recipe>, RecipeError> {
    bessemer_recipe::load_recipe_for(path, sets, home().as_deref(), recipe_use, bessemer_corpus::check)
}

/// Loads a recipe with `--set` overrides and the keys that a plan chose.
pub(crate) fn load_planned(
    path: &Path,
    sets: &[String],
    plan: &LayoutPlan,
    recipe_use: RecipeUse,
) -> Result<Loaded<Recipe>, RecipeError> {
    bessemer_recipe::load_planned(path, sets, home().as_deref(), plan, recipe_use, bessemer_corpus::check)
}

/// Options whose words are texts, not paths.
const TEXTS: [&str; 4] = ["--prompt", "--question", "--system", "--stop"];

/// The words of a command line with the home directory in the place of `~` at the beginning of a path: of a word by itself, or
/// behind the `=` of an option. Shells replace only the former, and in quotes neither.
pub(crate) fn arguments(words: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let home = home();
    let mut is_text = false;
    let mut expanded = |word: OsString| {
        let before = std::mem::replace(&mut is_text, word.to_str().is_some_and(|word| TEXTS.contains(&word)));
        let path = word.to_str().zip(home.as_deref()).filter(|_| !before).and_then(|(text, home)| match text
            .split_once('=')
        {
            Some((option, path)) if option.starts_with("--") && !TEXTS.contains(&option) => {
                Some(format!("{option}={}", bessemer_durable::below_home(path, home)?))
            }
            _ => bessemer_durable::below_home(text, home),
        });
        path.map_or(word, OsString::from)
    };
    words.map(&mut expanded).collect()
}
