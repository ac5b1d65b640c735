//! What the threads of a rank share with the one thread that owns MPI: orders one way, mail the other way.

use crate::MpiError;
use bessemer_collectives::{Transport, TransportError};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// What the communication thread is asked to do.
#[derive(Debug)]
pub(crate) enum Order {
    Send { to: usize, channel: u32, message: Vec<u8> },
    Finish,
    GiveUp(String),
}

/// For how long the communication thread has stood still while others looked.
#[derive(Debug)]
pub(crate) struct Still {
    pulse: u64,
    looked: Instant,
    time: Duration,
}

impl Default for Still {
    fn default() -> Still {
        Still { pulse: 0, looked: Instant::now(), time: Duration::ZERO }
    }
}

impl Still {
    /// Counts at most `most` since the last look: after a stop of the whole process the clock has jumped.
    fn look(&mut self, pulse: u64, most: Duration) -> Duration {
        let now = Instant::now();
        let passed = now.duration_since(std::mem::replace(&mut self.looked, now)).min(most);
        let moved = std::mem::replace(&mut self.pulse, pulse) != pulse;
        self.time = if moved { Duration::ZERO } else { self.time + passed };
        self.time
    }
}

/// Under the lock.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) orders: VecDeque<Order>,
    /// Messages that have arrived whole, by sender and channel, in order.
    pub(crate) mail: HashMap<(usize, u32), VecDeque<Vec<u8>>>,
    /// Why this world is of no use any more: the first cause.
    pub(crate) broken: Option<TransportError>,
    /// Ranks that said that they have nothing more to say.
    pub(crate) done: Vec<bool>,
    /// Ranks that have said hello; all of them once the world has joined.
    pub(crate) here: Vec<Option<String>>,
    /// Threads of this rank that wait for something.
    pub(crate) waiting: usize,
    /// Whether the communication thread hangs.
    still: Still,
    /// How the communication thread ended.
    pub(crate) end: Option<Result<(), MpiError>>,
}

/// Shared by the threads of one rank.
#[derive(Debug, Default)]
pub(crate) struct Exchange {
    state: Mutex<State>,
    changed: Condvar,
    courier: OnceLock<Thread>,
    /// Counts the rounds of the communication thread: one that hangs inside MPI stands still.
    pulse: AtomicU64,
}

impl Exchange {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        // A thread that panicked while it held the lock left plain values; the world is torn down through `broken`.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn announce(&self) {
        self.changed.notify_all();
    }

    /// Called by the communication thread as its first act.
    pub(crate) fn courier_is_this_thread(&self) {
        let _ = self.courier.set(std::thread::current());
    }

    /// Called by the communication thread in every round.
    pub(crate) fn beat_pulse(&self) {
        self.pulse.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn order(&self, order: Order) {
        self.lock().orders.push_back(order);
        if let Some(thread) = self.courier.get() {
            thread.unpark();
        }
    }

    /// Waits until `ready` gives something, at most until the deadline. A communication thread that stands still for
    /// `stuck` while this one runs is an error.
    pub(crate) fn wait<T>(
        &self,
        deadline: Instant,
        stuck: Duration,
        mut ready: impl FnMut(&mut State) -> Option<T>,
    ) -> Result<Option<T>, TransportError> {
        const SLICE: Duration = Duration::from_millis(250);
        let mut state = self.lock();
        loop {
            if let Some(value) = ready(&mut state) {
                return Ok(Some(value));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            let slice = SLICE.min(left);
            if state.waiting == 0
                && let Some(thread) = self.courier.get()
            {
                thread.unpark();
            }
            state.waiting += 1;
            state = self.changed.wait_timeout(state, slice).unwrap_or_else(PoisonError::into_inner).0;
            state.waiting -= 1;
            let still = state.still.look(self.pulse.load(Ordering::Relaxed), SLICE);
            if still > stuck && state.end.is_none() {
                let problem = format!("MPI has not returned from a call for {:.1} s", still.as_secs_f64());
                let error = TransportError::Engine(problem);
                state.broken.get_or_insert(error.clone());
                return Err(error);
            }
        }
    }
}

/// Messages of one rank: may be used by all its threads.
#[derive(Debug)]
pub(crate) struct MpiTransport {
    pub(crate) exchange: Arc<Exchange>,
    pub(crate) rank: usize,
    pub(crate) size: usize,
    pub(crate) silence: Duration,
}

impl MpiTransport {
    fn known(&self, rank: usize) -> Result<(), TransportError> {
        if rank < self.size {
            return Ok(());
        }
        Err(TransportError::Engine(format!("there is no rank {rank} in a world of {}", self.size)))
    }
}

impl Transport for MpiTransport {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn send(&self, to: usize, channel: u32, message: Vec<u8>) -> Result<(), TransportError> {
        self.known(to)?;
        {
            let mut state = self.exchange.lock();
            if let Some(broken) = &state.broken {
                return Err(broken.clone());
            }
            if state.end.is_some() {
                return Err(TransportError::Engine("MPI has ended".to_owned()));
            }
            if to == self.rank {
                state.mail.entry((to, channel)).or_default().push_back(message);
                drop(state);
                self.exchange.announce();
                return Ok(());
            }
            if state.done[to] {
                let problem = "it has come to its end and takes no more messages".to_owned();
                return Err(TransportError::PeerLost { peer: to, problem });
            }
        }
        self.exchange.order(Order::Send { to, channel, message });
        Ok(())
    }

    fn receive(&self, from: usize, channel: u32, patience: Duration) -> Result<Vec<u8>, TransportError> {
        self.known(from)?;
        let began = Instant::now();
        let found = self.exchange.wait(began + patience, self.silence, |state| {
            // What has arrived whole is right, whatever happened since.
            if let Some(message) = state.mail.get_mut(&(from, channel)).and_then(VecDeque::pop_front) {
                return Some(Ok(message));
            }
            if let Some(broken) = &state.broken {
                return Some(Err(broken.clone()));
            }
            if state.end.is_some() {
                return Some(Err(TransportError::Engine("MPI has ended".to_owned())));
            }
            state.done[from].then(|| {
                let problem = "it has come to its end and sends nothing more".to_owned();
                Err(TransportError::PeerLost { peer: from, problem })
            })
        })?;
        found.unwrap_or_else(|| Err(TransportError::Timeout { from, waited: began.elapsed() }))
    }
}
