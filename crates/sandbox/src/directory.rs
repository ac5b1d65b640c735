//! A directory for one command.

use std::path::{Path, PathBuf};
use std::{fs, io};

/// A fresh directory that a confined command may write, removed with this value.
#[derive(Debug)]
pub struct WorkingDirectory {
    path: PathBuf,
}

impl WorkingDirectory {
    /// Makes a directory below `parent` under a name that is not taken.
    ///
    /// # Errors
    /// The system's.
    pub fn new(parent: &Path) -> io::Result<WorkingDirectory> {
        let pid = std::process::id();
        for number in 0..u32::MAX {
            let path = parent.join(format!("confined-{pid}-{number}"));
            match fs::create_dir(&path) {
                Ok(()) => {
                    let made = WorkingDirectory { path };
                    // Commands of root run as users that exist nowhere else, so that each has a limit of processes of its own.
                    if rustix::process::getuid().is_root() {
                        let user = 1 << 30 | (pid & 0x3f_ffff) << 8 | number & 0xff;
                        std::os::unix::fs::chown(&made.path, Some(user), Some(user))?;
                    }
                    return Ok(made);
                }
                Err(cause) if cause.kind() == io::ErrorKind::AlreadyExists => {}
                Err(cause) => return Err(cause),
            }
        }
        Err(io::Error::other("no name is left"))
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for WorkingDirectory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}
