//! `[parallel]`: how a job's ranks share the work.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What the ranks of the shard axis have a part of instead of a whole copy (Rajbhandari et al. 2020).
#[derive(
    Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// Nothing: distributed data parallelism. Gradients are all-reduced.
    #[default]
    Ddp,
    /// Optimizer state. Gradients are reduce-scattered, updated parameters gathered.
    Zero1,
    /// Gradients too: every micro-batch's are reduce-scattered as they are made.
    Zero2,
    /// Parameters too (FSDP): a layer's are gathered before they are used and dropped after.
    Zero3,
}

/// `[parallel]`: how ranks share the work. Ranks come from `--ranks N` or the launcher; those that no other axis takes
/// replicate the model and share the batch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ParallelConfig {
    /// What data-parallel ranks keep a part of instead of a copy: "ddp" (nothing), "zero1" (optimizer state), "zero2"
    /// (gradients too) or "zero3" (parameters too).
    pub stage: Stage,
    /// Ranks over which a copy of that is cut; 0: all data-parallel ranks. Fewer make several copies, each cut over so
    /// many ranks (hybrid sharding). Not with "ddp".
    pub shard: u64,
    /// Ranks that share every layer's matrices (tensor parallelism). Divides heads and the width of the feed-forward
    /// block.
    pub tensor: u64,
    /// Cut the residual stream over the tensor-parallel ranks too (sequence parallelism): less memory for activations,
    /// a quarter more traffic.
    pub sequence: bool,
    /// Talk while computing: gradients of a layer travel while the layers below are computed.
    pub overlap: bool,
}

/// Largest degree that a recipe may ask for: more is a mistake.
const MOST_RANKS: u64 = 1 << 20;

impl ParallelConfig {
    /// Checks what does not need the number of ranks.
    ///
    /// # Errors
    /// A sentence that names the key, the value and what is allowed.
    pub fn check(&self) -> Result<(), String> {
        if self.shard > MOST_RANKS {
            return Err(format!("parallel.shard = {}: expected 0 (all) to {MOST_RANKS}", self.shard));
        }
        if !(1..=MOST_RANKS).contains(&self.tensor) {
            return Err(format!("parallel.tensor = {}: expected 1 to {MOST_RANKS}", self.tensor));
        }
        if self.stage == Stage::Ddp && self.shard > 1 {
            return Err(format!(
                "parallel.shard = {} with parallel.stage = \"ddp\", which cuts nothing: expected 0, or stage \"zero1\", \
                 \"zero2\" or \"zero3\"",
                self.shard
            ));
        }
        if self.sequence && self.tensor == 1 {
            return Err(
                "parallel.sequence = true cuts the stream over tensor-parallel ranks: expected parallel.tensor above 1, \
                 or false"
                    .into(),
            );
        }
        Ok(())
    }
}

impl Default for ParallelConfig {
    fn default() -> Self {
        ParallelConfig { stage: Stage::Ddp, shard: 0, tensor: 1, sequence: false, overlap: true }
    }
}
