//! Errors of a plan and of its executor.

use arrow_schema::ArrowError;
use std::path::{Path, PathBuf};

/// Result of building or running a plan.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of a plan or of its executor. Faults of single rows are not errors: the functions of a plan mark such
/// rows, because one bad document must not stop a run over a million good ones.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or folder could not be read or written.
    #[error("{}", bessemer_durable::failure_text(path, action, cause))]
    Io {
        /// What was being done, as a verb phrase ("read", "create").
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The operating system's answer.
        #[source]
        cause: std::io::Error,
    },
    /// A spill file could not be made or opened, or a thread not started; the text names the path or the limit, and a remedy.
    #[error(transparent)]
    System(std::io::Error),
    /// The stop flag was raised.
    #[error("stopped on request")]
    Stopped,
    /// A batch did not have what a stage needs: a defect of the plan.
    #[error("stage {stage:?}: {problem}")]
    Plan {
        /// The stage's name.
        stage: String,
        /// Input that the stage wanted and input that it found.
        problem: String,
    },
    /// A worker panicked; the message is kept so that it can be reported.
    #[error(
        "a worker of stage {stage:?} panicked: {message}; please report this with the input that caused it"
    )]
    Panicked {
        /// Stage or step whose worker panicked.
        stage: &'static str,
        /// The panic's message.
        message: String,
    },
    /// Arrow refused an operation, for example a batch above 2 GiB.
    #[error("arrow: {0}")]
    Arrow(#[source] ArrowError),
    /// A source, function or sink that another crate supplied failed; [`Error::other`] wraps its error, which can be downcast.
    #[error(transparent)]
    Other(Box<dyn std::error::Error + Send + Sync>),
}

impl From<ArrowError> for Error {
    fn from(error: ArrowError) -> Error {
        match error {
            // Of a spill file.
            ArrowError::IoError(_, cause) if cause.raw_os_error().is_some() => {
                Error::System(bessemer_durable::with_remedy(cause))
            }
            other => Error::Arrow(other),
        }
    }
}

impl From<bessemer_external_sort::Error> for Error {
    fn from(error: bessemer_external_sort::Error) -> Error {
        match error {
            bessemer_external_sort::Error::Io { action, path, cause } => Error::Io { action, path, cause },
            bessemer_external_sort::Error::System(cause) => Error::System(cause),
            bessemer_external_sort::Error::Stopped => Error::Stopped,
        }
    }
}

impl Error {
    /// Wraps an I/O error with its path.
    pub fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Error {
        let path = path.to_path_buf();
        move |cause| Error::Io { action, path, cause: bessemer_durable::with_remedy(cause) }
    }

    /// A defect of the plan, found by a stage.
    pub fn plan(stage: &str, problem: impl Into<String>) -> Error {
        Error::Plan { stage: stage.to_string(), problem: problem.into() }
    }

    /// Wraps an error of a source, function or sink.
    pub fn other(error: impl std::error::Error + Send + Sync + 'static) -> Error {
        Error::Other(Box::new(error))
    }
}
