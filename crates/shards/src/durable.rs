//! Making a finished file visible: fsync, rename, fsync of the directory.
//!
//! Only the full sequence makes both the bytes and the name survive a power cut; without the first fsync a
//! renamed file may come back with the right length and nothing but zeros.

use crate::ShardError;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// The name under which `path` is written before it is complete: hidden, beside it, never ending in `.shard`.
pub(crate) fn partial_path(path: &Path) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".partial");
    path.with_file_name(name)
}

/// Syncs `file`, gives it its final name and syncs the directory that holds it.
pub(crate) fn publish(file: &File, partial: &Path, path: &Path) -> Result<(), ShardError> {
    file.sync_all().map_err(|e| ShardError::io(partial, "fsync", e))?;
    fs::rename(partial, path).map_err(|e| ShardError::io(path, "rename the finished file to", e))?;
    sync_directory(parent(path))
}

/// The directory that holds `path`.
pub(crate) fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        _ => Path::new("."),
    }
}

/// Makes created, renamed and removed names in `dir` durable.
pub(crate) fn sync_directory(dir: &Path) -> Result<(), ShardError> {
    File::open(dir).and_then(|d| d.sync_all()).map_err(|e| ShardError::io(dir, "fsync the directory", e))
}
