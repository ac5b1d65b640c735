//! When calls ran, for a trace.

use crate::call::Call;
use crate::wrap::{Around, Run, Wrapped};
use crate::{CollectiveError, Communicator, Kind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::ThreadId;
use std::time::Instant;

/// One call of one rank, from when it was made to when it returned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallSpan {
    /// Label of the group.
    pub group: String,
    /// Which collective.
    pub kind: Kind,
    /// Whose values.
    pub name: String,
    /// Bytes of this rank's values.
    pub bytes: u64,
    /// The thread that made it: whether it ran beside the computation or within.
    pub thread: ThreadId,
    /// Start.
    pub start: Instant,
    /// End.
    pub end: Instant,
}

/// Notes, while it is switched on, when the calls of the communicators ran that it wraps, and of groups made from them, on
/// whatever thread. Groups of one rank talk to nobody and are passed over. Switched off it asks for no memory and reads no
/// clock. Clones share their notes, so one is kept to read.
#[derive(Debug, Clone, Default)]
pub struct Stopwatch(Arc<Notes>);

#[derive(Debug, Default)]
struct Notes {
    on: AtomicBool,
    spans: Mutex<Vec<CallSpan>>,
}

impl Stopwatch {
    /// Switched off.
    pub fn new() -> Stopwatch {
        Stopwatch::default()
    }

    /// A communicator whose calls are noted here.
    pub fn wrap(&self, inner: Box<dyn Communicator>) -> Box<dyn Communicator> {
        Wrapped::boxed(inner, self.clone())
    }

    /// On or off from now on. A call that is under way counts as what it was when it began.
    pub fn switch(&self, on: bool) {
        self.0.on.store(on, Ordering::Relaxed);
    }

    /// What was noted since the last time.
    pub fn take(&self) -> Vec<CallSpan> {
        std::mem::take(&mut self.0.spans.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Around for Stopwatch {
    fn around(
        &mut self,
        call: &Call<'_>,
        inner: &mut Box<dyn Communicator>,
        run: &mut Run<'_>,
    ) -> Result<(), CollectiveError> {
        if inner.size() == 1 || !self.0.on.load(Ordering::Relaxed) {
            return run(inner.as_mut());
        }
        let start = Instant::now();
        let result = run(inner.as_mut());
        let end = Instant::now();
        let (group, name) = (inner.label().to_owned(), call.name.to_owned());
        let thread = std::thread::current().id();
        let span = CallSpan { group, kind: call.kind, name, bytes: call.bytes(), thread, start, end };
        self.0.spans.lock().unwrap_or_else(PoisonError::into_inner).push(span);
        result
    }

    fn of_group(&self, _: &dyn Communicator) -> Stopwatch {
        self.clone()
    }
}
