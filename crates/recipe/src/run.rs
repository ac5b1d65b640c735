//! `[run]`: what a run is called, where it lives, its seed and threads.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// `[run]`: name, place, seed, threads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RunConfig {
    /// Name of the run; its directory is `dir/name`.
    pub name: String,
    /// Folder that holds run directories, relative to the current directory.
    pub dir: String,
    /// Seed of every random number: data order, initialisation, dropout, sampling.
    pub seed: u64,
    /// Threads that compute, of each rank; 0 shares all cores that the process may use out among the ranks of the machine.
    /// Results do not depend on it.
    pub threads: u64,
    /// Bind each computing thread to a core of its own, where one rank has the machine. Switch it off on a machine that is
    /// busy with other work.
    pub pin_threads: bool,
    /// What of a run is traced.
    pub trace: TraceConfig,
    /// Values for Prometheus.
    pub prometheus: PrometheusConfig,
}

/// `[run.prometheus]`: a text file with the latest values of the training, for the textfile collector of Prometheus'
/// node-exporter. The file is replaced whole, at evaluations and at the end too.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PrometheusConfig {
    /// Steps between two writes of the file; 0 writes none.
    pub every_steps: u64,
    /// The file, relative to the run directory. The collector reads files whose names end in `.prom`.
    pub path: String,
}

impl Default for PrometheusConfig {
    fn default() -> Self {
        PrometheusConfig { every_steps: 0, path: "metrics.prom".into() }
    }
}

impl PrometheusConfig {
    fn check(&self) -> Result<(), String> {
        let PrometheusConfig { every_steps, path } = self;
        if *every_steps > MOST_STEPS {
            return Err(format!("run.prometheus.every_steps = {every_steps}: expected 0 to {MOST_STEPS}"));
        }
        if !path.ends_with(".prom") || path.contains('\0') {
            return Err(format!(
                "run.prometheus.path = {path:?}: expected a file whose name ends in .prom, which is what the textfile \
                 collector reads"
            ));
        }
        Ok(())
    }
}

/// `[run.trace]`: which steps write into `trace.json` when passes, messages and collectives ran. The two first steps of a
/// session warm up and are never traced; a session that traces a step replaces the file of the one before.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TraceConfig {
    /// Steps that are traced at the beginning of a session, once it is warm; 0 for none. With asynchronous schedules so
    /// many windows.
    pub steps: u64,
    /// And every so many steps after that; 0 for never.
    pub every_steps: u64,
    /// Most intervals in the file, of all ranks; a step that would not fit is left out, and so is all that comes after it.
    /// One takes about 150 bytes.
    pub max_intervals: u64,
}

impl Default for TraceConfig {
    fn default() -> Self {
        TraceConfig { steps: 3, every_steps: 1000, max_intervals: 200_000 }
    }
}

impl TraceConfig {
    /// Whether anything is traced at all.
    pub fn is_on(&self) -> bool {
        self.max_intervals > 0 && (self.steps > 0 || self.every_steps > 0)
    }

    fn check(&self) -> Result<(), String> {
        let numbers = [
            ("steps", self.steps, MOST_STEPS),
            ("every_steps", self.every_steps, MOST_STEPS),
            ("max_intervals", self.max_intervals, MOST_INTERVALS),
        ];
        match numbers.into_iter().find(|(_, value, most)| value > most) {
            Some((key, value, most)) => Err(format!("run.trace.{key} = {value}: expected 0 to {most}")),
            None => Ok(()),
        }
    }
}

impl Default for RunConfig {
    fn default() -> Self {
        RunConfig {
            name: "run".into(),
            dir: "runs".into(),
            seed: 1337,
            threads: 0,
            pin_threads: true,
            trace: TraceConfig::default(),
            prometheus: PrometheusConfig::default(),
        }
    }
}

/// Most threads that a pool may be asked for.
const MOST_THREADS: u64 = 4096;
/// Most steps between two that are traced.
const MOST_STEPS: u64 = 1 << 48;
/// Most intervals of a trace: more than that no viewer opens.
const MOST_INTERVALS: u64 = 10_000_000;

impl RunConfig {
    /// The run directory.
    pub fn directory(&self) -> PathBuf {
        PathBuf::from(&self.dir).join(&self.name)
    }

    /// Checks that the name can be a folder's and that the numbers are in range.
    ///
    /// # Errors
    /// A sentence that names the key, the value and what is allowed.
    pub fn check(&self) -> Result<(), String> {
        let plain = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.' | '+' | '=');
        let longest = 120;
        if self.name.is_empty()
            || self.name.len() > longest
            || self.name.starts_with('.')
            || !self.name.chars().all(plain)
        {
            return Err(format!(
                "run.name = {:?}: expected a folder name of letters, digits and -_.+= that does not begin with a \
                 dot, at most {longest} bytes",
                self.name
            ));
        }
        if self.dir.is_empty() || self.dir.contains('\0') {
            return Err(format!("run.dir = {:?}: expected a folder, such as \"runs\" or \".\"", self.dir));
        }
        if i64::try_from(self.seed).is_err() {
            return Err(format!(
                "run.seed = {}: expected at most {} (TOML's largest integer)",
                self.seed,
                i64::MAX
            ));
        }
        if self.threads > MOST_THREADS {
            return Err(format!("run.threads = {}: expected 0 (all) to {MOST_THREADS}", self.threads));
        }
        self.trace.check()?;
        self.prometheus.check()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_would_leave_the_folder_are_refused() {
        let named = |name: &str| RunConfig { name: name.into(), ..Default::default() }.check();
        for good in ["run", "gpt2-124m_v1.2", "лес", "lr=3e-4"] {
            named(good).unwrap();
        }
        for bad in ["", ".", "..", "../x", "a/b", "a\0b", "a\nb", &"x".repeat(200)] {
            assert!(named(bad).unwrap_err().contains("run.name"), "{bad:?}");
        }
        RunConfig::default().check().unwrap();
        assert!(RunConfig { seed: u64::MAX, ..Default::default() }.check().is_err());
    }
}
