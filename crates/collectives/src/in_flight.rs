//! When a rank is in collectives, for whoever sends what can wait.

use crate::wrap::{Wrapped, Wrapper};
use crate::{Collective, CollectiveError, CollectiveKind, Communicator, Memory};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Counts the collectives in progress on the communicators that it wraps, and on groups made from them, on any thread. Messages, barriers
/// and groups of one rank do not count: a rank that waits for a message leaves the network idle. Clones share their count.
///
/// Steps repeat the same collectives, so the length of a span without one is known from the steps before ([`InFlight::idle`]).
#[derive(Debug, Clone, Default)]
pub struct InFlight(Arc<Mutex<Spans>>);

/// A span without a collective.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdleSpan {
    /// Its begin.
    pub since: Instant,
    /// The shorter of its lengths in the last two steps, if both had it.
    pub expected: Option<Duration>,
}

#[derive(Debug, Default)]
struct Spans {
    count: usize,
    /// Begin of the present span, from the first end of a collective on.
    since: Option<Instant>,
    /// Lengths of the spans of the present step, and of the two before.
    now: Vec<Duration>,
    last: Vec<Duration>,
    before: Vec<Duration>,
}

impl Spans {
    fn begin(&mut self) {
        self.count += 1;
        if self.count == 1
            && let Some(since) = self.since.take()
        {
            self.now.push(since.elapsed());
        }
    }

    fn end(&mut self) {
        self.count -= 1;
        if self.count == 0 {
            self.since = Some(Instant::now());
        }
    }

    fn begin_step(&mut self) {
        if self.count == 0 {
            self.now.extend(self.since.map(|since| since.elapsed()));
            self.since = Some(Instant::now());
        }
        // The memory of the oldest is that of the newest.
        std::mem::swap(&mut self.before, &mut self.last);
        std::mem::swap(&mut self.last, &mut self.now);
        self.now.clear();
    }

    fn idle(&self) -> Option<IdleSpan> {
        let (since, number) = (self.since?, self.now.len());
        let two = [&self.last, &self.before].map(|lengths| lengths.get(number).copied());
        let [Some(last), Some(before)] = two else { return Some(IdleSpan { since, expected: None }) };
        Some(IdleSpan { since, expected: Some(last.min(before)) })
    }
}

impl InFlight {
    /// A count of nothing.
    pub fn new() -> InFlight {
        InFlight::default()
    }

    /// Wraps a communicator whose collectives are counted.
    pub fn wrap(&self, inner: Box<dyn Communicator>) -> Box<dyn Communicator> {
        Wrapped::boxed(inner, self.clone())
    }

    /// Collectives in progress now.
    pub fn count(&self) -> usize {
        self.spans().count
    }

    /// The present span without a collective; `None` while one is in progress.
    pub fn idle(&self) -> Option<IdleSpan> {
        let spans = self.spans();
        match spans.count {
            // Before the first collective nothing is known.
            0 => spans.idle().or(Some(IdleSpan { since: Instant::now(), expected: None })),
            _ => None,
        }
    }

    /// A step begins: the spans of the last two are those that are expected.
    pub fn begin_step(&self) {
        self.spans().begin_step();
    }

    fn spans(&self) -> MutexGuard<'_, Spans> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wrapper for InFlight {
    fn run(
        &mut self,
        inner: &mut Box<dyn Communicator>,
        collective: &Collective<'_>,
        memory: Memory<'_>,
    ) -> Result<(), CollectiveError> {
        let passed_over = matches!(
            collective.kind(),
            CollectiveKind::Send | CollectiveKind::Receive | CollectiveKind::Barrier
        );
        if passed_over || inner.size() == 1 {
            return inner.run(collective, memory);
        }
        self.spans().begin();
        let result = inner.run(collective, memory);
        self.spans().end();
        result
    }

    fn for_group(&self) -> InFlight {
        self.clone()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap here is a failed test")]
mod tests {
    use super::*;

    #[test]
    fn spans_are_expected_as_they_were_in_the_last_two_steps() {
        let network = InFlight::new();
        assert_eq!(network.idle().unwrap().expected, None);
        let collective = || {
            network.spans().begin();
            assert_eq!((network.count(), network.idle()), (1, None));
            network.spans().end();
        };
        for length in [4, 8, 2] {
            network.begin_step();
            collective();
            let first = network.idle().unwrap();
            // Two at once are one stretch of the network.
            std::thread::sleep(Duration::from_millis(length));
            network.spans().begin();
            collective_inside(&network);
            network.spans().end();
            let second = network.idle().unwrap();
            assert!(second.since > first.since);
            match length {
                2 => {
                    let (first, second) = (first.expected.unwrap(), second.expected.unwrap());
                    assert!(first >= Duration::from_millis(4) && second < first, "{first:?} {second:?}");
                }
                _ => assert_eq!((first.expected, second.expected), (None, None)),
            }
        }
    }

    fn collective_inside(network: &InFlight) {
        network.spans().begin();
        assert_eq!(network.count(), 2);
        network.spans().end();
        assert_eq!((network.count(), network.idle()), (1, None));
    }
}
