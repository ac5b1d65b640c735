//! The `[save]` table of a recipe.

use crate::memory_config::MemoryConfig;
use crate::retention::Retention;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Whether training goes on while a checkpoint is written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AsyncChoice {
    /// If two copies of what a rank saves fit into its memory; otherwise training waits, and a warning says so.
    #[default]
    Auto,
    /// Always; a run whose memory does not suffice is refused.
    On,
    /// Never: training waits.
    Off,
}

/// Form in which checkpoints are stored.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    /// Plain safetensors.
    #[default]
    None,
    /// Blocks of safetensors, their bytes regrouped by place in the element, as Zstandard frames.
    Zstd,
}

/// How ranks read what they have in common of a checkpoint.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SharedReads {
    /// Once if the ranks are on several hosts, else each by itself: what another rank of the host has read is in its cache.
    #[default]
    Auto,
    /// Each rank reads all that it needs.
    Each,
    /// Each rank reads a part and sends it to the others.
    Once,
}

/// Who chooses the distance between two checkpoints.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SaveEvery {
    /// The recipe: `every_steps` and `every_seconds`.
    #[default]
    Fixed,
    /// The run, from what its saves cost and how often it fails; `every_seconds` is then the most work that a failure may cost.
    Auto,
}

/// When checkpoints are written and which are kept.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SaveConfig {
    /// Save after this many steps; 0: not by steps.
    pub every_steps: u64,
    /// Save when this many seconds have passed since the last save (the most work a crash can cost); 0: not by time.
    pub every_seconds: u64,
    /// "fixed": save by `every_steps` and `every_seconds`. "auto": every k steps, where the run chooses k by the measured cost of
    /// its saves, `overhead`, `mtbf_hours` and, as the most work that a failure may cost, `every_seconds` (0: no such limit);
    /// saves by `every_steps` come on top.
    pub every: SaveEvery,
    /// With `every = "auto"`: the largest share of training time that saves may cost.
    pub overhead: f64,
    /// With `every = "auto"`: mean time between failures of the whole run in hours, as expected before any was seen. The failures that
    /// the run has seen correct it.
    pub mtbf_hours: f64,
    /// Save after the last step, and when the run is asked to stop.
    pub at_end: bool,
    /// The newest checkpoints that are kept; at least 1. Two or more leave a way back when the newest is damaged.
    pub keep_last: u64,
    /// Also keep for ever each checkpoint whose step is a multiple of this; 0: none.
    pub keep_every: u64,
    /// Also keep this many checkpoints with the lowest validation loss, and save after each evaluation on the way that is
    /// among them; 0: none.
    pub keep_best: u64,
    /// Address to which finished checkpoints are uploaded while training goes on, e.g. "s3://bucket/runs/x", "gs://…" or "az://…"; empty:
    /// nowhere. The rules above hold there too. A run whose directory has no checkpoint goes on from the newest one there.
    pub upload: String,
    /// Largest file in MiB; a larger tensor gets a file of its own.
    pub max_file_mib: u64,
    /// Whether training goes on while a checkpoint is written, from a copy of what the rank saves: "auto" (where two copies fit
    /// into memory), "on", "off". The last save of a run is waited for.
    #[serde(rename = "async")]
    pub asynchronous: AsyncChoice,
    /// How ranks read a checkpoint when a run goes on: "each" reads all that it needs; what several need is read "once" and sent to the others;
    /// "auto": once if ranks are on several hosts.
    pub read: SharedReads,
    /// Form in which checkpoints are stored: "none" (plain safetensors) or "zstd" (regrouped by bytes and compressed: about a sixth smaller,
    /// three seconds of processor time a GiB).
    pub compress: Compression,
    /// Copies of the state in shared memory.
    pub memory: MemoryConfig,
}

impl Default for SaveConfig {
    fn default() -> Self {
        SaveConfig {
            every_steps: 0,
            every_seconds: 600,
            every: SaveEvery::Fixed,
            overhead: 0.01,
            // A node at 20 failures in 1,000 days.
            mtbf_hours: 1200.0,
            at_end: true,
            keep_last: 3,
            keep_every: 0,
            keep_best: 0,
            upload: String::new(),
            max_file_mib: 4096,
            asynchronous: AsyncChoice::Auto,
            read: SharedReads::Auto,
            compress: Compression::None,
            memory: MemoryConfig::default(),
        }
    }
}

/// A `[save]` table with an impossible value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("save.{key}: {problem}")]
pub struct SaveConfigError {
    /// Key of the table.
    pub key: &'static str,
    /// Expected and found value.
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
        let number = |key, value: f64, least: f64, most: f64| {
            if (least..=most).contains(&value) {
                return Ok(());
            }
            Err(SaveConfigError { key, problem: format!("wanted {least:?} to {most:?}, found {value:?}") })
        };
        range("every_steps", self.every_steps, 0, 1 << 48)?;
        range("every_seconds", self.every_seconds, 0, 366 * 86_400)?;
        number("overhead", self.overhead, 1e-6, 1.0)?;
        number("mtbf_hours", self.mtbf_hours, 0.001, 1e9)?;
        range("keep_last", self.keep_last, 1, 1_000_000)?;
        range("keep_every", self.keep_every, 0, 1 << 48)?;
        range("keep_best", self.keep_best, 0, 1000)?;
        let upload = self.upload.as_str();
        let known = ["s3://", "gs://", "az://"].iter().any(|scheme| {
            upload.strip_prefix(scheme).is_some_and(|rest| !rest.is_empty() && !rest.starts_with('/'))
        });
        if !upload.is_empty() && !known {
            let problem = format!(
                "wanted \"\", s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX, found {upload:?}"
            );
            return Err(SaveConfigError { key: "upload", problem });
        }
        range("max_file_mib", self.max_file_mib, 1, 1 << 24)?;
        self.memory.check()
    }

    /// Whether to save after `step` (steps done) because of `every_steps`.
    pub fn due_by_steps(&self, step: u64) -> bool {
        self.every_steps > 0 && step > 0 && step.is_multiple_of(self.every_steps)
    }

    /// Whether to save `seconds` after the last save or the start of the run because of `every_seconds`.
    pub fn due_by_time(&self, seconds: f64) -> bool {
        self.every == SaveEvery::Fixed && self.every_seconds > 0 && seconds >= self.every_seconds as f64
    }

    /// Whether a run saves on the way, and not only at its end.
    pub fn is_on_the_way(&self) -> bool {
        self.every_steps > 0 || self.every_seconds > 0 || self.every == SaveEvery::Auto || self.keep_best > 0
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

    /// Most checkpoints that a run from step `from` to step `to` has on the disk at a time, the one being written included. Saves by time
    /// count as one a step, an upper bound.
    pub fn most_kept(&self, from: u64, to: u64) -> u64 {
        let steps = to.saturating_sub(from);
        let by_steps =
            to.checked_div(self.every_steps).unwrap_or(0) - from.checked_div(self.every_steps).unwrap_or(0);
        let by_time = self.every == SaveEvery::Auto || self.every_seconds > 0;
        let saves = match by_time || self.keep_best > 0 {
            true => steps,
            false => by_steps + u64::from(self.at_end && steps > 0 && !self.due_by_steps(to)),
        };
        let milestones = match (self.every_steps, self.keep_every) {
            (0, _) | (_, 0) => 0,
            (every, keep) => {
                let (mut a, mut b) = (every, keep);
                while b > 0 {
                    (a, b) = (b, a % b);
                }
                let common = (every / a).saturating_mul(keep);
                to / common - from / common
            }
        };
        // Two more for the look-back of spikes, and the one that is written before an older one goes.
        let kept = self.keep_last.saturating_add(2 + self.keep_best).saturating_add(milestones);
        saves.min(kept.saturating_add(1))
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
        assert!(c.due_by_steps(200) && c.due_by_time(60.0));
        assert!(!c.due_by_steps(199) && !c.due_by_time(59.9) && !c.due_by_steps(0));
        let never = SaveConfig { every_steps: 0, every_seconds: 0, ..Default::default() };
        assert!(!never.due_by_steps(100) && !never.due_by_time(1e9) && !never.is_on_the_way());
        let auto = SaveConfig { every: SaveEvery::Auto, ..never };
        assert!(auto.is_on_the_way() && !SaveConfig { every_seconds: 60, ..auto }.due_by_time(61.0));
    }

    #[test]
    fn checkpoints_on_disk_are_counted_with_the_one_being_written() {
        let c = SaveConfig { every_steps: 10, every_seconds: 0, keep_last: 2, ..Default::default() };
        // Saves of steps 10, 20, 30 and 35; two that stay, two of the look-back, and the one being written.
        assert_eq!([c.most_kept(0, 35), c.most_kept(0, 9), c.most_kept(30, 35)], [4, 1, 1]);
        assert_eq!(c.most_kept(0, 10_000), 5);
        let milestones = SaveConfig { keep_every: 25, ..c.clone() };
        assert_eq!(milestones.most_kept(0, 1000), 5 + 20, "every 50 steps one stays");
        let by_time = SaveConfig { every_steps: 0, every_seconds: 600, ..c.clone() };
        assert_eq!([by_time.most_kept(0, 3), by_time.most_kept(0, 1000)], [3, 5]);
        let none = SaveConfig { every_steps: 0, at_end: false, ..c };
        assert_eq!(none.most_kept(0, 1000), 0);
    }

    #[test]
    fn impossible_values_are_refused_by_key() {
        SaveConfig::default().check().unwrap();
        let e = SaveConfig { keep_last: 0, ..Default::default() }.check().unwrap_err();
        assert_eq!(e.to_string(), "save.keep_last: wanted 1 to 1000000, found 0");
        assert!(SaveConfig { max_file_mib: 0, ..Default::default() }.check().is_err());
        let e = SaveConfig { overhead: f64::NAN, ..Default::default() }.check().unwrap_err();
        assert_eq!(e.to_string(), "save.overhead: wanted 1e-6 to 1.0, found NaN");
    }
}
