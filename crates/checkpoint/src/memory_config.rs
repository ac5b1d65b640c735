//! The `[save.memory]` table of a recipe.

use crate::SaveConfigError;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Choice of whose memory holds copies of the state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum MemoryKeep {
    /// Nobody's: a run goes on from checkpoints on disk only.
    #[default]
    None,
    /// The host's own: a killed process loses at most the steps since the last copy.
    Own,
    /// The host's own and other failure domains': so does a lost host.
    Peers,
}

/// Choice of where the part of a rank's copies goes that its memory has no space for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum MemoryOverflow {
    /// Nowhere: the run makes no copies.
    #[default]
    None,
    /// To other ranks' memory.
    Ranks,
    /// To other ranks' memory and the disk, whichever is faster.
    Disk,
}

/// Copies of the state in shared memory, which outlive the process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct MemoryConfig {
    /// Whose memory holds copies of the state: "none", "own" (that of the host: a killed process goes on from it) or "peers" (also
    /// that of other failure domains: so does a lost host).
    pub keep: MemoryKeep,
    /// Copy after this many steps; 0: as often as keeps what training waits for copies below `save.overhead` of its time.
    pub every_steps: u64,
    /// Copies of each failure domain's state with `keep = "peers"`, its own included.
    pub copies: u64,
    /// Consecutive ranks that fail together, such as those of the hosts in one rack; 0: the ranks of each host.
    pub ranks_per_domain: u64,
    /// MiB a second that a rank sends to peers at most; 0: as many as the network takes while no collective uses it.
    pub rate_mib: u64,
    /// Directory on a file system in memory.
    pub directory: PathBuf,
    /// MiB of memory that a rank's copies take at most; 0: what the run leaves free.
    pub limit_mib: u64,
    /// Where what does not fit goes, with `keep = "own"`: "none" (no copies are made), "ranks" (to the memory of ranks that have more than
    /// they need) or "disk" (there or into files in the run directory, whichever is faster).
    pub overflow: MemoryOverflow,
}

impl Default for MemoryConfig {
    fn default() -> MemoryConfig {
        MemoryConfig {
            keep: MemoryKeep::None,
            every_steps: 1,
            copies: 2,
            ranks_per_domain: 0,
            rate_mib: 0,
            directory: PathBuf::from("/dev/shm"),
            limit_mib: 0,
            overflow: MemoryOverflow::None,
        }
    }
}

impl MemoryConfig {
    /// Checks every value's range.
    ///
    /// # Errors
    /// The first key with an impossible value.
    pub fn check(&self) -> Result<(), SaveConfigError> {
        let range = |key, value: u64, least: u64, most: u64| {
            if (least..=most).contains(&value) {
                return Ok(());
            }
            Err(SaveConfigError { key, problem: format!("wanted {least} to {most}, found {value}") })
        };
        range("memory.every_steps", self.every_steps, 0, 1 << 48)?;
        range("memory.copies", self.copies, 1, 16)?;
        range("memory.ranks_per_domain", self.ranks_per_domain, 0, 1 << 20)?;
        range("memory.rate_mib", self.rate_mib, 0, 1 << 20)?;
        range("memory.limit_mib", self.limit_mib, 0, 1 << 40)?;
        if self.overflow != MemoryOverflow::None && self.keep == MemoryKeep::Peers {
            let problem = "wanted \"none\" with save.memory.keep = \"peers\": peers store whole copies; \
                           found another value";
            return Err(SaveConfigError { key: "memory.overflow", problem: problem.into() });
        }
        if self.directory.is_absolute() {
            return Ok(());
        }
        let problem = format!("wanted an absolute path, found {:?}", self.directory.display().to_string());
        Err(SaveConfigError { key: "memory.directory", problem })
    }

    /// Copies of each rank's state in other ranks' memory, where there are enough failure domains.
    pub fn peer_copies(&self) -> u64 {
        if self.keep == MemoryKeep::Peers { self.copies.saturating_sub(1) } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_values_are_refused_by_key() {
        let good = MemoryConfig { keep: MemoryKeep::Peers, ..MemoryConfig::default() };
        assert!(good.check().is_ok() && good.peer_copies() == 1);
        assert_eq!(MemoryConfig { keep: MemoryKeep::Own, ..good.clone() }.peer_copies(), 0);
        let e = MemoryConfig { every_steps: u64::MAX, ..good.clone() }.check().map_err(|e| e.to_string());
        let wanted = "save.memory.every_steps: wanted 0 to 281474976710656, found 18446744073709551615";
        assert_eq!(e, Err(wanted.into()));
        let both = MemoryConfig { overflow: MemoryOverflow::Disk, ..good.clone() };
        assert!(
            both.check().is_err_and(|e| e.to_string().starts_with("save.memory.overflow: wanted \"none\""))
        );
        assert!(MemoryConfig { keep: MemoryKeep::Own, ..both }.check().is_ok());
        let e = MemoryConfig { directory: "shm".into(), ..good }.check().map_err(|e| e.to_string());
        assert_eq!(e, Err("save.memory.directory: wanted an absolute path, found \"shm\"".into()));
    }
}
