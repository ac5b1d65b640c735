//! A directory as a capability: names are resolved from one open handle, no symbolic link is followed, and no name leads
//! out of it.
//!
//! `remove_dir_all(path)` and `File::create(path)` follow every symbolic link above the last component, and often that one
//! too. Where somebody has put a link in the place of a directory or a file, the files behind the link are overwritten or
//! gone. [`ConfinedDir`] opens one directory and resolves every name from there, component by component, with `O_NOFOLLOW`
//! and without `..`: what `openat2` calls `RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS`, on every kernel. A link that is put in
//! place while it works is an error and is never followed.
//!
//! Files are regular files or an error: a FIFO, a socket or a device in the place of a file is never waited for, and a file
//! with a second name (a hard link) is never appended to. A link or a FIFO at the name of a file that is written whole is
//! replaced, never written through.

use crate::{FileLock, NewFile, UnnamedFile};
use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, RenameFlags, fstat, linkat, mkdirat, openat, renameat,
    renameat_with, statat, unlinkat,
};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

/// Most directories within each other that [`ConfinedDir::remove_tree`] enters: far more than this program writes.
const DEEPEST: usize = 64;

/// Kind of a directory entry; symbolic links are not followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// Regular file.
    File,
    /// Directory.
    Directory,
    /// Symbolic link, wherever it leads.
    Link,
    /// FIFO, device or socket.
    Other,
}

/// Facts about a directory entry; symbolic links are not followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryFacts {
    /// Kind of the entry.
    pub kind: EntryKind,
    /// Length of a file in bytes.
    pub bytes: u64,
    /// Bytes that the file system has given to it.
    pub allocated: u64,
    /// Time of the last change of a file's content, in nanoseconds since 1970.
    pub modified_ns: i128,
}

impl From<FileType> for EntryKind {
    fn from(t: FileType) -> EntryKind {
        match t {
            FileType::RegularFile => EntryKind::File,
            FileType::Directory => EntryKind::Directory,
            FileType::Symlink => EntryKind::Link,
            _ => EntryKind::Other,
        }
    }
}

/// Decides whether this program wrote an entry, by its path below the directory that is to be removed.
pub type IsOurs<'a> = &'a dyn Fn(&Path, EntryKind) -> bool;

/// A directory to work in: an open handle, or the path that a user names, whose links are followed once.
pub trait AsDir {
    /// The open directory.
    ///
    /// # Errors
    /// Errors of [`ConfinedDir::open_named`].
    fn as_dir(&self) -> io::Result<ConfinedDir>;

    /// The open directory, made with those above it where a path names one that is missing.
    ///
    /// # Errors
    /// Errors of [`ConfinedDir::create_named`].
    fn as_new_dir(&self) -> io::Result<ConfinedDir> {
        self.as_dir()
    }
}

impl<P: AsRef<Path> + ?Sized> AsDir for P {
    fn as_dir(&self) -> io::Result<ConfinedDir> {
        ConfinedDir::open_named(self.as_ref())
    }

    fn as_new_dir(&self) -> io::Result<ConfinedDir> {
        ConfinedDir::create_named(self.as_ref())
    }
}

impl AsDir for ConfinedDir {
    fn as_dir(&self) -> io::Result<ConfinedDir> {
        Ok(self.clone())
    }
}

impl AsDir for &ConfinedDir {
    fn as_dir(&self) -> io::Result<ConfinedDir> {
        Ok((*self).clone())
    }
}

/// An open directory. Its methods read, write, list and remove names beneath it and never follow a symbolic link. A clone
/// is the same handle.
#[derive(Debug, Clone)]
pub struct ConfinedDir {
    path: PathBuf,
    fd: Arc<OwnedFd>,
}

impl ConfinedDir {
    /// Opens the directory that a user names: links on the way and at its end are followed, as a run directory may be a
    /// link that its user made. From then on nothing is.
    ///
    /// # Errors
    /// The system's, with the path in the message.
    pub fn open_named(path: &Path) -> io::Result<ConfinedDir> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(fd) => Ok(ConfinedDir { path: path.to_path_buf(), fd: Arc::new(fd) }),
            Err(e) => Err(crate::at(path, "open the directory", e.into())),
        }
    }

    /// Creates the directory that a user names, with those above it, and opens it as [`ConfinedDir::open_named`] does.
    ///
    /// # Errors
    /// The system's, with the path in the message.
    pub fn create_named(path: &Path) -> io::Result<ConfinedDir> {
        std::fs::create_dir_all(path).map_err(|e| crate::at(path, "create the directory", e))?;
        ConfinedDir::open_named(path)
    }

    /// Opens `path`, which must be a directory and not a symbolic link to one. Links in the directories above it are
    /// followed.
    ///
    /// # Errors
    /// The system's, with the path in the message; a link is refused by name.
    pub fn open(path: &Path) -> io::Result<ConfinedDir> {
        // A trailing slash would make the system follow a link.
        let path: PathBuf = path.components().collect();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match rustix::fs::open(&path, flags, Mode::empty()) {
            Ok(fd) => Ok(ConfinedDir { path, fd: Arc::new(fd) }),
            Err(e) => Err(match std::fs::read_link(&path) {
                Ok(target) => linked_directory(&path, &target),
                Err(_) => crate::at(&path, "open the directory", e.into()),
            }),
        }
    }

    /// The path under which the directory was opened, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the directory `below`.
    ///
    /// # Errors
    /// A link or a file in the place of a directory; the system's.
    pub fn dir(&self, below: impl AsRef<Path>) -> io::Result<ConfinedDir> {
        let below = below.as_ref();
        let fd = self.enter(below).map_err(|e| self.error("open the directory", below, e))?;
        Ok(ConfinedDir { path: self.path.join(below), fd: Arc::new(fd) })
    }

    /// Opens the directory `below` for reading only, through symbolic links too: a user may have moved a checkpoint to an
    /// archive and linked it. Nothing may be written or removed through the result.
    ///
    /// # Errors
    /// The system's, with the path in the message.
    pub fn dir_through_links(&self, below: impl AsRef<Path>) -> io::Result<ConfinedDir> {
        let below = below.as_ref();
        if below.as_os_str().is_empty() {
            return Ok(self.clone());
        }
        let outside = below.components().any(|component| !matches!(component, Component::Normal(_)));
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = match outside {
            true => Err(Errno::XDEV),
            false => openat(&self.fd, below, flags, Mode::empty()),
        };
        let path = self.path.join(below);
        match fd {
            Ok(fd) => Ok(ConfinedDir { path, fd: Arc::new(fd) }),
            Err(Errno::NOTDIR) => Err(io::Error::new(
                io::ErrorKind::NotADirectory,
                format!(
                    "cannot open the directory {}: not a directory; move it away and try again",
                    path.display()
                ),
            )),
            Err(e) => Err(crate::at(&path, "open the directory", e.into())),
        }
    }

    /// Opens the directory `below`; makes it, and those above it, where they are missing.
    ///
    /// # Errors
    /// A link or a file in the place of a directory; the system's.
    pub fn create_dir(&self, below: impl AsRef<Path>) -> io::Result<ConfinedDir> {
        let below = below.as_ref();
        let action = "create the directory";
        let mut dir = Arc::clone(&self.fd);
        for component in below.components() {
            let made = match component {
                Component::Normal(name) => match mkdirat(&dir, name, Mode::from_raw_mode(0o777)) {
                    Ok(()) | Err(Errno::EXIST) => open_dir_at(dir.as_fd(), name),
                    Err(e) => Err(e),
                },
                _ => Err(Errno::XDEV),
            };
            dir = Arc::new(made.map_err(|e| self.error(action, below, e))?);
        }
        Ok(ConfinedDir { path: self.path.join(below), fd: dir })
    }

    /// Makes the directory `below`.
    ///
    /// # Errors
    /// [`io::ErrorKind::AlreadyExists`] for an entry of that name; the system's.
    pub fn make_dir(&self, below: impl AsRef<Path>) -> io::Result<()> {
        let mode = Mode::from_raw_mode(0o777);
        self.in_parent(below.as_ref(), "create the directory", |dir, name| mkdirat(dir, name, mode))
    }

    /// Opens the directory `name`; makes it, for this user alone (mode 0700), if it is missing.
    ///
    /// # Errors
    /// Errors of [`ConfinedDir::create_dir`].
    pub fn create_private_dir(&self, name: impl AsRef<Path>) -> io::Result<ConfinedDir> {
        let name = name.as_ref();
        self.in_parent(name, "create the directory", |dir, name| match mkdirat(dir, name, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(e) => Err(e),
        })?;
        self.dir(name)
    }

    /// Opens the regular file `below` for reading.
    ///
    /// # Errors
    /// A link, FIFO, socket, device or directory in its place; a link or a file in the place of a directory on the way; the
    /// system's.
    pub fn open_file(&self, below: impl AsRef<Path>) -> io::Result<File> {
        self.open_regular(below.as_ref(), "open", OFlags::RDONLY)
    }

    /// Opens the regular file `below` for reading and writing in place.
    ///
    /// # Errors
    /// Errors of [`ConfinedDir::append`].
    pub fn open_file_to_change(&self, below: impl AsRef<Path>) -> io::Result<File> {
        let below = below.as_ref();
        let file = self.open_regular(below, "open", OFlags::RDWR)?;
        self.only_name(below, "write to", file)
    }

    /// Opens the regular file `below` for reading and writing in place; makes it, with the permissions `mode`, if it is
    /// missing.
    ///
    /// # Errors
    /// Errors of [`ConfinedDir::append`].
    pub fn open_or_create(&self, below: impl AsRef<Path>, mode: u32) -> io::Result<File> {
        let below = below.as_ref();
        let flags = OFlags::RDWR | OFlags::CREATE;
        let file = self.open_regular_mode(below, "open", flags, Mode::from_raw_mode(mode))?;
        self.only_name(below, "write to", file)
    }

    /// Reads the whole regular file `below`.
    ///
    /// # Errors
    /// Errors of [`ConfinedDir::open_file`] and of reading.
    pub fn read(&self, below: impl AsRef<Path>) -> io::Result<Vec<u8>> {
        let below = below.as_ref();
        let mut bytes = Vec::new();
        let read = self.open_file(below)?.read_to_end(&mut bytes);
        read.map_err(|e| crate::at(&self.path.join(below), "read", e))?;
        Ok(bytes)
    }

    /// Reads the whole regular file `below` as UTF-8 text.
    ///
    /// # Errors
    /// Errors of [`ConfinedDir::read`]; [`io::ErrorKind::InvalidData`] for bytes that are not UTF-8.
    pub fn read_to_string(&self, below: impl AsRef<Path>) -> io::Result<String> {
        let below = below.as_ref();
        let mut text = String::new();
        let read = self.open_file(below)?.read_to_string(&mut text);
        read.map_err(|e| crate::at(&self.path.join(below), "read", e))?;
        Ok(text)
    }

    /// Starts a file that will be called `below`; an older file of that name stays until [`NewFile::commit`].
    ///
    /// # Errors
    /// A link or a file in the place of a directory on the way; the system's.
    pub fn new_file(&self, below: impl AsRef<Path>) -> io::Result<NewFile> {
        let (parent, name) = self.parent_of(below.as_ref(), "create")?;
        NewFile::create_in(parent, &name)
    }

    /// Writes `bytes` as the whole content of `below`, durably. A link or a FIFO of that name is replaced.
    ///
    /// # Errors
    /// The system's, with the path in the message; the old content, if any, is then untouched.
    pub fn write(&self, below: impl AsRef<Path>, bytes: &[u8]) -> io::Result<()> {
        let mut file = self.new_file(below)?;
        file.write_all(bytes)?;
        file.commit()
    }

    /// Opens the regular file `below` for appending; makes it if it is missing.
    ///
    /// # Errors
    /// Errors of [`ConfinedDir::open_file`]; a file that has a second name, perhaps outside of this directory.
    pub fn append(&self, below: impl AsRef<Path>) -> io::Result<File> {
        let below = below.as_ref();
        let flags = OFlags::RDWR | OFlags::APPEND | OFlags::CREATE;
        let file = self.open_regular(below, "append to", flags)?;
        self.only_name(below, "append to", file)
    }

    /// Creates an empty file for a stream that readers may open while it grows. Any entry of that name, a symbolic link or
    /// a FIFO too, is replaced and not written through.
    ///
    /// # Errors
    /// The system's, with the path in the message; a directory of that name stays.
    pub fn create_replacing(&self, below: impl AsRef<Path>) -> io::Result<File> {
        self.in_parent(below.as_ref(), "create", create_replacing_at)
    }

    /// Creates an empty file for reading and writing.
    ///
    /// # Errors
    /// [`io::ErrorKind::AlreadyExists`] for an entry of that name, which stays; the system's.
    pub fn create_new(&self, below: impl AsRef<Path>) -> io::Result<File> {
        self.in_parent(below.as_ref(), "create", create_new_at)
    }

    /// Opens the regular file `below` for writing past the page cache.
    ///
    /// # Errors
    /// The system's, also where the file system has no such writes.
    pub fn open_direct(&self, below: impl AsRef<Path>) -> io::Result<File> {
        let below = below.as_ref();
        let file = self.open_regular(below, "open", OFlags::WRONLY | OFlags::DIRECT)?;
        self.only_name(below, "write to", file)
    }

    /// Gives the regular file `below` of `from` the same name here as a second name (a hard link). Neither may be changed
    /// in place any more.
    ///
    /// # Errors
    /// Another kind of entry; an entry of that name; the system's, among them `CrossesDevices`.
    pub fn link_file(&self, from: &ConfinedDir, below: impl AsRef<Path>) -> io::Result<()> {
        let below = below.as_ref();
        drop(from.open_file(below)?);
        let (old_parent, old) = from.parent_of(below, "link")?;
        self.in_parent(below, "create", |dir, new| linkat(&old_parent.fd, &old, dir, new, AtFlags::empty()))
    }

    /// Atomically swaps two names of this directory.
    ///
    /// # Errors
    /// [`io::ErrorKind::Unsupported`] where the file system cannot; the system's.
    pub fn exchange(&self, a: impl AsRef<Path>, b: impl AsRef<Path>) -> io::Result<()> {
        let (a, b) = (a.as_ref(), b.as_ref());
        let (parent, name) = self.parent_of(a, "exchange")?;
        let (other_parent, other) = self.parent_of(b, "exchange")?;
        let flags = RenameFlags::EXCHANGE;
        match renameat_with(&parent.fd, &name, &other_parent.fd, &other, flags) {
            Ok(()) => Ok(()),
            // EINVAL is how a file system answers that it does not know the flag.
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "this file system cannot swap two names atomically",
            )),
            Err(e) => Err(self.error("exchange", a, e)),
        }
    }

    /// Bytes that an ordinary user may still write to the file system of this directory.
    ///
    /// # Errors
    /// The system's, with the path in the message.
    pub fn free_bytes(&self) -> io::Result<u64> {
        let found = rustix::fs::fstatvfs(&*self.fd);
        let found = found.map_err(|e| crate::at(&self.path, "find the free space of", e.into()))?;
        Ok(found.f_bavail.saturating_mul(found.f_frsize))
    }

    /// Gives the entry `from` the name `to`, in the place of a file of that name. Not durable before [`ConfinedDir::sync`]
    /// of both parents.
    ///
    /// # Errors
    /// A link or a file in the place of a directory on the way; the system's.
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
        self.rename_into(from, self, to)
    }

    /// [`ConfinedDir::rename`] to a name in another directory of the same file system.
    ///
    /// # Errors
    /// Errors of [`ConfinedDir::rename`].
    pub fn rename_into(
        &self,
        from: impl AsRef<Path>,
        other: &ConfinedDir,
        to: impl AsRef<Path>,
    ) -> io::Result<()> {
        let (old_parent, old) = self.parent_of(from.as_ref(), "rename")?;
        other.in_parent(to.as_ref(), "rename to", |dir, new| renameat(&old_parent.fd, &old, dir, new))
    }

    /// Makes created, renamed and removed names in this directory durable.
    ///
    /// # Errors
    /// The system's, with the path in the message.
    pub fn sync(&self) -> io::Result<()> {
        rustix::fs::fsync(&*self.fd).map_err(|e| crate::at(&self.path, "fsync the directory", e.into()))
    }

    /// Takes the lock of the file `below`; see [`FileLock::try_acquire`].
    ///
    /// # Errors
    /// The system's; a symbolic link is refused, because its target could be locked under another name.
    pub fn try_lock(&self, below: impl AsRef<Path>) -> io::Result<Option<FileLock>> {
        let (parent, name) = self.parent_of(below.as_ref(), "lock")?;
        FileLock::try_acquire_in(parent, &name)
    }

    /// Makes a file without a name on this directory's file system, with its space reserved.
    ///
    /// # Errors
    /// Errors of [`UnnamedFile::reserve`].
    pub fn reserve_unnamed(&self, bytes: u64) -> io::Result<UnnamedFile> {
        UnnamedFile::reserve_in(self, bytes)
    }

    /// Facts about the entry `below`; `None` if there is none.
    ///
    /// # Errors
    /// A link or a file in the place of a directory on the way; the system's.
    pub fn facts(&self, below: impl AsRef<Path>) -> io::Result<Option<EntryFacts>> {
        self.in_parent(below.as_ref(), "look for", |dir, name| {
            match statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
                Err(Errno::NOENT) => Ok(None),
                Err(e) => Err(e),
                Ok(stat) => Ok(Some(EntryFacts {
                    kind: FileType::from_raw_mode(stat.st_mode).into(),
                    bytes: stat.st_size as u64,
                    allocated: stat.st_blocks as u64 * 512,
                    modified_ns: i128::from(stat.st_mtime) * 1_000_000_000 + i128::from(stat.st_mtime_nsec),
                })),
            }
        })
    }

    /// Whether there is an entry `below`, of any kind. A path on which a link or a file takes the place of a directory has
    /// none.
    pub fn exists(&self, below: impl AsRef<Path>) -> bool {
        matches!(self.kind(below), Ok(Some(_)))
    }

    /// Kind of the entry `below`; `None` if there is none.
    ///
    /// # Errors
    /// A link or a file in the place of a directory on the way; the system's.
    pub fn kind(&self, below: impl AsRef<Path>) -> io::Result<Option<EntryKind>> {
        let below = below.as_ref();
        self.in_parent(below, "look for", |dir, name| match kind_at(dir, name) {
            Err(Errno::NOENT) => Ok(None),
            other => other.map(Some),
        })
    }

    /// Names and kinds in the directory `below`, in no order; an empty path is the directory itself.
    ///
    /// # Errors
    /// A link or a file in the place of a directory; the system's.
    pub fn list(&self, below: impl AsRef<Path>) -> io::Result<Vec<(OsString, EntryKind)>> {
        let below = below.as_ref();
        self.enter(below).and_then(|dir| list_dir(dir.as_fd())).map_err(|e| self.error("list", below, e))
    }

    /// Removes an entry that is no directory. A symbolic link is itself removed, its target is not touched.
    ///
    /// # Errors
    /// A directory at this name; a link or a file in the place of a directory on the way; the system's.
    pub fn remove_file(&self, below: impl AsRef<Path>) -> io::Result<()> {
        let below = below.as_ref();
        self.in_parent(below, "remove", |dir, name| unlinkat(dir, name, AtFlags::empty()))
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// The system's, among them `DirectoryNotEmpty` and, for a symbolic link, `NotADirectory`.
    pub fn remove_dir(&self, below: impl AsRef<Path>) -> io::Result<()> {
        let below = below.as_ref();
        self.in_parent(below, "remove the directory", |dir, name| unlinkat(dir, name, AtFlags::REMOVEDIR))
    }

    /// Removes the directory `below` and everything in it, if `is_ours` says of every entry that this program wrote
    /// it. `is_ours` is asked about each entry before anything is removed, and again as it is removed.
    ///
    /// # Errors
    /// [`io::ErrorKind::DirectoryNotEmpty`] naming the entries that are not ours, with nothing removed; a symbolic link
    /// or a file at `below`; the system's.
    pub fn remove_tree(&self, below: impl AsRef<Path>, is_ours: IsOurs<'_>) -> io::Result<()> {
        let below = below.as_ref();
        let top = self.enter(below).map_err(|e| self.error("remove", below, e))?;
        for remove in [false, true] {
            let mut walk = Walk { is_ours, remove, foreign: Vec::new() };
            walk.tree(top.as_fd(), Path::new(""), 0).map_err(|e| self.error("remove", below, e))?;
            if !walk.foreign.is_empty() {
                return Err(foreign_entries(&self.path.join(below), &walk.foreign));
            }
        }
        self.remove_dir(below)
    }

    /// The directory `below`, opened component by component.
    fn enter(&self, below: &Path) -> Result<OwnedFd, Errno> {
        let mut dir = open_dir_at(self.fd.as_fd(), OsStr::new("."))?;
        for component in below.components() {
            let Component::Normal(name) = component else { return Err(Errno::XDEV) };
            dir = open_dir_at(dir.as_fd(), name)?;
        }
        Ok(dir)
    }

    /// Does `act` with the directory that holds `below` and the name in it.
    fn in_parent<T>(
        &self,
        below: &Path,
        action: &str,
        act: impl FnOnce(BorrowedFd<'_>, &OsStr) -> Result<T, Errno>,
    ) -> io::Result<T> {
        let (Some(parent), Some(name)) = (below.parent(), below.file_name()) else {
            return Err(self.error(action, below, Errno::INVAL));
        };
        self.enter(parent).and_then(|dir| act(dir.as_fd(), name)).map_err(|e| self.error(action, below, e))
    }

    /// The directory that holds `below`, and the name in it.
    fn parent_of(&self, below: &Path, action: &str) -> io::Result<(ConfinedDir, OsString)> {
        let (Some(parent), Some(name)) = (below.parent(), below.file_name()) else {
            return Err(self.error(action, below, Errno::INVAL));
        };
        if parent.as_os_str().is_empty() {
            return Ok((self.clone(), name.to_owned()));
        }
        let fd = self.enter(parent).map_err(|e| self.error(action, below, e))?;
        Ok((ConfinedDir { path: self.path.join(parent), fd: Arc::new(fd) }, name.to_owned()))
    }

    fn open_regular(&self, below: &Path, action: &str, flags: OFlags) -> io::Result<File> {
        self.open_regular_mode(below, action, flags, Mode::from_raw_mode(0o666))
    }

    fn open_regular_mode(&self, below: &Path, action: &str, flags: OFlags, mode: Mode) -> io::Result<File> {
        // Without NONBLOCK, opening a FIFO would wait for a process at its other end.
        let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = self.in_parent(below, action, |dir, name| {
            match openat(dir, name, flags, mode) {
                // A FIFO that nobody reads, opened for writing, and a socket; a directory opened for writing; a link.
                Err(e @ (Errno::NXIO | Errno::ISDIR | Errno::LOOP)) => {
                    let kind = statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).map_err(|_| e)?;
                    Ok(Err(FileType::from_raw_mode(kind.st_mode)))
                }
                Err(e) => Err(e),
                Ok(fd) => match FileType::from_raw_mode(fstat(&fd)?.st_mode) {
                    FileType::RegularFile => Ok(Ok(File::from(fd))),
                    other => Ok(Err(other)),
                },
            }
        })?;
        file.map_err(|kind| not_regular(&self.path.join(below), action, kind))
    }

    /// Refuses a file that has another name: a change would reach it under that one too.
    fn only_name(&self, below: &Path, action: &str, file: File) -> io::Result<File> {
        let names = fstat(&file).map_err(|e| self.error(action, below, e))?.st_nlink;
        if names <= 1 {
            return Ok(file);
        }
        let path = self.path.join(below);
        Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!(
                "cannot {action} {path}: the file has {names} names (hard links), and a change would reach all of them; \
                 make it a file of its own: cp {path} {path}.copy && mv {path}.copy {path}",
                path = path.display()
            ),
        ))
    }

    fn error(&self, action: &str, below: &Path, e: Errno) -> io::Error {
        let path = self.path.join(below);
        let what = match e {
            Errno::XDEV => "the path leads out of its directory".into(),
            // O_DIRECTORY with O_NOFOLLOW answers ENOTDIR for a link, ELOOP where the system looks at the link first.
            Errno::NOTDIR | Errno::LOOP => self.obstacle(below),
            _ => return crate::at(&path, action, e.into()),
        };
        io::Error::new(io::ErrorKind::NotADirectory, format!("cannot {action} {}: {what}", path.display()))
    }

    /// Describes the first entry on the way to `below` that is not a directory, and the remedy.
    fn obstacle(&self, below: &Path) -> String {
        let mut way = PathBuf::new();
        for component in below.components() {
            way.push(component);
            match self.kind(&way) {
                Ok(Some(EntryKind::Directory)) => {}
                Ok(Some(EntryKind::Link)) => {
                    return format!(
                        "{} is a symbolic link, and links inside this directory are not followed; put a directory in its \
                         place, or link the run directory as a whole",
                        self.path.join(&way).display()
                    );
                }
                Ok(Some(_)) => {
                    let path = self.path.join(&way);
                    return format!("{} is not a directory; move it away and try again", path.display());
                }
                _ => break,
            }
        }
        "a symbolic link or a file takes the place of a directory; links are not followed".into()
    }
}

fn linked_directory(path: &Path, target: &Path) -> io::Error {
    io::Error::new(
        io::ErrorKind::NotADirectory,
        format!(
            "{} is a symbolic link to {}: nothing is read, written or removed through it; put a directory in its place, or \
             link the run directory as a whole",
            path.display(),
            target.display()
        ),
    )
}

fn not_regular(path: &Path, action: &str, kind: FileType) -> io::Error {
    let found = match kind {
        FileType::Directory => "a directory",
        FileType::Fifo => "a FIFO (named pipe)",
        FileType::Socket => "a socket",
        FileType::Symlink => "a symbolic link, which is not followed here",
        _ => "a device",
    };
    io::Error::new(
        io::ErrorKind::InvalidInput,
        format!(
            "cannot {action} {}: wanted a regular file, found {found}; put the file itself in its place, or remove the entry",
            path.display()
        ),
    )
}

/// Creates the file `name`, which must not be there.
pub(crate) fn create_new_at(dir: BorrowedFd<'_>, name: &OsStr) -> Result<File, Errno> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(dir, name, flags, Mode::from_raw_mode(0o666)).map(File::from)
}

/// Creates the file `name` in the place of any entry but a directory.
pub(crate) fn create_replacing_at(dir: BorrowedFd<'_>, name: &OsStr) -> Result<File, Errno> {
    match unlinkat(dir, name, AtFlags::empty()) {
        Err(e) if e != Errno::NOENT => Err(e),
        _ => create_new_at(dir, name),
    }
}

impl AsFd for ConfinedDir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Error for a directory that is not removed because it holds entries which this program did not write.
pub fn foreign_entries(directory: &Path, foreign: &[PathBuf]) -> io::Error {
    let shown: Vec<String> = foreign.iter().take(3).map(|p| p.display().to_string()).collect();
    let more = match foreign.len() - shown.len() {
        0 => String::new(),
        n => format!(" and {n} more"),
    };
    io::Error::new(
        io::ErrorKind::DirectoryNotEmpty,
        format!(
            "{} holds {}{more}, not written by this program: nothing was removed; move it away and try again",
            directory.display(),
            shown.join(", ")
        ),
    )
}

/// One pass over a tree: looking for entries that are not ours, or removing.
struct Walk<'a> {
    is_ours: IsOurs<'a>,
    remove: bool,
    foreign: Vec<PathBuf>,
}

impl Walk<'_> {
    fn tree(&mut self, dir: BorrowedFd<'_>, path: &Path, depth: usize) -> Result<(), Errno> {
        if depth > DEEPEST {
            return Err(Errno::NAMETOOLONG);
        }
        for (name, kind) in list_dir(dir)? {
            let inner = path.join(&name);
            if !(self.is_ours)(&inner, kind) {
                self.foreign.push(inner);
            } else if kind == EntryKind::Directory {
                let entered = open_dir_at(dir, &name)?;
                let before = self.foreign.len();
                self.tree(entered.as_fd(), &inner, depth + 1)?;
                if self.remove && self.foreign.len() == before {
                    unlinkat(dir, &name, AtFlags::REMOVEDIR)?;
                }
            } else if self.remove {
                unlinkat(dir, &name, AtFlags::empty())?;
            }
        }
        Ok(())
    }
}

fn open_dir_at(dir: BorrowedFd<'_>, name: &OsStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(dir, name, flags, Mode::empty())
}

fn kind_at(dir: BorrowedFd<'_>, name: &OsStr) -> Result<EntryKind, Errno> {
    Ok(FileType::from_raw_mode(statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?.st_mode).into())
}

fn list_dir(dir: BorrowedFd<'_>) -> Result<Vec<(OsString, EntryKind)>, Errno> {
    let mut entries = Vec::new();
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name == "." || name == ".." {
            continue;
        }
        match kind_at(dir, name) {
            Ok(kind) => entries.push((name.to_owned(), kind)),
            // Somebody removed it meanwhile.
            Err(Errno::NOENT) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    /// A directory with `root/` (which holds `ours/a`, `ours/deep/b`) and `outside/precious`.
    fn place() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for folder in ["root/ours/deep", "outside"] {
            fs::create_dir_all(dir.path().join(folder)).unwrap();
        }
        for file in ["root/ours/a", "root/ours/deep/b", "outside/precious"] {
            fs::write(dir.path().join(file), file).unwrap();
        }
        dir
    }

    fn names(path: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(path).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_tree_of_ours_goes_and_one_with_a_foreign_file_stays_whole() {
        let place = place();
        let root = ConfinedDir::open(&place.path().join("root")).unwrap();
        let ours = |path: &Path, _| path != Path::new("deep/b");
        let e = root.remove_tree(Path::new("ours"), &ours).unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::DirectoryNotEmpty);
        assert!(e.to_string().contains("deep/b") && e.to_string().contains("nothing was removed"), "{e}");
        assert_eq!(names(&place.path().join("root/ours")), ["a", "deep"]);
        root.remove_tree(Path::new("ours"), &|_, _| true).unwrap();
        assert_eq!(names(&place.path().join("root")), [""; 0]);
    }

    #[test]
    fn links_are_removed_themselves_or_refused_and_never_followed() {
        let place = place();
        let (root, outside) = (place.path().join("root"), place.path().join("outside"));
        symlink(&outside, root.join("link")).unwrap();
        symlink(&outside, root.join("ours/link")).unwrap();
        symlink("precious-is-gone", root.join("ours/broken")).unwrap();
        let dir = ConfinedDir::open(&root).unwrap();
        for refused in [
            dir.remove_tree(Path::new("link"), &|_, _| true),
            dir.remove_file(Path::new("link/precious")),
            dir.remove_dir(Path::new("link")),
            dir.remove_file(Path::new("../outside/precious")),
            dir.remove_file(outside.join("precious")),
            dir.remove_file(Path::new("ours/../../outside/precious")),
            dir.list(Path::new("link")).map(|_| ()),
            dir.remove_file(Path::new("..")),
        ] {
            refused.unwrap_err();
        }
        let e = dir.remove_tree(Path::new("link"), &|_, _| true).unwrap_err().to_string();
        assert!(e.contains("root/link") && e.contains("symbolic link"), "{e}");
        // Within a tree the caller decides: here its links are ours.
        dir.remove_tree(Path::new("ours"), &|_, _| true).unwrap();
        dir.remove_file(Path::new("link")).unwrap();
        assert_eq!(names(&root), [""; 0]);
        assert_eq!(names(&outside), ["precious"]);
    }

    #[test]
    fn a_root_that_is_a_link_is_refused_and_links_above_it_are_followed() {
        let place = place();
        let linked = place.path().join("linked");
        symlink(place.path().join("root"), &linked).unwrap();
        for spelled in [linked.clone(), PathBuf::from(format!("{}/", linked.display()))] {
            let e = ConfinedDir::open(&spelled).unwrap_err();
            assert!(e.to_string().contains("symbolic link to"), "{e}");
        }
        let inner = ConfinedDir::open(&linked.join("ours")).unwrap();
        inner.remove_file(Path::new("a")).unwrap();
        assert_eq!(inner.kind(Path::new("a")).unwrap(), None);
        assert_eq!(inner.kind(Path::new("deep/b")).unwrap(), Some(EntryKind::File));
        assert_eq!(inner.list(Path::new("")).unwrap(), [(OsString::from("deep"), EntryKind::Directory)]);
    }

    #[test]
    fn foreign_objects_in_the_place_of_a_file_are_refused_or_replaced_and_nothing_outside_changes() {
        let place = place();
        let (root, precious) = (place.path().join("root"), place.path().join("outside/precious"));
        let dir = ConfinedDir::open_named(&root).unwrap();
        type Put<'a> = &'a dyn Fn(&Path);
        let put: [(&str, Put<'_>); 5] = [
            ("link to a file", &|at| symlink(&precious, at).unwrap()),
            ("link to nothing", &|at| symlink("nothing", at).unwrap()),
            ("hard link", &|at| fs::hard_link(&precious, at).unwrap()),
            ("FIFO", &|at| rustix::fs::mkfifoat(rustix::fs::CWD, at, Mode::RWXU).unwrap()),
            ("socket", &|at| drop(std::os::unix::net::UnixListener::bind(at).unwrap())),
        ];
        for (name, put) in put {
            let at = root.join("ours/file");
            let below = Path::new("ours/file");
            put(&at);
            for refused in [dir.append(below), dir.open_file_to_change(below)] {
                let e = refused.unwrap_err().to_string();
                assert!(e.contains("root/ours/file"), "{name}: {e}");
            }
            match dir.read(below) {
                Ok(read) => assert_eq!((name, read), ("hard link", b"outside/precious".to_vec())),
                Err(e) => assert!(e.to_string().contains("wanted a regular file"), "{name}: {e}"),
            }
            assert_eq!(dir.create_new(below).unwrap_err().kind(), io::ErrorKind::AlreadyExists, "{name}");
            dir.create_replacing(below).unwrap().write_all(b"stream").unwrap();
            assert_eq!(dir.read(below).unwrap(), b"stream", "{name}");
            dir.remove_file(below).unwrap();
            put(&at);
            dir.write(below, b"whole").unwrap();
            assert_eq!(dir.read_to_string(below).unwrap(), "whole", "{name}");
            dir.remove_file(below).unwrap();
            assert_eq!(fs::read(&precious).unwrap(), b"outside/precious", "{name}");
        }
    }

    #[test]
    fn a_link_in_the_place_of_a_directory_is_named_with_the_remedy() {
        let place = place();
        let (root, outside) = (place.path().join("root"), place.path().join("outside"));
        symlink(&outside, root.join("link")).unwrap();
        let dir = ConfinedDir::open_named(&root).unwrap();
        for refused in [
            dir.write("link/precious", b"gone").unwrap_err(),
            dir.create_dir("link/deeper").unwrap_err(),
            dir.dir("link").unwrap_err(),
            dir.append("link/precious").unwrap_err(),
            dir.rename("ours/a", "link/precious").unwrap_err(),
            dir.try_lock("link/precious").unwrap_err(),
        ] {
            let e = refused.to_string();
            assert!(
                e.contains("root/link is a symbolic link") && e.contains("put a directory in its place"),
                "{e}"
            );
        }
        assert_eq!(fs::read(outside.join("precious")).unwrap(), b"outside/precious");
        assert_eq!(names(&outside), ["precious"]);
    }

    #[test]
    fn files_are_made_appended_to_renamed_and_described() {
        let place = place();
        let dir = ConfinedDir::create_named(&place.path().join("root/made/deep")).unwrap();
        let inner = dir.create_dir("a/b").unwrap();
        for text in ["one", "two"] {
            inner.append("log").unwrap().write_all(text.as_bytes()).unwrap();
        }
        dir.rename("a/b/log", "a/log").unwrap();
        inner.sync().unwrap();
        assert_eq!(dir.read_to_string("a/log").unwrap(), "onetwo");
        let facts = dir.facts("a/log").unwrap().unwrap();
        assert_eq!((facts.kind, facts.bytes), (EntryKind::File, 6));
        assert!(facts.modified_ns > 0 && dir.facts("a/none").unwrap().is_none());
        assert!(dir.exists("a/b") && !dir.exists("a/b/log"));
        let lock = dir.try_lock("a/lock").unwrap().unwrap();
        assert!(dir.try_lock("a/lock").unwrap().is_none());
        lock.remove();
        assert!(!dir.exists("a/lock"));
    }
}
