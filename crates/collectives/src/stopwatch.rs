//! Times of calls, for a trace.

use crate::call::Call;
use crate::wrap::{Wrapped, Wrapper};
use crate::{Collective, CollectiveError, CollectiveKind, Communicator, Memory};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::ThreadId;
use std::time::Instant;

/// One call of one rank, from its start to its return.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallSpan {
    /// Label of the group.
    pub group: String,
    /// Kind of the collective.
    pub kind: CollectiveKind,
    /// Name of the values.
    pub name: String,
    /// Bytes of this rank's values.
    pub bytes: u64,
    /// Thread that made the call: it tells whether the call ran beside the computation.
    pub thread: ThreadId,
    /// Start.
    pub start: Instant,
    /// End.
    pub end: Instant,
}

/// Records, while it is switched on, when the calls of the communicators that it wraps ran, and of groups made from them, on
/// any thread. Groups of one rank are passed over. Switched off it allocates nothing and reads no clock. Clones share
/// their records, so one is kept to read.
#[derive(Debug, Clone, Default)]
pub struct Stopwatch(Arc<CallSpans>);

#[derive(Debug, Default)]
struct CallSpans {
    on: AtomicBool,
    spans: Mutex<Vec<CallSpan>>,
}

impl Stopwatch {
    /// A stopwatch that is switched off.
    pub fn new() -> Stopwatch {
        Stopwatch::default()
    }

    /// Wraps a communicator whose calls are recorded here.
    pub fn wrap(&self, inner: Box<dyn Communicator>) -> Box<dyn Communicator> {
        Wrapped::boxed(inner, self.clone())
    }

    /// Switches recording on or off. A call in progress keeps the setting with which it began.
    pub fn switch(&self, on: bool) {
        self.0.on.store(on, Ordering::Relaxed);
    }

    /// Takes the records since the last time.
    pub fn take(&self) -> Vec<CallSpan> {
        std::mem::take(&mut self.0.spans.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Wrapper for Stopwatch {
    fn run(
        &mut self,
        inner: &mut Box<dyn Communicator>,
        collective: &Collective<'_>,
        memory: Memory<'_>,
    ) -> Result<(), CollectiveError> {
        if inner.size() == 1 || !self.0.on.load(Ordering::Relaxed) {
            return inner.run(collective, memory);
        }
        let (kind, bytes) = (collective.kind(), Call::new(collective, &memory).bytes());
        let start = Instant::now();
        let result = inner.run(collective, memory);
        let end = Instant::now();
        let (group, name) = (inner.label().to_owned(), collective.name.to_owned());
        let thread = std::thread::current().id();
        let span = CallSpan { group, kind, name, bytes, thread, start, end };
        self.0.spans.lock().unwrap_or_else(PoisonError::into_inner).push(span);
        result
    }

    fn for_group(&self) -> Stopwatch {
        self.clone()
    }
}
