//! Making a file's bytes and name survive a power cut: fsync, rename, fsync of the directory.

use crate::RunLogError;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// The hidden name, beside `path`, under which its replacement is written.
pub(crate) fn partial_path(path: &Path) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".partial");
    path.with_file_name(name)
}

/// Syncs `file`, gives it its final name and syncs the directory that holds it.
pub(crate) fn publish(file: &File, partial: &Path, path: &Path) -> Result<(), RunLogError> {
    file.sync_all().map_err(|e| RunLogError::io(partial, "fsync", e))?;
    fs::rename(partial, path).map_err(|e| RunLogError::io(path, "rename the finished file to", e))?;
    sync_parent(path)
}

/// Makes the name of `path` durable.
pub(crate) fn sync_parent(path: &Path) -> Result<(), RunLogError> {
    let dir = match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        _ => Path::new("."),
    };
    File::open(dir).and_then(|d| d.sync_all()).map_err(|e| RunLogError::io(dir, "fsync the folder", e))
}
