//! Ctrl-C, termination and the end of the terminal: the first asks the run to save and leave, a second one ends the process
//! at once. SIGUSR1 asks as well, however often it comes: launchers pass it on to all processes of a job and leave them the
//! time that they need. SIGHUP, which a closing terminal or connection sends, is one more request and never more: shells
//! send it twice.

use crate::commands::ranks::interrupted;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGXFSZ};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// Time that work gets to end by itself after a request to stop. Requests are answered within two seconds.
const GRACE: Duration = Duration::from_millis(1500);
/// Time between two looks at the request.
const INTERVAL: Duration = Duration::from_millis(50);

/// Makes writing beyond RLIMIT_FSIZE an error of the file, which names the limit, instead of the end of the process.
///
/// # Errors
/// If the system refuses to install a handler.
pub(crate) fn report_file_limit() -> std::io::Result<()> {
    signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false))).map(drop)
}

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

/// Deadline of requests to stop, for work that loses nothing when the process ends: stages, evaluations, waits. Their files
/// become visible whole, and the same command goes on. A thread ends the process with code 75 where such work does not
/// heed a request within 1.5 seconds. Training does heed it, after a step and a save, and is given the time: it holds the
/// deadline back by [`Deadline::hold`].
#[derive(Debug)]
pub(crate) struct Deadline {
    shared: Arc<DeadlineState>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct DeadlineState {
    /// Work that needs its time, such as a step and its save.
    held: Mutex<usize>,
    ended: Mutex<bool>,
    wake: Condvar,
}

/// While it lives, requests to stop have no deadline.
#[derive(Debug)]
pub(crate) struct HeldDeadline(Arc<DeadlineState>);

impl Deadline {
    /// Watches `stop`, which signal handlers set.
    ///
    /// # Errors
    /// The system's, where it refuses a thread.
    pub(crate) fn start(stop: Arc<AtomicBool>) -> std::io::Result<Deadline> {
        #[allow(clippy::exit, reason = "work that does not return cannot be ended from another thread")]
        let leave = || {
            let failure = interrupted(true);
            crate::console::complain(&failure);
            std::process::exit(i32::from(failure.code));
        };
        Deadline::with(stop, GRACE, leave)
    }

    fn with(
        stop: Arc<AtomicBool>,
        grace: Duration,
        leave: impl FnOnce() + Send + 'static,
    ) -> std::io::Result<Deadline> {
        let shared = Arc::<DeadlineState>::default();
        let state = Arc::clone(&shared);
        let watch = move || {
            let mut since = None;
            while !state.ends_within(INTERVAL) {
                let held = *state.held.lock().unwrap_or_else(PoisonError::into_inner) > 0;
                if held || !stop.load(Ordering::Relaxed) {
                    since = None;
                } else if since.get_or_insert_with(Instant::now).elapsed() >= grace {
                    return leave();
                }
            }
        };
        let thread = Builder::new().name("stop deadline".into()).spawn(watch)?;
        Ok(Deadline { shared, thread: Some(thread) })
    }

    /// Holds the deadline back while the result lives.
    pub(crate) fn hold(&self) -> HeldDeadline {
        *self.shared.held.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        HeldDeadline(Arc::clone(&self.shared))
    }
}

impl DeadlineState {
    /// Waits; whether the deadline is no longer wanted.
    fn ends_within(&self, time: Duration) -> bool {
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.wake.wait_timeout_while(ended, time, |ended| !*ended);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

impl Drop for HeldDeadline {
    fn drop(&mut self) {
        *self.0.held.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
    }
}

impl Drop for Deadline {
    fn drop(&mut self) {
        *self.shared.ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.shared.wake.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Requests to a supervisor, each taken by its first reader.
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
    let status = bessemer_durable::read_system("/proc/self/status");
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn a_request_ends_the_process_after_its_time_unless_it_is_held_back() {
        let stop = Arc::new(AtomicBool::new(false));
        let (left, leaves) = channel();
        let grace = Duration::from_millis(100);
        let deadline = Deadline::with(Arc::clone(&stop), grace, move || left.send(()).unwrap()).unwrap();
        leaves.recv_timeout(Duration::from_millis(300)).unwrap_err();
        let held = deadline.hold();
        stop.store(true, Ordering::Relaxed);
        leaves.recv_timeout(Duration::from_millis(300)).unwrap_err();
        drop(held);
        leaves.recv_timeout(Duration::from_secs(30)).unwrap();
    }

    #[test]
    fn work_that_ends_in_time_ends_the_watch() {
        let stop = Arc::new(AtomicBool::new(true));
        let (left, leaves) = channel();
        let grace = Duration::from_secs(3600);
        drop(Deadline::with(stop, grace, move || left.send(()).unwrap()).unwrap());
        leaves.recv_timeout(Duration::from_secs(30)).unwrap_err();
    }
}
