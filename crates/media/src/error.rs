//! Every way in which a media file or a shard is refused.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

/// Result of this crate.
pub type Result<T> = std::result::Result<T, MediaError>;

/// Why something could not be read, decoded or written. [`MediaError::reason`] is a short word for counting.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MediaError {
    /// The first bytes are of no kind that this crate reads.
    #[error("wanted {wanted}; the file begins with {found}, which is none of them")]
    Unknown {
        /// Input that would have been read.
        wanted: &'static str,
        /// The first bytes, in hexadecimal.
        found: String,
    },
    /// The decoder found the bytes to be damaged, cut off or contradictory.
    #[error("damaged or truncated {format}: {what}")]
    Damaged {
        /// The format.
        format: &'static str,
        /// The decoder's message.
        what: String,
    },
    /// Valid, but of a variant that is not decoded.
    #[error("{format}: {what} is not supported; {hint}")]
    Unsupported {
        /// The format.
        format: &'static str,
        /// The variant.
        what: String,
        /// Alternative.
        hint: &'static str,
    },
    /// Decoding would cost more than [`crate::Limits`] allow.
    #[error("{what}: at most {limit} allowed, found {found}; raise the limit if the file is to be trusted")]
    TooLarge {
        /// Counted unit.
        what: &'static str,
        /// The limit.
        limit: u64,
        /// Value in the file.
        found: u64,
    },
    /// A decoder panicked: a defect of the decoder, which costs this one file.
    #[error("the decoder of {format} failed on this file (a defect of the decoder): {what}")]
    Panicked {
        /// The format.
        format: &'static str,
        /// The message of the panic.
        what: String,
    },
    /// An argument that cannot be.
    #[error("{0}")]
    Argument(String),
    /// A sample that lacks a part or has one twice.
    #[error("{0}")]
    Sample(String),
    /// The caller's tokenizer refused a text.
    #[error("tokenizer: {0}")]
    Tokenizer(String),
    /// `ffmpeg` or `ffprobe` is not installed.
    #[error(
        "{program} was not found; videos are decoded by FFmpeg: install it (Debian and Ubuntu: apt-get install ffmpeg; \
         Fedora: dnf install ffmpeg-free; macOS: brew install ffmpeg) or leave videos out"
    )]
    NoProgram {
        /// The program.
        program: String,
    },
    /// `ffmpeg` or `ffprobe` failed or took too long.
    #[error("{program}: {what}")]
    Program {
        /// The program.
        program: &'static str,
        /// Event.
        what: String,
    },
    /// The operating system refused an operation.
    #[error("{}: could not {doing}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// Attempted action.
        doing: &'static str,
        /// The system's answer.
        source: std::io::Error,
    },
    /// A tar archive that cannot be read on.
    #[error("{}: tar archive, byte {offset}: {what}", path.display())]
    Archive {
        /// The archive.
        path: PathBuf,
        /// Where, in bytes of the archive after decompression.
        offset: u64,
        /// Fault.
        what: String,
    },
    /// A media-shard file or set that is refused.
    #[error("{}: {what}", path.display())]
    Shard {
        /// The file.
        path: PathBuf,
        /// Expected and found value.
        what: String,
    },
    /// The caller asked to stop.
    #[error("stopped on request; no incomplete file was kept; run the same command to start over")]
    Stopped,
}

impl MediaError {
    pub(crate) fn damaged(format: &'static str, what: impl std::fmt::Display) -> MediaError {
        MediaError::Damaged { format, what: what.to_string() }
    }

    pub(crate) fn io(path: &Path, doing: &'static str, source: std::io::Error) -> MediaError {
        MediaError::Io { path: path.to_owned(), doing, source }
    }

    pub(crate) fn shard(path: &Path, what: impl Into<String>) -> MediaError {
        MediaError::Shard { path: path.to_owned(), what: what.into() }
    }

    /// A short word for counting failures by reason.
    pub fn reason(&self) -> &'static str {
        match self {
            MediaError::Unknown { .. } => "unknown-format",
            MediaError::Damaged { .. } => "damaged",
            MediaError::Unsupported { .. } => "unsupported",
            MediaError::TooLarge { .. } => "too-large",
            MediaError::Panicked { .. } => "panic",
            MediaError::Argument(_) => "argument",
            MediaError::Sample(_) => "incomplete-sample",
            MediaError::Tokenizer(_) => "tokenizer",
            MediaError::NoProgram { .. } => "no-ffmpeg",
            MediaError::Program { .. } => "ffmpeg",
            MediaError::Io { .. } => "io",
            MediaError::Archive { .. } => "archive",
            MediaError::Shard { .. } => "shard",
            MediaError::Stopped => "stopped",
        }
    }
}

/// Runs a decoder so that its panic is an error of this one file.
///
/// # Errors
/// What `decode` returns, or [`MediaError::Panicked`].
pub fn guarded<T>(format: &'static str, decode: impl FnOnce() -> Result<T>) -> Result<T> {
    // A decoder owns all that it touches, and what it leaves half-made is dropped with it.
    catch_unwind(AssertUnwindSafe(decode)).unwrap_or_else(|panic| {
        let what = panic
            .downcast_ref::<&str>()
            .map(|s| (*s).to_owned())
            .or_else(|| panic.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "a panic without a message".into());
        Err(MediaError::Panicked { format, what })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_with_its_message() {
        let e = guarded::<()>("JPEG", || panic!("index {} out of range", 7)).unwrap_err();
        assert_eq!(e.reason(), "panic");
        assert!(e.to_string().contains("index 7 out of range"), "{e}");
        assert_eq!(guarded("JPEG", || Ok(3)).unwrap(), 3);
    }
}
