//! What can go wrong, each with what was wanted, what was found, where, and what to try.

use std::path::PathBuf;

/// Error of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// A configuration value is outside what it may be.
    #[error("tokenizer configuration: {0}")]
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
    /// A tokenizer file exceeds the size that is read into memory.
    #[error("{} holds {bytes} bytes; a tokenizer.json of more than {limit} bytes is refused", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// The largest size accepted.
        limit: u64,
    },
    /// The text is not JSON, or not of the shape of a tokenizer.json.
    #[error("tokenizer.json: {0}")]
    Json(#[from] serde_json::Error),
    /// The file is a valid tokenizer of a kind that this crate does not represent.
    #[error("tokenizer.json: {part} {found} is not supported; {hint}")]
    Unsupported {
        /// Part of the file.
        part: &'static str,
        /// Value that was found there.
        found: String,
        /// Values that are supported.
        hint: &'static str,
    },
    /// The parts of the file contradict each other.
    #[error("tokenizer.json: {0}")]
    Inconsistent(String),
    /// Training cannot give the tokenizer that was asked for.
    #[error("training the tokenizer: {0}")]
    Training(String),
    /// A character-level tokenizer met a character that it was not trained on.
    #[error(
        "{found} at byte {offset} (line {line}) is not in the alphabet of this character tokenizer \
         ({alphabet} characters); train it on text that has the character, or use kind = \"byte-bpe\""
    )]
    UnknownCharacter {
        /// The character with its code point, or the invalid byte.
        found: String,
        /// Offset in the text, in bytes.
        offset: usize,
        /// Line, counted from 1.
        line: usize,
        /// Size of the alphabet.
        alphabet: usize,
    },
    /// A token id outside the vocabulary, or in a hole of it.
    #[error("token id {id} at position {position} is not in the vocabulary of {vocab_size} ids")]
    UnknownId {
        /// The id.
        id: u32,
        /// Its position in the sequence.
        position: usize,
        /// Ids are below this.
        vocab_size: usize,
    },
}

/// Result with [`TokenizerError`].
pub type Result<T> = std::result::Result<T, TokenizerError>;
