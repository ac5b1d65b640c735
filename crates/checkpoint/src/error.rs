//! What can be wrong with a checkpoint, said so that the reader knows which file, what was expected and what to try.

use crate::compare::MatchReport;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Result of this crate.
pub type Result<T> = std::result::Result<T, CheckpointError>;

/// Error handed up by a caller's own code (a tensor source that could not read its device, for example).
pub type SourceError = Box<dyn std::error::Error + Send + Sync>;

/// A checkpoint that cannot be written, found, trusted or understood.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The file system refused.
    #[error("{}{}", bessemer_durable::failure_text(path, action, source), io_advice(source))]
    Io {
        /// What was being done, e.g. "write".
        action: &'static str,
        /// To which file or directory.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// Less space than the save needs, found before anything was written.
    #[error(
        "{}: the checkpoint needs {needed} bytes, {free} are free; nothing was written. Free space, lower save.keep_last, or save elsewhere",
        dir.display()
    )]
    NoSpace {
        /// Directory of the store.
        dir: PathBuf,
        /// Bytes the checkpoint takes.
        needed: u64,
        /// Bytes free on that file system.
        free: u64,
    },
    /// The store's directory is a symbolic link (or no directory at all).
    #[error(
        "{}: wanted a directory, found a symbolic link or a file: checkpoints behind a link are read, but none is written or \
         removed through it; put a directory in its place, or link the run directory as a whole",
        dir.display()
    )]
    NotOwn {
        /// Directory of the store.
        dir: PathBuf,
    },
    /// Another process holds the store's lock.
    #[error("{}: another process is saving or deleting checkpoints here; run one trainer per directory", dir.display())]
    Busy {
        /// Directory of the store.
        dir: PathBuf,
    },
    /// Bytes differ from those that were written.
    #[error(
        "{}: damaged: expected checksum {expected}, found {found}; restore the file from a copy or use an earlier checkpoint",
        file.display()
    )]
    Checksum {
        /// The damaged file.
        file: PathBuf,
        /// Checksum that the manifest (or the manifest's own last line) states.
        expected: String,
        /// Checksum of the bytes found.
        found: String,
    },
    /// A file is shorter or longer than when it was written.
    #[error("{}: expected {expected} bytes, found {found}; the file was cut or changed, use an earlier checkpoint", file.display())]
    Size {
        /// The damaged file.
        file: PathBuf,
        /// Bytes that the manifest states.
        expected: u64,
        /// Bytes found.
        found: u64,
    },
    /// A file of the checkpoint is not there.
    #[error("{}: missing; the checkpoint is not complete, use an earlier one", file.display())]
    MissingFile {
        /// The absent file.
        file: PathBuf,
    },
    /// The manifest is intact but says something impossible.
    #[error("{}: {problem}", file.display())]
    Manifest {
        /// The manifest.
        file: PathBuf,
        /// Expected and found value.
        problem: String,
    },
    /// The manifest has a version that this program does not know.
    #[error("{}: format version {found}, this program reads up to {supported}; use the program that wrote it, or a newer one", file.display())]
    Version {
        /// The manifest.
        file: PathBuf,
        /// Version found.
        found: u64,
        /// Newest version that this program reads.
        supported: u64,
    },
    /// A safetensors file breaks its format.
    #[error("{}: not a valid safetensors file: {problem}", file.display())]
    Container {
        /// The file.
        file: PathBuf,
        /// Expected and found value.
        problem: String,
    },
    /// One tensor cannot be read or written as asked.
    #[error("{}: tensor {name:?}: {problem}", file.display())]
    Tensor {
        /// File or directory that holds it.
        file: PathBuf,
        /// Name of the tensor.
        name: String,
        /// Expected and found value.
        problem: String,
    },
    /// A tensor that is to be saved holds a value that is not finite.
    #[error(
        "tensor {name:?} holds {value} at element {index}: a checkpoint with values that are not finite is not written; go \
         back to an earlier checkpoint"
    )]
    NotFinite {
        /// Name of the tensor.
        name: String,
        /// First element that is not finite.
        index: usize,
        /// Its value.
        value: f32,
    },
    /// The caller's tensor source failed.
    #[error("tensor {name:?} could not be provided for saving: {source}")]
    Source {
        /// Name of the tensor.
        name: String,
        /// Error of the source.
        source: SourceError,
    },
    /// The request to save is itself impossible.
    #[error("cannot save step {step}: {problem}")]
    Request {
        /// Step asked for.
        step: u64,
        /// Fault of the request.
        problem: String,
    },
    /// The store has no checkpoint of that step.
    #[error("{}: no checkpoint of step {step}; it has those of steps {have:?}", dir.display())]
    NoSuchStep {
        /// Directory of the store.
        dir: PathBuf,
        /// Step asked for.
        step: u64,
        /// Steps of the complete checkpoints.
        have: Vec<u64>,
    },
    /// There are checkpoints, but none can be used.
    #[error("{}: no usable checkpoint: {}", dir.display(), join(skipped))]
    NothingValid {
        /// Directory of the store.
        dir: PathBuf,
        /// Each one that was tried, newest first.
        skipped: Vec<Skipped>,
    },
    /// The tensors of a checkpoint are not those of the model.
    #[error("{}: tensors differ from the model's: {report}", path.display())]
    TensorsDiffer {
        /// The checkpoint.
        path: PathBuf,
        /// What is missing, unexpected, or of another shape.
        report: MatchReport,
    },
    /// Another rank of the job could not do its part.
    #[error("rank {rank}: {problem}")]
    OnRank {
        /// The rank.
        rank: usize,
        /// Its error.
        problem: String,
    },
    /// An object store refused, is full, or cannot be reached.
    #[error("{0}")]
    Remote(Box<bessemer_object_store::RemoteError>),
    /// Another run, or another job of this run, uploads there.
    #[error(
        "{url}: checkpoints of another run, or of a job that has taken this run over, are uploaded there (owner {found}, this run is \
         {wanted}); name another prefix in save.upload, or take it over with `bessemer checkpoint upload --take-over`"
    )]
    OtherOwner {
        /// Address of the store.
        url: String,
        /// Owner that this run is.
        wanted: String,
        /// Owner that the store names.
        found: String,
    },
    /// A model that a GGUF file cannot express, or a place where none is written.
    #[error("{}: {problem}", path.display())]
    Gguf {
        /// The file.
        path: PathBuf,
        /// Feature, what was found, what to try.
        problem: String,
    },
    /// A model that the Hugging Face layout cannot express, or a Hugging Face directory that Bessemer cannot express.
    #[error("{}: {problem}", path.display())]
    HuggingFace {
        /// File or directory.
        path: PathBuf,
        /// Feature, what was found, what to try.
        problem: String,
    },
}

impl CheckpointError {
    /// Whether the error says that a checkpoint itself cannot be used: an older one may be intact.
    pub fn is_damage(&self) -> bool {
        matches!(
            self,
            CheckpointError::Io { .. }
                | CheckpointError::Checksum { .. }
                | CheckpointError::Size { .. }
                | CheckpointError::MissingFile { .. }
                | CheckpointError::Manifest { .. }
                | CheckpointError::Version { .. }
                | CheckpointError::Container { .. }
                | CheckpointError::Tensor { .. }
        )
    }
}

/// A checkpoint that was passed over, and why.
#[derive(Debug)]
pub struct Skipped {
    /// Directory of the checkpoint.
    pub path: PathBuf,
    /// Why it cannot be used.
    pub why: Box<CheckpointError>,
}

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "checkpoint {} was skipped: {}", self.path.display(), self.why)
    }
}

fn join(skipped: &[Skipped]) -> String {
    skipped.iter().map(Skipped::to_string).collect::<Vec<_>>().join("; ")
}

fn io_advice(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "; the unfinished checkpoint was discarded and earlier ones are untouched. Free space, lower save.keep_last, or save elsewhere"
        }
        io::ErrorKind::FileTooLarge => {
            "; the unfinished checkpoint was discarded and earlier ones are untouched. Raise the file size limit or lower save.max_file_mib"
        }
        io::ErrorKind::PermissionDenied => "; check the owner and mode of the directory",
        _ => "",
    }
}

/// Adds what was being done, and to what, to an [`io::Error`].
pub(crate) trait At<T> {
    fn at(self, action: &'static str, path: &Path) -> Result<T>;
}

impl<T> At<T> for io::Result<T> {
    fn at(self, action: &'static str, path: &Path) -> Result<T> {
        self.map_err(|source| match source.downcast::<CheckpointError>() {
            // A file whose bytes are verified when they are read says itself what is wrong with them.
            Ok(own) => own,
            Err(source) => match source.downcast::<bessemer_object_store::RemoteError>() {
                Ok(remote) => remote.into(),
                Err(source) => CheckpointError::Io { action, path: path.into(), source },
            },
        })
    }
}
