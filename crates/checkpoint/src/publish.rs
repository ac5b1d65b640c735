//! The one step that makes a finished directory visible: shared by checkpoints and exports.

use crate::error::{At, CheckpointError};
use crate::fs::{FileSystem, parent_of, remove_tree};
use std::io;
use std::path::Path;

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
    pub(crate) fn clean(self, fs: &dyn FileSystem, hidden: &Path) -> CheckpointError {
        if self.discard {
            // Best effort: the next save or export sweeps what stays.
            let _ = remove_tree(fs, hidden);
        }
        *self.error
    }
}

impl From<CheckpointError> for Unfinished {
    fn from(error: CheckpointError) -> Self {
        Unfinished { error: Box::new(error), discard: true }
    }
}

/// Gives the finished and synced directory `hidden` the name `target` in the same parent, durably. A directory that has
/// that name is replaced, atomically where the file system can exchange names; where it cannot, it passes through the
/// name `aside`, and a crash in that instant leaves it there.
pub(crate) fn publish(
    fs: &dyn FileSystem,
    hidden: &Path,
    target: &Path,
    aside: &Path,
) -> Result<(), Unfinished> {
    let old = if fs.kind(target).at("look for", target)?.is_none() {
        fs.rename(hidden, target).at("rename", hidden)?;
        None
    } else {
        match fs.exchange(hidden, target) {
            Ok(()) => Some(hidden),
            Err(e) if e.kind() == io::ErrorKind::Unsupported => {
                fs.rename(target, aside).at("rename", target)?;
                if let Err(e) = fs.rename(hidden, target) {
                    let _ = fs.rename(aside, target);
                    Err(e).at("rename", hidden)?;
                }
                Some(aside)
            }
            Err(e) => return Err(e).at("exchange", hidden)?,
        }
    };
    // From here on nothing may be removed unless the new name is durable.
    let parent = parent_of(target);
    fs.sync_dir(parent).at("sync", parent).map_err(Unfinished::keep)?;
    if let Some(old) = old {
        let _ = remove_tree(fs, old);
    }
    Ok(())
}
