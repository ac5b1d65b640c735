//! What can go wrong while a plan runs.

use std::path::{Path, PathBuf};

/// Result of the dataflow room.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of a plan or of its executor. Faults of single rows are not errors: the functions of a plan mark such
/// rows, because one bad document must not stop a run over a million good ones.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or folder could not be read or written.
    #[error("cannot {action} {}: {cause}", path.display())]
    Io {
        /// What was being done, as a verb phrase ("read", "create").
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The operating system's answer.
        #[source]
        cause: std::io::Error,
    },
    /// The stop flag was raised.
    #[error("stopped on request")]
    Stopped,
    /// A batch did not have what a stage needs: a defect of the plan.
    #[error("stage {stage:?}: {problem}")]
    Plan {
        /// The stage's name.
        stage: String,
        /// What it wanted and what it found.
        problem: String,
    },
    /// A worker panicked; the message is kept so that it can be reported.
    #[error(
        "a worker of stage {stage:?} panicked: {message}; please report this with the input that caused it"
    )]
    Panicked {
        /// Where it happened.
        stage: &'static str,
        /// The panic's message.
        message: String,
    },
    /// Arrow refused an operation, for example a batch above 2 GiB.
    #[error("arrow: {0}")]
    Arrow(#[from] arrow_schema::ArrowError),
    /// A source, function or sink of another room failed; its own error is inside and can be taken out again.
    #[error(transparent)]
    Other(Box<dyn std::error::Error + Send + Sync>),
}

impl Error {
    /// Wraps an I/O error with its path.
    pub fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Error {
        let path = path.to_path_buf();
        move |cause| Error::Io { action, path, cause }
    }

    /// A defect of the plan, found by a stage.
    pub fn plan(stage: &str, problem: impl Into<String>) -> Error {
        Error::Plan { stage: stage.to_string(), problem: problem.into() }
    }

    /// Wraps the error of another room.
    pub fn other(error: impl std::error::Error + Send + Sync + 'static) -> Error {
        Error::Other(Box::new(error))
    }
}
