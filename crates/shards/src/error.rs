//! Every way in which a shard file or a set of them is refused.

use crate::Fingerprint;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// The part of a file that a checksum covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The fixed header.
    Header,
    /// Block `number` of the token data, bytes `start..end` of the file.
    Block {
        /// Number of the block, from 0.
        number: u64,
        /// Number of blocks in the file.
        of: u64,
        /// First byte of the block in the file.
        start: u64,
        /// One past the last byte of the block in the file.
        end: u64,
    },
    /// Padding, block checksums and document index (version 1), or their table.
    Index,
    /// Bytes `start..end` of the file: a piece of the document index, its checksums, or another section.
    Section {
        /// First byte in the file.
        start: u64,
        /// One past the last byte in the file.
        end: u64,
    },
    /// Bytes `start..end` of the file: a piece of the mask of scored tokens, or its count and checksums.
    Mask {
        /// First byte in the file.
        start: u64,
        /// One past the last byte in the file.
        end: u64,
    },
    /// The fixed trailer.
    Trailer,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Part::Header => f.write_str("the header"),
            Part::Index => f.write_str("the index"),
            Part::Section { start, end } => write!(f, "the index (bytes {start}..{end})"),
            Part::Mask { start, end } => write!(f, "the mask of scored tokens (bytes {start}..{end})"),
            Part::Trailer => f.write_str("the trailer"),
            Part::Block { number, of, start, end } => {
                write!(f, "block {number} of {of} (bytes {start}..{end})")
            }
        }
    }
}

/// Defect of the ranges of a document's scored tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScoredRangeFault {
    /// A range ends before it begins, or behind the document.
    Outside {
        /// Number of the range, from 0.
        number: usize,
        /// The range.
        range: Range<usize>,
        /// Tokens of the document.
        tokens: usize,
    },
    /// A range begins before the end of the preceding one.
    Overlap {
        /// Number of the range, from 0.
        number: usize,
        /// The range.
        range: Range<usize>,
        /// End of the range before it.
        before: usize,
    },
}

impl fmt::Display for ScoredRangeFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ScoredRangeFault::Outside { number, range: Range { start, end }, tokens } => {
                write!(f, "wanted range {number} of scored tokens within 0..{tokens}, found {start}..{end}")
            }
            ScoredRangeFault::Overlap { number, range: Range { start, end }, before } => {
                write!(
                    f,
                    "wanted range {number} of scored tokens to begin at {before} or later, found {start}..{end}"
                )
            }
        }
    }
}

/// Why a shard file or a set of shard files could not be written or is refused. Each names the file.
#[derive(Debug, thiserror::Error)]
pub enum ShardError {
    /// The operating system refused an operation (missing file, full disk, permission).
    #[error("{}", bessemer_durable::failure_text(path, doing, source))]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// Operation that failed.
        doing: &'static str,
        /// The system's answer.
        source: std::io::Error,
    },
    /// A file could not be written or made durable (full disk). The system's answer names the file.
    #[error("{source}; {} was not made", path.display())]
    Write {
        /// The file that was to be made.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The path is a directory, FIFO, socket or device.
    #[error("{}: wanted a regular shard file, found {found}; put the file itself in its place, or remove the folder of shards, which \
         `bessemer run RECIPE` makes again", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
        /// Kind of file that was found.
        found: &'static str,
    },
    /// The file does not begin with the magic bytes of a shard file.
    #[error(
        "{}: not a shard file: wanted the first 8 bytes to be 89 42 53 48 41 52 44 0a, found {found}; \
         if it was meant to be one, it was never completely written: rebuild the shards", path.display()
    )]
    Foreign {
        /// The file.
        path: PathBuf,
        /// Its first bytes in hexadecimal.
        found: String,
    },
    /// The file has another version of the format.
    #[error(
        "{}: shard format version {found}, this program reads versions 1 to {wanted}; rebuild the shards or use \
         the program that wrote them", path.display()
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// The newest version that this program reads.
        wanted: u32,
        /// The version in the file.
        found: u32,
    },
    /// The file has a section that its reader must read and that this program does not have.
    #[error(
        "{}: section of kind {kind} is required to read the tokens, and this program does not read it; use the program that \
         wrote the file", path.display()
    )]
    Section {
        /// The file.
        path: PathBuf,
        /// Kind of the section.
        kind: u32,
    },
    /// The file ends too early.
    #[error("{}: truncated at byte {found}: its header states {wanted} bytes; rebuild the shards", path.display())]
    Truncated {
        /// The file.
        path: PathBuf,
        /// The length that it should have (at least, when the header itself is cut).
        wanted: u64,
        /// The length that it has.
        found: u64,
    },
    /// The file goes on after its trailer.
    #[error("{}: {found} bytes long, its header states {wanted}: bytes were appended; restore or rebuild it", path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
        /// The length that it should have.
        wanted: u64,
        /// The length that it has.
        found: u64,
    },
    /// A checksum does not match.
    #[error(
        "{}: checksum mismatch in {part}: wanted {wanted:016x}, found {found:016x}; the file changed after it \
         was written: restore or rebuild it", path.display()
    )]
    Checksum {
        /// The file.
        path: PathBuf,
        /// Part of the file.
        part: Part,
        /// The stored checksum.
        wanted: u64,
        /// The checksum of the bytes that are there.
        found: u64,
    },
    /// A field holds a value that no writer produces.
    #[error("{}: malformed at byte {offset}: {what}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Offset in the file, in bytes.
        offset: u64,
        /// The content that was wanted and the content that was found.
        what: String,
    },
    /// The tokens come from another tokenizer.
    #[error(
        "{}: made with tokenizer {found}, wanted tokenizer {wanted}; rebuild the shards with this tokenizer or \
         use the one that made them", path.display()
    )]
    Tokenizer {
        /// The file or directory.
        path: PathBuf,
        /// The tokenizer at hand.
        wanted: Fingerprint,
        /// The tokenizer that made the tokens.
        found: Fingerprint,
    },
    /// The tokens belong to another vocabulary size.
    #[error("{}: made for a vocabulary of {found} tokens, wanted {wanted}", path.display())]
    Vocabulary {
        /// The file or directory.
        path: PathBuf,
        /// The vocabulary at hand.
        wanted: u32,
        /// The vocabulary of the file.
        found: u32,
    },
    /// A document to be written holds a token that the vocabulary does not have.
    #[error(
        "{}: document {document}: token {token} at position {position} is outside the vocabulary of \
         {vocab_size} tokens", path.display()
    )]
    TokenOutsideVocabulary {
        /// The file being written.
        path: PathBuf,
        /// Number of the document in this file, from 0.
        document: u64,
        /// Position in the document, from 0.
        position: usize,
        /// The token.
        token: u32,
        /// The vocabulary.
        vocab_size: u32,
    },
    /// The ranges of a document's scored tokens are not ascending ranges within the document.
    #[error("{}: document {document}: {fault}", path.display())]
    ScoredRange {
        /// The file being written.
        path: PathBuf,
        /// Number of the document in this file, from 0.
        document: u64,
        /// The defect.
        fault: ScoredRangeFault,
    },
    /// Tokens were asked for that do not exist.
    #[error("{}: wanted tokens {start}..{end}, found {tokens} tokens", path.display())]
    OutOfRange {
        /// The file or directory.
        path: PathBuf,
        /// First token asked for.
        start: u64,
        /// One past the last token asked for.
        end: u64,
        /// Tokens that exist.
        tokens: u64,
    },
    /// A property of the shards to be written is not allowed.
    #[error("{}: {what}", path.display())]
    Meta {
        /// The file to be written.
        path: PathBuf,
        /// The content that was wanted and the content that was found.
        what: String,
    },
    /// An earlier write failed, so that this file cannot be finished.
    #[error("{}: an earlier write to this file failed; start the shard again", path.display())]
    Poisoned {
        /// The file being written.
        path: PathBuf,
    },
    /// The directory of a split has no `shards.json`.
    #[error(
        "{}: no shards.json: the shards were never built or were interrupted; run the shard stage again",
        path.display()
    )]
    Unfinished {
        /// The directory of the split.
        path: PathBuf,
    },
    /// `shards.json` is malformed or disagrees with itself.
    #[error("{}: {what}; rebuild the shards", path.display())]
    SetIndex {
        /// The `shards.json`.
        path: PathBuf,
        /// The content that was wanted and the content that was found.
        what: String,
    },
    /// A shard file is not the one that `shards.json` lists.
    #[error("{}: {what} is {found}, shards.json lists {wanted}; restore the file or rebuild the shards", path.display())]
    NotTheListedFile {
        /// The shard file.
        path: PathBuf,
        /// The property that differs.
        what: &'static str,
        /// As listed.
        wanted: String,
        /// As found in the file.
        found: String,
    },
}

impl ShardError {
    pub(crate) fn io(path: &Path, doing: &'static str, source: std::io::Error) -> Self {
        ShardError::Io { path: path.to_owned(), doing, source }
    }

    /// A file that is opened is no regular file.
    pub(crate) fn not_a_file(path: &Path) -> Self {
        let found = match path.symlink_metadata().map(|metadata| metadata.file_type()) {
            Ok(kind) if kind.is_symlink() => "a symbolic link",
            Ok(kind) if kind.is_dir() => "a directory",
            _ => "a FIFO, socket or device",
        };
        ShardError::NotAFile { path: path.to_owned(), found }
    }

    pub(crate) fn write(path: &Path, source: std::io::Error) -> Self {
        ShardError::Write { path: path.to_owned(), source }
    }

    pub(crate) fn malformed(path: &Path, offset: usize, what: impl Into<String>) -> Self {
        ShardError::Malformed { path: path.to_owned(), offset: offset as u64, what: what.into() }
    }
}
