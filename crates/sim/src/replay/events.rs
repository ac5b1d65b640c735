//! Events of ranks, and when they happen.
//!
//! Each rank runs its list until it must wait. A communicator runs its collectives in one order, and a link has one sender, so
//! begin and end of both are known as soon as the last rank has come: no queue of events in time is needed.

use crate::error::time;
use crate::{Interval, SimError};
use std::collections::{BTreeMap, HashMap, VecDeque};

/// Thread that runs the collectives of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// A thread beside the rank's computation: a start returns at once.
    Thread,
    /// The rank itself: a start returns when the collective is complete.
    Caller,
}

/// Ranks that run collectives together, one after the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplayGroup {
    /// The axis, for messages and sums: "tensor".
    pub label: String,
    /// Tells it from other groups of the same ranks and label, whose collectives run beside its own: the stage.
    pub number: usize,
    /// Ranks of the step.
    pub ranks: Vec<usize>,
    /// Thread that runs its collectives.
    pub progress: Progress,
}

/// What a rank does next. Times are in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RankEvent {
    /// Computes.
    Compute {
        /// How long.
        seconds: f64,
    },
    /// Begins the next collective of a group.
    Start {
        /// Number of the group.
        group: usize,
        /// Time that it takes this rank once all ranks have come.
        seconds: f64,
        /// Number of its name ([`StepEvents::name`]); the same on all ranks.
        name: usize,
    },
    /// Waits for a collective that this rank has started.
    Wait {
        /// Number of the group.
        group: usize,
        /// How many collectives of the group this rank had begun before it.
        number: usize,
    },
    /// Begins the next collective of a group and waits for it.
    Collective {
        /// Number of the group.
        group: usize,
        /// Time that it takes this rank once all ranks have come.
        seconds: f64,
        /// Number of its name; the same on all ranks.
        name: usize,
    },
    /// Hands over a message; the rank goes on at once.
    Send {
        /// Rank of the step.
        to: usize,
        /// Tells it from the other messages between the two ranks.
        tag: u64,
        /// Time in which the link from this rank to `to` can carry nothing else.
        busy: f64,
        /// Time from then to its arrival.
        latency: f64,
    },
    /// Waits for a message.
    Receive {
        /// Rank of the step.
        from: usize,
        /// The sender's.
        tag: u64,
    },
}

/// Events of every rank in a step.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StepEvents {
    /// Groups of ranks.
    pub groups: Vec<ReplayGroup>,
    /// By rank.
    pub lists: Vec<Vec<RankEvent>>,
    names: Vec<String>,
    numbers: HashMap<String, usize>,
}

impl StepEvents {
    /// Empty lists of `ranks` ranks.
    pub fn new(ranks: usize) -> StepEvents {
        StepEvents { lists: vec![Vec::new(); ranks], ..StepEvents::default() }
    }

    /// The number of a collective's name.
    pub fn name(&mut self, name: &str) -> usize {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        self.names.push(name.to_owned());
        self.numbers.insert(name.to_owned(), self.names.len() - 1);
        self.names.len() - 1
    }

    /// The number of a group, which is added if it is not there.
    pub fn group(&mut self, group: ReplayGroup) -> usize {
        self.groups.iter().position(|g| *g == group).unwrap_or_else(|| {
            self.groups.push(group);
            self.groups.len() - 1
        })
    }

    fn name_of(&self, number: usize) -> &str {
        self.names.get(number).map_or("(no name)", String::as_str)
    }
}

/// A collective in time: from when all ranks had come until the last one had its result.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CollectiveSpan {
    /// Number of its name.
    pub name: usize,
    /// When it ran.
    pub interval: Interval,
}

/// When everything happened. The step begins at 0.
#[derive(Debug, Clone, PartialEq)]
pub struct Replay {
    /// By rank and position in its list. What waits lasts until it goes on.
    pub events: Vec<Vec<Interval>>,
    /// By group, in order.
    pub collectives: Vec<Vec<CollectiveSpan>>,
}

/// Label of messages in [`Replay::exposed`].
const MESSAGES: &str = "messages";

impl Replay {
    /// Time at which the last rank is done.
    pub fn seconds(&self) -> f64 {
        self.events.iter().filter_map(|list| list.last()).map(|last| last.end).fold(0.0, f64::max)
    }

    /// Time that a rank spends in collectives and waiting for them, by the label of the group, and waiting for messages
    /// ("messages"): communication that no computation hides, and other ranks' lateness.
    pub fn exposed<'a>(&self, step: &'a StepEvents, rank: usize) -> BTreeMap<&'a str, f64> {
        let mut sums = BTreeMap::new();
        for (event, interval) in step.lists[rank].iter().zip(&self.events[rank]) {
            let label = match event {
                RankEvent::Start { group, .. }
                | RankEvent::Wait { group, .. }
                | RankEvent::Collective { group, .. } => step.groups[*group].label.as_str(),
                RankEvent::Receive { .. } => MESSAGES,
                RankEvent::Compute { .. } | RankEvent::Send { .. } => continue,
            };
            *sums.entry(label).or_insert(0.0) += interval.length();
        }
        sums
    }
}

/// What one rank has begun of a group and not all ranks have.
#[derive(Debug, Clone, Copy)]
struct Arrival {
    at: f64,
    seconds: f64,
    name: usize,
}

/// A rank's side of a group.
#[derive(Debug, Default)]
struct Member {
    rank: usize,
    /// Collectives that other ranks have not begun.
    arrivals: VecDeque<Arrival>,
    begun: usize,
    /// Ends of the collectives that all ranks have begun.
    ends: Vec<f64>,
    /// The rank waits for a collective of the group.
    waits: bool,
}

/// A message that was sent or is waited for.
#[derive(Debug, Clone, Copy)]
enum Post {
    Arrives(f64),
    AwaitedBy(usize),
    Taken,
}

struct Run<'a> {
    step: &'a StepEvents,
    groups: Vec<Vec<Member>>,
    /// Position of a rank in each group.
    member: Vec<HashMap<usize, usize>>,
    posts: HashMap<(usize, usize, u64), Post>,
    /// When the link from one rank to another can carry the next message.
    free: HashMap<(usize, usize), f64>,
    next: Vec<usize>,
    clock: Vec<f64>,
    /// A rank's collective in progress, begun by the event at which it stands.
    inside: Vec<Option<usize>>,
    ready: Vec<usize>,
    result: Replay,
}

/// Times every event. A rank computes, and begins collectives, in the order of its list. A collective of a group begins when its
/// last rank has begun it and each rank's one before is complete; it is complete on a rank `seconds` later. A send takes no time
/// of the rank; messages from one rank to another queue behind each other.
///
/// # Errors
/// [`SimError::Value`] for a time that is none, [`SimError::Event`] for an event that names what is not there or differs from
/// that of another rank, [`SimError::Stuck`] if ranks wait for what never happens.
pub fn replay(step: &StepEvents) -> Result<Replay, SimError> {
    let mut run = Run::new(step)?;
    while let Some(rank) = run.ready.pop() {
        while run.next[rank] < step.lists[rank].len() && run.advance(rank)? {}
    }
    match (0..step.lists.len()).any(|rank| run.next[rank] < step.lists[rank].len()) {
        true => Err(SimError::Stuck(run.waits())),
        false => Ok(run.result),
    }
}

impl<'a> Run<'a> {
    fn new(step: &'a StepEvents) -> Result<Run<'a>, SimError> {
        let ranks = step.lists.len();
        let mut member = vec![HashMap::new(); ranks];
        for (number, group) in step.groups.iter().enumerate() {
            for (at, rank) in group.ranks.iter().enumerate() {
                let other = member.get_mut(*rank).map(|groups| groups.insert(number, at));
                if other != Some(None) {
                    let problem = if other.is_none() { "is not part of the step" } else { "is listed twice" };
                    return Err(SimError::Group {
                        label: group.label.clone(),
                        what: format!("rank {rank} {problem}"),
                    });
                }
            }
        }
        let members = |group: &ReplayGroup| {
            group.ranks.iter().map(|rank| Member { rank: *rank, ..Member::default() }).collect()
        };
        Ok(Run {
            step,
            groups: step.groups.iter().map(members).collect(),
            member,
            posts: HashMap::new(),
            free: HashMap::new(),
            next: vec![0; ranks],
            clock: vec![0.0; ranks],
            inside: vec![None; ranks],
            ready: (0..ranks).rev().collect(),
            result: Replay {
                events: step.lists.iter().map(|list| Vec::with_capacity(list.len())).collect(),
                collectives: vec![Vec::new(); step.groups.len()],
            },
        })
    }

    fn wrong(&self, rank: usize, what: String) -> SimError {
        SimError::Event { rank, index: self.next[rank], what }
    }

    /// Does the next event of a rank; false if it must wait.
    fn advance(&mut self, rank: usize) -> Result<bool, SimError> {
        let now = self.clock[rank];
        let at = self.next[rank];
        let duration = |value: f64| time(|| format!("a time of rank {rank}, event {at},"), value);
        match self.step.lists[rank][at] {
            RankEvent::Compute { seconds } => {
                let end = now + duration(seconds)?;
                self.finish(rank, end);
            }
            RankEvent::Start { group, seconds, name } => {
                let number = self.begin(rank, group, duration(seconds)?, name)?;
                match self.step.groups[group].progress {
                    Progress::Thread => self.finish(rank, now),
                    Progress::Caller => return Ok(self.complete(rank, group, number)),
                }
            }
            RankEvent::Collective { group, seconds, name } => {
                let number = self.begin(rank, group, duration(seconds)?, name)?;
                return Ok(self.complete(rank, group, number));
            }
            RankEvent::Wait { group, number } => {
                let member = self.member(rank, group)?;
                if self.groups[group][member].begun <= number {
                    let label = &self.step.groups[group].label;
                    let what = format!("waits for collective {number} of {label}, which it has not started");
                    return Err(self.wrong(rank, what));
                }
                return Ok(self.complete(rank, group, number));
            }
            RankEvent::Send { to, tag, busy, latency } => {
                self.send(rank, to, tag, duration(busy)?, duration(latency)?)?;
                self.finish(rank, now);
            }
            RankEvent::Receive { from, tag } => {
                let post = self.posts.entry((from, rank, tag)).or_insert(Post::AwaitedBy(rank));
                match *post {
                    Post::Arrives(at) => {
                        *post = Post::Taken;
                        self.finish(rank, now.max(at));
                    }
                    Post::AwaitedBy(_) => return Ok(false),
                    Post::Taken => {
                        let what = format!("waits a second time for message {tag} of rank {from}");
                        return Err(self.wrong(rank, what));
                    }
                }
            }
        }
        Ok(true)
    }

    fn finish(&mut self, rank: usize, end: f64) {
        self.result.events[rank].push(Interval { start: self.clock[rank], end });
        self.clock[rank] = end;
        self.next[rank] += 1;
    }

    fn member(&self, rank: usize, group: usize) -> Result<usize, SimError> {
        self.member[rank].get(&group).copied().ok_or_else(|| {
            let label = self.step.groups.get(group).map_or("(none)", |g| g.label.as_str());
            self.wrong(rank, format!("group {group} ({label}) does not have the rank"))
        })
    }

    /// Comes to the next collective of a group, unless the rank has already done so at this event; its number.
    fn begin(&mut self, rank: usize, group: usize, seconds: f64, name: usize) -> Result<usize, SimError> {
        if let Some(number) = self.inside[rank] {
            return Ok(number);
        }
        let member = self.member(rank, group)?;
        let (now, label) = (self.clock[rank], &self.step.groups[group].label);
        // All ranks that have come to the same collective call it the same.
        let number = self.groups[group][member].begun;
        for other in self.groups[group].iter().filter(|m| m.begun > number) {
            let resolved = other.ends.len();
            let theirs = match number.checked_sub(resolved) {
                Some(pending) => other.arrivals[pending].name,
                None => self.result.collectives[group][number].name,
            };
            if theirs != name {
                let (mine, other_name) = (self.step.name_of(name), self.step.name_of(theirs));
                let what = format!(
                    "collective {number} of {label} is {mine:?} here and {other_name:?} on rank {}",
                    other.rank
                );
                return Err(self.wrong(rank, what));
            }
        }
        let own = &mut self.groups[group][member];
        own.begun += 1;
        own.arrivals.push_back(Arrival { at: now, seconds, name });
        self.resolve(group);
        if self.caller_waits(rank, group) {
            self.inside[rank] = Some(number);
        }
        Ok(number)
    }

    /// Whether the event at which the rank stands completes the collective that it begins.
    fn caller_waits(&self, rank: usize, group: usize) -> bool {
        let blocking = self.step.groups[group].progress == Progress::Caller;
        blocking || matches!(self.step.lists[rank][self.next[rank]], RankEvent::Collective { .. })
    }

    /// Ends every collective of a group to which all ranks have come.
    fn resolve(&mut self, group: usize) {
        while self.groups[group].iter().all(|m| !m.arrivals.is_empty()) {
            let members = &mut self.groups[group];
            let comes = |m: &Member| m.arrivals[0].at.max(m.ends.last().copied().unwrap_or(0.0));
            let start = members.iter().map(comes).fold(0.0, f64::max);
            let (mut last, mut name) = (start, 0);
            for member in members.iter_mut() {
                let Some(arrival) = member.arrivals.pop_front() else { continue };
                member.ends.push(start + arrival.seconds);
                (last, name) = (last.max(start + arrival.seconds), arrival.name);
                if std::mem::take(&mut member.waits) {
                    self.ready.push(member.rank);
                }
            }
            self.result.collectives[group]
                .push(CollectiveSpan { name, interval: Interval { start, end: last } });
        }
    }

    /// Goes on if the collective is complete.
    fn complete(&mut self, rank: usize, group: usize, number: usize) -> bool {
        let member = self.member[rank][&group];
        let member = &mut self.groups[group][member];
        let Some(end) = member.ends.get(number).copied() else {
            member.waits = true;
            return false;
        };
        self.inside[rank] = None;
        let end = end.max(self.clock[rank]);
        self.finish(rank, end);
        true
    }

    fn send(&mut self, rank: usize, to: usize, tag: u64, busy: f64, latency: f64) -> Result<(), SimError> {
        if to >= self.step.lists.len() || to == rank {
            return Err(self.wrong(rank, format!("sends message {tag} to rank {to}: wanted another rank")));
        }
        let free = self.free.entry((rank, to)).or_insert(0.0);
        *free = free.max(self.clock[rank]) + busy;
        let arrival = Post::Arrives(*free + latency);
        match self.posts.insert((rank, to, tag), arrival) {
            None => Ok(()),
            Some(Post::AwaitedBy(receiver)) => {
                self.ready.push(receiver);
                Ok(())
            }
            Some(_) => Err(self.wrong(rank, format!("sends message {tag} to rank {to} a second time"))),
        }
    }

    /// For the message: where each rank stands that has not come to its end, and for whom it waits.
    fn waits(&self) -> String {
        let mut all = Vec::new();
        for (rank, list) in self.step.lists.iter().enumerate() {
            let at = self.next[rank];
            let waits = match list.get(at) {
                Some(RankEvent::Receive { from, tag }) => {
                    format!("message {tag} of rank {from}, which has not sent it")
                }
                Some(RankEvent::Wait { group, number }) => self.waits_for(rank, *group, *number),
                Some(RankEvent::Start { group, .. } | RankEvent::Collective { group, .. }) => {
                    self.waits_for(rank, *group, self.inside[rank].unwrap_or_default())
                }
                Some(RankEvent::Compute { .. } | RankEvent::Send { .. }) | None => continue,
            };
            all.push(format!("rank {rank} waits at event {at} for {waits}"));
        }
        let more = all.len().saturating_sub(4);
        all.truncate(4);
        let rest = if more > 0 { format!("; and {more} more") } else { String::new() };
        all.join("; ") + &rest
    }

    fn waits_for(&self, rank: usize, group: usize, number: usize) -> String {
        let members = &self.groups[group];
        let mine = members.iter().find(|m| m.rank == rank);
        let name = mine.and_then(|m| m.arrivals.get(number - m.ends.len())).map_or(0, |a| a.name);
        let missing = members.iter().filter(|m| m.begun <= number).map(|m| m.rank.to_string());
        format!(
            "{:?} (collective {number} of {}), which rank {} has not started",
            self.step.name_of(name),
            self.step.groups[group].label,
            missing.collect::<Vec<_>>().join(", ")
        )
    }
}
