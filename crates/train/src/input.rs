//! Inputs of a run.

use bessemer_durable::ConfinedDir;
use bessemer_eval::score::prepared::Catalog;
use bessemer_recipe::Recipe;
use bessemer_shards::ShardSet;
use bessemer_tokenizer::Tokenizer;
use bessemer_units::Bytes;
use std::sync::Arc;

/// The arithmetic peak that utilisation is measured against.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Peak {
    /// Floating-point operations per second of the whole device.
    pub flops_per_second: f64,
}

/// Everything that a run is made from.
pub struct TrainerInput {
    /// The recipe.
    pub recipe: Recipe,
    /// Its text, complete, for checkpoints.
    pub recipe_text: String,
    /// The tokenizer that made the shards.
    pub tokenizer: Arc<Tokenizer>,
    /// Training split.
    pub train: Arc<ShardSet>,
    /// Validation split, if there is one.
    pub validation: Option<Arc<ShardSet>>,
    /// Validation split of another run, with the name under which its loss is recorded (`eval.forgetting`).
    pub former: Option<(String, Arc<ShardSet>)>,
    /// Catalog in which the tasks of `eval.tasks` are found.
    pub tasks: Catalog,
    /// The run directory, opened once: metrics.jsonl and checkpoints/ are in it.
    pub directory: ConfinedDir,
    /// Memory that the run may take.
    pub memory_available: Bytes,
    /// Peak rates, for utilisation; without them none is reported.
    pub peak: Option<Peak>,
}
