//! The planner: layouts of a recipe on devices that may not be here, and layouts of a run before its first step.
//!
//! ```text
//! recipe ─► Training ─┬► exhaustive: closed form ─► dry runs ─► simulated steps ─► Explained
//! machine ────────────┼► layers, mcmc, annotations: prices of units ─► simulated steps
//!                     ├► alpa: layouts of each operator by elimination, stages by dynamic programming
//!                     └► compare: all of them, beside plain layouts
//! ```
//! The cost models and the searches over values are in `plan`. This crate applies them to recipes, plans memory by dry runs of
//! the programs of the ranks, and describes the results. Functions with `as_json` return the text that a program prints.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod alpa;
mod annotations;
mod auto;
mod calibrate;
mod compare;
mod error;
mod explain;
mod here;
mod layerwise;
mod pricing;
mod refuse;
mod search;
mod stated;
mod training;

pub use alpa::alpa;
pub use auto::{Host, is_auto, plan_layout};
pub use calibrate::{calibration_layouts, calibration_table, measured_seconds};
pub use compare::compare;
pub use error::PlannerError;
pub use layerwise::{LayerMethod, layerwise};
pub use search::exhaustive;
pub use training::{Training, name as layout_name};

use bessemer_plan::{GivenColumns, Machine};
use bessemer_recipe::{CorpusCheck, LayoutPlan, Loaded, Recipe, RecipeError, RecipeUse, load};
use std::path::Path;

/// Most bytes of a table or of a machine's description.
const MOST_BYTES: u64 = 64 << 20;

/// A recipe file with overrides.
#[derive(Debug, Clone, Copy)]
pub struct RecipeSource<'a> {
    /// The file.
    pub path: &'a Path,
    /// Overrides of keys, as `--set` takes them.
    pub sets: &'a [String],
    /// Directory that `~` at the beginning of a path stands for.
    pub home: Option<&'a Path>,
    /// Check of `[corpus]`.
    pub check_corpus: CorpusCheck,
}

impl RecipeSource<'_> {
    /// The recipe with further overrides, checked for the planning of a layout.
    fn load(&self, keys: &[String]) -> Result<Loaded<Recipe>, RecipeError> {
        let sets: Vec<String> = self.sets.iter().chain(keys).cloned().collect();
        bessemer_recipe::load_recipe_for(self.path, &sets, self.home, RecipeUse::Layout, self.check_corpus)
    }

    /// The recipe with the keys that a plan chose.
    fn load_planned(&self, plan: &LayoutPlan) -> Result<Loaded<Recipe>, RecipeError> {
        bessemer_recipe::load_planned(
            self.path,
            self.sets,
            self.home,
            plan,
            RecipeUse::Layout,
            self.check_corpus,
        )
    }

    /// The training of the recipe.
    ///
    /// # Errors
    /// A recipe or a model that cannot be.
    pub fn training(&self) -> Result<Training, PlannerError> {
        Training::new(&self.load(&[])?)
    }

    /// The training of a recipe whose annotations may contradict each other: the search that completes them reports the costs of either.
    fn training_annotated(&self) -> Result<Training, PlannerError> {
        let mut loaded = load::<Recipe>(self.path, self.sets)?;
        let annotate = std::mem::take(&mut loaded.value.parallel.annotate);
        if loaded.value.problems_for(RecipeUse::Layout).is_empty() {
            loaded.value.parallel.annotate = annotate;
            return Training::new(&loaded);
        }
        // Refused with the lines of the file.
        self.training()
    }
}

/// A search for layouts.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    /// The recipe of the training.
    pub recipe: RecipeSource<'a>,
    /// Devices that share the training.
    pub devices: usize,
    /// Kind of the devices: a machine of the catalogue, or a TOML file.
    pub machine: &'a str,
    /// Table of measured steps to fit the constants of the cost model to.
    pub fit: Option<&'a Path>,
    /// Values of columns that this table does not have.
    pub columns: &'a GivenColumns,
    /// Layouts to show, each planned by a dry run.
    pub top: u64,
    /// Seed of the Markov chain.
    pub seed: u64,
    /// Proposals of the Markov chain.
    pub proposals: u64,
    /// Failures in 1,000 days of a node, one or several numbers.
    pub failures: &'a [f64],
    /// Seconds for which a save blocks training.
    pub save: f64,
    /// Seconds from a failure to the first step after it.
    pub restart: f64,
}

/// Reads a machine from the catalogue, or from a file where the name is that of one. `asked_by` is the option or key that names it.
///
/// # Errors
/// A machine that is not in the catalogue, a file that cannot be read.
pub fn named_machine(asked_by: &str, name: &str) -> Result<Machine, PlannerError> {
    let path = Path::new(name);
    if path.extension().is_some_and(|extension| extension == "toml") {
        return Machine::parse(&text_of(path)?)
            .map_err(|cause| PlannerError::request(format!("{asked_by} {name}: {cause}")));
    }
    Machine::named(name).map_err(|cause| {
        PlannerError::request(format!("{asked_by}: {cause}, or a file that ends with .toml"))
    })
}

/// The machine of `--machine`.
///
/// # Errors
/// As [`named_machine`].
pub fn machine(name: &str) -> Result<Machine, PlannerError> {
    named_machine("--machine", name)
}

/// Reads a table or a description of a machine.
///
/// # Errors
/// A file that cannot be read, or is too large.
pub fn text_of(path: &Path) -> Result<String, PlannerError> {
    bessemer_durable::read_small_input(path, MOST_BYTES).map_err(|e| PlannerError::failed(e.to_string()))
}
