//! What can go wrong, said so that the reader knows what was wanted, what was found, where, and what to try.

use std::path::{Path, PathBuf};

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of this crate. Faults of single documents are not errors: they become dropped rows with a
/// reason, because one bad file must not stop a run over a million good ones.
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
    /// A file of a directory of the program could not be read or written; the text names it and a remedy.
    #[error(transparent)]
    System(std::io::Error),
    /// A configuration value is outside its range.
    #[error("{0}")]
    Config(String),
    /// The source does not exist or is of the wrong kind.
    #[error("corpus source {}: {problem}; {hint}", path.display())]
    Source {
        /// The path in question.
        path: PathBuf,
        /// The defect.
        problem: String,
        /// Advice on what to try.
        hint: String,
    },
    /// A source of several.
    #[error("source {name:?}: {error}")]
    OfSource {
        /// Its name.
        name: String,
        /// The defect.
        #[source]
        error: Box<Error>,
    },
    /// The named text column or field is absent.
    #[error("{place} has no text {what} {wanted:?}; it has: {found} (set corpus.text to one of them)")]
    NoTextColumn {
        /// File, and line where lines exist.
        place: String,
        /// "column" or "field".
        what: &'static str,
        /// The name asked for.
        wanted: String,
        /// The names present, with their types where known.
        found: String,
    },
    /// Cargo could not list the dependencies of a workspace.
    #[error("cannot list the dependencies of the workspace in {}: {problem}; {hint}", workspace.display())]
    Cargo {
        /// The folder in which cargo was run.
        workspace: PathBuf,
        /// What cargo said, or why it could not be started.
        problem: String,
        /// Advice on what to try.
        hint: &'static str,
    },
    /// No document was left to train on.
    #[error("the corpus is empty: {} ({reasons}); {hint}", none_kept(*seen, place))]
    Empty {
        /// The source, in words.
        place: String,
        /// Documents read.
        seen: u64,
        /// Dropped documents by reason, largest first, with an example.
        reasons: String,
        /// Advice on what to try.
        hint: &'static str,
    },
    /// The measures of a build are outside of the bounds of `corpus.evaluate.require`.
    #[error(
        "the corpus does not meet corpus.evaluate.require: {bounds}; {} is unchanged: look at the sample and the dropped documents of a \
         build without the bound, change the rules or the bound, and build again",
        path.display()
    )]
    Bounds {
        /// The output directory.
        path: PathBuf,
        /// Each bound that is not met, wanted and found.
        bounds: String,
    },
    /// The output directory holds something that is not a corpus.
    #[error("{} exists and is not a corpus directory ({problem}); choose another output directory or remove it", path.display())]
    NotACorpus {
        /// The directory.
        path: PathBuf,
        /// The missing or wrong part.
        problem: String,
    },
    /// A directory of the program holds something that the program did not write, and would be replaced.
    #[error("{} {problem}; nothing was changed", path.display())]
    Foreign {
        /// The directory.
        path: PathBuf,
        /// The thing that was found, and advice on it.
        problem: String,
    },
    /// A file of a finished corpus does not match its marker.
    #[error(
        "{} is damaged: {problem}; put back a copy of the file, or remove the corpus directory and build it again",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Expected and found.
        problem: String,
    },
    /// Another process is building into the same directory.
    #[error("another process is building {}; wait for it or choose another output directory", path.display())]
    Busy {
        /// The output directory.
        path: PathBuf,
    },
    /// The stop flag was raised.
    #[error("stopped on request; finished parts are kept, and the next run continues after them")]
    Stopped,
    /// A defect of the plan, or a panic of a worker.
    #[error(transparent)]
    Flow(bessemer_dataflow::Error),
    /// A function of another crate failed.
    #[error(transparent)]
    Stage(Box<dyn std::error::Error + Send + Sync>),
    /// Arrow refused an operation, for example a batch above 2 GiB.
    #[error("arrow: {0}")]
    Arrow(#[from] arrow_schema::ArrowError),
    /// A Parquet file could not be read or written.
    #[error("parquet file {}: {cause}", path.display())]
    Parquet {
        /// The file.
        path: PathBuf,
        /// Error of the Parquet library.
        #[source]
        cause: parquet::errors::ParquetError,
    },
    /// A document could not be tokenised.
    #[error("document {id}: {cause}")]
    Tokenize {
        /// The document's name.
        id: String,
        /// Defect of its text.
        cause: String,
    },
    /// The shards could not be written.
    #[error(transparent)]
    Shard(#[from] bessemer_shards::ShardError),
    /// A JSON document of ours could not be read.
    #[error("{}: {cause}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Place and description.
        #[source]
        cause: serde_json::Error,
    },
}

impl From<bessemer_dataflow::Error> for Error {
    /// An error of this crate that travelled through a plan comes out as it went in.
    fn from(error: bessemer_dataflow::Error) -> Error {
        use bessemer_dataflow::Error as Flow;
        match error {
            Flow::Io { action, path, cause } => Error::Io { action, path, cause },
            Flow::System(cause) => Error::System(cause),
            Flow::Stopped => Error::Stopped,
            Flow::Arrow(cause) => Error::Arrow(cause),
            error @ (Flow::Plan { .. } | Flow::Panicked { .. }) => Error::Flow(error),
            Flow::Other(other) => match other.downcast::<Error>() {
                Ok(own) => *own,
                Err(other) => Error::Stage(other),
            },
        }
    }
}

impl From<Error> for bessemer_dataflow::Error {
    fn from(error: Error) -> bessemer_dataflow::Error {
        bessemer_dataflow::Error::other(error)
    }
}

impl Error {
    /// A batch did not have what a stage needs: a defect of the plan.
    pub(crate) fn plan(stage: &str, problem: impl Into<String>) -> Error {
        bessemer_dataflow::Error::plan(stage, problem).into()
    }

    /// Wraps an I/O error with its path.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Error {
        let path = path.to_path_buf();
        move |cause| Error::Io { action, path, cause: bessemer_durable::with_remedy(cause) }
    }

    /// Wraps a Parquet error with its path.
    pub(crate) fn parquet(path: &Path) -> impl FnOnce(parquet::errors::ParquetError) -> Error {
        let path = path.to_path_buf();
        move |cause| Error::Parquet { path, cause }
    }
}

/// The documents of a source that has none to train on, in words.
fn none_kept(seen: u64, place: &str) -> String {
    match seen {
        0 => format!("no documents were found in {place}"),
        1 => format!("the only document in {place} was dropped"),
        _ => format!("all {seen} documents in {place} were dropped"),
    }
}
