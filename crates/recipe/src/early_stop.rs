//! `[train.early_stop]`: the end of a run whose validation loss no longer falls.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Largest number of evaluations.
const MOST_EVALUATIONS: u64 = 1 << 20;

/// `[train.early_stop]`: end the run when the validation loss has not fallen for some evaluations (`eval.every_steps`). The checkpoint with the
/// lowest loss is that of `save.keep_best`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EarlyStopConfig {
    /// Evaluations in a row without a lower loss after which the run ends; 0: it makes all steps.
    pub patience: u64,
    /// Nats by which a loss must be lower than the lowest one to count.
    pub min_delta: f64,
}

impl EarlyStopConfig {
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.patience > MOST_EVALUATIONS {
            return Err(format!(
                "train.early_stop.patience = {}: expected 0 to {MOST_EVALUATIONS}",
                self.patience
            ));
        }
        if !(0.0..=1e3).contains(&self.min_delta) {
            return Err(format!("train.early_stop.min_delta = {}: expected 0 to 1000", self.min_delta));
        }
        Ok(())
    }
}
