//! Heartbeats of a process of a supervised run. A thread of their own writes them, so that a step pays two stores.

use bessemer_collectives::FlightRecorder;
use bessemer_durable::ConfinedDir;
use bessemer_runlog::Record;
use bessemer_supervise::{
    HEARTBEAT_VERSION, Heartbeat, ProcessIdentity, RankBeat, RankPhase, WaitingCall, launch_epoch,
    write_heartbeat,
};
use bessemer_train::{Activity, Observer};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// Variable with the number of the launch, which a supervisor sets.
pub const LAUNCH_VARIABLE: &str = "BESSEMER_LAUNCH_EPOCH";
/// Time between two heartbeats.
const INTERVAL: Duration = Duration::from_millis(500);
/// Heartbeats between two looks for a newer launch.
const FENCE_EVERY: u64 = 4;
/// Value of a code that is not known yet.
const WORKS: i32 = -1;

/// Makes this process the newest at work on a run whose directory it holds. `launch`: its number, if a supervisor launched the
/// process; without one it still takes over from launches that may be cut off elsewhere.
///
/// # Errors
/// A newer launch has begun; the system's.
pub fn claim(run: &ConfinedDir, launch: Option<u64>) -> io::Result<()> {
    match (launch, launch_epoch::newest(run)?) {
        (Some(launch), _) => launch_epoch::claim(run, launch)?,
        (None, 0) => {}
        (None, newest) => launch_epoch::claim(run, newest + 1)?,
    }
    Ok(())
}

/// The process that writes heartbeats, and what its program does for them.
#[derive(Debug, Clone)]
pub struct HeartbeatHost {
    /// Name of its machine.
    pub hostname: String,
    /// Warns that no heartbeat can be written.
    pub warn: fn(&str),
    /// Callback that ends the process, given the reason, when a newer launch owns the run directory.
    pub leave: fn(String),
}

/// State of one rank, written by its observer.
#[derive(Debug)]
struct RankState {
    step: AtomicU64,
    phase: AtomicU8,
    /// Reports of progress.
    progress: AtomicU64,
}

/// State that the ranks write and the thread reads.
#[derive(Debug)]
struct Shared {
    run: ConfinedDir,
    launch: u64,
    process: usize,
    /// Ranks of this process.
    ranks: Range<usize>,
    states: Vec<RankState>,
    recorder: FlightRecorder,
    identity: String,
    host: HeartbeatHost,
    begun: Instant,
    leaves: AtomicI32,
    /// Whether the file could be written, to warn once.
    unwritten: AtomicBool,
}

/// The heartbeats of a process; nothing without a supervisor.
#[derive(Debug, Clone, Default)]
pub struct Heartbeats(Option<Arc<Running>>);

#[derive(Debug)]
struct Running {
    shared: Arc<Shared>,
    /// Ends the thread.
    thread: Mutex<Option<(Sender<()>, JoinHandle<()>)>>,
}

impl Heartbeats {
    /// Heartbeats of a process with some ranks of a job, from now on.
    ///
    /// # Errors
    /// The system's, if no thread can be started.
    pub fn start(
        run: &ConfinedDir,
        launch: u64,
        process: usize,
        ranks: Range<usize>,
        recorder: &FlightRecorder,
        host: HeartbeatHost,
    ) -> io::Result<Heartbeats> {
        let preparing = || RankState {
            step: AtomicU64::new(0),
            phase: AtomicU8::new(RankPhase::Preparing as u8),
            progress: AtomicU64::new(0),
        };
        let identity = ProcessIdentity::own(host.hostname.clone()).to_bytes();
        let shared = Arc::new(Shared {
            run: run.clone(),
            launch,
            process,
            states: ranks.clone().map(|_| preparing()).collect(),
            ranks,
            recorder: recorder.clone(),
            identity: String::from_utf8_lossy(&identity).into_owned(),
            host,
            begun: Instant::now(),
            leaves: AtomicI32::new(WORKS),
            unwritten: AtomicBool::new(false),
        });
        let (end, ended) = channel();
        let of_thread = Arc::clone(&shared);
        let thread = Builder::new().name("heartbeats".into()).spawn(move || {
            let (mut file, mut beat, mut own_bytes) = (None, 0, 0);
            loop {
                beat += 1;
                of_thread.beat(beat, &mut file, &mut own_bytes);
                match ended.recv_timeout(INTERVAL) {
                    Err(RecvTimeoutError::Timeout) => {}
                    _ => break,
                }
            }
            // What it is about to end with.
            of_thread.beat(beat + 1, &mut file, &mut own_bytes);
        })?;
        Ok(Heartbeats(Some(Arc::new(Running { shared, thread: Mutex::new(Some((end, thread))) }))))
    }

    /// Has the process tell in its last heartbeat with which code it leaves.
    pub fn leave(&self, code: u8) {
        let Some(running) = &self.0 else { return };
        running.shared.leaves.store(i32::from(code), Ordering::Relaxed);
        if let Some((end, thread)) = running.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            drop(end);
            let _ = thread.join();
        }
    }

    /// Says that this process's first rank works on something that its observer is not notified of.
    pub fn feed(&self) {
        if let Some(running) = &self.0 {
            running.shared.states[0].progress.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// An observer of rank `rank`, on its thread, that also feeds the heartbeats.
    pub fn observer<'a>(&self, rank: usize, inner: &'a mut dyn Observer) -> RankObserver<'a> {
        let shared = self.0.as_ref().map(|running| {
            let shared = Arc::clone(&running.shared);
            shared.recorder.count_this_thread(rank);
            let state = rank - shared.ranks.start;
            (shared, state)
        });
        RankObserver { inner, shared }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some((end, thread)) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            drop(end);
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn beat(&self, beat: u64, file: &mut Option<File>, own_bytes: &mut u64) {
        let written = written_bytes().saturating_sub(*own_bytes);
        let rank = |(state, rank): (&RankState, usize)| {
            let (calls, waited) = self.recorder.calls(rank);
            let phase = phase(state.phase.load(Ordering::Relaxed));
            let step = state.step.load(Ordering::Relaxed);
            // A save may be silent but for the bytes that it writes.
            let saved = if phase == RankPhase::Saving { written } else { 0 };
            let activity = [step, calls, state.progress.load(Ordering::Relaxed), saved];
            RankBeat {
                rank,
                step,
                phase,
                activity: activity.into_iter().fold(0, u64::wrapping_add),
                waits: self.recorder.in_progress(rank).map(|(entry, since)| WaitingCall {
                    what: format!("{} of {:?}", entry.kind.name(), entry.name),
                    group: entry.group,
                    sequence: entry.sequence,
                    seconds: since.as_secs_f64(),
                }),
                waited: waited.as_secs_f64(),
            }
        };
        let leaves = self.leaves.load(Ordering::Relaxed);
        let heartbeat = Heartbeat {
            version: HEARTBEAT_VERSION,
            epoch: self.launch,
            process: self.process,
            identity: self.identity.clone(),
            beat,
            seconds: self.begun.elapsed().as_secs_f64(),
            leaves: (leaves != WORKS).then_some(leaves),
            ranks: self.states.iter().zip(self.ranks.clone()).map(rank).collect(),
        };
        let before = written_bytes();
        if let Err(e) = write_heartbeat(&self.run, &heartbeat, file)
            && !self.unwritten.swap(true, Ordering::Relaxed)
        {
            (self.host.warn)(&format!("cannot write heartbeats for the supervisor: {e}"));
        }
        *own_bytes += written_bytes().saturating_sub(before);
        if beat.is_multiple_of(FENCE_EVERY) {
            self.fence();
        }
    }

    /// Has the process end if a newer launch has taken over: its host may have been cut off for a while.
    fn fence(&self) {
        // A file system that does not answer for a moment is no newer launch.
        let Ok(newest) = launch_epoch::newest(&self.run) else { return };
        if newest > self.launch {
            (self.host.leave)(launch_epoch::outdated(self.run.path(), self.launch, newest));
        }
    }
}

/// Bytes that this process has written so far, to whatever it is.
fn written_bytes() -> u64 {
    let text = bessemer_durable::read_system("/proc/self/io");
    let line = text.lines().find_map(|line| line.strip_prefix("wchar:"));
    line.and_then(|number| number.trim().parse().ok()).unwrap_or(0)
}

fn phase(number: u8) -> RankPhase {
    let all = [RankPhase::Preparing, RankPhase::Training, RankPhase::Evaluating, RankPhase::Saving];
    all.into_iter().find(|phase| *phase as u8 == number).unwrap_or(RankPhase::Preparing)
}

/// An observer of a rank that feeds its heartbeats, before another one.
pub struct RankObserver<'a> {
    inner: &'a mut dyn Observer,
    shared: Option<(Arc<Shared>, usize)>,
}

impl RankObserver<'_> {
    fn state(&self) -> Option<&RankState> {
        self.shared.as_ref().map(|(shared, state)| &shared.states[*state])
    }
}

impl Observer for RankObserver<'_> {
    fn record(&mut self, record: &Record) {
        self.inner.record(record);
    }

    fn message(&mut self, text: &str) {
        self.inner.message(text);
    }

    fn progress(&mut self, what: &str, done: u64, total: u64) {
        if let Some(state) = self.state() {
            state.progress.fetch_add(1, Ordering::Relaxed);
        }
        self.inner.progress(what, done, total);
    }

    fn begins(&mut self, activity: Activity, step: u64) {
        let Some(state) = self.state() else { return };
        let phase = match activity {
            Activity::Training => RankPhase::Training,
            Activity::Evaluating => RankPhase::Evaluating,
            Activity::Saving => RankPhase::Saving,
        };
        state.step.store(step, Ordering::Relaxed);
        state.phase.store(phase as u8, Ordering::Relaxed);
    }

    fn remarks(&mut self) -> Vec<String> {
        self.inner.remarks()
    }

    fn resident_bytes(&mut self) -> Option<u64> {
        self.inner.resident_bytes()
    }
}
