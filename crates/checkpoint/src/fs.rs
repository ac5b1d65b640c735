//! The few file operations that durability depends on, as a trait: the store is tested by failing or crashing at every
//! one of them, over a simulated disk that forgets what was not synced.
//!
//! POSIX promises little. After a power cut a file has its bytes only if the *file* was synced, and its name only if
//! the *directory* was synced afterwards; `rename` is atomic for readers, not durable by itself (Pillai et al.,
//! "All File Systems Are Not Created Equal", OSDI 2014).

use bessemer_durable::{ConfinedDir, FileLock, foreign_entries};
use rustix::fs::{CWD, OFlags, RenameFlags};
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use bessemer_durable::EntryKind;

/// Bytes of a piece that passes a buffer.
const PIECE: usize = 1 << 20;

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
    /// Says that bytes will be read soon, so that the system can fetch them meanwhile. Nothing depends on it.
    fn will_read(&self, _range: Range<u64>) {}
    /// Bytes that are best read at once where more are wanted: few enough to be still in the processor's cache afterwards.
    fn block(&self) -> usize {
        512 << 10
    }
    /// Gives `each` the `length` bytes from `offset` on, in pieces that begin at multiples of 4 bytes from `offset`.
    fn read_pieces(&self, offset: u64, length: u64, each: &mut Piece<'_>) -> io::Result<()> {
        read_pieces(self, offset, length, each)
    }
}

/// Takes bytes of a file, one piece after the other.
pub type Piece<'a> = dyn FnMut(&[u8]) -> io::Result<()> + 'a;

/// [`ReadFile::read_pieces`] through a buffer.
pub(crate) fn read_pieces<F: ReadFile + ?Sized>(
    file: &F,
    offset: u64,
    length: u64,
    each: &mut Piece<'_>,
) -> io::Result<()> {
    let mut bytes = vec![0; length.min(PIECE as u64) as usize];
    let mut done = 0;
    while done < length {
        let here = &mut bytes[..(length - done).min(PIECE as u64) as usize];
        file.read_exact_at(here, offset + done)?;
        each(here)?;
        done += here.len() as u64;
    }
    Ok(())
}

impl<F: ReadFile> ReadFile for Arc<F> {
    fn size(&self) -> io::Result<u64> {
        F::size(self)
    }
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        F::read_exact_at(self, buffer, offset)
    }
    fn block(&self) -> usize {
        F::block(self)
    }
    fn read_pieces(&self, offset: u64, length: u64, each: &mut Piece<'_>) -> io::Result<()> {
        F::read_pieces(self, offset, length, each)
    }
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

/// Positions, lengths and addresses of writes that pass the page cache by are multiples of it: of every page size and sector size in use.
pub const DIRECT_ALIGNMENT: usize = 64 << 10;
/// Least bytes of such a write.
const DIRECT_BYTES: usize = 1 << 20;

/// A file that is written once and not read soon. Large aligned pieces pass the page cache by: that saves the system's copy of
/// them and the eviction of pages that are in use, and the disk is not idle until somebody syncs.
struct OsWriteFile {
    file: File,
    /// The same file, for such pieces; none where the file system has no such writes.
    direct: Option<File>,
    at: u64,
}

impl WriteFile for OsWriteFile {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut rest = bytes;
        let aligned = self.at.is_multiple_of(DIRECT_ALIGNMENT as u64)
            && rest.as_ptr().align_offset(DIRECT_ALIGNMENT) == 0;
        if let Some(direct) = self.direct.as_ref().filter(|_| aligned && rest.len() >= DIRECT_BYTES) {
            let (whole, tail) = rest.split_at(rest.len() / DIRECT_ALIGNMENT * DIRECT_ALIGNMENT);
            match direct.write_all_at(whole, self.at) {
                Ok(()) => (self.at, rest) = (self.at + whole.len() as u64, tail),
                // Refused after all: through the page cache.
                Err(e) if e.kind() == io::ErrorKind::InvalidInput => self.direct = None,
                Err(e) => return Err(e),
            }
        }
        self.file.write_all_at(rest, self.at)?;
        self.at += rest.len() as u64;
        Ok(())
    }
    fn sync(&mut self) -> io::Result<()> {
        self.file.sync_all()
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
    fn will_read(&self, range: Range<u64>) {
        let length = std::num::NonZero::new(range.end - range.start);
        let _ = rustix::fs::fadvise(&self.0, range.start, length, rustix::fs::Advice::WillNeed);
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
        let file = OpenOptions::new().write(true).create_new(true).open(path)?;
        let flags = (OFlags::DIRECT | OFlags::NOFOLLOW).bits() as i32;
        let direct = OpenOptions::new().write(true).custom_flags(flags).open(path).ok();
        Ok(Box::new(OsWriteFile { file, direct, at: 0 }))
    }

    fn open_file(&self, path: &Path, links: Links) -> io::Result<Box<dyn ReadFile>> {
        // Without NONBLOCK, opening a FIFO that someone put in the file's place would wait for ever.
        let mut flags = OFlags::NONBLOCK;
        if links == Links::Refuse {
            flags |= OFlags::NOFOLLOW;
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

/// Asks the operating system to forget what it has cached of a file, so that the next read comes from the disk. For
/// measurements; a file that is not on the disk yet stays cached.
///
/// # Errors
/// A file that cannot be opened, or a file system without such a request.
pub fn evict_from_cache(path: &Path) -> io::Result<()> {
    Ok(rustix::fs::fadvise(File::open(path)?, 0, None, rustix::fs::Advice::DontNeed)?)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Pieces of every alignment and length leave the file that plain writes leave.
    #[test]
    fn pieces_that_pass_the_page_cache_by_and_others_make_one_file() {
        let dir = tempfile::tempdir().unwrap();
        let memory: Vec<u8> =
            (0..6 << 20).map(|i: u32| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        let aligned = &memory[memory.as_ptr().align_offset(DIRECT_ALIGNMENT)..];
        let pieces: [&[u8]; 6] = [
            &aligned[..4 << 20],
            &aligned[..(1 << 20) + 77],
            &aligned[..2 << 20],
            &aligned[3..],
            &aligned[..5],
            &[],
        ];
        for order in [[0, 1, 2, 3, 4, 5], [0, 0, 0, 2, 2, 1], [4, 0, 5, 3, 1, 2]] {
            let path = dir.path().join(format!("{order:?}"));
            let mut file = OsFileSystem.create_file(&path).unwrap();
            let mut wanted = Vec::new();
            for number in order {
                file.write_all(pieces[number]).unwrap();
                wanted.extend_from_slice(pieces[number]);
            }
            file.sync().unwrap();
            assert!(fs::read(&path).unwrap() == wanted, "{order:?}");
        }
    }
}
