//! Removing files without leaving a directory.
//!
//! `remove_dir_all(path)` follows every symbolic link above its last component, and whoever lists a directory before
//! removing its files follows the last one too. Where somebody has put a link in the place of a directory, the files
//! behind the link are gone. [`ConfinedDir`] opens one directory and resolves every name from there, component by
//! component, with `O_NOFOLLOW` and without `..`: what `openat2` calls `RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS`, on every
//! kernel. A link that is put in place while it works is an error and is never followed.

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, openat, statat, unlinkat};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

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

/// An open directory. Its methods list and remove names beneath it and never follow a symbolic link.
#[derive(Debug)]
pub struct ConfinedDir {
    path: PathBuf,
    fd: OwnedFd,
}

impl ConfinedDir {
    /// Opens `path`, which must be a directory and not a symbolic link to one. Links in the directories above it are
    /// followed: a run directory may be a link that its user made, and the directory within it is its own.
    ///
    /// # Errors
    /// The system's, with the path in the message; a link is refused by name.
    pub fn open(path: &Path) -> io::Result<ConfinedDir> {
        // A trailing slash would make the system follow a link.
        let path: PathBuf = path.components().collect();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match rustix::fs::open(&path, flags, Mode::empty()) {
            Ok(fd) => Ok(ConfinedDir { path, fd }),
            Err(e) => Err(match std::fs::read_link(&path) {
                Ok(target) => io::Error::new(
                    io::ErrorKind::NotADirectory,
                    format!(
                        "{} is a symbolic link to {}: nothing is written or removed through it; put a directory in its \
                         place, or link the run directory as a whole",
                        path.display(),
                        target.display()
                    ),
                ),
                Err(_) => crate::at(&path, "open the directory", e.into()),
            }),
        }
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Kind of the entry `below`; `None` if there is none.
    ///
    /// # Errors
    /// A link or a file in the place of a directory on the way; the system's.
    pub fn kind(&self, below: &Path) -> io::Result<Option<EntryKind>> {
        self.in_parent(below, "look for", |dir, name| match kind_at(dir, name) {
            Err(Errno::NOENT) => Ok(None),
            other => other.map(Some),
        })
    }

    /// Names and kinds in the directory `below`, in no order; an empty path is the directory itself.
    ///
    /// # Errors
    /// A link or a file in the place of a directory; the system's.
    pub fn list(&self, below: &Path) -> io::Result<Vec<(OsString, EntryKind)>> {
        self.enter(below).and_then(|dir| list_dir(dir.as_fd())).map_err(|e| self.error("list", below, e))
    }

    /// Removes an entry that is no directory. A symbolic link is itself removed, its target is not touched.
    ///
    /// # Errors
    /// A directory at this name; a link or a file in the place of a directory on the way; the system's.
    pub fn remove_file(&self, below: &Path) -> io::Result<()> {
        self.in_parent(below, "remove", |dir, name| unlinkat(dir, name, AtFlags::empty()))
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// The system's, among them `DirectoryNotEmpty` and, for a symbolic link, `NotADirectory`.
    pub fn remove_dir(&self, below: &Path) -> io::Result<()> {
        self.in_parent(below, "remove the directory", |dir, name| unlinkat(dir, name, AtFlags::REMOVEDIR))
    }

    /// Removes the directory `below` and everything in it, if `is_ours` says of every entry that this program wrote
    /// it. `is_ours` is asked about each entry before anything is removed, and again as it is removed.
    ///
    /// # Errors
    /// [`io::ErrorKind::DirectoryNotEmpty`] naming the entries that are not ours, with nothing removed; a symbolic link
    /// or a file at `below`; the system's.
    pub fn remove_tree(&self, below: &Path, is_ours: IsOurs<'_>) -> io::Result<()> {
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
        let mut dir = self.fd.try_clone().map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::MFILE))?;
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

    fn error(&self, action: &str, below: &Path, e: Errno) -> io::Error {
        let path = self.path.join(below);
        let what = match e {
            Errno::XDEV => "the path leads out of its directory",
            // O_DIRECTORY with O_NOFOLLOW answers ENOTDIR for a link, ELOOP where the system looks at the link first.
            Errno::NOTDIR | Errno::LOOP => "a symbolic link or a file stands where a directory is wanted",
            _ => return crate::at(&path, action, e.into()),
        };
        io::Error::new(
            io::ErrorKind::NotADirectory,
            format!("cannot {action} {}: {what}; links are not followed", path.display()),
        )
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
            dir.remove_file(&outside.join("precious")),
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
}
