//! In-flight collectives of one communicator.

use crate::call::Call;
use crate::error::CallSite;
use crate::{Breaker, Collective, CollectiveError, Communicator, HostBuffer, Parts, Pattern};
use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// A collective that was started. Its buffer comes back from [`CollectiveQueue::finish`].
#[derive(Debug)]
#[must_use = "the buffer comes back from CollectiveQueue::finish"]
pub struct Ticket {
    number: u64,
    /// Buffer of a collective that ran when it was started.
    done: Option<HostBuffer>,
}

/// Starts collectives of one communicator and finishes them later. As with the communicator itself, every rank starts the
/// same ones in the same order. Buffers are handed over and come back. Once warm, starting and finishing allocate nothing.
///
/// [`CollectiveQueue::blocking`] runs each collective when it is started. [`CollectiveQueue::with_progress_thread`] starts
/// one thread, which runs them in their order while the rank computes. Dropping that queue while a collective is in flight
/// ends the group; the other ranks' calls then err.
#[derive(Debug)]
pub struct CollectiveQueue {
    runner: Runner,
    label: String,
    rank: usize,
    size: usize,
    started: u64,
}

#[derive(Debug)]
enum Runner {
    Caller(Box<dyn Communicator>),
    Thread(QueueThread),
}

impl CollectiveQueue {
    fn new(group: (String, usize, usize), runner: Runner) -> CollectiveQueue {
        let (label, rank, size) = group;
        CollectiveQueue { runner, label, rank, size, started: 0 }
    }

    /// Makes a queue that runs every collective when it is started, on the caller's thread.
    pub fn blocking(communicator: Box<dyn Communicator>) -> CollectiveQueue {
        CollectiveQueue::new(group_of(&*communicator), Runner::Caller(communicator))
    }

    /// Makes a queue whose collectives run on a thread that this starts and that ends with the queue.
    ///
    /// # Errors
    /// The operating system gives no thread.
    pub fn with_progress_thread(
        communicator: Box<dyn Communicator>,
    ) -> Result<CollectiveQueue, CollectiveError> {
        let group = group_of(&*communicator);
        Ok(CollectiveQueue::new(group, Runner::Thread(QueueThread::start(communicator)?)))
    }

    /// Label of the group.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Returns the position of this rank in the group.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Number of ranks in the group.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Starts a collective on `values`, which hold what it sends and, of an all-to-all, after that space for what it receives.
    ///
    /// # Errors
    /// An error of the collective, if it runs at once, or of an earlier one.
    pub fn start(
        &mut self,
        collective: &Collective<'_>,
        mut values: HostBuffer,
    ) -> Result<Ticket, CollectiveError> {
        let number = self.started;
        self.started += 1;
        let done = match &mut self.runner {
            Runner::Caller(communicator) => {
                communicator.run(collective, collective.memory(values.lend()))?;
                Some(values)
            }
            Runner::Thread(thread) => {
                let memory = collective.memory(values.lend());
                Call::new(collective, &memory).check(&self.label, self.rank, self.size)?;
                thread.enqueue(number, collective, values)?;
                None
            }
        };
        Ok(Ticket { number, done })
    }

    /// Waits for a collective and gives its buffer back.
    ///
    /// # Errors
    /// An error of the collective, or of one before it.
    pub fn finish(&mut self, ticket: Ticket) -> Result<HostBuffer, CollectiveError> {
        match (ticket.done, &self.runner) {
            (Some(values), _) => Ok(values),
            (None, Runner::Thread(thread)) => thread.finish(ticket.number),
            (None, Runner::Caller(_)) => unreachable!("a blocking queue gives tickets with their buffers"),
        }
    }

    /// Returns the communicator itself, as soon as everything that was started is done.
    ///
    /// # Errors
    /// An error of an earlier collective.
    pub fn idle(&mut self) -> Result<Idle<'_>, CollectiveError> {
        Ok(Idle(match &mut self.runner {
            Runner::Caller(communicator) => Lent::Caller(communicator),
            Runner::Thread(thread) => Lent::Thread(thread.idle()?),
        }))
    }
}

fn group_of(communicator: &dyn Communicator) -> (String, usize, usize) {
    (communicator.label().to_owned(), communicator.rank(), communicator.size())
}

/// The communicator of a [`CollectiveQueue`] while nothing is in flight.
#[derive(Debug)]
pub struct Idle<'a>(Lent<'a>);

#[derive(Debug)]
enum Lent<'a> {
    Caller(&'a mut Box<dyn Communicator>),
    Thread(MutexGuard<'a, Box<dyn Communicator>>),
}

impl Deref for Idle<'_> {
    type Target = dyn Communicator;

    fn deref(&self) -> &Self::Target {
        match &self.0 {
            Lent::Caller(communicator) => communicator.as_ref(),
            Lent::Thread(communicator) => communicator.as_ref(),
        }
    }
}

impl DerefMut for Idle<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        match &mut self.0 {
            Lent::Caller(communicator) => communicator.as_mut(),
            Lent::Thread(communicator) => communicator.as_mut(),
        }
    }
}

/// Parts of a collective that has none.
static NO_PARTS: Parts = Parts::none();

/// A collective that waits for the progress thread or has been run by it.
#[derive(Debug)]
struct QueuedCollective {
    number: u64,
    name: String,
    /// The pattern, whose parts are in `parts` and `received`.
    pattern: Pattern<'static>,
    parts: Parts,
    received: Parts,
    values: HostBuffer,
    result: Result<(), CollectiveError>,
}

#[derive(Debug, Default)]
struct QueueState {
    waiting: VecDeque<QueuedCollective>,
    running: bool,
    done: Vec<QueuedCollective>,
    /// Names and parts of finished collectives, whose memory is used again.
    spare: Vec<(String, [Parts; 2])>,
    failed: Option<CollectiveError>,
    closing: bool,
    /// The thread has ended.
    ended: bool,
}

#[derive(Debug)]
struct SharedQueue {
    state: Mutex<QueueState>,
    /// Signals that there is work, or that the queue closes.
    work: Condvar,
    /// Signals that a collective is done, or that the thread has ended.
    done: Condvar,
    communicator: Mutex<Box<dyn Communicator>>,
}

impl SharedQueue {
    fn state(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The thread of a queue.
#[derive(Debug)]
struct QueueThread {
    shared: Arc<SharedQueue>,
    handle: Option<std::thread::JoinHandle<()>>,
    breaker: Breaker,
    label: String,
    rank: usize,
}

impl QueueThread {
    fn start(communicator: Box<dyn Communicator>) -> Result<QueueThread, CollectiveError> {
        let (label, rank, breaker) =
            (communicator.label().to_owned(), communicator.rank(), communicator.breaker());
        let shared = Arc::new(SharedQueue {
            state: Mutex::default(),
            work: Condvar::new(),
            done: Condvar::new(),
            communicator: Mutex::new(communicator),
        });
        let own = Arc::clone(&shared);
        let builder = std::thread::Builder::new().name(format!("collectives {label}"));
        let spawned = builder.spawn(move || serve(&own));
        let mut thread = QueueThread { shared, handle: None, breaker, label, rank };
        match spawned {
            Ok(handle) => thread.handle = Some(handle),
            Err(problem) => return Err(thread.error(&format!("no thread for collectives: {problem}"))),
        }
        Ok(thread)
    }

    fn error(&self, problem: &str) -> CollectiveError {
        let (group, name) = (self.label.clone(), String::new());
        let site = Box::new(CallSite { group, rank: self.rank, collective: "collective queue", name });
        CollectiveError::Engine { site, problem: problem.into() }
    }

    fn enqueue(
        &self,
        number: u64,
        collective: &Collective<'_>,
        values: HostBuffer,
    ) -> Result<(), CollectiveError> {
        let mut state = self.shared.state();
        if let Some(error) = &state.failed {
            return Err(error.clone());
        }
        let (mut name, [mut parts, mut received]) = state.spare.pop().unwrap_or_default();
        name.clear();
        name.push_str(collective.name);
        for (copy, own) in [(&mut parts, collective.parts()), (&mut received, collective.received_parts())] {
            own.into_iter().for_each(|own| copy.copy_from(own));
        }
        let (pattern, result) = (collective.pattern.with_parts(&NO_PARTS, &NO_PARTS), Ok(()));
        state.waiting.push_back(QueuedCollective { number, name, pattern, parts, received, values, result });
        drop(state);
        self.shared.work.notify_one();
        Ok(())
    }

    fn finish(&self, number: u64) -> Result<HostBuffer, CollectiveError> {
        let mut state = self.shared.state();
        loop {
            if let Some(at) = state.done.iter().position(|queued| queued.number == number) {
                let queued = state.done.swap_remove(at);
                state.spare.push((queued.name, [queued.parts, queued.received]));
                return queued.result.map(|()| queued.values);
            }
            if state.ended {
                return Err(self.error("the progress thread ended"));
            }
            state = self.shared.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn idle(&self) -> Result<MutexGuard<'_, Box<dyn Communicator>>, CollectiveError> {
        let mut state = self.shared.state();
        while !state.ended && (state.running || !state.waiting.is_empty()) {
            state = self.shared.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        match &state.failed {
            Some(error) => Err(error.clone()),
            None if state.ended => Err(self.error("the progress thread ended")),
            None => Ok(self.shared.communicator.lock().unwrap_or_else(PoisonError::into_inner)),
        }
    }
}

impl Drop for QueueThread {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.closing = true;
        let unfinished = state.running || !state.waiting.is_empty();
        state.waiting.clear();
        drop(state);
        if unfinished {
            self.breaker.break_off("it dropped collectives that it had started");
        }
        self.shared.work.notify_one();
        if let Some(handle) = self.handle.take() {
            // `finish` has reported a panic of that thread; nobody is left to read it here.
            let _ = handle.join();
        }
    }
}

/// Marks the thread as ended when it is dropped, at the end of the thread or in a panic.
struct EndGuard<'a>(&'a SharedQueue);

impl Drop for EndGuard<'_> {
    fn drop(&mut self) {
        self.0.state().ended = true;
        self.0.done.notify_all();
    }
}

fn serve(shared: &SharedQueue) {
    let _end = EndGuard(shared);
    loop {
        let mut state = shared.state();
        let mut queued = loop {
            if let Some(queued) = state.waiting.pop_front() {
                break queued;
            }
            if state.closing {
                return;
            }
            state = shared.work.wait(state).unwrap_or_else(PoisonError::into_inner);
        };
        state.running = true;
        drop(state);
        let mut communicator = shared.communicator.lock().unwrap_or_else(PoisonError::into_inner);
        let pattern = queued.pattern.with_parts(&queued.parts, &queued.received);
        let collective = Collective::new(&queued.name, pattern);
        queued.result = communicator.run(&collective, collective.memory(queued.values.lend()));
        drop(communicator);
        let mut state = shared.state();
        state.running = false;
        if let (Err(error), None) = (&queued.result, &state.failed) {
            state.failed = Some(error.clone());
        }
        state.done.push(queued);
        drop(state);
        shared.done.notify_all();
    }
}
