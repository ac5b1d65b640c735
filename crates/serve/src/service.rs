//! The place where requests meet the model: a bounded inbox on one side, the loop that runs the scheduler on the other.

use crate::access_key::AccessKey;
use crate::engine::Engine;
use crate::error::ApiError;
use crate::metrics::{Load, Metrics};
use crate::request::{Model, TextRequest};
use crate::scheduler::{Client, Event, Scheduler, SequenceRequest};
use bessemer_tokenizer::Tokenizer;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time between two looks at the word to stop while there is nothing to do.
const LOOK: Duration = Duration::from_millis(50);

/// News of a sequence, with the time at which it happened.
#[derive(Debug)]
pub(crate) struct News {
    pub(crate) sequence: usize,
    pub(crate) event: Event,
    pub(crate) at: Instant,
}

/// A request's end of the line. Its sequences are given up when it is dropped.
#[derive(Debug)]
pub(crate) struct Ticket {
    pub(crate) news: Receiver<News>,
    gone: Arc<AtomicBool>,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.gone.store(true, Ordering::Relaxed);
    }
}

/// The scheduler's end of the line. The line is bounded by the tokens of a sequence, so that a client who does not read
/// stops nobody.
#[derive(Debug)]
struct Line {
    news: Sender<News>,
    gone: Arc<AtomicBool>,
}

impl Client for Line {
    fn news(&mut self, sequence: usize, event: Event) {
        // Whoever has left is noticed by `gone`.
        let _ = self.news.send(News { sequence, event, at: Instant::now() });
    }

    fn gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }
}

#[derive(Debug, Default)]
struct Inbox {
    requests: VecDeque<(Vec<SequenceRequest>, Line)>,
    /// Use of the scheduler.
    load: Load,
    closed: bool,
}

/// A model that answers requests.
#[derive(Debug)]
pub struct Service {
    /// The models of the engine, by their numbers there: the first is that of requests without a name.
    pub models: Vec<Model>,
    tokenizer: Arc<Tokenizer>,
    /// Counts.
    pub metrics: Metrics,
    /// Key that requests below `/v1/` carry; none if they need none.
    pub key: Option<AccessKey>,
    /// Requests that may wait for a slot.
    max_queue: usize,
    inbox: Mutex<Inbox>,
    arrived: Condvar,
    number: AtomicU64,
}

impl Service {
    /// A service on which at most `max_queue` requests wait while all slots are in use. `adapted`: models 1, 2, ... of the engine, with the
    /// tokenizer of the first.
    pub fn new(
        model: Model,
        adapted: Vec<Model>,
        max_queue: usize,
        slots: usize,
        cache_bytes: u64,
    ) -> Service {
        let load = Load { slots, cache_bytes, ..Load::default() };
        Service {
            tokenizer: Arc::clone(&model.tokenizer),
            models: std::iter::once(model).chain(adapted).collect(),
            metrics: Metrics::default(),
            key: None,
            max_queue,
            inbox: Mutex::new(Inbox { load, ..Inbox::default() }),
            arrived: Condvar::new(),
            number: AtomicU64::new(0),
        }
    }

    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of the next request, from 1 on.
    pub(crate) fn next_number(&self) -> u64 {
        self.number.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Returns the current use: requests that wait, slots in use.
    pub fn load(&self) -> Load {
        let inbox = self.inbox();
        Load { waiting: inbox.load.waiting + inbox.requests.len(), ..inbox.load }
    }

    /// Takes a request in.
    pub(crate) fn submit(&self, request: &mut TextRequest) -> Result<Ticket, ApiError> {
        let (sender, news) = channel();
        let gone = Arc::new(AtomicBool::new(false));
        let mut inbox = self.inbox();
        if inbox.closed {
            return Err(ApiError::stopping());
        }
        let waiting = inbox.load.waiting + inbox.requests.len();
        let free = inbox.load.slots - inbox.load.active;
        if waiting >= self.max_queue + free {
            return Err(ApiError::busy(waiting));
        }
        let line = Line { news: sender, gone: Arc::clone(&gone) };
        inbox.requests.push_back((std::mem::take(&mut request.sequences), line));
        drop(inbox);
        self.arrived.notify_one();
        Ok(Ticket { news, gone })
    }

    fn publish(&self, scheduler: &Scheduler<Line>) {
        let load = &mut self.inbox().load;
        (load.waiting, load.active) = (scheduler.waiting(), scheduler.active());
    }

    /// Runs the scheduler until `stop` is true and everything that was taken in is answered, for which there is `drain`;
    /// what is left then fails.
    pub fn run(&self, engine: &mut dyn Engine, stop: &AtomicBool, drain: Duration) {
        let mut scheduler = Scheduler::new(Arc::clone(&self.tokenizer), engine.slots());
        let mut deadline = None;
        loop {
            let stopping = stop.load(Ordering::Relaxed);
            let mut inbox = self.inbox();
            inbox.closed |= stopping;
            if scheduler.is_idle() && inbox.requests.is_empty() {
                if stopping {
                    return;
                }
                inbox = self.arrived.wait_timeout(inbox, LOOK).unwrap_or_else(PoisonError::into_inner).0;
            }
            for (sequences, line) in inbox.requests.drain(..) {
                scheduler.push(sequences, line);
            }
            inbox.load.waiting = scheduler.waiting();
            drop(inbox);
            if stopping && *deadline.get_or_insert_with(|| Instant::now() + drain) <= Instant::now() {
                scheduler.abort("the server is shutting down");
            }
            scheduler.admit();
            self.publish(&scheduler);
            self.metrics.tokens(scheduler.advance(engine));
            self.publish(&scheduler);
        }
    }
}
