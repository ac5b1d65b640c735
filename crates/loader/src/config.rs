//! The loader's part of a recipe.

use serde::{Deserialize, Serialize};

/// How training samples are ordered. Sequence length and batch size belong to the training recipe.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LoaderConfig {
    /// Seed of the sample order; without it the order follows the seed of the run.
    pub seed: Option<u64>,
    /// Whether each epoch has its own random order. `false` reads the shards from front to back, for debugging.
    pub shuffle: bool,
}

impl Default for LoaderConfig {
    fn default() -> Self {
        LoaderConfig { seed: None, shuffle: true }
    }
}

impl LoaderConfig {
    /// Says which key has which value outside its allowed range, if any.
    ///
    /// # Errors
    /// A sentence for the user.
    pub fn check(&self) -> Result<(), String> {
        // TOML integers are signed; a larger seed could not be written back into a resolved recipe.
        match self.seed {
            Some(seed) if seed > i64::MAX as u64 => {
                Err(format!("seed: wanted 0 to {}, found {seed}", i64::MAX))
            }
            _ => Ok(()),
        }
    }

    /// The seed of the order, given the seed of the run.
    pub fn seed_or(&self, run_seed: u64) -> u64 {
        self.seed.unwrap_or(run_seed)
    }
}
