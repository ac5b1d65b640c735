//! The `[save]` table of a recipe.

use crate::retention::Retention;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// When checkpoints are written and which are kept.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SaveConfig {
    /// Save after this many steps; 0: not by steps.
    pub every_steps: u64,
    /// Save when this many seconds have passed since the last save (the most work a crash can cost); 0: not by time.
    pub every_seconds: u64,
    /// Save after the last step, and when the run is asked to stop.
    pub at_end: bool,
    /// The newest checkpoints that are kept; at least 1. Two or more leave a way back when the newest is damaged.
    pub keep_last: u64,
    /// Also keep for ever each checkpoint whose step is a multiple of this; 0: none.
    pub keep_every: u64,
    /// Also keep this many checkpoints with the lowest validation loss, and save after each evaluation on the way that is
    /// among them; 0: none.
    pub keep_best: u64,
    /// Largest file in MiB; a larger tensor gets a file of its own.
    pub max_file_mib: u64,
}

impl Default for SaveConfig {
    fn default() -> Self {
        SaveConfig {
            every_steps: 0,
            every_seconds: 600,
            at_end: true,
            keep_last: 3,
            keep_every: 0,
            keep_best: 0,
            max_file_mib: 4096,
        }
    }
}

/// A `[save]` table with an impossible value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("save.{key}: {problem}")]
pub struct SaveConfigError {
    /// Key of the table.
    pub key: &'static str,
    /// What was wanted and found.
    pub problem: String,
}

impl SaveConfig {
    /// Checks every value's range.
    pub fn check(&self) -> Result<(), SaveConfigError> {
        let range = |key, value: u64, least: u64, most: u64| {
            if (least..=most).contains(&value) {
                return Ok(());
            }
            Err(SaveConfigError { key, problem: format!("wanted {least} to {most}, found {value}") })
        };
        range("every_steps", self.every_steps, 0, 1 << 48)?;
        range("every_seconds", self.every_seconds, 0, 366 * 86_400)?;
        range("keep_last", self.keep_last, 1, 1_000_000)?;
        range("keep_every", self.keep_every, 0, 1 << 48)?;
        range("keep_best", self.keep_best, 0, 1000)?;
        range("max_file_mib", self.max_file_mib, 1, 1 << 24)
    }

    /// Whether to save after `step` (steps done), `seconds` after the last save or the start of the run.
    pub fn due(&self, step: u64, seconds: f64) -> bool {
        let by_steps = self.every_steps > 0 && step > 0 && step.is_multiple_of(self.every_steps);
        by_steps || (self.every_seconds > 0 && seconds >= self.every_seconds as f64)
    }

    /// What [`crate::Store::gc`] keeps: `best` are the steps with the lowest validation loss, and one checkpoint older than
    /// `look_back` steps stays.
    pub fn retention(&self, best: impl IntoIterator<Item = u64>, look_back: u64) -> Retention {
        Retention {
            keep_last: self.keep_last,
            keep_every: (self.keep_every > 0).then_some(self.keep_every),
            keep: best.into_iter().collect(),
            look_back: Some(look_back),
        }
    }

    /// [`SaveConfig::max_file_mib`] in bytes.
    pub fn max_file_bytes(&self) -> u64 {
        self.max_file_mib.saturating_mul(1 << 20)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_save_is_due_by_steps_or_by_time() {
        let c = SaveConfig { every_steps: 100, every_seconds: 60, ..Default::default() };
        assert!(c.due(200, 0.0) && c.due(1, 60.0));
        assert!(!c.due(199, 59.9) && !c.due(0, 0.0));
        let never = SaveConfig { every_steps: 0, every_seconds: 0, ..Default::default() };
        assert!(!never.due(100, 1e9));
    }

    #[test]
    fn impossible_values_are_refused_by_key() {
        SaveConfig::default().check().unwrap();
        let e = SaveConfig { keep_last: 0, ..Default::default() }.check().unwrap_err();
        assert_eq!(e.to_string(), "save.keep_last: wanted 1 to 1000000, found 0");
        assert!(SaveConfig { max_file_mib: 0, ..Default::default() }.check().is_err());
    }
}
