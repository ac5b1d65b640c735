//! A file that becomes visible whole.

use crate::confined::create_replacing_at;
use crate::{ConfinedDir, at, parent, partial_path};
use rustix::fs::{AtFlags, linkat, renameat, unlinkat};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// A file that is being written and is not visible yet under its final name.
#[derive(Debug)]
pub struct NewFile {
    // `None` only after commit, so that drop knows whether to clean up.
    writer: Option<BufWriter<File>>,
    directory: ConfinedDir,
    partial: OsString,
    name: OsString,
    path: PathBuf,
}

impl NewFile {
    /// Starts a file that will be called `path`; an older file of that name stays until [`NewFile::commit`].
    ///
    /// # Errors
    /// The system's, with the path in the message.
    pub fn create(path: &Path) -> io::Result<NewFile> {
        let Some(name) = path.file_name() else {
            return Err(at(path, "create", io::ErrorKind::InvalidInput.into()));
        };
        let directory = ConfinedDir::open_named(parent(path));
        let mut file = NewFile::create_in(directory.map_err(|e| at(path, "create", e))?, name)?;
        file.path = path.to_path_buf();
        Ok(file)
    }

    /// Starts the file `name` in `directory`.
    pub(crate) fn create_in(directory: ConfinedDir, name: &OsStr) -> io::Result<NewFile> {
        let path = directory.path().join(name);
        let partial = partial_path(Path::new(name)).into_os_string();
        // What a killed process left, or a link or a FIFO that somebody put there.
        let file =
            create_replacing_at(directory.as_fd(), &partial).map_err(|e| at(&path, "create", e.into()))?;
        let writer = Some(BufWriter::with_capacity(1 << 18, file));
        Ok(NewFile { writer, directory, partial, name: name.to_owned(), path })
    }

    /// Replaces the bytes from `offset` on by `bytes`; what was written stays where it is.
    ///
    /// # Errors
    /// The system's, with the path in the message.
    pub fn write_all_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.flush()?;
        let writer = self.writer.as_ref().expect("commit consumes the file");
        writer.get_ref().write_all_at(bytes, offset).map_err(|e| at(&self.path, "write", e))
    }

    /// Makes the file visible under its final name and durable.
    ///
    /// # Errors
    /// The system's, with the path in the message; nothing is visible then.
    pub fn commit(self) -> io::Result<()> {
        self.publish("rename to", |file| {
            let dir = &file.directory;
            renameat(dir, &file.partial, dir, &file.name)
        })
    }

    /// As [`NewFile::commit`], where no file has that name.
    ///
    /// # Errors
    /// [`io::ErrorKind::AlreadyExists`] where one has, which stays; the system's, with the path in the message.
    pub fn commit_new(self) -> io::Result<()> {
        self.publish("create", |file| {
            // Unlike a rename a link never takes the place of a file.
            let dir = &file.directory;
            linkat(dir, &file.partial, dir, &file.name, AtFlags::empty())?;
            unlinkat(dir, &file.partial, AtFlags::empty())
        })
    }

    fn publish(
        mut self,
        action: &str,
        name: impl FnOnce(&NewFile) -> rustix::io::Result<()>,
    ) -> io::Result<()> {
        let writer = self.writer.take().expect("commit consumes the file");
        let done = writer
            .into_inner()
            .map_err(|e| at(&self.path, "write", e.into_error()))
            .and_then(|file| file.sync_all().map_err(|e| at(&self.path, "fsync", e)))
            .and_then(|()| name(&self).map_err(|e| at(&self.path, action, e.into())));
        if let Err(e) = done {
            self.remove_partial();
            return Err(e);
        }
        self.directory.sync()
    }

    fn remove_partial(&self) {
        // The error that led here is the one that matters; a file that cannot be removed is hidden and never read.
        let _ = unlinkat(&self.directory, &self.partial, AtFlags::empty());
    }

    #[cfg(test)]
    pub(crate) fn of_file(file: File, directory: ConfinedDir, path: &Path) -> NewFile {
        let writer = Some(BufWriter::with_capacity(1, file));
        NewFile { writer, directory, partial: ".x.partial".into(), name: "x".into(), path: path.into() }
    }
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let writer = self.writer.as_mut().expect("commit consumes the file");
        writer.write(bytes).map_err(|e| at(&self.path, "write", e))
    }

    fn flush(&mut self) -> io::Result<()> {
        let writer = self.writer.as_mut().expect("commit consumes the file");
        writer.flush().map_err(|e| at(&self.path, "write", e))
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if let Some(writer) = self.writer.take() {
            // Without this the buffer would be flushed into a file that is about to go.
            drop(writer.into_parts());
            self.remove_partial();
        }
    }
}
