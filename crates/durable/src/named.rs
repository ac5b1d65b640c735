//! Files and directories that a user names.
//!
//! The path may lead over symbolic links, and an input that is read once may be a pipe (`<(zcat x)`). Files of a run
//! directory are opened through a [`ConfinedDir`](crate::ConfinedDir) instead.

use crate::{at, decode_text};
use std::fs::{self, File, ReadDir};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// Time in which a program must open a named pipe for writing.
const WRITER_WAIT: Duration = Duration::from_secs(2);

/// Opens an input that is read once, from its beginning to its end: a regular file or a pipe. A named pipe that no
/// program writes to is refused after two seconds.
///
/// # Errors
/// The system's; a directory, a socket or a device.
pub fn open_input(path: &Path) -> io::Result<File> {
    match fs::metadata(path) {
        Ok(found) if found.file_type().is_fifo() => open_fifo(path, WRITER_WAIT),
        _ => crate::open_regular(path),
    }
}

/// Opens a FIFO for reading. Opening blocks until there is a writer, and cannot be given a time, so a thread does it.
fn open_fifo(path: &Path, wait: Duration) -> io::Result<File> {
    let (sender, opened) = mpsc::channel();
    let path = path.to_owned();
    let reader = thread::Builder::new().name("open-fifo".into()).spawn({
        let path = path.clone();
        move || sender.send(File::open(path))
    })?;
    opened.recv_timeout(wait).unwrap_or_else(|_| {
        // A writer ends the thread's wait. It may fail when another writer came, which ends the wait as well.
        let nonblocking = rustix::fs::OFlags::NONBLOCK.bits() as i32;
        let writer = fs::OpenOptions::new().write(true).custom_flags(nonblocking).open(&path);
        drop(reader.join());
        drop(writer);
        Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "wanted a pipe with a writer, found a FIFO (named pipe) that no program writes to, or one that was read \
             before; start the writer first, or save its output to a file and pass that",
        ))
    })
}

/// Reads a whole input; see [`open_input`].
///
/// # Errors
/// Errors of [`open_input`] and of reading, with the path in the message.
pub fn read_input(path: &Path) -> io::Result<Vec<u8>> {
    read_below(path, u64::MAX)
}

fn read_below(path: &Path, end: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = open_input(path).and_then(|file| file.take(end).read_to_end(&mut bytes));
    read.map_err(|e| at(path, "read", e))?;
    Ok(bytes)
}

/// Reads a whole input as text; see [`open_input`].
///
/// # Errors
/// Errors of [`read_input`] and of [`decode_text`].
pub fn read_input_to_string(path: &Path) -> io::Result<String> {
    decode_text(read_input(path)?).map_err(|e| at(path, "read", e))
}

/// Reads an input of at most `most` bytes as text; see [`open_input`].
///
/// # Errors
/// Errors of [`read_input_to_string`]; a larger input.
pub fn read_small_input(path: &Path, most: u64) -> io::Result<String> {
    let bytes = read_below(path, most + 1)?;
    if bytes.len() as u64 > most {
        let problem = format!("wanted at most {most} bytes, found more; is it another kind of file?");
        return Err(at(path, "read", io::Error::new(io::ErrorKind::InvalidInput, problem)));
    }
    decode_text(bytes).map_err(|e| at(path, "read", e))
}

/// Entries of a directory that a user names.
///
/// # Errors
/// The system's, with the path in the message.
pub fn read_dir(path: &Path) -> io::Result<ReadDir> {
    fs::read_dir(path).map_err(|e| at(path, "read the directory", e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn an_input_is_a_file_or_a_pipe_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let (fifo, file) = (dir.path().join("fifo"), dir.path().join("file"));
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RWXU).unwrap();
        let writer = std::thread::spawn({
            let fifo = fifo.clone();
            move || fs::OpenOptions::new().write(true).open(fifo).unwrap().write_all(b"from a pipe").unwrap()
        });
        assert_eq!(read_input_to_string(&fifo).unwrap(), "from a pipe");
        writer.join().unwrap();
        let e = open_fifo(&fifo, Duration::from_millis(20)).unwrap_err().to_string();
        assert!(e.contains("no program writes"), "{e}");
        fs::write(&file, "from a file").unwrap();
        std::os::unix::fs::symlink(&file, dir.path().join("link")).unwrap();
        assert_eq!(read_input_to_string(&dir.path().join("link")).unwrap(), "from a file");
        assert_eq!(read_small_input(&file, 11).unwrap(), "from a file");
        let e = read_small_input(&file, 10).unwrap_err().to_string();
        assert!(e.contains("wanted at most 10 bytes") && e.contains(&*file.to_string_lossy()), "{e}");
        let _socket = std::os::unix::net::UnixListener::bind(dir.path().join("socket")).unwrap();
        for refused in
            [dir.path(), &dir.path().join("socket"), Path::new("/dev/zero"), &dir.path().join("no")]
        {
            let e = read_input(refused).unwrap_err().to_string();
            assert!(e.contains(&*refused.to_string_lossy()), "{e}");
        }
    }
}
