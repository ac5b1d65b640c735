//! Directories that appear whole or not at all.
//!
//! Files are written into `NAME.partial` beside the target, each synced; then the directory is synced and renamed
//! to `NAME`. A lock on a file within keeps a second process out. A crash leaves the partial directory, which the
//! next build clears. When `NAME` exists it is renamed aside first and removed after the swap; a crash between the two
//! renames leaves no `NAME`, and the next build makes it again.

use crate::error::{Error, Result};
use crate::output::summary::{FileSummary, SUMMARY_FILE};
use bessemer_durable::{parent, sync_directory};
use rustix::fs::{FlockOperation, flock};
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::Xxh3Default;

/// `path` with `suffix` appended to its last component.
pub(crate) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_os_string();
    name.push(suffix);
    PathBuf::from(name)
}

/// Removes a folder that may not be there.
pub(crate) fn remove_folder(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(cause) if cause.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::io("clear folder", path)(cause))
        }
        _ => Ok(()),
    }
}

fn sync_folder(path: &Path) -> Result<()> {
    sync_directory(path).map_err(Error::io("sync folder", path))
}

/// A directory under construction. Dropped without [`PartialDir::finish`], it is removed.
pub(crate) struct PartialDir {
    target: PathBuf,
    partial: PathBuf,
    lock_path: PathBuf,
    lock: Option<File>,
    finished: bool,
}

impl PartialDir {
    /// Locks and clears the partial directory of `target`.
    pub(crate) fn begin(target: &Path) -> Result<PartialDir> {
        let target: PathBuf = target.components().collect();
        let folder = parent(&target).to_path_buf();
        fs::create_dir_all(&folder).map_err(Error::io("create folder", &folder))?;
        let lock_path = beside(&target, ".lock.partial");
        let lock = File::create(&lock_path).map_err(Error::io("create lock file", &lock_path))?;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Err(Error::Busy { path: target });
        }
        let partial = beside(&target, ".partial");
        let dir = PartialDir { target, partial, lock_path, lock: Some(lock), finished: false };
        dir.clear()?;
        fs::create_dir(&dir.partial).map_err(Error::io("create folder", &dir.partial))?;
        Ok(dir)
    }

    fn clear(&self) -> Result<()> {
        for path in [&self.partial, &beside(&self.target, ".old.partial")] {
            remove_folder(path)?;
        }
        Ok(())
    }

    /// Removes what was written so far.
    pub(crate) fn empty(&self) -> Result<()> {
        remove_folder(&self.partial)?;
        fs::create_dir(&self.partial).map_err(Error::io("create folder", &self.partial))
    }

    /// Where files are written.
    pub(crate) fn path(&self) -> &Path {
        &self.partial
    }

    /// Puts the directory in its place.
    pub(crate) fn finish(mut self) -> Result<()> {
        sync_folder(&self.partial)?;
        let old = beside(&self.target, ".old.partial");
        if self.target.exists() {
            fs::rename(&self.target, &old).map_err(Error::io("rename", &self.target))?;
        }
        fs::rename(&self.partial, &self.target).map_err(Error::io("rename", &self.partial))?;
        self.finished = true;
        sync_folder(parent(&self.target))?;
        if old.exists() {
            fs::remove_dir_all(&old).map_err(Error::io("remove", &old))?;
        }
        Ok(())
    }
}

impl Drop for PartialDir {
    fn drop(&mut self) {
        // What cannot be removed is cleared by the next build.
        if !self.finished {
            let _ = fs::remove_dir_all(&self.partial);
        }
        let _ = fs::remove_file(&self.lock_path);
        drop(self.lock.take());
    }
}

/// Writes a file and knows its size and hash.
pub(crate) struct HashingFile {
    file: BufWriter<File>,
    path: PathBuf,
    hash: Xxh3Default,
    bytes: u64,
}

impl HashingFile {
    /// Creates a file in `folder`.
    pub(crate) fn create(folder: &Path, name: &str) -> Result<HashingFile> {
        let path = folder.join(name);
        let file = File::create_new(&path).map_err(Error::io("create", &path))?;
        Ok(HashingFile {
            file: BufWriter::with_capacity(1 << 20, file),
            path,
            hash: Xxh3Default::new(),
            bytes: 0,
        })
    }

    /// Syncs the file.
    pub(crate) fn finish(mut self) -> Result<FileSummary> {
        self.file.flush().map_err(Error::io("write", &self.path))?;
        self.file.get_ref().sync_all().map_err(Error::io("sync", &self.path))?;
        Ok(FileSummary {
            name: self.path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            bytes: self.bytes,
            xxh3_128: format!("{:032x}", self.hash.digest128()),
        })
    }
}

impl Write for HashingFile {
    fn write(&mut self, buffer: &[u8]) -> std::io::Result<usize> {
        let written = self.file.write(buffer)?;
        self.hash.update(&buffer[..written]);
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.file.flush()
    }
}

/// What is at `path`: nothing or an empty folder (`None`), or the text of a summary.
pub(crate) fn existing(path: &Path) -> Result<Option<String>> {
    let mut entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(cause) => return Err(Error::io("read folder", path)(cause)),
    };
    if entries.next().is_none() {
        return Ok(None);
    }
    let summary = path.join(SUMMARY_FILE);
    match fs::read_to_string(&summary) {
        Ok(text) => Ok(Some(text)),
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => Err(Error::NotACorpus {
            path: path.to_path_buf(),
            problem: format!("it is not empty and has no {SUMMARY_FILE}"),
        }),
        Err(cause) => Err(Error::io("read", &summary)(cause)),
    }
}
