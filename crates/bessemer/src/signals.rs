//! Ctrl-C, termination and the end of the terminal: the first asks the run to save and leave, a second one ends the process
//! at once. SIGUSR1 asks as well, however often it comes: launchers pass it on to all processes of a job and leave them the
//! time that they need. SIGHUP, which a closing terminal or connection sends, is one more request and never more: shells
//! send it twice.

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A flag that turns true at the first SIGINT, SIGTERM, SIGUSR1 or SIGHUP. Under `nohup`, SIGHUP stays ignored.
///
/// # Errors
/// If the system refuses to install a handler.
pub(crate) fn stop_flag() -> std::io::Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // Order matters: the shutdown is armed by the flag that the handler after it sets.
        signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&flag))?;
        signal_hook::flag::register(signal, Arc::clone(&flag))?;
    }
    signal_hook::flag::register(SIGUSR1, Arc::clone(&flag))?;
    if !is_ignored(SIGHUP) {
        signal_hook::flag::register(SIGHUP, Arc::clone(&flag))?;
    }
    Ok(flag)
}

/// Requests to a supervisor, taken by whoever looks.
pub(crate) struct StopRequests {
    /// SIGINT, SIGTERM: a second one is meant.
    urgent: Arc<AtomicBool>,
    /// SIGUSR1, SIGHUP: any number of them is one.
    polite: Arc<AtomicBool>,
}

/// A request to a supervisor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StopRequest {
    /// Stop; if that was asked before, at once.
    Urgent,
    /// Stop.
    Polite,
}

impl StopRequests {
    /// Installs the handlers of a supervisor.
    ///
    /// # Errors
    /// If the system refuses to install a handler.
    pub(crate) fn install() -> std::io::Result<StopRequests> {
        let requests = StopRequests { urgent: Arc::default(), polite: Arc::default() };
        for signal in [SIGINT, SIGTERM] {
            signal_hook::flag::register(signal, Arc::clone(&requests.urgent))?;
        }
        signal_hook::flag::register(SIGUSR1, Arc::clone(&requests.polite))?;
        if !is_ignored(SIGHUP) {
            signal_hook::flag::register(SIGHUP, Arc::clone(&requests.polite))?;
        }
        Ok(requests)
    }

    /// Takes a request that has come since the last look.
    pub(crate) fn take(&self) -> Option<StopRequest> {
        let urgent = self.urgent.swap(false, Ordering::Relaxed).then_some(StopRequest::Urgent);
        urgent.or_else(|| self.polite.swap(false, Ordering::Relaxed).then_some(StopRequest::Polite))
    }
}

/// Whether the process was started with a signal ignored, as `nohup` does. Where the system does not say, it was not.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}
