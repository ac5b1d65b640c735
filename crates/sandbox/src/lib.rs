//! Programs that nobody trusts, such as code that a model wrote, run without network and within limits.
//!
//! [`run`] starts this program again as a keeper, which calls [`keep`]: it takes namespaces of its own (user, processes, network, mounts, host name,
//! IPC; `unshare(2)`), builds a root of a few read-only directories and one that can be written, changes into it (`pivot_root(2)`), lowers its resource limits and starts the
//! command as the first process of its namespace. When that process is gone, the kernel kills all others of the namespace; the keeper kills it when the time is over, and when [`run`] or the
//! program that called it is gone.
//!
//! | attempt | what happens |
//! |---|---|
//! | a connection, a listening port | there is no interface but a loopback that is down |
//! | reading other files of the host | they are not below the root |
//! | writing outside of the working directory | read-only file systems |
//! | more memory, processes, bytes of a file than allowed | the system call fails |
//! | running on after the end | killed with the namespace |
//! | gaining rights by set-user-id programs | `no_new_privs` |
//!
//! What is not held back: processor time of other processes (the limit is each one's), and faults of the kernel. Linux alone; where user namespaces are not
//! allowed it is an error, never a run without them.
#![allow(
    clippy::disallowed_methods,
    reason = "the keeper opens devices and mounts of a process of its own, before it confines itself"
)]

mod directory;
mod keep;
mod run;

pub use directory::WorkingDirectory;
pub use keep::{NOT_CONFINED, keep};
pub use run::{Outcome, run};

use std::ffi::OsString;
use std::path::PathBuf;

/// Limits of a command.
#[derive(Debug, Clone, PartialEq)]
pub struct Limits {
    /// Wall time, seconds.
    pub seconds: f64,
    /// Address space of each process, bytes.
    pub memory: u64,
    /// Processes and threads at a time.
    pub processes: u64,
    /// Size of each file, bytes; standard output and error together are cut at it.
    pub file_bytes: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { seconds: 3.0, memory: 1 << 30, processes: 32, file_bytes: 16 << 20 }
    }
}

/// A command and where it runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Confined {
    /// Program and arguments. The program is looked for in the directories of [`READ_ONLY`] and `read_only`.
    pub command: Vec<String>,
    /// Directory that it may write, which is also where it starts. Commands of root run as its owner, who must not be root ([`WorkingDirectory`] sees to that).
    pub directory: PathBuf,
    /// Directories that it may read besides [`READ_ONLY`].
    pub read_only: Vec<PathBuf>,
    /// Limits.
    pub limits: Limits,
}

impl Confined {
    /// Arguments that tell a keeper all of this.
    pub fn to_arguments(&self) -> Vec<OsString> {
        let limits = &self.limits;
        let mut all: Vec<OsString> = vec![
            self.directory.clone().into(),
            limits.seconds.to_string().into(),
            limits.memory.to_string().into(),
            limits.processes.to_string().into(),
            limits.file_bytes.to_string().into(),
            self.read_only.len().to_string().into(),
        ];
        all.extend(self.read_only.iter().map(|path| path.clone().into()));
        all.extend(self.command.iter().map(OsString::from));
        all
    }

    /// What [`Confined::to_arguments`] wrote. None for other arguments.
    pub fn from_arguments(arguments: &[OsString]) -> Option<Confined> {
        let number = |i: usize| arguments.get(i)?.to_str();
        let limits = Limits {
            seconds: number(1)?.parse().ok()?,
            memory: number(2)?.parse().ok()?,
            processes: number(3)?.parse().ok()?,
            file_bytes: number(4)?.parse().ok()?,
        };
        let paths: usize = number(5)?.parse().ok()?;
        let rest = arguments.get(6..)?;
        let read_only = rest.get(..paths)?.iter().map(PathBuf::from).collect();
        let command: Vec<String> =
            rest[paths..].iter().map(|word| word.to_str().map(str::to_string)).collect::<Option<_>>()?;
        let directory = PathBuf::from(&arguments[0]);
        (!command.is_empty()).then_some(Confined { command, directory, read_only, limits })
    }
}

/// Directories of the host that every command may read, where they exist.
pub const READ_ONLY: [&str; 6] = ["/usr", "/bin", "/lib", "/lib64", "/etc/alternatives", "/etc/ld.so.cache"];

/// Why a command could not be run in confinement.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// The kernel or the host refuses what confinement needs.
    #[error("wanted {wanted}, found: {cause}; {hint}")]
    Refused {
        /// Step.
        wanted: &'static str,
        /// The system's words.
        cause: std::io::Error,
        /// Advice for the user.
        hint: &'static str,
    },
    /// The keeper could not be started, or its command is not there.
    #[error("{what}: {cause}")]
    Start {
        /// Program or directory.
        what: String,
        /// The system's words.
        cause: std::io::Error,
    },
}
