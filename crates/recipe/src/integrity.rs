//! `[train.integrity]`: numbers that a broken machine makes, and how they are found.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Most steps between checks.
const MOST_STEPS: u64 = 1 << 40;

/// `[train.integrity]`: how silent data corruption is found (docs/operation.md).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct IntegrityConfig {
    /// Steps between comparisons of what several ranks hold: parameters and optimizer state of data-parallel replicas, and what
    /// tensor-parallel ranks do not share, bit for bit, by a hash. They are compared before each checkpoint too. A run whose ranks differ goes back to its
    /// newest checkpoint and computes the same steps again. 0 never compares.
    pub every_steps: u64,
    /// Steps between checks of state at rest: a hash of the parameters and optimizer state that a rank holds is taken after an update and taken
    /// again before the next one, so that a bit that flips in memory meanwhile is found, also on a single rank. 0 never checks; 1 covers
    /// every step. A difference has the consequences of one between ranks. Not with asynchronous schedules.
    pub at_rest_every: u64,
    /// What happens to a step whose loss or gradient is not finite, or is a spike (`train.spike_action`), before it is taken, skipped or
    /// gone back from: "off" or "validate".
    pub rerun: Rerun,
}

/// Whether a suspicious step is computed again.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Rerun {
    /// No step is computed twice.
    Off,
    /// The passes of the step run again on the same data. The same bits: the model made them. Other bits: a machine did; what two of three
    /// computations agree on is taken.
    #[default]
    Validate,
}

impl Default for IntegrityConfig {
    fn default() -> IntegrityConfig {
        IntegrityConfig { every_steps: 100, at_rest_every: 0, rerun: Rerun::Validate }
    }
}

impl IntegrityConfig {
    /// Checks every key.
    ///
    /// # Errors
    /// A sentence that names the key, the value and what is allowed.
    pub(crate) fn check(&self) -> Result<(), String> {
        for (key, steps) in [("every_steps", self.every_steps), ("at_rest_every", self.at_rest_every)] {
            if steps > MOST_STEPS {
                return Err(format!("train.integrity.{key} = {steps}: expected 0 (never) to {MOST_STEPS}"));
            }
        }
        Ok(())
    }
}
