//! What can go wrong in the search for repeated substrings.

use std::path::{Path, PathBuf};

/// Result of the search.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of the search.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A spill file could not be written or read.
    #[error("cannot {action} {}: {cause}; set a folder with more room, or raise the memory budget", path.display())]
    Spill {
        /// Operation that failed, as a verb.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The operating system's answer.
        #[source]
        cause: std::io::Error,
    },
    /// A value is out of range.
    #[error("{0}")]
    Config(String),
    /// Different windows had equal 80-bit fingerprints under every seed.
    #[error(
        "fingerprints of different substrings agreed under {seeds} seeds; please report this with the input that caused it"
    )]
    Collision {
        /// Seeds that were tried.
        seeds: u64,
    },
}

impl Error {
    pub(super) fn spill(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Error {
        let path = path.to_path_buf();
        move |cause| Error::Spill { action, path, cause }
    }
}
