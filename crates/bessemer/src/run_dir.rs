//! Places of the files of a run directory.

use std::path::{Path, PathBuf};

/// A run directory.
#[derive(Debug, Clone)]
pub(crate) struct RunDir {
    root: PathBuf,
}

impl RunDir {
    /// The directory at `root`; nothing is created.
    pub(crate) fn new(root: impl Into<PathBuf>) -> RunDir {
        RunDir { root: root.into() }
    }

    /// The directory itself.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Its name without the path, for people.
    pub(crate) fn name(&self) -> String {
        let root = self.root.canonicalize().unwrap_or_else(|_| self.root.clone());
        root.file_name().map_or("model".into(), |name| name.to_string_lossy().into_owned())
    }

    /// The file that the process at work on the run holds locked.
    pub(crate) fn lock(&self) -> PathBuf {
        self.root.join(".lock")
    }

    /// The resolved recipe.
    pub(crate) fn recipe(&self) -> PathBuf {
        self.root.join("recipe.toml")
    }

    /// Cleaned documents and their statistics.
    pub(crate) fn corpus(&self) -> PathBuf {
        self.root.join("corpus")
    }

    /// The tokenizer in the Hugging Face format.
    pub(crate) fn tokenizer(&self) -> PathBuf {
        self.root.join("tokenizer.json")
    }

    /// Token shards.
    pub(crate) fn shards(&self) -> PathBuf {
        self.root.join("shards")
    }

    /// Checkpoints.
    pub(crate) fn checkpoints(&self) -> PathBuf {
        self.root.join("checkpoints")
    }

    /// Who this run is for the object store that its checkpoints go to.
    pub(crate) fn upload_owner(&self) -> PathBuf {
        self.root.join("upload.json")
    }

    /// The file that the process that uploads checkpoints holds locked.
    pub(crate) fn upload_lock(&self) -> PathBuf {
        self.root.join(".upload.lock")
    }

    /// The report.
    pub(crate) fn report(&self) -> PathBuf {
        self.root.join("report.html")
    }

    /// Markers of finished stages.
    pub(crate) fn stages(&self) -> PathBuf {
        self.root.join("stages")
    }
}
