//! Locks between processes: an exclusive lock on a file, which the system drops when the process ends, however it ends.

use crate::{ConfinedDir, at, parent};
use rustix::fs::{AtFlags, Mode, OFlags, openat, statat, unlinkat};
use std::ffi::{OsStr, OsString};
use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// An exclusive lock on the file at a path, held until it is dropped.
#[derive(Debug)]
pub struct FileLock {
    file: File,
    directory: ConfinedDir,
    name: OsString,
}

impl FileLock {
    /// Takes the lock of the file at `path`, which is made if it is missing and whose content is not touched. `None` if
    /// another holder, in this process or in another, has it.
    ///
    /// # Errors
    /// The system's; a symbolic link is refused, because its target could be locked under another name.
    pub fn try_acquire(path: &Path) -> io::Result<Option<FileLock>> {
        let Some(name) = path.file_name() else {
            return Err(at(path, "open the lock file", io::ErrorKind::InvalidInput.into()));
        };
        let directory = ConfinedDir::open_named(parent(path));
        FileLock::try_acquire_in(directory.map_err(|e| at(path, "open the lock file", e))?, name)
    }

    /// Takes the lock of the file `name` in `directory`.
    pub(crate) fn try_acquire_in(directory: ConfinedDir, name: &OsStr) -> io::Result<Option<FileLock>> {
        loop {
            match lock(open(&directory, name)?, directory.clone(), name)? {
                Attempt::Locked(lock) => return Ok(Some(lock)),
                Attempt::Held => return Ok(None),
                Attempt::Nameless => {}
            }
        }
    }

    /// Removes the file, then gives up the lock. A file that cannot be removed stays; it is locked by nobody.
    pub fn remove(self) {
        let _ = unlinkat(&self.directory, &self.name, AtFlags::empty());
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

fn lock(file: File, directory: ConfinedDir, name: &OsStr) -> io::Result<Attempt> {
    let path = directory.path().join(name);
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(Attempt::Held),
        Err(TryLockError::Error(e)) => return Err(at(&path, "lock", e)),
    }
    let held = file.metadata()?;
    match statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(named) if (named.st_dev, named.st_ino) == (held.dev(), held.ino()) => {
            Ok(Attempt::Locked(FileLock { file, directory, name: name.to_owned() }))
        }
        Err(e) if e != rustix::io::Errno::NOENT => Err(at(&path, "lock", e.into())),
        _ => Ok(Attempt::Nameless),
    }
}

fn open(directory: &ConfinedDir, name: &OsStr) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    match openat(directory, name, flags, Mode::from_raw_mode(0o666)) {
        Ok(fd) => Ok(fd.into()),
        Err(e) => Err(at(&directory.path().join(name), "open the lock file", e.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

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
        let (place, name) = (ConfinedDir::open(dir.path()).unwrap(), OsStr::new("lock"));
        let (early, late) = (open(&place, name).unwrap(), open(&place, name).unwrap());
        assert!(matches!(lock(early, place.clone(), name).unwrap(), Attempt::Held));
        first.remove();
        let second = FileLock::try_acquire(&path).unwrap().unwrap();
        assert!(matches!(lock(late, place, name).unwrap(), Attempt::Nameless));
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
