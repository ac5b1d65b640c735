//! The one step that makes a finished directory visible: shared by checkpoints and exports.

use crate::error::{At, CheckpointError};
use crate::fs::{EntryKind, FileSystem, IsOurs, foreign_in, remove_files};
use std::io;
use std::path::{Path, PathBuf};

/// Work that did not finish, and whether its hidden directory is to be removed.
pub(crate) struct Unfinished {
    pub(crate) error: Box<CheckpointError>,
    pub(crate) discard: bool,
}

impl Unfinished {
    /// An error after which the hidden directory must stay: it is not ours, or its name is not durable yet.
    pub(crate) fn keep(error: CheckpointError) -> Self {
        Unfinished { error: Box::new(error), discard: false }
    }

    /// Removes the hidden directory where that is right, and gives the error.
    pub(crate) fn clean(self, hidden: &Hidden<'_>) -> CheckpointError {
        if self.discard {
            // Best effort: the next save or export sweeps what stays.
            let _ = remove_files(hidden.fs, hidden.root, &hidden.partial, hidden.is_ours);
        }
        *self.error
    }
}

impl From<CheckpointError> for Unfinished {
    fn from(error: CheckpointError) -> Self {
        Unfinished { error: Box::new(error), discard: true }
    }
}

/// A directory of files that is written under a hidden name beside the one that it will bear.
pub(crate) struct Hidden<'a> {
    pub(crate) fs: &'a dyn FileSystem,
    /// The directory that holds all three; no symbolic link.
    pub(crate) root: &'a Path,
    /// Name while it is written.
    pub(crate) partial: String,
    /// Name when it is finished.
    pub(crate) target: String,
    /// Hidden name for what `target` was before.
    pub(crate) aside: String,
    /// Names of the files that may be in it.
    pub(crate) is_ours: IsOurs<'a>,
}

impl Hidden<'_> {
    /// The directory while it is written.
    pub(crate) fn path(&self) -> PathBuf {
        self.root.join(&self.partial)
    }

    /// Gives the finished and synced directory its name, durably. What has that name is replaced, atomically where the
    /// file system can exchange names; where it cannot, it passes through the name `aside`, and a crash in that instant
    /// leaves it there. What was replaced is removed if it is a directory of files of this crate; anything else (a
    /// symbolic link, a directory with files of others) gets a visible name, which is returned.
    pub(crate) fn publish(&self) -> Result<Option<PathBuf>, Unfinished> {
        let fs = self.fs;
        let (partial, target, aside) =
            (self.path(), self.root.join(&self.target), self.root.join(&self.aside));
        let old = if fs.kind(&target).at("look for", &target)?.is_none() {
            fs.rename(&partial, &target).at("rename", &partial)?;
            None
        } else {
            match fs.exchange(&partial, &target) {
                Ok(()) => Some(&self.partial),
                Err(e) if e.kind() == io::ErrorKind::Unsupported => {
                    fs.rename(&target, &aside).at("rename", &target)?;
                    if let Err(e) = fs.rename(&partial, &target) {
                        let _ = fs.rename(&aside, &target);
                        Err(e).at("rename", &partial)?;
                    }
                    Some(&self.aside)
                }
                Err(e) => return Err(e).at("exchange", &partial)?,
            }
        };
        // From here on nothing may be removed unless the new name is durable.
        fs.sync_dir(self.root).at("sync", self.root).map_err(Unfinished::keep)?;
        Ok(old.and_then(|old| self.dispose(old)))
    }

    /// Removes what was replaced, or gives it a visible name if it is not ours to remove. Best effort: the new directory is
    /// in its place.
    fn dispose(&self, old: &str) -> Option<PathBuf> {
        let hidden = self.root.join(old);
        match self.fs.kind(&hidden) {
            Ok(Some(EntryKind::Directory)) => {
                if foreign_in(self.fs, self.root, old, self.is_ours).ok()?.is_empty() {
                    let _ = remove_files(self.fs, self.root, old, self.is_ours);
                    return None;
                }
            }
            Ok(Some(_)) => {}
            Ok(None) | Err(_) => return None,
        }
        let visible = free_name(self.fs, self.root, &self.target, "replaced")?;
        self.fs.rename(&hidden, &visible).ok()?;
        let _ = self.fs.sync_dir(self.root);
        Some(visible)
    }
}

/// A visible path that nothing has and no reader takes for a checkpoint or an export: `NAME.WHY-1`, or with a later number.
pub(crate) fn free_name(fs: &dyn FileSystem, root: &Path, name: &str, why: &str) -> Option<PathBuf> {
    (1..1000).find_map(|n| {
        let path = root.join(format!("{name}.{why}-{n}"));
        matches!(fs.kind(&path), Ok(None)).then_some(path)
    })
}
