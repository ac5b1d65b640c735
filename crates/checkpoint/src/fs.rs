//! The few file operations that durability depends on, as a trait: the store is tested by failing or crashing at every
//! one of them, over a simulated disk that forgets what was not synced.
//!
//! POSIX promises little. After a power cut a file has its bytes only if the *file* was synced, and its name only if
//! the *directory* was synced afterwards; `rename` is atomic for readers, not durable by itself (Pillai et al.,
//! "All File Systems Are Not Created Equal", OSDI 2014).

use bessemer_durable::{ConfinedDir, FileLock, foreign_entries};
use rustix::fs::{CWD, RenameFlags};
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

pub use bessemer_durable::EntryKind;

/// Whether opening may pass through a symbolic link as the last component.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Links {
    /// Refuse it: checkpoints are written by this program as regular files.
    Refuse,
    /// Follow it: Hugging Face's cache keeps snapshots as links.
    Follow,
}

/// A file being written, from its beginning to its end.
pub trait WriteFile: Send {
    /// Appends all of `bytes`.
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Returns when the bytes are on stable storage.
    fn sync(&mut self) -> io::Result<()>;
}

/// A file being read at positions.
pub trait ReadFile: Send + Sync {
    /// Present length in bytes.
    fn size(&self) -> io::Result<u64>;
    /// Fills all of `buffer` from `offset`; an error if the file ends before.
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;
}

/// Held while a process changes a store; dropping it lets others in.
pub trait LockGuard: Send {}

/// The file operations of this crate. Every one may fail.
pub trait FileSystem: Send + Sync {
    /// Kind of what is at `path`, `None` if nothing is.
    fn kind(&self, path: &Path) -> io::Result<Option<EntryKind>>;
    /// Makes one directory that must not exist.
    fn create_dir(&self, path: &Path) -> io::Result<()>;
    /// Makes a file that must not exist.
    fn create_file(&self, path: &Path) -> io::Result<Box<dyn WriteFile>>;
    /// Opens a regular file; anything else is an error, never a wait.
    fn open_file(&self, path: &Path, links: Links) -> io::Result<Box<dyn ReadFile>>;
    /// Names in a directory with their kinds, in no order. Names that are not UTF-8 are left out. A symbolic link to the
    /// directory is followed: this is for reading.
    fn list_dir(&self, path: &Path) -> io::Result<Vec<(String, EntryKind)>>;
    /// All names in the directory `below` of `root` with their kinds. No link is followed, `root` included: this is for
    /// removing.
    fn list_beneath(&self, root: &Path, below: &Path) -> io::Result<Vec<(OsString, EntryKind)>>;
    /// The path without links, of something that exists.
    fn real_path(&self, path: &Path) -> io::Result<PathBuf>;
    /// Atomically gives `from` the name `to`; a directory at `to` must be empty.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Atomically swaps two names; `Unsupported` where the file system cannot.
    fn exchange(&self, a: &Path, b: &Path) -> io::Result<()>;
    /// Returns when the names in a directory are on stable storage.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;
    /// Removes the file `below` of the directory `root`, following no link.
    fn remove_file(&self, root: &Path, below: &Path) -> io::Result<()>;
    /// Removes the empty directory `below` of the directory `root`, following no link.
    fn remove_dir(&self, root: &Path, below: &Path) -> io::Result<()>;
    /// Takes the advisory lock of a file, made if absent. `WouldBlock` when another process holds it.
    fn lock(&self, path: &Path) -> io::Result<Box<dyn LockGuard>>;
    /// Bytes that an ordinary user may still write to the file system that holds `path`.
    fn free_bytes(&self, path: &Path) -> io::Result<u64>;
}

/// The operating system's file system.
#[derive(Debug, Default, Clone, Copy)]
pub struct OsFileSystem;

struct OsWriteFile(File);

impl WriteFile for OsWriteFile {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes)
    }
    fn sync(&mut self) -> io::Result<()> {
        self.0.sync_all()
    }
}

struct OsReadFile(File);

impl ReadFile for OsReadFile {
    fn size(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read_exact_at(buffer, offset)
    }
}

impl LockGuard for FileLock {}

fn entry_kind(t: fs::FileType) -> EntryKind {
    if t.is_file() {
        EntryKind::File
    } else if t.is_dir() {
        EntryKind::Directory
    } else if t.is_symlink() {
        EntryKind::Link
    } else {
        EntryKind::Other
    }
}

impl FileSystem for OsFileSystem {
    fn kind(&self, path: &Path) -> io::Result<Option<EntryKind>> {
        match fs::symlink_metadata(path) {
            Ok(m) => Ok(Some(entry_kind(m.file_type()))),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        fs::create_dir(path)
    }

    fn create_file(&self, path: &Path) -> io::Result<Box<dyn WriteFile>> {
        Ok(Box::new(OsWriteFile(OpenOptions::new().write(true).create_new(true).open(path)?)))
    }

    fn open_file(&self, path: &Path, links: Links) -> io::Result<Box<dyn ReadFile>> {
        // Without NONBLOCK, opening a FIFO that someone put in the file's place would wait for ever.
        let mut flags = rustix::fs::OFlags::NONBLOCK;
        if links == Links::Refuse {
            flags |= rustix::fs::OFlags::NOFOLLOW;
        }
        let file = OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        Ok(Box::new(OsReadFile(file)))
    }

    fn list_dir(&self, path: &Path) -> io::Result<Vec<(String, EntryKind)>> {
        let mut entries = Vec::new();
        for entry in fs::read_dir(path)? {
            let entry = entry?;
            if let Ok(name) = entry.file_name().into_string() {
                entries.push((name, entry_kind(entry.file_type()?)));
            }
        }
        Ok(entries)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn exchange(&self, a: &Path, b: &Path) -> io::Result<()> {
        rustix::fs::renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE).map_err(|e| match e {
            // EINVAL is how a file system says that it does not know the flag.
            rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS | rustix::io::Errno::OPNOTSUPP => {
                io::Error::new(
                    io::ErrorKind::Unsupported,
                    "this file system cannot swap two names atomically",
                )
            }
            e => e.into(),
        })
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn list_beneath(&self, root: &Path, below: &Path) -> io::Result<Vec<(OsString, EntryKind)>> {
        ConfinedDir::open(root)?.list(below)
    }

    fn real_path(&self, path: &Path) -> io::Result<PathBuf> {
        fs::canonicalize(path)
    }

    fn remove_file(&self, root: &Path, below: &Path) -> io::Result<()> {
        ConfinedDir::open(root)?.remove_file(below)
    }

    fn remove_dir(&self, root: &Path, below: &Path) -> io::Result<()> {
        ConfinedDir::open(root)?.remove_dir(below)
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn LockGuard>> {
        match FileLock::try_acquire(path)? {
            Some(lock) => Ok(Box::new(lock)),
            None => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    fn free_bytes(&self, path: &Path) -> io::Result<u64> {
        let s = rustix::fs::statvfs(path)?;
        Ok(s.f_bavail.saturating_mul(s.f_frsize))
    }
}

/// Decides by its name whether this crate wrote a file.
pub(crate) type IsOurs<'a> = &'a dyn Fn(&str) -> bool;

/// Entries of the directory `name` of `root` that this crate did not write: files of other names, and everything that is
/// no file.
pub(crate) fn foreign_in(
    fs: &dyn FileSystem,
    root: &Path,
    name: &str,
    is_ours: IsOurs<'_>,
) -> io::Result<Vec<PathBuf>> {
    let entries = fs.list_beneath(root, Path::new(name))?;
    let foreign = |(name, kind): &(OsString, EntryKind)| {
        *kind != EntryKind::File || !name.to_str().is_some_and(is_ours)
    };
    Ok(entries.into_iter().filter(foreign).map(|e| e.0.into()).collect())
}

/// Removes the directory `name` of `root`, which holds files of this crate and nothing else: anything else in it is an
/// error, before anything is removed. No symbolic link is followed.
pub(crate) fn remove_files(
    fs: &dyn FileSystem,
    root: &Path,
    name: &str,
    is_ours: IsOurs<'_>,
) -> io::Result<()> {
    let foreign = foreign_in(fs, root, name, is_ours)?;
    if !foreign.is_empty() {
        return Err(foreign_entries(&root.join(name), &foreign));
    }
    for (file, _) in fs.list_beneath(root, Path::new(name))? {
        if !file.to_str().is_some_and(is_ours) {
            return Err(foreign_entries(&root.join(name), &[file.into()]));
        }
        fs.remove_file(root, &Path::new(name).join(file))?;
    }
    fs.remove_dir(root, Path::new(name))
}

/// Makes a directory and those above it, each name made durable in its parent.
pub(crate) fn create_dir_durably(fs: &dyn FileSystem, path: &Path) -> io::Result<()> {
    if path.as_os_str().is_empty() || fs.kind(path)?.is_some() {
        return Ok(());
    }
    let parent = parent_of(path);
    create_dir_durably(fs, parent)?;
    match fs.create_dir(path) {
        // Another process may have made it since.
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
        other => other?,
    }
    fs.sync_dir(parent)
}

/// The directory that holds `path`; "." for a bare name.
pub(crate) fn parent_of(path: &Path) -> &Path {
    match path.parent() {
        Some(p) if p.as_os_str().is_empty() => Path::new("."),
        Some(p) => p,
        None => path,
    }
}

/// Reads a whole file of at most `most` bytes.
pub(crate) fn read_small(file: &dyn ReadFile, most: u64) -> io::Result<Vec<u8>> {
    let size = file.size()?;
    if size > most {
        let problem = format!("{size} bytes, at most {most} are read");
        return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
    }
    let mut bytes = vec![0; size as usize];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}
