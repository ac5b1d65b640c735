//! State that the ranks of one group share: slots, a barrier, messages, and which ranks are gone.
//!
//! See the README of this crate for the protocol and for what must never happen.

use crate::CollectiveError;
use crate::call::{Signature, still_in_flight, unread_messages};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// Memory in which a rank shows the others its values of one round.
#[derive(Debug, Default)]
pub(super) struct Slot {
    /// Signature of the rank's call, in its first round.
    pub(super) signature: Option<Signature>,
    pub(super) name: String,
    /// All-to-all: number of elements that the rank sends to each rank, then that it expects from each.
    pub(super) pairs: Vec<usize>,
    pub(super) values: Vec<u8>,
}

/// A message of one rank to another.
#[derive(Debug)]
pub(super) struct P2pMessage {
    pub(super) signature: Signature,
    pub(super) name: String,
    pub(super) tag: u64,
    /// Time before which the message counts as in flight ([`crate::Collective`]).
    pub(super) not_before: u64,
    pub(super) values: Vec<u8>,
}

#[derive(Debug, Default)]
struct P2pQueues {
    /// Messages that wait, by sender.
    waiting: Vec<VecDeque<P2pMessage>>,
    /// Received messages, whose memory is used again.
    spare: Vec<P2pMessage>,
}

#[derive(Debug, Default)]
struct Inbox {
    queues: Mutex<P2pQueues>,
    came: Condvar,
}

#[derive(Debug)]
struct State {
    /// Reason of each rank that is gone.
    gone: Vec<Option<Box<str>>>,
    /// First failure of the group, with the rank that met it.
    failure: Option<(usize, CollectiveError)>,
}

/// A group that some of its members have not joined yet.
#[derive(Debug)]
struct Pending {
    label: String,
    ranks: Vec<usize>,
    /// Number of groups of this label and these ranks made before it.
    count: u64,
    group: Arc<Shared>,
    joined: Vec<bool>,
}

/// Reason why waiting ended early.
#[derive(Debug)]
pub(super) enum Stop {
    /// Some ranks did not come in time.
    Late { missing: Vec<usize>, waited: Duration, report: Box<str> },
    /// A needed rank can no longer come.
    Gone { peer: usize, problem: Box<str> },
    /// Another rank of the group met an error.
    Failed { by: usize, error: Box<CollectiveError> },
}

/// Limits that a whole world shares.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) patience: Duration,
    pub(super) spin: Duration,
    pub(super) piece_bytes: usize,
}

/// One group.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) label: String,
    pub(super) size: usize,
    pub(super) limits: Limits,
    /// Arrivals at barriers, ever: round k is complete when there are `size * k`, because nobody arrives at a round
    /// before the one before it is complete.
    arrivals: AtomicU64,
    /// Rounds that each rank arrived at; only to report which rank is late.
    rounds: Vec<AtomicU64>,
    /// Two for each rank: what is written in round k + 1 never meets readers of round k.
    slots: Vec<[RwLock<Slot>; 2]>,
    sleepers: AtomicUsize,
    /// `state` holds a failure or a rank that is gone.
    troubled: AtomicBool,
    state: Mutex<State>,
    woken: Condvar,
    inboxes: Vec<Inbox>,
    pending: Mutex<Vec<Pending>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing in this file panics with a lock held; a rank that panics elsewhere is told of by its drop.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(super) fn new(label: &str, size: usize, limits: Limits) -> Shared {
        let inbox = || {
            let queues = P2pQueues {
                waiting: std::iter::repeat_with(VecDeque::new).take(size).collect(),
                spare: Vec::new(),
            };
            Inbox { queues: Mutex::new(queues), came: Condvar::new() }
        };
        Shared {
            label: label.into(),
            size,
            limits,
            arrivals: AtomicU64::new(0),
            rounds: std::iter::repeat_with(AtomicU64::default).take(size).collect(),
            slots: std::iter::repeat_with(Default::default).take(size).collect(),
            sleepers: AtomicUsize::new(0),
            troubled: AtomicBool::new(false),
            state: Mutex::new(State { gone: vec![None; size], failure: None }),
            woken: Condvar::new(),
            inboxes: std::iter::repeat_with(inbox).take(size).collect(),
            pending: Mutex::new(Vec::new()),
        }
    }

    /// Works on a rank's slot of a round, alone.
    pub(super) fn write<R>(&self, rank: usize, round: u64, work: impl FnOnce(&mut Slot) -> R) -> R {
        let slot = &self.slots[rank][(round % 2) as usize];
        work(&mut slot.write().unwrap_or_else(PoisonError::into_inner))
    }

    /// Reads a rank's slot of a round.
    pub(super) fn read<R>(&self, rank: usize, round: u64, work: impl FnOnce(&Slot) -> R) -> R {
        let slot = &self.slots[rank][(round % 2) as usize];
        work(&slot.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The barrier: returns when every rank has arrived at `round`.
    pub(super) fn meet(&self, rank: usize, round: u64) -> Result<(), Stop> {
        let goal = round * self.size as u64;
        self.rounds[rank].store(round, Ordering::Relaxed);
        if self.arrivals.fetch_add(1, Ordering::SeqCst) + 1 == goal {
            // Either this load sees a sleeper or that sleeper, who looks again after it has said so, sees the arrival.
            if self.sleepers.load(Ordering::SeqCst) > 0 {
                drop(lock(&self.state));
                self.woken.notify_all();
            }
            return Ok(());
        }
        let since = Instant::now();
        while !self.limits.spin.is_zero() {
            for _ in 0..32 {
                if self.arrivals.load(Ordering::Acquire) >= goal {
                    return Ok(());
                }
                std::hint::spin_loop();
            }
            if self.troubled.load(Ordering::Relaxed) || since.elapsed() >= self.limits.spin {
                break;
            }
        }
        let mut state = lock(&self.state);
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let result = loop {
            if self.arrivals.load(Ordering::SeqCst) >= goal {
                break Ok(());
            }
            let waited = since.elapsed();
            let late = |r: &usize| self.rounds[*r].load(Ordering::Relaxed) < round;
            if let Some(stop) = trouble(&state, late) {
                break Err(stop);
            }
            let Some(left) = self.limits.patience.checked_sub(waited).filter(|d| !d.is_zero()) else {
                let missing = (0..self.size).filter(late).collect();
                break Err(Stop::Late { missing, waited, report: "".into() });
            };
            state = self.woken.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        };
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        result
    }

    /// Returns the failure of the group, which ends every further call.
    pub(super) fn failed(&self) -> Option<Stop> {
        if !self.troubled.load(Ordering::Acquire) {
            return None;
        }
        let (by, error) = lock(&self.state).failure.clone()?;
        Some(Stop::Failed { by, error: Box::new(error) })
    }

    /// Puts a message into the inbox of `to`. `fill` gets one whose memory may have been used before.
    pub(super) fn post(
        &self,
        from: usize,
        to: usize,
        signature: Signature,
        fill: impl FnOnce(&mut P2pMessage),
    ) -> Result<(), Stop> {
        if self.troubled.load(Ordering::Acquire)
            && let Some(stop) = trouble(&lock(&self.state), |r| *r == to)
        {
            return Err(stop);
        }
        let inbox = &self.inboxes[to];
        let spare = lock(&inbox.queues).spare.pop();
        let mut message = spare.unwrap_or_else(|| P2pMessage {
            signature,
            name: String::new(),
            tag: 0,
            not_before: 0,
            values: Vec::new(),
        });
        message.signature = signature;
        fill(&mut message);
        lock(&inbox.queues).waiting[from].push_back(message);
        inbox.came.notify_all();
        Ok(())
    }

    /// Waits for the first message of `from` with this tag; [`Shared::return_message`] takes its memory back.
    pub(super) fn take_message(&self, from: usize, to: usize, tag: u64) -> Result<P2pMessage, Stop> {
        let since = Instant::now();
        let inbox = &self.inboxes[to];
        let mut queues = lock(&inbox.queues);
        loop {
            let queue = &mut queues.waiting[from];
            let found = queue.iter().position(|m| m.tag == tag);
            if let Some(message) = found.and_then(|at| queue.remove(at)) {
                return Ok(message);
            }
            if self.troubled.load(Ordering::SeqCst)
                && let Some(stop) = trouble(&lock(&self.state), |r| *r == from)
            {
                return Err(stop);
            }
            let waited = since.elapsed();
            let Some(left) = self.limits.patience.checked_sub(waited).filter(|d| !d.is_zero()) else {
                let unread = queue.iter().map(|m| (m.name.as_str(), m.tag));
                let report = unread_messages(from, unread).unwrap_or_default().into();
                return Err(Stop::Late { missing: vec![from], waited, report });
            };
            queues = inbox.came.wait_timeout(queues, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Tells whether a message of `from` with this tag has arrived.
    pub(super) fn has_message(&self, from: usize, to: usize, tag: u64) -> Result<bool, Stop> {
        let queues = lock(&self.inboxes[to].queues);
        if let Some(message) = queues.waiting[from].iter().find(|m| m.tag == tag) {
            return Ok(still_in_flight(message.not_before).is_none());
        }
        match self.troubled.load(Ordering::SeqCst).then(|| trouble(&lock(&self.state), |r| *r == from)) {
            Some(Some(stop)) => Err(stop),
            _ => Ok(false),
        }
    }

    pub(super) fn return_message(&self, to: usize, message: P2pMessage) {
        lock(&self.inboxes[to].queues).spare.push(message);
    }

    /// Ends the group with this error, unless it ended before.
    pub(super) fn fail(&self, by: usize, error: &CollectiveError) {
        let mut state = lock(&self.state);
        if state.failure.is_none() {
            state.failure = Some((by, error.clone()));
        }
        self.wake_all(state);
    }

    /// Marks a rank as gone, here and in groups that it has not joined.
    pub(super) fn leave(&self, rank: usize, problem: &str) {
        let pending = lock(&self.pending);
        let mut state = lock(&self.state);
        state.gone[rank] = Some(problem.into());
        self.wake_all(state);
        for group in pending.iter() {
            let position = group.ranks.iter().position(|r| *r == rank);
            if let Some(position) = position.filter(|p| !group.joined[*p]) {
                group.group.leave(position, problem);
            }
        }
    }

    fn wake_all(&self, state: MutexGuard<'_, State>) {
        self.troubled.store(true, Ordering::SeqCst);
        drop(state);
        self.woken.notify_all();
        for inbox in &self.inboxes {
            drop(lock(&inbox.queues));
            inbox.came.notify_all();
        }
    }

    /// Joins a group of some ranks, and makes it if this is the first of them. `position` is this rank's in it.
    pub(super) fn join(&self, label: &str, ranks: &[usize], position: usize, count: u64) -> Arc<Shared> {
        let mut pending = lock(&self.pending);
        let known = pending.iter().position(|p| p.count == count && p.label == label && p.ranks == ranks);
        let at = known.unwrap_or_else(|| {
            let group = Arc::new(Shared::new(label, ranks.len(), self.limits));
            for (r, problem) in ranks.iter().map(|r| lock(&self.state).gone[*r].clone()).enumerate() {
                if let Some(problem) = problem {
                    group.leave(r, &problem);
                }
            }
            let joined = vec![false; ranks.len()];
            pending.push(Pending { label: label.into(), ranks: ranks.into(), count, group, joined });
            pending.len() - 1
        });
        pending[at].joined[position] = true;
        if pending[at].joined.iter().all(|j| *j) {
            return pending.swap_remove(at).group;
        }
        Arc::clone(&pending[at].group)
    }
}

/// Returns the failure of the group, or a needed rank that is gone. The failure comes first: a rank that is gone may have
/// left because of it.
fn trouble(state: &State, needed: impl Fn(&usize) -> bool) -> Option<Stop> {
    if let Some((by, error)) = state.failure.clone() {
        return Some(Stop::Failed { by, error: Box::new(error) });
    }
    (0..state.gone.len()).filter(needed).find_map(|peer| {
        let problem = state.gone[peer].clone()?;
        Some(Stop::Gone { peer, problem })
    })
}
