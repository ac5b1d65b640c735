//! The few file operations that durability depends on, as a trait: the store is tested by failing or crashing at every
//! one of them, over a simulated disk that forgets what was not synced.
//!
//! POSIX promises little. After a power cut a file has its bytes only if the *file* was synced, and its name only if
//! the *directory* was synced afterwards; `rename` is atomic for readers, not durable by itself (Pillai et al.,
//! "All File Systems Are Not Created Equal", OSDI 2014).

use bessemer_durable::{ConfinedDir, FileLock, foreign_entries};
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
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

/// The operating system's file system, by the paths that a user names: links in the directories above them are followed.
#[derive(Debug, Default, Clone, Copy)]
pub struct OsFileSystem;

/// The files beneath one open directory, by paths that begin with its path. No link is followed to a place that is written
/// or removed; for reading, directories may be links that a user made ([`ConfinedDir::dir_through_links`]).
#[derive(Debug, Clone)]
pub struct ConfinedFileSystem(pub ConfinedDir);

/// Purpose for which a directory is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Access {
    Read,
    Change,
}

/// Opens directories for [`FileSystem`].
trait Places: Send + Sync {
    /// Opens a directory.
    fn dir(&self, path: &Path, access: Access) -> io::Result<ConfinedDir>;

    /// Opens a directory that must not be a link, to look for what may be removed in it.
    fn own_dir(&self, path: &Path) -> io::Result<ConfinedDir> {
        self.dir(path, Access::Change)
    }

    /// Kind of what is at `path`.
    fn kind_of(&self, path: &Path) -> io::Result<Option<EntryKind>>;

    /// Opens the directory that holds `path`; the name of `path` in it.
    fn parent<'a>(&self, path: &'a Path, access: Access) -> io::Result<(ConfinedDir, &'a Path)> {
        let Some(name) = path.file_name() else { return Err(io::ErrorKind::InvalidInput.into()) };
        Ok((self.dir(parent_of(path), access)?, Path::new(name)))
    }
}

impl Places for OsFileSystem {
    fn dir(&self, path: &Path, _: Access) -> io::Result<ConfinedDir> {
        ConfinedDir::open_named(path)
    }

    fn own_dir(&self, path: &Path) -> io::Result<ConfinedDir> {
        ConfinedDir::open(path)
    }

    /// Also of the root, and of names in directories that may not be listed.
    fn kind_of(&self, path: &Path) -> io::Result<Option<EntryKind>> {
        let t = path.symlink_metadata()?.file_type();
        Ok(Some(match () {
            () if t.is_file() => EntryKind::File,
            () if t.is_dir() => EntryKind::Directory,
            () if t.is_symlink() => EntryKind::Link,
            () => EntryKind::Other,
        }))
    }
}

impl Places for ConfinedFileSystem {
    fn dir(&self, path: &Path, access: Access) -> io::Result<ConfinedDir> {
        let ConfinedFileSystem(root) = self;
        let below = path.strip_prefix(root.path()).map_err(|_| {
            let (path, root) = (path.display(), root.path().display());
            io::Error::new(io::ErrorKind::InvalidInput, format!("{path} is not in {root}"))
        })?;
        match access {
            _ if below.as_os_str().is_empty() => Ok(root.clone()),
            Access::Read => root.dir_through_links(below),
            Access::Change => root.dir(below),
        }
    }

    fn kind_of(&self, path: &Path) -> io::Result<Option<EntryKind>> {
        if path == self.0.path() {
            return Ok(Some(EntryKind::Directory));
        }
        let (dir, name) = self.parent(path, Access::Read)?;
        dir.kind(name)
    }
}

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

impl<P: Places> FileSystem for P {
    fn kind(&self, path: &Path) -> io::Result<Option<EntryKind>> {
        match self.kind_of(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            found => found,
        }
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        let (dir, name) = self.parent(path, Access::Change)?;
        dir.make_dir(name)
    }

    fn create_file(&self, path: &Path) -> io::Result<Box<dyn WriteFile>> {
        let (dir, name) = self.parent(path, Access::Change)?;
        let file = dir.create_new(name)?;
        let direct = dir.open_direct(name).ok();
        Ok(Box::new(OsWriteFile { file, direct, at: 0 }))
    }

    fn open_file(&self, path: &Path, links: Links) -> io::Result<Box<dyn ReadFile>> {
        let file = match links {
            Links::Refuse => {
                let (dir, name) = self.parent(path, Access::Read)?;
                dir.open_file(name)?
            }
            Links::Follow => bessemer_durable::open_regular(path)?,
        };
        Ok(Box::new(OsReadFile(file)))
    }

    fn list_dir(&self, path: &Path) -> io::Result<Vec<(String, EntryKind)>> {
        let entries = self.dir(path, Access::Read)?.list("")?.into_iter();
        Ok(entries.filter_map(|(name, kind)| Some((name.into_string().ok()?, kind))).collect())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let (old_parent, old) = self.parent(from, Access::Change)?;
        let (new_parent, new) = self.parent(to, Access::Change)?;
        old_parent.rename_into(old, &new_parent, new)
    }

    fn exchange(&self, a: &Path, b: &Path) -> io::Result<()> {
        let (dir, name) = self.parent(a, Access::Change)?;
        let other = b.file_name().filter(|_| parent_of(a) == parent_of(b));
        dir.exchange(name, other.ok_or(io::ErrorKind::InvalidInput)?)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.dir(path, Access::Change)?.sync()
    }

    fn list_beneath(&self, root: &Path, below: &Path) -> io::Result<Vec<(OsString, EntryKind)>> {
        self.own_dir(root)?.list(below)
    }

    fn real_path(&self, path: &Path) -> io::Result<PathBuf> {
        path.canonicalize()
    }

    fn remove_file(&self, root: &Path, below: &Path) -> io::Result<()> {
        self.own_dir(root)?.remove_file(below)
    }

    fn remove_dir(&self, root: &Path, below: &Path) -> io::Result<()> {
        self.own_dir(root)?.remove_dir(below)
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn LockGuard>> {
        let (dir, name) = self.parent(path, Access::Change)?;
        match dir.try_lock(name)? {
            Some(lock) => Ok(Box::new(lock)),
            None => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    fn free_bytes(&self, path: &Path) -> io::Result<u64> {
        self.dir(path, Access::Read)?.free_bytes()
    }
}

/// Asks the operating system to forget what it has cached of a file, so that the next read comes from the disk. For
/// measurements; a file that is not on the disk yet stays cached.
///
/// # Errors
/// A file that cannot be opened, or a file system without such a request.
pub fn evict_from_cache(path: &Path) -> io::Result<()> {
    Ok(rustix::fs::fadvise(bessemer_durable::open_regular(path)?, 0, None, rustix::fs::Advice::DontNeed)?)
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
            assert!(std::fs::read(&path).unwrap() == wanted, "{order:?}");
        }
    }
}
