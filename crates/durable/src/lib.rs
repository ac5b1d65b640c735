//! Files that become visible whole.
//!
//! Write under a hidden name in the same directory, fsync the file, rename it, fsync the directory. Only the full
//! sequence makes both the bytes and the name survive a power cut: without the first fsync a renamed file may come back
//! with the right length and nothing but zeros. A file that is dropped before [`NewFile::commit`] leaves nothing.
//!
//! Beside it the other things that every writer of files needs: [`ConfinedDir`] is a directory whose files are read, written
//! and removed without following a symbolic link, [`open_regular`] never waits for a FIFO, [`FileLock`] keeps other processes out, and an [`UnnamedFile`] is
//! gone with its process. [`TextReader`] reads text with a byte order mark, and in UTF-16.
#![allow(clippy::disallowed_methods, reason = "the files of the others are opened here")]

mod confined;
mod limits;
mod lock;
mod named;
mod new_file;
mod text;
mod unnamed;

pub use confined::{AsDir, ConfinedDir, EntryFacts, EntryKind, IsOurs, foreign_entries};
pub use limits::{is_limit, is_of_the_process, thread_error, with_remedy};
pub use lock::FileLock;
pub use named::{open_input, read_dir, read_input, read_input_to_string, read_small_input};
pub use new_file::NewFile;
pub use text::{TextReader, decode_text, without_mark};
pub use unnamed::UnnamedFile;

use rustix::fs::OFlags;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Writes `bytes` as the whole content of `path`.
///
/// # Errors
/// The system's, with the path in the message; the old content, if any, is then untouched.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = NewFile::create(path)?;
    file.write_all(bytes)?;
    file.commit()
}

/// Opens a regular file for reading. A symbolic link to one is followed.
///
/// # Errors
/// The system's; `InvalidInput` at once for a FIFO, a device, a socket or a directory, where opening or reading could
/// wait for ever.
pub fn open_regular(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true);
    open_regular_with(&mut options, path)
}

/// Opens a regular file as `options` say, for example for appending.
///
/// # Errors
/// Errors of [`open_regular`].
pub fn open_regular_with(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    // Without NONBLOCK, opening a FIFO that somebody put in the file's place would wait for ever.
    let file = options.custom_flags(OFlags::NONBLOCK.bits() as i32).open(path).map_err(|e| {
        // A FIFO that nobody reads, opened for writing, and a socket.
        match e.raw_os_error() {
            Some(code) if code == rustix::io::Errno::NXIO.raw_os_error() => not_regular(path),
            _ => e,
        }
    })?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(not_regular(path)),
    }
}

fn not_regular(path: &Path) -> io::Error {
    let found = match fs::metadata(path).map(|metadata| metadata.file_type()) {
        Ok(kind) if kind.is_dir() => "a directory",
        Ok(kind) if kind.is_fifo() => "a FIFO (named pipe); save its output to a file and pass that",
        Ok(kind) if kind.is_socket() => "a socket",
        _ => "a device",
    };
    io::Error::new(io::ErrorKind::InvalidInput, format!("wanted a regular file, found {found}"))
}

/// Reads a whole regular file.
///
/// # Errors
/// Errors of [`open_regular`] and of reading.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_regular(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads a whole regular file as text: UTF-8, or UTF-16 with a byte order mark, without the mark.
///
/// # Errors
/// Errors of [`read`] and of [`decode_text`].
pub fn read_to_string(path: &Path) -> io::Result<String> {
    decode_text(read(path)?)
}

/// A path with the home directory in the place of `~` at its beginning; none for a path that begins otherwise. Shells do this only for
/// words that begin with `~`, and nobody does it for a path in a file.
pub fn below_home(path: &str, home: &Path) -> Option<String> {
    let rest = path.strip_prefix("~/")?;
    Some(format!("{}/{rest}", home.display().to_string().trim_end_matches('/')))
}

/// Creates the directory `path` and those above it where they are missing.
///
/// # Errors
/// The system's, with the path in the message.
pub fn create_dir_all(path: &Path) -> io::Result<()> {
    fs::create_dir_all(path).map_err(|e| at(path, "create the directory", e))
}

/// Creates the directory `path`.
///
/// # Errors
/// [`io::ErrorKind::AlreadyExists`] for an entry of that name; the system's, with the path in the message.
pub fn create_dir(path: &Path) -> io::Result<()> {
    fs::create_dir(path).map_err(|e| at(path, "create the directory", e))
}

/// Removes the file `path`. A symbolic link is itself removed.
///
/// # Errors
/// The system's, with the path in the message.
pub fn remove_file(path: &Path) -> io::Result<()> {
    fs::remove_file(path).map_err(|e| at(path, "remove", e))
}

/// Paths of the entries of the directory that a user names, in no order. A link to a directory is followed.
///
/// # Errors
/// The system's, with the path in the message.
pub fn list(path: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(path).map_err(|e| at(path, "list", e))?;
    entries.map(|entry| Ok(entry.map_err(|e| at(path, "list", e))?.path())).collect()
}

/// Opens the output `path` that a user names for writing from its beginning: a link or a device there is written through.
///
/// # Errors
/// The system's, with the path in the message.
pub fn create_output(path: &Path) -> io::Result<File> {
    File::create(path).map_err(|e| at(path, "create", e))
}

/// Fills `bytes` from the system's generator of random numbers.
///
/// # Errors
/// The system's.
pub fn random_bytes(bytes: &mut [u8]) -> io::Result<()> {
    File::open("/dev/urandom")?.read_exact(bytes)
}

/// Reads a file of the kernel, such as `/proc/self/status`, as text; empty where there is none.
pub fn read_system(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// Creates an empty file at `path` for a stream that readers may open while it grows. Whatever stood there, a symbolic link
/// or a FIFO too, is replaced and not written through.
///
/// # Errors
/// The system's, with the path in the message; a directory at `path` stays.
pub fn create_replacing(path: &Path) -> io::Result<File> {
    let Some(name) = path.file_name() else {
        return Err(at(path, "create", io::ErrorKind::InvalidInput.into()));
    };
    let made = ConfinedDir::open_named(parent(path))
        .and_then(|dir| Ok(confined::create_replacing_at(std::os::fd::AsFd::as_fd(&dir), name)?));
    made.map_err(|e| at(path, "create", e))
}

/// The hidden name under which `path` is written before it is complete.
pub fn partial_path(path: &Path) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".partial");
    path.with_file_name(name)
}

/// Makes created, renamed and removed names in `directory` durable.
///
/// # Errors
/// The system's, with the path in the message.
pub fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory).and_then(|d| d.sync_all()).map_err(|e| at(directory, "fsync the directory", e))
}

/// The directory that holds `path`; "." for a bare name.
pub fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        _ => Path::new("."),
    }
}

/// Message for an operation on `path` that failed, with the path in it once.
pub fn failure_text(path: &Path, doing: &str, error: &io::Error) -> String {
    let (path, mut text) = (path.display().to_string(), error.to_string());
    if let Some(remedy) = limits::remedy(error) {
        text = format!("{text}: {remedy}");
    }
    if text.contains(&path) { text } else { format!("cannot {doing} {path}: {text}") }
}

fn at(path: &Path, what: &str, error: io::Error) -> io::Error {
    let error = with_remedy(error);
    limits::explained(&error, format!("cannot {what} {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_regular_file_is_refused_at_once_and_named() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let fifo = dir.path().join("fifo");
        assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        for (path, found) in [
            (dir.path(), "a directory"),
            (&socket, "a socket"),
            (&fifo, "a FIFO"),
            (Path::new("/dev/zero"), "a device"),
        ] {
            let e = open_regular(path).unwrap_err().to_string();
            assert!(e.contains("wanted a regular file") && e.contains(found), "{e}");
            assert!(read(path).is_err() && read_to_string(path).is_err());
        }
        assert_eq!(open_regular(&dir.path().join("absent")).unwrap_err().kind(), io::ErrorKind::NotFound);
        let file = dir.path().join("file");
        write(&file, b"text").unwrap();
        assert_eq!(read_to_string(&file).unwrap(), "text");
        std::os::unix::fs::symlink(&file, dir.path().join("link")).unwrap();
        assert_eq!(read(&dir.path().join("link")).unwrap(), b"text");
    }

    #[test]
    fn a_tilde_is_the_home_directory_only_where_it_begins_a_path() {
        let below = |path| below_home(path, Path::new("/home/a/"));
        assert_eq!(below("~/texts").as_deref(), Some("/home/a/texts"));
        assert!(["~", "~b/texts", "texts/~/a", "./~/texts", ""].iter().all(|path| below(path).is_none()));
    }

    #[test]
    fn the_old_content_stays_until_commit() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.json");
        write(&path, b"old").unwrap();
        let mut file = NewFile::create(&path).unwrap();
        file.write_all(&[7; 1 << 20]).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"old");
        drop(file);
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "a dropped file leaves nothing");
        write(&path, b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_new_file_takes_no_name_that_is_taken() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let make = |bytes: &[u8]| {
            let mut file = NewFile::create(&path).unwrap();
            file.write_all(bytes).unwrap();
            file.commit_new()
        };
        make(b"first").unwrap();
        let error = make(b"second").unwrap_err();
        assert!(error.kind() == io::ErrorKind::AlreadyExists && error.to_string().contains("/f"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"first");
        // Nor that of a link that leads nowhere.
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("nowhere", &path).unwrap();
        assert_eq!(make(b"third").unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "no hidden file is left");
    }

    #[test]
    fn errors_name_the_path() {
        let e = write(Path::new("/nonexistent/x"), b"").unwrap_err().to_string();
        assert!(e.contains("cannot create /nonexistent/x:") && !e.contains(".partial"), "{e}");
        // A device that is always full stands for a disk that is.
        let empty = tempfile::tempdir().unwrap();
        let full = || {
            let device = OpenOptions::new().write(true).open("/dev/full").unwrap();
            let directory = ConfinedDir::open(empty.path()).unwrap();
            NewFile::of_file(device, directory, Path::new("/nonexistent/x"))
        };
        let e = full().write_all(b"bytes").unwrap_err().to_string();
        assert!(e.contains("cannot write /nonexistent/x:") && !e.contains(".partial"), "{e}");
    }

    #[test]
    fn a_link_in_the_place_of_a_hidden_name_cuts_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (path, precious) = (dir.path().join("a.json"), dir.path().join("precious"));
        fs::write(&precious, b"precious").unwrap();
        std::os::unix::fs::symlink(&precious, partial_path(&path)).unwrap();
        write(&path, b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::read(&precious).unwrap(), b"precious");
    }

    #[test]
    fn a_stream_replaces_a_link_and_does_not_write_through_it() {
        let dir = tempfile::tempdir().unwrap();
        let (path, precious) = (dir.path().join("trace.json"), dir.path().join("precious"));
        fs::write(&precious, b"precious").unwrap();
        std::os::unix::fs::symlink(&precious, &path).unwrap();
        create_replacing(&path).unwrap().write_all(b"[").unwrap();
        assert_eq!(
            (fs::read(&path).unwrap(), fs::read(&precious).unwrap()),
            (b"[".into(), b"precious".into())
        );
        create_replacing(&path).unwrap().write_all(b"{").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"{");
        let e = create_replacing(dir.path()).unwrap_err().to_string();
        assert!(e.contains("cannot create") && dir.path().is_dir(), "{e}");
    }

    #[test]
    fn what_is_not_a_regular_file_is_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let (fifo, socket) = (dir.path().join("fifo"), dir.path().join("socket"));
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RWXU).unwrap();
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        for path in [&fifo, &socket, &PathBuf::from("/dev/null"), &dir.path().to_path_buf()] {
            let e = open_regular(path).unwrap_err();
            assert_eq!(e.kind(), io::ErrorKind::InvalidInput, "{}: {e}", path.display());
        }
        let mut append = OpenOptions::new();
        append.append(true);
        assert_eq!(open_regular_with(&mut append, &fifo).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn a_failed_rename_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("taken");
        fs::create_dir_all(path.join("full")).unwrap();
        assert!(write(&path, b"x").is_err());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
