//! The loader's part of a recipe.

use crate::{Grouping, PrefetchConfig};
use bessemer_shards::{BLOCK_BYTES, CacheConfig, CachePolicy};
use bessemer_units::Bytes;
use serde::{Deserialize, Serialize};

/// Most preparation threads of a rank.
const MOST_THREADS: u64 = 64;

/// Order of the windows of an epoch.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OrderKind {
    /// A permutation of all windows.
    #[default]
    Uniform,
    /// Blocks in an order of the epoch, and groups of so many of them whose windows come in an order of their own: what is read within a
    /// stretch of the epoch lies in one group, which a cache may hold.
    Grouped,
}

/// Blocks of a split that a full cache keeps.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum CacheKind {
    /// Those that came first. No policy has more hits where each block is used once an epoch.
    #[default]
    Fixed,
    /// Those that were used last: for a grouped order, whose blocks are used often within a short time.
    Lru,
}

/// How training samples are ordered, and how batches are prepared. Sequence length and batch size belong to the training recipe.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LoaderConfig {
    /// Seed of the sample order; without it the order follows the seed of the run.
    pub seed: Option<u64>,
    /// Whether each epoch has its own random order. `false` reads the shards from front to back, for debugging.
    pub shuffle: bool,
    /// Order of an epoch: "uniform" or "grouped".
    pub order: OrderKind,
    /// Bytes of consecutive text that a grouped order keeps together, at least a window, such as "8MiB".
    pub block: String,
    /// Bytes of the blocks of a group, at least one block, such as "256MiB". If all of the text fits, the order is the uniform one.
    pub group: String,
    /// Bytes of batches that a rank prepares ahead while it computes, such as "16MiB": at least one micro-batch and at most 256. "0" reads them in
    /// the step. No value changes a batch.
    pub prefetch: String,
    /// Bytes of blocks of the training split that a process keeps in memory, such as "2GiB": at least 1MiB. "0" leaves that to the system's page
    /// cache, which suffices for a local disk. No value changes a batch.
    pub cache: String,
    /// Blocks that a full cache keeps: "fixed" or "lru".
    pub cache_policy: CacheKind,
    /// Threads of a rank that prepare batches: more than one keeps a store with a long latency busy. No value changes a batch.
    pub threads: u64,
}

impl Default for LoaderConfig {
    fn default() -> Self {
        LoaderConfig {
            seed: None,
            shuffle: true,
            order: OrderKind::Uniform,
            block: "8MiB".into(),
            group: "256MiB".into(),
            prefetch: "16MiB".into(),
            cache: "0".into(),
            cache_policy: CacheKind::Fixed,
            threads: 1,
        }
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
        if self.order == OrderKind::Grouped && !self.shuffle {
            return Err(
                "order = \"grouped\" with shuffle = false: wanted shuffle = true, or order = \"uniform\""
                    .into(),
            );
        }
        let (block, group) = (size("block", &self.block)?, size("group", &self.group)?);
        if block == 0 || group < block {
            return Err(format!(
                "block and group: wanted a block of at least 1 byte and a group of at least one block, found {:?} and {:?}",
                self.block, self.group
            ));
        }
        match size("cache", &self.cache)? {
            bytes if (1..u64::from(BLOCK_BYTES)).contains(&bytes) => Err(format!(
                "cache: wanted 0 or at least a block of {}, found {:?}",
                Bytes(BLOCK_BYTES.into()),
                self.cache
            )),
            _ => size("prefetch", &self.prefetch).map(|_| ()),
        }
    }

    /// The cache of blocks, if there is one.
    pub fn cache_config(&self) -> Option<CacheConfig> {
        let policy = match self.cache_policy {
            CacheKind::Fixed => CachePolicy::Fixed,
            CacheKind::Lru => CachePolicy::Lru,
        };
        let bytes = size("cache", &self.cache).ok()?;
        (bytes > 0).then_some(CacheConfig { bytes, policy })
    }

    /// Blocks and groups of windows of `window` bytes each; none of a uniform order.
    pub fn grouping(&self, window: u64) -> Option<Grouping> {
        let (block, group) = (size("block", &self.block).ok()?, size("group", &self.group).ok()?);
        let of_block = (block / window.max(1)).max(1);
        let grouping = Grouping { block: of_block, group: (group / block.max(1)).max(1) };
        (self.order == OrderKind::Grouped).then_some(grouping)
    }

    /// The ring of prepared batches; none of a configuration that [`LoaderConfig::check`] refuses.
    pub fn prefetch_config(&self) -> PrefetchConfig {
        PrefetchConfig {
            bytes: size("prefetch", &self.prefetch).unwrap_or(0),
            threads: self.threads as usize,
        }
    }

    /// The seed of the order, given the seed of the run.
    pub fn seed_or(&self, run_seed: u64) -> u64 {
        self.seed.unwrap_or(run_seed)
    }
}

/// The bytes that the value of a key states.
fn size(key: &str, value: &str) -> Result<u64, String> {
    let bytes: Result<Bytes, _> = value.parse();
    bytes.map(|bytes| bytes.0).map_err(|e| format!("{key}: {e}"))
}
