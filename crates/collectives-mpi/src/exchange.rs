//! State that the threads of a rank share with the progress thread: commands one way, arrived messages the other way.

use crate::MpiError;
use bessemer_collectives::{SpareBuffers, Transport, TransportError};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// A command to the progress thread.
#[derive(Debug)]
pub(crate) enum Command {
    Send { to: usize, channel: u32, message: Vec<u8> },
    Finish,
    GiveUp(String),
}

/// Measures for how long the progress thread has stood still while other threads waited.
#[derive(Debug)]
pub(crate) struct StallClock {
    pulse: u64,
    looked: Instant,
    time: Duration,
}

impl Default for StallClock {
    fn default() -> StallClock {
        StallClock { pulse: 0, looked: Instant::now(), time: Duration::ZERO }
    }
}

impl StallClock {
    /// Adds the time since the last look, at most `most`: the clock jumps when the whole process is stopped.
    fn look(&mut self, pulse: u64, most: Duration) -> Duration {
        let now = Instant::now();
        let passed = now.duration_since(std::mem::replace(&mut self.looked, now)).min(most);
        let moved = std::mem::replace(&mut self.pulse, pulse) != pulse;
        self.time = if moved { Duration::ZERO } else { self.time + passed };
        self.time
    }
}

/// Shared state, under the lock.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) commands: VecDeque<Command>,
    /// Whole messages that have arrived, by sender and channel, in order.
    pub(crate) inbox: HashMap<(usize, u32), VecDeque<Vec<u8>>>,
    /// First error that made this world unusable.
    pub(crate) broken: Option<TransportError>,
    /// Ranks that have announced that they send nothing more.
    pub(crate) done: Vec<bool>,
    /// Identities of the ranks that have said hello; all of them once the world has joined.
    pub(crate) here: Vec<Option<String>>,
    /// Number of threads of this rank that wait for something.
    pub(crate) waiting: usize,
    /// Tells whether the progress thread hangs.
    still: StallClock,
    /// Result of the progress thread, once it has ended.
    pub(crate) end: Option<Result<(), MpiError>>,
}

/// State shared by the threads of one rank.
#[derive(Debug, Default)]
pub(crate) struct Exchange {
    state: Mutex<State>,
    changed: Condvar,
    progress_thread: OnceLock<Thread>,
    /// Memory of finished messages.
    spare: Mutex<SpareBuffers>,
    /// Number of rounds of the progress thread; it stands still while that thread hangs inside MPI.
    pulse: AtomicU64,
}

impl Exchange {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        // A thread that panicked while it held the lock left plain values; the world is torn down through `broken`.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn spare(&self) -> MutexGuard<'_, SpareBuffers> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As [`SpareBuffers::take`].
    pub(crate) fn take(&self, length: usize) -> Result<Vec<u8>, String> {
        self.spare().take(length)
    }

    /// As [`SpareBuffers::give`].
    pub(crate) fn give(&self, buffer: Vec<u8>) {
        self.spare().give(buffer);
    }

    pub(crate) fn announce(&self) {
        self.changed.notify_all();
    }

    /// Registers the calling thread as the progress thread.
    pub(crate) fn register_progress_thread(&self) {
        let _ = self.progress_thread.set(std::thread::current());
    }

    /// Counts a round of the progress thread.
    pub(crate) fn beat_pulse(&self) {
        self.pulse.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn command(&self, command: Command) {
        self.lock().commands.push_back(command);
        if let Some(thread) = self.progress_thread.get() {
            thread.unpark();
        }
    }

    /// Waits until `ready` gives something, at most until the deadline. A progress thread that stands still for `stuck`
    /// while this one runs is an error.
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
                && let Some(thread) = self.progress_thread.get()
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

/// Transport of one rank, which all its threads may use.
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
                state.inbox.entry((to, channel)).or_default().push_back(message);
                drop(state);
                self.exchange.announce();
                return Ok(());
            }
            if state.done[to] {
                let problem = "it has finished and receives no more messages".to_owned();
                return Err(TransportError::PeerLost { peer: to, problem });
            }
        }
        self.exchange.command(Command::Send { to, channel, message });
        Ok(())
    }

    fn receive(&self, from: usize, channel: u32, patience: Duration) -> Result<Vec<u8>, TransportError> {
        self.known(from)?;
        let began = Instant::now();
        let found = self.exchange.wait(began + patience, self.silence, |state| {
            // A message that has arrived whole is right, whatever happened since.
            if let Some(message) = state.inbox.get_mut(&(from, channel)).and_then(VecDeque::pop_front) {
                return Some(Ok(message));
            }
            if let Some(broken) = &state.broken {
                return Some(Err(broken.clone()));
            }
            if state.end.is_some() {
                return Some(Err(TransportError::Engine("MPI has ended".to_owned())));
            }
            state.done[from].then(|| {
                let problem = "it has finished and sends no more messages".to_owned();
                Err(TransportError::PeerLost { peer: from, problem })
            })
        })?;
        found.unwrap_or_else(|| Err(TransportError::Timeout { from, waited: began.elapsed() }))
    }

    fn buffer(&self, length: usize) -> Vec<u8> {
        self.exchange.take(length).unwrap_or_default()
    }

    fn keep(&self, message: Vec<u8>) {
        self.exchange.give(message);
    }
}
