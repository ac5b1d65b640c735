//! Errors of copies in memory.

use bessemer_collectives::CollectiveError;
use std::io;
use std::path::{Path, PathBuf};

/// Why a copy in memory cannot be made or used.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// Answer of the system.
    #[error("{}", bessemer_durable::failure_text(path, action, source))]
    Io {
        /// Attempted action.
        action: &'static str,
        /// File or directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Less memory than the copies take, on the file system, beside the run or by the recipe's limit.
    #[error(
        "{} has {free} bytes free, copies of the state take {needed} more: enlarge it (`mount -o remount,size=...`, `--shm-size` of a container), \
         let other ranks' memory or the disk take the rest (save.memory.overflow), or set save.memory.keep = \"none\"",
        path.display()
    )]
    NoRoom {
        /// Directory on the file system.
        path: PathBuf,
        /// Bytes wanted.
        needed: u64,
        /// Bytes free.
        free: u64,
    },
    /// A directory or file that is there and is not this user's alone.
    #[error("{}: {problem}; nothing is written there: remove it, or set save.memory.directory to another place", path.display())]
    Foreign {
        /// The file or directory.
        path: PathBuf,
        /// Fault that was found.
        problem: String,
    },
    /// Another process is at work on the copies of the same rank.
    #[error("another process writes the copies of rank {rank} in {}: wait until it has ended", path.display())]
    Busy {
        /// The rank.
        rank: usize,
        /// The directory.
        path: PathBuf,
    },
    /// A copy whose bytes are not those that were written.
    #[error("{}: the copy of step {step} is damaged: wanted hash {wanted:032x}, found {found:032x}", path.display())]
    Damaged {
        /// The slot.
        path: PathBuf,
        /// Step of the copy.
        step: u64,
        /// Hash in the header.
        wanted: u128,
        /// Hash of the bytes.
        found: u128,
    },
    /// Answer of another rank.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
}

/// Result of this crate.
pub type Result<T> = std::result::Result<T, MemoryError>;

/// Adds the action and the path to a system's error.
pub(crate) trait At<T> {
    fn at(self, action: &'static str, path: &Path) -> Result<T>;
}

impl<T, E: Into<io::Error>> At<T> for std::result::Result<T, E> {
    fn at(self, action: &'static str, path: &Path) -> Result<T> {
        self.map_err(|e| MemoryError::Io { action, path: path.into(), source: e.into() })
    }
}
