//! The flight recorder: the last collectives of every rank, to report which rank waits in which collective for which.

use crate::call::Call;
use crate::error::CallSite;
use crate::wrap::{Wrapped, Wrapper};
use crate::{Collective, CollectiveError, CollectiveKind, Communicator, Memory};
use std::collections::VecDeque;
use std::fmt::Write;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

/// Progress of a collective.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// The call has not returned.
    Started,
    /// The call returned.
    Done,
    /// The call returned an error.
    Failed,
}

/// One collective of one rank. Times are since the recorder was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Collectives of this group on this rank before it, messages included.
    pub sequence: u64,
    /// Label of the group.
    pub group: String,
    /// Position of this rank in the group, and the group's size.
    pub position: (usize, usize),
    /// Kind of the collective.
    pub kind: CollectiveKind,
    /// Name of the values.
    pub name: String,
    /// Other end and tag of a message.
    pub message: Option<(usize, u64)>,
    /// Bytes of this rank's values.
    pub bytes: u64,
    /// Progress of the collective.
    pub progress: Progress,
    /// Time of the call.
    pub started: Option<Duration>,
    /// Time of the return.
    pub ended: Option<Duration>,
}

#[derive(Debug)]
struct Log {
    since: Instant,
    keep: usize,
    /// Rank of the job whose entries are the first.
    first: usize,
    /// Entries by rank, from `first` on.
    ranks: Vec<Mutex<Entries>>,
}

/// Last collectives of one rank.
#[derive(Debug)]
struct Entries {
    list: VecDeque<Entry>,
    /// Memory of groups and names, allocated at once: recording allocates only for a name longer than any before.
    spare: Vec<(String, String)>,
    /// Text about the last call that timed out or lost a peer.
    vain: Option<String>,
    /// Calls that have ended.
    calls: u64,
    /// Thread whose time in calls is summed.
    thread: Option<ThreadId>,
    /// Time that this thread has spent in calls that have ended.
    waited: Duration,
}

/// First line of a report.
const TITLE: &str = "Last collectives of each rank:";
/// Number of a rank's last collectives in a report, finished or not.
const LAST: usize = 3;
/// Bytes allocated for the label of a group; for a name.
const LABEL: usize = 24;
const NAME: usize = 72;

/// Remembers the last collectives of ranks. Ranks of one process share one, so a report shows all of them; a process that
/// is one rank of a job has its own and shows itself. Clones are the same recorder.
#[derive(Debug, Clone)]
pub struct FlightRecorder(Arc<Log>);

impl FlightRecorder {
    /// A recorder of `ranks` ranks that keeps `keep` collectives of each.
    pub fn new(ranks: usize, keep: usize) -> FlightRecorder {
        FlightRecorder::of_ranks(0..ranks, keep)
    }

    /// For one rank of a job whose other ranks are in other processes, `keep` collectives. A timeout does not carry the
    /// report, which would show this rank alone: whoever ends the job brings the [`FlightRecorder::lines`] together.
    pub fn of_rank(rank: usize, keep: usize) -> FlightRecorder {
        FlightRecorder::of_ranks(rank..rank + 1, keep)
    }

    fn of_ranks(which: Range<usize>, keep: usize) -> FlightRecorder {
        let strings = || (String::with_capacity(LABEL), String::with_capacity(NAME));
        let log = || {
            let spare = std::iter::repeat_with(strings).take(keep.max(1)).collect();
            Mutex::new(Entries {
                list: VecDeque::with_capacity(keep.max(1)),
                spare,
                vain: None,
                calls: 0,
                thread: None,
                waited: Duration::ZERO,
            })
        };
        let first = which.start;
        let ranks = which.map(|_| log()).collect();
        FlightRecorder(Arc::new(Log { since: Instant::now(), keep: keep.max(1), first, ranks }))
    }

    /// A communicator of rank `rank` of the world whose collectives, and those of groups made from it, are remembered.
    /// A timeout then carries the report.
    pub fn wrap(&self, rank: usize, inner: Box<dyn Communicator>) -> Box<dyn Communicator> {
        Wrapped::boxed(inner, RankLog { recorder: self.clone(), rank, sequence: 0 })
    }

    /// Returns the last collectives of a rank, oldest first.
    pub fn entries(&self, rank: usize) -> Vec<Entry> {
        self.lock(rank).list.iter().cloned().collect()
    }

    /// Sums, from now on, the time that the calling thread spends in collectives of a rank.
    pub fn count_this_thread(&self, rank: usize) {
        self.lock(rank).thread = Some(std::thread::current().id());
    }

    /// Returns the number of calls of a rank that have ended, and the time that its counted thread has spent in them.
    pub fn calls(&self, rank: usize) -> (u64, Duration) {
        let entries = self.lock(rank);
        (entries.calls, entries.waited)
    }

    /// Returns the oldest call of a rank that has not returned, and for how long it has waited.
    pub fn in_progress(&self, rank: usize) -> Option<(Entry, Duration)> {
        let now = self.0.since.elapsed();
        let entry = self.lock(rank).list.iter().find(|e| e.progress == Progress::Started).cloned()?;
        let since = now.saturating_sub(entry.started.unwrap_or(now));
        Some((entry, since))
    }

    /// Returns whether a collective of this rank timed out or lost a peer.
    pub fn timed_out(&self, rank: usize) -> bool {
        self.lock(rank).vain.is_some()
    }

    /// Returns a text about the last collectives of every rank, those in progress, and the ranks that are waited for.
    pub fn report(&self) -> String {
        let mut text = format!("{TITLE}{}", self.lines());
        let all = || self.0.first..self.0.first + self.0.ranks.len();
        let is_in = |rank: &usize, wanted: &[Progress]| {
            self.lock(*rank).list.iter().any(|e| wanted.contains(&e.progress))
        };
        let waiting = |rank: &usize| is_in(rank, &[Progress::Started]);
        let idle = |rank: &usize| !is_in(rank, &[Progress::Started, Progress::Failed]);
        let absent: Vec<String> = all().filter(idle).map(|rank| rank.to_string()).collect();
        let waiting: Vec<String> = all().filter(waiting).map(|rank| rank.to_string()).collect();
        if !absent.is_empty() && !waiting.is_empty() {
            let (waiting, absent) = (waiting.join(", "), absent.join(", "));
            let _ = write!(text, "\n  rank {waiting} waits while rank {absent} is in no collective");
        }
        text
    }

    /// Returns the report without its title. Each line begins with a line break and names its rank.
    pub fn lines(&self) -> String {
        let now = self.0.since.elapsed();
        let mut text = String::new();
        for (i, entries) in self.0.ranks.iter().enumerate() {
            let rank = self.0.first + i;
            let entries = entries.lock().unwrap_or_else(PoisonError::into_inner);
            if entries.list.is_empty() {
                let _ = write!(text, "\n  rank {rank}: none yet");
            }
            let old = entries.list.len().saturating_sub(LAST);
            for (at, e) in entries.list.iter().enumerate() {
                if at >= old || e.progress != Progress::Done {
                    let _ = write!(text, "\n  rank {rank}: {}", e.line(now));
                }
            }
            if let Some(vain) = &entries.vain {
                let _ = write!(text, "\n  rank {rank}: {vain}");
            }
        }
        text
    }

    fn lock(&self, rank: usize) -> MutexGuard<'_, Entries> {
        self.0.ranks[rank - self.0.first].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry {
    fn line(&self, now: Duration) -> String {
        let ago = |then: Option<Duration>| now.saturating_sub(then.unwrap_or(now)).as_secs_f64();
        let state = match self.progress {
            Progress::Started => format!("waits for {:.1} s", ago(self.started)),
            Progress::Done => format!("done {:.1} s ago", ago(self.ended)),
            Progress::Failed => {
                let took = self.ended.unwrap_or(now).saturating_sub(self.started.unwrap_or(now));
                format!("failed {:.1} s ago after {:.1} s", ago(self.ended), took.as_secs_f64())
            }
        };
        let (group, (position, size)) = (&self.group, self.position);
        let (kind, name, bytes, sequence) = (self.kind.name(), &self.name, self.bytes, self.sequence);
        let message = self.message.map_or(String::new(), |(peer, tag)| {
            let way = if self.kind == CollectiveKind::Send { "to" } else { "from" };
            format!(" tag {tag} {way} rank {peer}")
        });
        format!(
            "{kind} {sequence} of {name:?}{message} in {group} ({position} of {size}), {bytes} bytes, {state}"
        )
    }
}

/// The part of a [`FlightRecorder`] that one communicator writes.
#[derive(Debug)]
struct RankLog {
    recorder: FlightRecorder,
    rank: usize,
    /// Number of collectives of the communicator so far.
    sequence: u64,
}

impl RankLog {
    /// Appends an entry; the oldest one's memory is used again.
    fn start(&self, call: &Call<'_>, at: &dyn Communicator) {
        let now = self.recorder.0.since.elapsed();
        let mut entries = self.recorder.lock(self.rank);
        let old = if entries.list.len() >= self.recorder.0.keep { entries.list.pop_front() } else { None };
        let old = old.map(|e| (e.group, e.name)).or_else(|| entries.spare.pop());
        let (mut group, mut name) = old.unwrap_or_default();
        group.clear();
        group.push_str(at.label());
        name.clear();
        name.push_str(call.name);
        entries.list.push_back(Entry {
            sequence: self.sequence,
            group,
            position: (at.rank(), at.size()),
            kind: call.kind(),
            name,
            message: call.peer().zip(call.tag()),
            bytes: call.bytes(),
            progress: Progress::Started,
            started: Some(now),
            ended: None,
        });
    }

    fn end(&self, at: &dyn Communicator, progress: Progress) {
        let now = self.recorder.0.since.elapsed();
        let mut entries = self.recorder.lock(self.rank);
        let own = entries.list.iter_mut().rev().find(|e| {
            e.progress == Progress::Started && e.sequence == self.sequence && e.group == at.label()
        });
        let mut spent = Duration::ZERO;
        if let Some(entry) = own {
            (entry.progress, entry.ended) = (progress, Some(now));
            spent = now.saturating_sub(entry.started.unwrap_or(now));
        }
        entries.calls += 1;
        if entries.thread == Some(std::thread::current().id()) {
            entries.waited += spent;
        }
    }

    /// Records the failed call. A timeout that another rank has met carries a report already.
    fn record_failure(&self, error: &mut CollectiveError) {
        let at = |p: &CallSite| format!("{} of {:?} in {}", p.collective, p.name, p.group);
        let vain = match &*error {
            CollectiveError::Timeout { site, missing, waited, .. } => {
                let peers = missing.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
                format!("gave up {} after {:.1} s without rank {peers} of it", at(site), waited.as_secs_f64())
            }
            CollectiveError::PeerLost { site, peer, .. } => {
                format!("lost rank {peer} of it in {}", at(site))
            }
            _ => return,
        };
        let recorder = &self.recorder;
        if let CollectiveError::Timeout { report, .. } = error
            && recorder.0.ranks.len() > 1
            && !report.contains(TITLE)
        {
            let own = recorder.report();
            *report = if report.is_empty() { own } else { format!("{report}\n{own}") }.into();
        }
        recorder.lock(self.rank).vain = Some(vain);
    }
}

impl Wrapper for RankLog {
    fn run(
        &mut self,
        inner: &mut Box<dyn Communicator>,
        collective: &Collective<'_>,
        memory: Memory<'_>,
    ) -> Result<(), CollectiveError> {
        self.start(&Call::new(collective, &memory), inner.as_ref());
        let mut result = inner.run(collective, memory);
        if let Err(error) = &mut result {
            self.record_failure(error);
        }
        let progress = if result.is_ok() { Progress::Done } else { Progress::Failed };
        self.end(inner.as_ref(), progress);
        self.sequence += 1;
        result
    }

    fn for_group(&self) -> RankLog {
        RankLog { recorder: self.recorder.clone(), rank: self.rank, sequence: 0 }
    }
}
