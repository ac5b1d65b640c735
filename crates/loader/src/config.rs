//! The loader's part of a recipe.

use crate::PrefetchConfig;
use bessemer_units::Bytes;
use serde::{Deserialize, Serialize};

/// Most preparation threads of a rank.
const MOST_THREADS: u64 = 64;

/// How training samples are ordered, and how batches are prepared. Sequence length and batch size belong to the training recipe.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LoaderConfig {
    /// Seed of the sample order; without it the order follows the seed of the run.
    pub seed: Option<u64>,
    /// Whether each epoch has its own random order. `false` reads the shards from front to back, for debugging.
    pub shuffle: bool,
    /// Bytes of batches that a rank prepares ahead while it computes, such as "16MiB": at least one micro-batch and at most 256. "0" reads them in
    /// the step. No value changes a batch.
    pub prefetch: String,
    /// Threads of a rank that prepare batches: more than one keeps a store with a long latency busy. No value changes a batch.
    pub threads: u64,
}

impl Default for LoaderConfig {
    fn default() -> Self {
        LoaderConfig { seed: None, shuffle: true, prefetch: "16MiB".into(), threads: 1 }
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
        }?;
        if !(1..=MOST_THREADS).contains(&self.threads) {
            return Err(format!("threads: wanted 1 to {MOST_THREADS}, found {}", self.threads));
        }
        self.prefetch_bytes().map(|_| ())
    }

    /// Bytes of batches that are prepared ahead.
    fn prefetch_bytes(&self) -> Result<u64, String> {
        let bytes: Result<Bytes, _> = self.prefetch.parse();
        bytes.map(|bytes| bytes.0).map_err(|e| format!("prefetch: {e}; \"0\" prepares nothing ahead"))
    }

    /// The ring of prepared batches; none of a configuration that [`LoaderConfig::check`] refuses.
    pub fn prefetch_config(&self) -> PrefetchConfig {
        PrefetchConfig { bytes: self.prefetch_bytes().unwrap_or(0), threads: self.threads as usize }
    }

    /// The seed of the order, given the seed of the run.
    pub fn seed_or(&self, run_seed: u64) -> u64 {
        self.seed.unwrap_or(run_seed)
    }
}
