//! Connections that wait for their client: the one that has waited longest makes way for a new client where all places are taken.

use crate::answer::AnswerBody;
use hyper::body::{Body, Bytes, Frame, SizeHint};
use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::task::AbortHandle;

/// Open connections by number.
#[derive(Debug, Default)]
pub(crate) struct Connections(Mutex<HashMap<u64, State>>);

#[derive(Debug)]
struct State {
    /// Begin of the wait for a request or the rest of one; `None` while a request is answered.
    waits_since: Option<Instant>,
    /// Handle that closes the connection.
    task: Option<AbortHandle>,
}

impl Connections {
    fn states(&self) -> MutexGuard<'_, HashMap<u64, State>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a connection under a number that no other has.
    pub(crate) fn open(self: &Arc<Self>, number: u64) -> Connection {
        self.states().insert(number, State { waits_since: Some(Instant::now()), task: None });
        Connection { connections: Arc::clone(self), number }
    }

    /// Names the task that serves a connection.
    pub(crate) fn serve_by(&self, number: u64, task: AbortHandle) {
        if let Some(state) = self.states().get_mut(&number) {
            state.task = Some(task);
        }
    }

    /// Closes the connection that has waited longest for its client, if that is at least `least`.
    pub(crate) fn close_longest_waiting(&self, least: Duration) {
        let mut states = self.states();
        let longest = states.values_mut().filter(|state| state.waits_since.is_some());
        let Some(state) = longest.min_by_key(|state| state.waits_since) else { return };
        if state.waits_since.is_some_and(|since| since.elapsed() >= least)
            && let Some(task) = &state.task
        {
            task.abort();
            // Not a second time while it ends.
            state.waits_since = None;
        }
    }
}

/// An open connection; dropped, it is no longer registered.
#[derive(Debug)]
pub(crate) struct Connection {
    connections: Arc<Connections>,
    number: u64,
}

impl Connection {
    /// Marks the connection as at work until the result is dropped.
    pub(crate) fn answering(self: &Arc<Self>) -> Answering {
        self.set(None);
        Answering(Arc::clone(self))
    }

    fn set(&self, waits_since: Option<Instant>) {
        if let Some(state) = self.connections.states().get_mut(&self.number) {
            state.waits_since = waits_since;
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.connections.states().remove(&self.number);
    }
}

/// A request that is answered; dropped, the connection waits for its client again.
#[derive(Debug)]
pub(crate) struct Answering(Arc<Connection>);

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.set(Some(Instant::now()));
    }
}

/// Body of an answer, during which the connection does not wait for a request.
pub(crate) struct HeldBody {
    pub(crate) body: AnswerBody,
    pub(crate) _answering: Option<Answering>,
}

impl Body for HeldBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        Pin::new(&mut self.get_mut().body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
