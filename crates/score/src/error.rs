//! What can go wrong, each with what was wanted, what was found, where, and what to try.

use std::path::{Path, PathBuf};

/// Error of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ScoreError {
    /// A configuration value is outside what it may be.
    #[error("scores: {0}")]
    Config(String),
    /// A file could not be read or written.
    #[error("{}", bessemer_durable::failure_text(path, action, source))]
    Io {
        /// What was attempted ("read", "write", ...).
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The operating system's answer.
        source: std::io::Error,
    },
    /// A model file is not what its name promises.
    #[error("{name}, byte {at}: {what}")]
    Model {
        /// The file or its description.
        name: String,
        /// Offset in the file, in bytes.
        at: u64,
        /// The content that was wanted and the content that was found.
        what: String,
    },
    /// A file of lines (ARPA, word counts, domain tags) breaks its format.
    #[error("{name}, line {line}: {what}")]
    Line {
        /// The file or its description.
        name: String,
        /// Line number, from 1.
        line: u64,
        /// The content that was wanted and the content that was found.
        what: String,
    },
    /// The training data cannot give the model that was asked for.
    #[error("training: {0}")]
    Training(String),
    /// A spill file could not be written or read.
    #[error(transparent)]
    Sort(#[from] bessemer_external_sort::Error),
}

impl ScoreError {
    /// An error about a file that the system reported.
    pub fn io(action: &'static str, path: &Path, source: std::io::Error) -> ScoreError {
        ScoreError::Io { action, path: path.to_path_buf(), source }
    }
}

/// Result of this crate.
pub type Result<T> = std::result::Result<T, ScoreError>;

impl From<ScoreError> for std::io::Error {
    fn from(error: ScoreError) -> std::io::Error {
        std::io::Error::other(error)
    }
}
