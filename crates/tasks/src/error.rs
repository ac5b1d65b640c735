//! Errors of task files, their data and their scores.

use std::path::PathBuf;

/// An error of a task file, its data or its scores.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TaskError {
    /// A file cannot be read.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// A task file is not what it should be.
    #[error("{path}: {what}", path = path.display())]
    File {
        /// The task file.
        path: PathBuf,
        /// The fault: what was wanted, what was found.
        what: String,
    },
    /// A task cannot be run, or its documents do not go with its templates.
    #[error("task {task}: {what}")]
    Task {
        /// The task.
        task: String,
        /// The fault: what was wanted, what was found.
        what: String,
    },
    /// There is no task, group or tag of this name.
    #[error("{0}")]
    Unknown(String),
}

impl TaskError {
    /// An error of a task.
    pub(crate) fn task(task: &str, what: impl Into<String>) -> TaskError {
        TaskError::Task { task: task.into(), what: what.into() }
    }
}
