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
}

impl Default for RunConfig {
    fn default() -> Self {
        RunConfig { name: "run".into(), dir: "runs".into(), seed: 1337, threads: 0, pin_threads: true }
    }
}

/// Most threads that a pool may be asked for.
const MOST_THREADS: u64 = 4096;

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
        Ok(())
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
