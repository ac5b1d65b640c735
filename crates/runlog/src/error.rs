//! Why a log could not be written or read.

use std::path::{Path, PathBuf};

/// Why a file of the run could not be written or is refused. Each names the file.
#[derive(Debug, thiserror::Error)]
pub enum RunLogError {
    /// The operating system refused an operation (missing folder, full disk, permission).
    #[error("{}", bessemer_durable::failure_text(path, doing, source))]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// Attempted action.
        doing: &'static str,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The folder of the log could not be opened. The system's answer names it.
    #[error(transparent)]
    Folder(std::io::Error),
    /// A file could not be written or made durable (full disk). The system's answer names the file.
    #[error("{source}; {} was not replaced", path.display())]
    Write {
        /// The file that was to be made.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The first line is not that of a run log.
    #[error(
        "{}: not a run log: wanted a first line with kind \"log\" and format \"bessemer-runlog\", found {found}",
        path.display()
    )]
    Foreign {
        /// The file.
        path: PathBuf,
        /// The beginning of the first line.
        found: String,
    },
    /// The log has a later version of the format.
    #[error(
        "{}: run log version {found}, this program reads version {wanted}; use the program that wrote it, or \
         another run directory", path.display()
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// The version that this program reads.
        wanted: u64,
        /// The version in the file.
        found: String,
    },
    /// A record cannot be written as one line of JSON of an allowed length.
    #[error("{}: a record of kind {kind:?} cannot be written: {what}", path.display())]
    Record {
        /// The file.
        path: PathBuf,
        /// Kind of the record.
        kind: String,
        /// Why.
        what: String,
    },
    /// A file is no `study.json` (or `coord-check.json`), or one of another version.
    #[error("{}: not a study of version {wanted}: {what}; use another directory", path.display())]
    Study {
        /// The file.
        path: PathBuf,
        /// The version that this program reads.
        wanted: u64,
        /// Found value.
        what: String,
    },
    /// A file is no `experts.loads`, or one of another version or model.
    #[error("{}: not the loads of experts: {what}", path.display())]
    Loads {
        /// The file.
        path: PathBuf,
        /// Fault.
        what: String,
    },
    /// A file is no Chrome trace.
    #[error("{}: not a trace (a JSON array of events): {what}", path.display())]
    Trace {
        /// The file.
        path: PathBuf,
        /// Fault.
        what: String,
    },
    /// An earlier write failed halfway, so that this handle may not be at the end of the log.
    #[error("{}: an earlier write failed halfway; open the log again", path.display())]
    Poisoned {
        /// The file.
        path: PathBuf,
    },
}

impl RunLogError {
    pub(crate) fn io(path: &Path, doing: &'static str, source: std::io::Error) -> Self {
        RunLogError::Io { path: path.to_owned(), doing, source }
    }

    pub(crate) fn write(path: &Path, source: std::io::Error) -> Self {
        RunLogError::Write { path: path.to_owned(), source }
    }
}
