//! Names of the limits behind errors of the system: "Too many open files" is mended in another way than a damaged disk.

use rustix::io::Errno;
use std::io;

/// An error with its explanation, which keeps the system's code.
#[derive(Debug)]
pub(crate) struct Explained {
    text: String,
    code: Option<i32>,
}

impl std::fmt::Display for Explained {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Explained {}

/// The error `cause` in other words.
pub(crate) fn explained(cause: &io::Error, text: String) -> io::Error {
    io::Error::new(cause.kind(), Explained { text, code: code(cause) })
}

fn code(error: &io::Error) -> Option<i32> {
    let inner = || error.get_ref()?.downcast_ref::<Explained>()?.code;
    error.raw_os_error().or_else(inner)
}

/// Adds to an error of the system the limit that was reached, and a remedy. Other errors stay as they are.
pub fn with_remedy(error: io::Error) -> io::Error {
    match remedy(&error) {
        Some(remedy) => explained(&error, format!("{error}: {remedy}")),
        None => error,
    }
}

/// The limit behind an error that comes from the system as it is, or what to try.
pub(crate) fn remedy(error: &io::Error) -> Option<&'static str> {
    Some(match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::MFILE) => {
            "the limit on open files of this process (RLIMIT_NOFILE) is reached; raise it (ulimit -n) or set fewer threads"
        }
        Some(Errno::NFILE) => {
            "the system's limit on open files (fs.file-max) is reached; raise it with sysctl"
        }
        Some(Errno::FBIG) => {
            "the file would exceed the limit on file sizes of this process (RLIMIT_FSIZE) or of the file system; raise it \
             (ulimit -f)"
        }
        Some(Errno::DQUOT) => "the disk quota is used up; free space or raise the quota",
        Some(Errno::NOSPC) => "free space on this file system",
        Some(Errno::ACCESS | Errno::PERM) => {
            "check owner and mode of the entry and of its directory (ls -ld)"
        }
        Some(Errno::ROFS) => "name a directory on a file system that can be written",
        Some(Errno::LOOP) => {
            "a symbolic link takes the place of the file and is not followed here; remove it"
        }
        Some(Errno::NXIO) => "a FIFO, a socket or a device takes the place of the file; remove it",
        Some(Errno::ISDIR) => "a directory takes the place of the file; move it away and try again",
        _ => return None,
    })
}

/// Error for a thread that the system did not start.
pub fn thread_error(error: io::Error) -> io::Error {
    explained(
        &error,
        format!(
            "cannot start a thread: {error}: the limit on processes and threads (RLIMIT_NPROC, or pids.max of the control \
             group) or on memory is reached; raise it (ulimit -u) or set fewer threads"
        ),
    )
}

/// Whether an error is about this process, its rights or its limits, and not about the content of a file.
pub fn is_of_the_process(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied || is_limit(error)
}

/// Whether a limit of the process or of the system was reached: the same file can be read once it is raised.
pub fn is_limit(error: &io::Error) -> bool {
    matches!(
        code(error).map(Errno::from_raw_os_error),
        Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::AGAIN)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_limits_name_the_limit_once() {
        for (errno, name) in
            [(Errno::MFILE, "RLIMIT_NOFILE"), (Errno::FBIG, "RLIMIT_FSIZE"), (Errno::NFILE, "fs.file-max")]
        {
            let e = with_remedy(with_remedy(errno.into()));
            assert_eq!(e.to_string().matches(name).count(), 1, "{e}");
            assert_eq!(e.kind(), io::Error::from(errno).kind());
            let located = crate::at(std::path::Path::new("/a/b"), "open", errno.into());
            assert!(
                located.to_string().contains("/a/b") && is_of_the_process(&located) == (errno != Errno::FBIG)
            );
        }
        let plain = with_remedy(Errno::NOENT.into());
        assert_eq!(plain.raw_os_error(), Some(Errno::NOENT.raw_os_error()));
        let e = thread_error(Errno::AGAIN.into());
        assert!(e.to_string().contains("RLIMIT_NPROC") && e.kind() == io::ErrorKind::WouldBlock, "{e}");
    }
}
