//! Threads that the system refuses where the standard library panics, as errors that name the limit.

use std::panic::PanicHookInfo;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Message of the standard library's panic where the system refuses a thread.
const NO_THREAD: &str = "failed to spawn thread";

/// Threads that the system refused where the standard library panics.
#[derive(Debug, Clone, Default)]
pub(crate) struct RefusedThreads(Arc<AtomicBool>);

impl RefusedThreads {
    /// Notes refused threads from now on, instead of printing them as a defect.
    pub(crate) fn watch() -> RefusedThreads {
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
        let error = || bessemer_durable::thread_error(std::io::ErrorKind::WouldBlock.into());
        self.0.load(Ordering::Relaxed).then(error)
    }
}

fn is_refused_thread(info: &PanicHookInfo<'_>) -> bool {
    info.payload_as_str().is_some_and(|message| message.starts_with(NO_THREAD))
}
