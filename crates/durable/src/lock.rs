//! Locks between processes: an exclusive lock on a file, which the system drops when the process ends, however it ends.

use crate::at;
use rustix::fs::OFlags;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// An exclusive lock on the file at a path, held until it is dropped.
#[derive(Debug)]
pub struct FileLock {
    file: File,
    path: PathBuf,
}

impl FileLock {
    /// Takes the lock of the file at `path`, which is made if it is missing and whose content is not touched. `None` if
    /// another holder, in this process or in another, has it.
    ///
    /// # Errors
    /// The system's; a symbolic link is refused, because its target could be locked under another name.
    pub fn try_acquire(path: &Path) -> io::Result<Option<FileLock>> {
        loop {
            match lock(open(path)?, path)? {
                Attempt::Locked(lock) => return Ok(Some(lock)),
                Attempt::Held => return Ok(None),
                Attempt::Nameless => {}
            }
        }
    }

    /// Removes the file, then gives up the lock. A file that cannot be removed stays; it is locked by nobody.
    pub fn remove(self) {
        let _ = fs::remove_file(&self.path);
    }
}

impl Drop for FileLock {
    /// Unlocks by name: a process that another thread is just starting has a copy of the descriptor until it runs its
    /// program, and closing ours would leave the lock with it for that long. What fails is undone by the closing.
    fn drop(&mut self) {
        let _ = self.file.unlock();
    }
}

/// Outcome of an attempt to lock an open file.
#[derive(Debug)]
enum Attempt {
    Locked(FileLock),
    /// Another holder has the lock.
    Held,
    /// A former holder removed the file after it was opened here. The lock of a file without a name excludes nobody who
    /// opens the name.
    Nameless,
}

fn lock(file: File, path: &Path) -> io::Result<Attempt> {
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(Attempt::Held),
        Err(TryLockError::Error(e)) => return Err(at(path, "lock", e)),
    }
    let held = file.metadata()?;
    match fs::symlink_metadata(path) {
        Ok(named) if (named.dev(), named.ino()) == (held.dev(), held.ino()) => {
            Ok(Attempt::Locked(FileLock { file, path: path.to_path_buf() }))
        }
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(at(path, "lock", e)),
        _ => Ok(Attempt::Nameless),
    }
}

fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).custom_flags(flags.bits() as i32);
    options.open(path).map_err(|e| at(path, "open the lock file", e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_excludes_until_it_is_dropped_though_a_copy_of_the_descriptor_lives() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let lock = FileLock::try_acquire(&path).unwrap().unwrap();
        // As a process has that another thread is just starting.
        let copy = lock.file.try_clone().unwrap();
        assert!(FileLock::try_acquire(&path).unwrap().is_none());
        drop(lock);
        assert!(FileLock::try_acquire(&path).unwrap().is_some());
        drop(copy);
    }

    #[test]
    fn a_file_that_was_removed_after_it_was_opened_gives_no_lock() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let first = FileLock::try_acquire(&path).unwrap().unwrap();
        let (early, late) = (open(&path).unwrap(), open(&path).unwrap());
        assert!(matches!(lock(early, &path).unwrap(), Attempt::Held));
        first.remove();
        let second = FileLock::try_acquire(&path).unwrap().unwrap();
        assert!(matches!(lock(late, &path).unwrap(), Attempt::Nameless));
        second.remove();
        assert!(!path.exists());
    }

    #[test]
    fn a_link_is_refused_and_what_it_names_is_not_touched() {
        let dir = tempfile::tempdir().unwrap();
        let (link, precious) = (dir.path().join(".lock"), dir.path().join("precious"));
        fs::write(&precious, b"precious").unwrap();
        std::os::unix::fs::symlink(&precious, &link).unwrap();
        FileLock::try_acquire(&link).unwrap_err();
        drop(FileLock::try_acquire(&precious).unwrap().unwrap());
        assert_eq!(fs::read(&precious).unwrap(), b"precious");
    }
}
