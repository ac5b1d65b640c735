//! Files without a name, for what one process keeps on a disk while it runs.

use crate::confined::create_new_at;
use crate::{ConfinedDir, at};
use rustix::fs::{AtFlags, unlinkat};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Bytes that are written at a time where space cannot be reserved in another way.
const BLOCK: usize = 1 << 20;

/// A file that no directory lists, with its space reserved. It is gone when it is dropped and when the process is killed.
#[derive(Debug)]
pub struct UnnamedFile {
    file: File,
    directory: PathBuf,
}

impl UnnamedFile {
    /// Makes a file of `bytes` bytes on the file system of `directory`, and reserves its space there: no later write within
    /// them finds the disk full.
    ///
    /// # Errors
    /// The system's, with the directory in the message; of kind [`io::ErrorKind::StorageFull`] if there is too little space.
    pub fn reserve(directory: &Path, bytes: u64) -> io::Result<UnnamedFile> {
        UnnamedFile::reserve_in(&ConfinedDir::open_named(directory)?, bytes)
    }

    pub(crate) fn reserve_in(dir: &ConfinedDir, bytes: u64) -> io::Result<UnnamedFile> {
        let directory = dir.path();
        let file = create(dir).map_err(|e| at(directory, "create a file in", e))?;
        let unnamed = UnnamedFile { file, directory: directory.to_path_buf() };
        let reserved = if bytes == 0 { Ok(()) } else { unnamed.allocate(bytes) };
        reserved.map_err(|e| at(directory, &format!("reserve {bytes} bytes in"), e))?;
        Ok(unnamed)
    }

    fn allocate(&self, bytes: u64) -> io::Result<()> {
        use rustix::fs::{FallocateFlags, fallocate};
        match fallocate(&self.file, FallocateFlags::empty(), 0, bytes) {
            Ok(()) => Ok(()),
            // File systems that cannot reserve, such as older NFS: what is written has its place.
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                let zeros = vec![0; BLOCK];
                let mut done = 0;
                while done < bytes {
                    let len = BLOCK.min((bytes - done) as usize);
                    self.file.write_all_at(&zeros[..len], done)?;
                    done += len as u64;
                }
                Ok(())
            }
            Err(e) => Err(e.into()),
        }
    }

    /// The directory that it was made in.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Writes all of `bytes` from byte `offset` on.
    ///
    /// # Errors
    /// The system's.
    pub fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }

    /// Waits until what was written is on the device.
    ///
    /// # Errors
    /// The system's, with the directory.
    pub fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data().map_err(|e| at(&self.directory, "write to the device of", e))
    }

    /// Fills `bytes` from byte `offset` on.
    ///
    /// # Errors
    /// The system's; [`io::ErrorKind::UnexpectedEof`] behind the end.
    pub fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(bytes, offset)
    }
}

/// A file that never has a name, or, where the file system has no such files, one whose name is removed at once.
fn create(directory: &ConfinedDir) -> io::Result<File> {
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{Mode, OFlags};
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        match rustix::fs::openat(directory, ".", flags, Mode::RUSR | Mode::WUSR) {
            Ok(file) => return Ok(file.into()),
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {}
            Err(e) => return Err(e.into()),
        }
    }
    create_and_unlink(directory)
}

fn create_and_unlink(directory: &ConfinedDir) -> io::Result<File> {
    for attempt in 0.. {
        let name = std::ffi::OsString::from(format!(".unnamed-{}-{attempt}", std::process::id()));
        match create_new_at(directory.as_fd(), &name) {
            Err(Errno::EXIST) => {}
            Err(e) => return Err(e.into()),
            Ok(file) => {
                unlinkat(directory, &name, AtFlags::empty())?;
                return Ok(file);
            }
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap here is a failed test")]
mod tests {
    use super::*;

    fn is_empty(directory: &Path) -> bool {
        std::fs::read_dir(directory).unwrap().next().is_none()
    }

    #[test]
    fn what_is_written_is_read_and_no_name_is_there() {
        let directory = tempfile::tempdir().unwrap();
        let file = UnnamedFile::reserve(directory.path(), 3 * BLOCK as u64 + 5).unwrap();
        assert!(is_empty(directory.path()));
        let mut read = [1; 4];
        file.read_exact_at(&mut read, 3 * BLOCK as u64 + 1).unwrap();
        assert_eq!(read, [0; 4]);
        file.write_all_at(b"abc", 7).unwrap();
        file.read_exact_at(&mut read, 6).unwrap();
        assert_eq!(&read, b"\0abc");
        let behind = file.read_exact_at(&mut read, 3 * BLOCK as u64 + 2).unwrap_err();
        assert_eq!(behind.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_name_is_removed_where_files_need_one() {
        let directory = tempfile::tempdir().unwrap();
        let taken = directory.path().join(format!(".unnamed-{}-0", std::process::id()));
        std::fs::write(&taken, "taken").unwrap();
        let file = create_and_unlink(&ConfinedDir::open(directory.path()).unwrap()).unwrap();
        file.write_all_at(b"x", 0).unwrap();
        assert_eq!(std::fs::read(&taken).unwrap(), b"taken");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn more_than_the_disk_has_is_refused_before_anything_is_written() {
        let directory = tempfile::tempdir().unwrap();
        let e = UnnamedFile::reserve(directory.path(), 1 << 60).unwrap_err();
        assert!(matches!(e.kind(), io::ErrorKind::StorageFull | io::ErrorKind::FileTooLarge), "{e:?}");
        assert!(e.to_string().contains("reserve 1152921504606846976 bytes in"), "{e}");
        let e = UnnamedFile::reserve(&directory.path().join("missing"), 1).unwrap_err();
        assert!(e.kind() == io::ErrorKind::NotFound && e.to_string().contains("missing"), "{e}");
    }
}
