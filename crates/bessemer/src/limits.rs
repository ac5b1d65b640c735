//! Limits that the system sets for a process, named in the errors that they cause.
//!
//! A library sees an error number. Which limit of `ulimit` it stands for is the same for every library, so it is added where
//! errors are printed.

use rustix::process::{Resource, getrlimit};
use signal_hook::consts::SIGXFSZ;
use std::panic::PanicHookInfo;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Message of the standard library's panic where the system refuses a thread.
const NO_THREAD: &str = "failed to spawn thread";

/// Threads that the system refused where the standard library panics.
#[derive(Debug, Clone, Default)]
pub(crate) struct RefusedThreads(Arc<AtomicBool>);

impl RefusedThreads {
    /// Prepares the process: a file that outgrows its limit becomes an error of the write instead of a signal that ends the
    /// process, and a refused thread is noted instead of printed as a defect.
    pub(crate) fn watch() -> RefusedThreads {
        // A system that refuses the handler ends the process at that limit, as before.
        let _ = signal_hook::flag::register(SIGXFSZ, Arc::default());
        let refused = RefusedThreads::default();
        let noted = refused.clone();
        let print = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| match is_refused_thread(info) {
            true => noted.0.store(true, Ordering::Relaxed),
            false => print(info),
        }));
        refused
    }

    /// The error of a refused thread, if there was one.
    pub(crate) fn error(&self) -> Option<std::io::Error> {
        let error = || std::io::Error::from_raw_os_error(rustix::io::Errno::AGAIN.raw_os_error());
        let named = || std::io::Error::other(format!("cannot start a thread: {}", error()));
        self.0.load(Ordering::Relaxed).then(named)
    }
}

fn is_refused_thread(info: &PanicHookInfo<'_>) -> bool {
    info.payload_as_str().is_some_and(|message| message.starts_with(NO_THREAD))
}

/// The limit behind an error, and how to raise it: an addition to the error's message.
pub(crate) fn named(message: &str) -> Option<String> {
    let number = message.rsplit_once("(os error ")?.1.split_once(')')?.0;
    let (resource, name, of, flag) = match number.parse().ok()? {
        24 => (Resource::Nofile, "RLIMIT_NOFILE", "open files", 'n'),
        27 => (Resource::Fsize, "RLIMIT_FSIZE", "bytes of a file", 'f'),
        11 => (Resource::Nproc, "RLIMIT_NPROC", "processes and threads of a user", 'u'),
        _ => return None,
    };
    // Without a limit the file system's own, or that of a container, was met.
    let limit = getrlimit(resource).current?;
    Some(format!(
        "the limit {name} allows {limit} {of}; raise it (ulimit -{flag}) and run the same command again"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_named_by_the_error_number() {
        let limited = |message: &str| named(message).unwrap_or_default();
        assert!(
            limited("cannot create a: Too many open files (os error 24)").contains("RLIMIT_NOFILE allows ")
        );
        assert_eq!(named("cannot read a: No such file or directory (os error 2)"), None);
        assert_eq!(named("cannot read a (os error x)"), None);
    }
}
