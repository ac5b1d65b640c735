//! Errors.

use std::path::PathBuf;
use thiserror::Error;

/// An error of a study of judgements.
#[derive(Debug, Error)]
pub enum JudgeError {
    /// A file could not be read or written; the message names it.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The texts of a study are not what was wanted.
    #[error("{place}: {what}")]
    Item {
        /// File and line.
        place: String,
        /// A sentence.
        what: String,
    },
    /// A setting of a study is wrong.
    #[error("{0}")]
    Setting(String),
    /// The database refused.
    #[error("{}: {cause}", path.display())]
    Database {
        /// The file.
        path: PathBuf,
        /// SQLite's word.
        cause: rusqlite::Error,
    },
    /// The file is a database of something else, or of another version.
    #[error("{}: wanted a study of judgements of version {wanted}, found {found}", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// Version that this program writes.
        wanted: u32,
        /// Description of the file that was found.
        found: String,
    },
    /// A template for judges that are models cannot be used.
    #[error("template {place}: {what}")]
    Template {
        /// File or name.
        place: String,
        /// A sentence.
        what: String,
    },
    /// A model that judges failed.
    #[error("{0}")]
    Model(String),
    /// A judgement that the study does not ask for.
    #[error("{0}")]
    Judgement(String),
}
