//! Errors.

use std::path::PathBuf;
use thiserror::Error;

/// Command that comes before `judge migrate`.
#[cfg(not(feature = "migrate"))]
const BUILD: &str = "cargo install --path crates/bessemer --features migrate && ";
#[cfg(feature = "migrate")]
const BUILD: &str = "";

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
    /// The file is that of something else, or of another version.
    #[error("{}: wanted a study of judgements of version {wanted}, found {found}", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// Version that this program reads here.
        wanted: u32,
        /// Description of the file that was found.
        found: String,
    },
    /// The file is a study of an older program, a SQLite database.
    #[error(
        "{old}: wanted a study of judgements of version 2 (JSON lines), found version 1 (a SQLite database); write it as \
         version 2: {build}bessemer judge migrate {old} NEW.jsonl",
        old = path.display(),
        build = BUILD
    )]
    OldStudy {
        /// The file.
        path: PathBuf,
    },
    /// A line of the file is not what was written.
    #[error("{}: line {line}: wanted a record of a study, found {found}; {remedy}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Number of the line, from 1.
        line: u64,
        /// Description of the line.
        found: String,
        /// A command or a phrase.
        remedy: String,
    },
    /// SQLite refused.
    #[cfg(feature = "migrate")]
    #[error("{}: {cause}", path.display())]
    Database {
        /// The file.
        path: PathBuf,
        /// SQLite's message.
        cause: rusqlite::Error,
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
