//! Errors of a sort.

use std::path::{Path, PathBuf};

/// Result of a sort.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of a sort.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A spill file could not be created, written or read.
    #[error("cannot {action} {}: {cause}; use a directory with more free space, or raise the memory budget", path.display())]
    Io {
        /// Operation that failed, as a verb phrase.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The operating system's answer.
        #[source]
        cause: std::io::Error,
    },
    /// A spill file could not be created, or a thread not started; the text names the path or the limit, and a remedy.
    #[error(transparent)]
    System(std::io::Error),
    /// The stop flag was raised.
    #[error("stopped on request")]
    Stopped,
}

impl Error {
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Error {
        let path = path.to_path_buf();
        move |cause| Error::Io { action, path, cause: bessemer_durable::with_remedy(cause) }
    }
}
