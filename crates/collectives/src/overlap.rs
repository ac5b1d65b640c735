//! Collectives of one communicator on a thread of its own, so that a rank computes meanwhile.

use crate::{Breaker, CollectiveError, Communicator, Kind, Parts, Place, RankLog, Reduce, Values};
use half::bf16;
use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Values that are handed over and come back.
#[derive(Debug, Clone, PartialEq)]
pub enum Buffer {
    /// f32.
    F32(Vec<f32>),
    /// bfloat16.
    Bf16(Vec<bf16>),
}

impl Buffer {
    /// As a collective takes them.
    pub fn lend(&mut self) -> Values<'_> {
        match self {
            Buffer::F32(v) => Values::F32(v),
            Buffer::Bf16(v) => Values::Bf16(v),
        }
    }

    fn bytes(&self) -> u64 {
        match self {
            Buffer::F32(v) => size_of_val(v.as_slice()) as u64,
            Buffer::Bf16(v) => size_of_val(v.as_slice()) as u64,
        }
    }

    /// The f32 values, if that is their type.
    pub fn into_f32(self) -> Option<Vec<f32>> {
        match self {
            Buffer::F32(v) => Some(v),
            Buffer::Bf16(_) => None,
        }
    }

    /// The bf16 values, if that is their type.
    pub fn into_bf16(self) -> Option<Vec<bf16>> {
        match self {
            Buffer::Bf16(v) => Some(v),
            Buffer::F32(_) => None,
        }
    }
}

/// What is started.
#[derive(Debug, Clone, Copy)]
pub enum Collective<'a> {
    /// [`Communicator::all_reduce`].
    AllReduce(Reduce),
    /// [`Communicator::reduce_scatter`].
    ReduceScatter(&'a Parts, Reduce),
    /// [`Communicator::all_gather`].
    AllGather(&'a Parts),
}

/// A collective that was started. Its values come back from [`Overlap::finish`].
#[derive(Debug)]
#[must_use = "the values come back from Overlap::finish"]
pub struct Ticket(u64);

/// When a collective ran, for a trace.
#[derive(Debug, Clone)]
pub struct Span {
    /// Whose values.
    pub name: String,
    /// Start of the call on the thread of the collectives.
    pub start: Instant,
    /// Its end.
    pub end: Instant,
}

/// What is done, without its parts.
#[derive(Debug, Clone, Copy)]
enum Task {
    AllReduce(Reduce),
    ReduceScatter(Reduce),
    AllGather,
}

#[derive(Debug)]
struct Job {
    ticket: u64,
    task: Task,
    name: String,
    parts: Parts,
    values: Buffer,
    result: Result<(), CollectiveError>,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Job>,
    running: bool,
    done: Vec<Job>,
    /// Names and parts of finished jobs, whose memory is used again.
    spare: Vec<(String, Parts)>,
    spans: Option<Vec<Span>>,
    failed: Option<CollectiveError>,
    closing: bool,
    /// The thread is no more.
    ended: bool,
}

#[derive(Debug)]
struct Desk {
    state: Mutex<State>,
    /// Something to do, or closing.
    work: Condvar,
    /// Something done, or the end of the thread.
    done: Condvar,
    communicator: Mutex<Box<dyn Communicator>>,
}

impl Desk {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs the collectives of one communicator on a thread of its own, in the order in which they were started. As with the
/// communicator itself, every rank starts the same ones in the same order. Once warm, starting and finishing ask for no
/// memory.
///
/// Dropping it while a collective is under way breaks the group off; the other ranks' calls then err.
#[derive(Debug)]
pub struct Overlap {
    desk: Arc<Desk>,
    thread: Option<std::thread::JoinHandle<()>>,
    breaker: Breaker,
    label: String,
    rank: usize,
    size: usize,
    started: u64,
    log: Option<RankLog>,
}

impl Overlap {
    /// Takes over `communicator`.
    ///
    /// # Errors
    /// No thread.
    pub fn new(communicator: Box<dyn Communicator>) -> Result<Overlap, CollectiveError> {
        let (label, breaker) = (communicator.label().to_string(), communicator.breaker());
        let (rank, size) = (communicator.rank(), communicator.size());
        let desk = Arc::new(Desk {
            state: Mutex::default(),
            work: Condvar::new(),
            done: Condvar::new(),
            communicator: Mutex::new(communicator),
        });
        let own = Arc::clone(&desk);
        let thread = std::thread::Builder::new().name(format!("collectives {label}"));
        match thread.spawn(move || serve(&own)) {
            Ok(thread) => {
                let (thread, log) = (Some(thread), None);
                Ok(Overlap { desk, thread, breaker, label, rank, size, started: 0, log })
            }
            Err(problem) => {
                let place = Place { group: label, rank, collective: "overlap", name: String::new() };
                let problem = format!("no thread for collectives: {problem}").into();
                Err(CollectiveError::Engine { place: Box::new(place), problem })
            }
        }
    }

    /// From now on tells a flight recorder what is handed over. The communicator should be one that it wraps.
    pub fn record_in(&mut self, log: RankLog) {
        self.log = Some(log);
    }

    /// From now on remembers when each collective ran, until [`Overlap::take_spans`].
    pub fn keep_spans(&mut self) {
        self.desk.state().spans.get_or_insert_default();
    }

    /// Appends the spans since the last time to `to`.
    pub fn take_spans(&mut self, to: &mut Vec<Span>) {
        if let Some(spans) = &mut self.desk.state().spans {
            to.append(spans);
        }
    }

    /// Label of the group.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// This rank's position in the group.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Ranks in the group.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Starts a collective and returns at once.
    ///
    /// # Errors
    /// An earlier collective failed.
    pub fn start(
        &mut self,
        name: &str,
        collective: Collective<'_>,
        values: Buffer,
    ) -> Result<Ticket, CollectiveError> {
        let (task, parts) = match collective {
            Collective::AllReduce(reduce) => (Task::AllReduce(reduce), None),
            Collective::ReduceScatter(parts, reduce) => (Task::ReduceScatter(reduce), Some(parts)),
            Collective::AllGather(parts) => (Task::AllGather, Some(parts)),
        };
        let mut state = self.desk.state();
        if let Some(error) = &state.failed {
            return Err(error.clone());
        }
        let (mut own_name, mut own_parts) =
            state.spare.pop().unwrap_or_else(|| (String::new(), Parts::of([])));
        own_name.clear();
        own_name.push_str(name);
        if let Some(parts) = parts {
            own_parts.copy_from(parts);
        }
        if let Some(log) = &self.log {
            let kind = match task {
                Task::AllReduce(_) => Kind::AllReduce,
                Task::ReduceScatter(_) => Kind::ReduceScatter,
                Task::AllGather => Kind::AllGather,
            };
            log.enqueue(kind, (&self.label, (self.rank, self.size)), name, values.bytes());
        }
        let ticket = self.started;
        self.started += 1;
        let job = Job { ticket, task, name: own_name, parts: own_parts, values, result: Ok(()) };
        state.waiting.push_back(job);
        drop(state);
        self.desk.work.notify_one();
        Ok(Ticket(ticket))
    }

    /// Waits for a collective; its values come back.
    ///
    /// # Errors
    /// What the collective met, or one before it.
    pub fn finish(&mut self, ticket: Ticket) -> Result<Buffer, CollectiveError> {
        let mut state = self.desk.state();
        loop {
            if let Some(at) = state.done.iter().position(|job| job.ticket == ticket.0) {
                let job = state.done.swap_remove(at);
                state.spare.push((job.name, job.parts));
                return job.result.map(|()| job.values);
            }
            if state.ended {
                return Err(self.ended());
            }
            state = self.desk.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// True if [`Overlap::finish`] would not wait.
    pub fn is_done(&self, ticket: &Ticket) -> bool {
        let state = self.desk.state();
        state.ended || state.done.iter().any(|job| job.ticket == ticket.0)
    }

    /// The communicator itself, as soon as everything that was started is done.
    ///
    /// # Errors
    /// An earlier collective failed.
    pub fn idle(&mut self) -> Result<Idle<'_>, CollectiveError> {
        let mut state = self.desk.state();
        while !state.ended && (state.running || !state.waiting.is_empty()) {
            state = self.desk.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        match &state.failed {
            Some(error) => Err(error.clone()),
            None if state.ended => Err(self.ended()),
            None => Ok(Idle(self.desk.communicator.lock().unwrap_or_else(PoisonError::into_inner))),
        }
    }

    fn ended(&self) -> CollectiveError {
        let (group, name) = (self.label.clone(), String::new());
        let place = Box::new(Place { group, rank: self.rank, collective: "overlap", name });
        CollectiveError::Engine { place, problem: "the thread of the collectives ended".into() }
    }
}

/// The communicator of an [`Overlap`] under which nothing is under way.
#[derive(Debug)]
pub struct Idle<'a>(MutexGuard<'a, Box<dyn Communicator>>);

impl Deref for Idle<'_> {
    type Target = dyn Communicator;

    fn deref(&self) -> &Self::Target {
        self.0.as_ref()
    }
}

impl DerefMut for Idle<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.0.as_mut()
    }
}

impl Drop for Overlap {
    fn drop(&mut self) {
        let mut state = self.desk.state();
        state.closing = true;
        let unfinished = state.running || !state.waiting.is_empty();
        state.waiting.clear();
        drop(state);
        if unfinished {
            self.breaker.break_off("it dropped collectives that it had started");
        }
        self.desk.work.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic of that thread was met by `finish`; there is nobody left to tell.
            let _ = thread.join();
        }
    }
}

/// Says that the thread ended, however it did.
struct Farewell<'a>(&'a Desk);

impl Drop for Farewell<'_> {
    fn drop(&mut self) {
        self.0.state().ended = true;
        self.0.done.notify_all();
    }
}

fn serve(desk: &Desk) {
    let _farewell = Farewell(desk);
    loop {
        let mut state = desk.state();
        let mut job = loop {
            if let Some(job) = state.waiting.pop_front() {
                break job;
            }
            if state.closing {
                return;
            }
            state = desk.work.wait(state).unwrap_or_else(PoisonError::into_inner);
        };
        state.running = true;
        drop(state);
        let start = Instant::now();
        let mut communicator = desk.communicator.lock().unwrap_or_else(PoisonError::into_inner);
        let values = job.values.lend();
        job.result = match job.task {
            Task::AllReduce(reduce) => communicator.all_reduce(&job.name, values, reduce),
            Task::ReduceScatter(reduce) => communicator.reduce_scatter(&job.name, values, &job.parts, reduce),
            Task::AllGather => communicator.all_gather(&job.name, values, &job.parts),
        };
        drop(communicator);
        let end = Instant::now();
        let mut state = desk.state();
        state.running = false;
        if let Some(spans) = &mut state.spans {
            spans.push(Span { name: job.name.clone(), start, end });
        }
        if let (Err(error), None) = (&job.result, &state.failed) {
            state.failed = Some(error.clone());
        }
        state.done.push(job);
        drop(state);
        desk.done.notify_all();
    }
}
