//! Events of ranks, and when they happen.
//!
//! Each rank runs its list until it must wait; ranks and transfers go on in the order of time. A communicator runs its collectives
//! in one order, and messages from one rank to another keep theirs. What goes over a link of its own ends when it would alone. What
//! goes over the ports of ranks shares them with all that uses them at the same time ([`Medium`]).

use super::sharing::{Port, SharedPorts};
use crate::error::time;
use crate::{Interval, SimError};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap, HashMap, VecDeque};
use std::rc::Rc;

/// Thread that runs the collectives of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// A thread beside the rank's computation: a start returns at once.
    Thread,
    /// The rank itself: a start returns when the collective is complete.
    Caller,
}

/// Carrier of a collective or a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Medium {
    /// Links that nothing else uses.
    #[default]
    Own,
    /// A rank's port to the other ranks of its node.
    Node,
    /// A rank's part of its node's interfaces to the network.
    Network,
}

/// Ranks that run collectives together, one after the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplayGroup {
    /// The axis, for messages and sums: "tensor".
    pub label: String,
    /// Tells it from other groups of the same ranks and label, whose collectives run beside its own: the stage.
    pub number: usize,
    /// Ranks of the job.
    pub ranks: Vec<usize>,
    /// Thread that runs its collectives.
    pub progress: Progress,
    /// Carrier of its collectives. Over a medium that is shared a collective is complete on all ranks at once, after the longest time.
    pub medium: Medium,
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
        /// Rank of the job; the sender itself where it stands for the sender and the receiver.
        to: usize,
        /// Tells it from the other messages between the two ranks.
        tag: u64,
        /// Time in which the link from this rank to `to` can carry nothing else.
        busy: f64,
        /// Time from then to its arrival.
        latency: f64,
        /// Carrier of the message.
        medium: Medium,
    },
    /// Waits for a message.
    Receive {
        /// Rank of the job.
        from: usize,
        /// The sender's.
        tag: u64,
    },
}

/// Events of the ranks in a step: of all of them, or of some that stand for the others. Ranks without a list come to collectives
/// when those of their group that have one do.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StepEvents {
    /// Groups of ranks.
    pub groups: Vec<ReplayGroup>,
    /// By rank that has a list.
    pub lists: Vec<Vec<RankEvent>>,
    /// Ranks of the job.
    job: usize,
    /// The rank of each list, ascending.
    ranks: Vec<usize>,
    names: Vec<String>,
    numbers: HashMap<String, usize>,
}

impl StepEvents {
    /// Empty lists of `ranks` ranks.
    pub fn new(ranks: usize) -> StepEvents {
        StepEvents::of_some(ranks, (0..ranks).collect())
    }

    /// Empty lists of some ranks of a job of `job` ranks.
    pub fn of_some(job: usize, mut ranks: Vec<usize>) -> StepEvents {
        ranks.sort_unstable();
        ranks.dedup();
        StepEvents { lists: vec![Vec::new(); ranks.len()], job, ranks, ..StepEvents::default() }
    }

    /// The ranks that have lists, ascending.
    pub fn ranks(&self) -> &[usize] {
        &self.ranks
    }

    /// Position of a rank's list, if it has one.
    pub fn list_of(&self, rank: usize) -> Option<usize> {
        // All ranks have lists, or few.
        match self.ranks.len() == self.job {
            true => (rank < self.job).then_some(rank),
            false => self.ranks.binary_search(&rank).ok(),
        }
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

    /// Time that the rank of a list spends in collectives and waiting for them, by the label of the group, and waiting for messages
    /// ("messages"): communication that no computation hides, and other ranks' lateness.
    pub fn exposed<'a>(&self, step: &'a StepEvents, list: usize) -> BTreeMap<&'a str, f64> {
        let mut sums = BTreeMap::new();
        for (event, interval) in step.lists[list].iter().zip(&self.events[list]) {
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

/// A rank's side of a group. Ranks are positions of lists from here on.
#[derive(Debug, Default)]
struct Member {
    rank: usize,
    /// Collectives that other ranks have not begun.
    arrivals: VecDeque<Arrival>,
    begun: usize,
    /// Ends of the collectives that are known.
    ends: Vec<f64>,
    /// The rank waits for a collective of the group.
    waits: bool,
}

/// A message that was sent or is waited for.
#[derive(Debug, Clone, Copy)]
enum Post {
    OnItsWay,
    Arrives(f64),
    AwaitedBy(usize),
    /// On its way, and waited for.
    Expected(usize),
    Taken,
}

/// Sender, receiver and tag of a message.
type PostKey = (usize, usize, u64);

/// Messages from one rank to another over a shared medium.
#[derive(Debug)]
struct SharedLink {
    /// Messages that were handed over and have not arrived; the first one is in flight.
    queue: VecDeque<(PostKey, f64, f64)>,
    ports: Rc<[usize]>,
}

/// A rank that may go on at a time.
#[derive(Debug, PartialEq)]
struct Ready {
    at: f64,
    rank: usize,
}

impl Eq for Ready {}

impl Ord for Ready {
    /// The greatest of a heap is the earliest, of several the first rank.
    fn cmp(&self, other: &Self) -> Ordering {
        other.at.total_cmp(&self.at).then(other.rank.cmp(&self.rank))
    }
}

impl PartialOrd for Ready {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

struct Run<'a> {
    step: &'a StepEvents,
    groups: Vec<Vec<Member>>,
    /// When the last collective of each group began.
    starts: Vec<f64>,
    /// By group: the ports of its collectives, once one has begun.
    ports: Vec<Option<Rc<[usize]>>>,
    /// Position of a rank in each group that it is in, by rank and group.
    member: Vec<Vec<Option<u32>>>,
    posts: HashMap<PostKey, Post>,
    /// When the link of its own from one rank to another can carry the next message.
    free: HashMap<(usize, usize), f64>,
    shared: SharedPorts,
    /// Links over a shared medium; their channels follow those of the groups.
    links: Vec<SharedLink>,
    link_numbers: HashMap<(usize, usize, Medium), usize>,
    next: Vec<usize>,
    clock: Vec<f64>,
    /// A rank's collective in progress, begun by the event at which it stands.
    inside: Vec<Option<usize>>,
    ready: BinaryHeap<Ready>,
    result: Replay,
}

/// Times every event. A rank computes, and begins collectives, in the order of its list. A collective of a group begins when its
/// last rank has begun it and each rank's one before is complete; it is complete on a rank `seconds` later. A send takes no time
/// of the rank; messages from one rank to another queue behind each other. Transfers over a shared medium take longer while others
/// use the same ports: each goes on at one over the number of transfers on its busiest port.
///
/// # Errors
/// [`SimError::Value`] for a time that is none, [`SimError::Event`] for an event that names what is not there or differs from
/// that of another rank, [`SimError::Stuck`] if ranks wait for what never happens.
pub fn replay(step: &StepEvents) -> Result<Replay, SimError> {
    let mut run = Run::new(step)?;
    loop {
        let rank = run.ready.peek().map(|ready| ready.at);
        match (rank, run.shared.next()) {
            // At the same time transfers end before ranks go on.
            (rank, Some((end, channel))) if rank.is_none_or(|at| end <= at) => run.arrive(channel, end),
            (Some(_), _) => {
                if let Some(Ready { at, rank }) = run.ready.pop() {
                    run.go_on(rank, at)?;
                }
            }
            (None, _) => break,
        }
    }
    match (0..step.lists.len()).any(|rank| run.next[rank] < step.lists[rank].len()) {
        true => Err(SimError::Stuck(run.waits())),
        false => Ok(run.result),
    }
}

impl<'a> Run<'a> {
    fn new(step: &'a StepEvents) -> Result<Run<'a>, SimError> {
        let ranks = step.lists.len();
        let mut member = vec![vec![None; step.groups.len()]; ranks];
        let mut groups: Vec<Vec<Member>> = Vec::with_capacity(step.groups.len());
        for (number, group) in step.groups.iter().enumerate() {
            let wrong = |rank: usize, problem: &str| {
                let what = format!("rank {rank} {problem}");
                Err(SimError::Group { label: group.label.clone(), what })
            };
            let mut members = Vec::new();
            for rank in &group.ranks {
                if *rank >= step.job {
                    return wrong(*rank, "is not part of the step");
                }
                let Some(list) = step.list_of(*rank) else { continue };
                if member[list][number].replace(members.len() as u32).is_some() {
                    return wrong(*rank, "is listed twice");
                }
                members.push(Member { rank: list, ..Member::default() });
            }
            groups.push(members);
        }
        Ok(Run {
            step,
            starts: vec![0.0; groups.len()],
            ports: vec![None; groups.len()],
            groups,
            member,
            posts: HashMap::new(),
            free: HashMap::new(),
            shared: SharedPorts::default(),
            links: Vec::new(),
            link_numbers: HashMap::new(),
            next: vec![0; ranks],
            clock: vec![0.0; ranks],
            inside: vec![None; ranks],
            ready: (0..ranks).map(|rank| Ready { at: 0.0, rank }).collect(),
            result: Replay {
                events: step.lists.iter().map(|list| Vec::with_capacity(list.len())).collect(),
                collectives: vec![Vec::new(); step.groups.len()],
            },
        })
    }

    /// Runs a rank's list at time `now`, until it waits or its time is a later one.
    fn go_on(&mut self, rank: usize, now: f64) -> Result<(), SimError> {
        while self.next[rank] < self.step.lists[rank].len() && self.advance(rank)? {
            let at = self.clock[rank];
            if at > now {
                self.ready.push(Ready { at, rank });
                break;
            }
        }
        Ok(())
    }

    /// A transfer over a shared medium is over.
    fn arrive(&mut self, channel: usize, now: f64) {
        self.shared.end(channel, now);
        let Some(link) = channel.checked_sub(self.groups.len()) else {
            self.ended(channel, |_| now);
            self.resolve(channel, now);
            return;
        };
        if let Some((key, _, latency)) = self.links[link].queue.pop_front() {
            let at = now + latency;
            if let Some(Post::Expected(rank)) = self.posts.insert(key, Post::Arrives(at)) {
                self.ready.push(Ready { at, rank });
            }
        }
        self.depart(link, now);
    }

    fn wrong(&self, rank: usize, what: String) -> SimError {
        SimError::Event { rank: self.step.ranks[rank], index: self.next[rank], what }
    }

    /// Does the next event of a rank; false if it must wait.
    fn advance(&mut self, rank: usize) -> Result<bool, SimError> {
        let now = self.clock[rank];
        let at = self.next[rank];
        let duration =
            |value: f64| time(|| format!("a time of rank {}, event {at},", self.step.ranks[rank]), value);
        match self.step.lists[rank][at] {
            RankEvent::Compute { seconds } => {
                let end = now + duration(seconds)?;
                self.finish(rank, end);
            }
            RankEvent::Start { group, seconds, name } => {
                let (member, number) = self.begin(rank, group, duration(seconds)?, name)?;
                match self.step.groups[group].progress {
                    Progress::Thread => self.finish(rank, now),
                    Progress::Caller => return Ok(self.complete(rank, group, member, number)),
                }
            }
            RankEvent::Collective { group, seconds, name } => {
                let (member, number) = self.begin(rank, group, duration(seconds)?, name)?;
                return Ok(self.complete(rank, group, member, number));
            }
            RankEvent::Wait { group, number } => {
                let member = self.member(rank, group)?;
                if self.groups[group][member].begun <= number {
                    let label = &self.step.groups[group].label;
                    let what = format!("waits for collective {number} of {label}, which it has not started");
                    return Err(self.wrong(rank, what));
                }
                return Ok(self.complete(rank, group, member, number));
            }
            RankEvent::Send { to, tag, busy, latency, medium } => {
                self.send(rank, to, tag, [duration(busy)?, duration(latency)?], medium)?;
                self.finish(rank, now);
            }
            RankEvent::Receive { from, tag } => {
                let Some(sender) = self.step.list_of(from) else {
                    return Err(self.wrong(rank, format!("waits for rank {from}, which has no list")));
                };
                let post = self.posts.entry((sender, rank, tag)).or_insert(Post::AwaitedBy(rank));
                match *post {
                    Post::Arrives(at) => {
                        *post = Post::Taken;
                        self.finish(rank, now.max(at));
                    }
                    Post::OnItsWay | Post::Expected(_) => {
                        *post = Post::Expected(rank);
                        return Ok(false);
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
        let known = self.member[rank].get(group).copied().flatten();
        known.map(|member| member as usize).ok_or_else(|| {
            let label = self.step.groups.get(group).map_or("(none)", |g| g.label.as_str());
            self.wrong(rank, format!("group {group} ({label}) does not have the rank"))
        })
    }

    /// Comes to the next collective of a group, unless the rank has already done so at this event; the rank's place in the group and the
    /// collective's number.
    fn begin(
        &mut self,
        rank: usize,
        group: usize,
        seconds: f64,
        name: usize,
    ) -> Result<(usize, usize), SimError> {
        let member = self.member(rank, group)?;
        if let Some(number) = self.inside[rank] {
            return Ok((member, number));
        }
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
                    self.step.ranks[other.rank]
                );
                return Err(self.wrong(rank, what));
            }
        }
        let own = &mut self.groups[group][member];
        own.begun += 1;
        own.arrivals.push_back(Arrival { at: now, seconds, name });
        self.resolve(group, now);
        if self.caller_waits(rank, group) {
            self.inside[rank] = Some(number);
        }
        Ok((member, number))
    }

    /// Whether the event at which the rank stands completes the collective that it begins.
    fn caller_waits(&self, rank: usize, group: usize) -> bool {
        let blocking = self.step.groups[group].progress == Progress::Caller;
        blocking || matches!(self.step.lists[rank][self.next[rank]], RankEvent::Collective { .. })
    }

    /// Begins every collective of a group to which all ranks have come, and ends those over links of their own.
    fn resolve(&mut self, group: usize, now: f64) {
        let medium = self.step.groups[group].medium;
        while self.groups[group].iter().all(|m| !m.arrivals.is_empty()) && !self.shared.busy(group) {
            let members = &self.groups[group];
            let comes = |m: &Member| m.arrivals[0].at.max(m.ends.last().copied().unwrap_or(0.0));
            let start = members.iter().map(comes).fold(0.0, f64::max);
            self.starts[group] = start;
            if medium == Medium::Own {
                self.ended(group, |arrival| start + arrival.seconds);
                continue;
            }
            let longest = members.iter().map(|m| m.arrivals[0].seconds).fold(0.0, f64::max);
            let both = |m: &Member| [false, true].map(|inward| Port { rank: m.rank, medium, inward });
            let ports =
                self.ports[group].get_or_insert_with(|| self.shared.ports(members.iter().flat_map(both)));
            self.shared.begin(group, now, longest, Rc::clone(ports));
        }
    }

    /// The first collective that all ranks of a group have begun has its ends.
    fn ended(&mut self, group: usize, end: impl Fn(&Arrival) -> f64) {
        let start = self.starts[group];
        let mut span = CollectiveSpan { name: 0, interval: Interval { start, end: start } };
        for member in &mut self.groups[group] {
            let Some(arrival) = member.arrivals.pop_front() else { continue };
            let at = end(&arrival);
            member.ends.push(at);
            (span.name, span.interval.end) = (arrival.name, span.interval.end.max(at));
            if std::mem::take(&mut member.waits) {
                self.ready.push(Ready { at, rank: member.rank });
            }
        }
        self.result.collectives[group].push(span);
    }

    /// Goes on if the collective is complete.
    fn complete(&mut self, rank: usize, group: usize, member: usize, number: usize) -> bool {
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

    fn send(
        &mut self,
        rank: usize,
        to: usize,
        tag: u64,
        [busy, latency]: [f64; 2],
        medium: Medium,
    ) -> Result<(), SimError> {
        let Some(list) = self.step.list_of(to) else {
            let wanted = if to >= self.step.job {
                "wanted a rank of the job"
            } else {
                "wanted a rank that has a list"
            };
            return Err(self.wrong(rank, format!("sends message {tag} to rank {to}: {wanted}")));
        };
        let (key, now) = ((rank, list, tag), self.clock[rank]);
        let before = self.posts.get(&key).copied();
        if !matches!(before, None | Some(Post::AwaitedBy(_))) {
            return Err(self.wrong(rank, format!("sends message {tag} to rank {to} a second time")));
        }
        if medium == Medium::Own {
            let free = self.free.entry((rank, list)).or_insert(0.0);
            *free = free.max(now) + busy;
            let at = *free + latency;
            self.posts.insert(key, Post::Arrives(at));
            if let Some(Post::AwaitedBy(rank)) = before {
                self.ready.push(Ready { at, rank });
            }
            return Ok(());
        }
        self.posts.insert(
            key,
            match before {
                Some(Post::AwaitedBy(receiver)) => Post::Expected(receiver),
                _ => Post::OnItsWay,
            },
        );
        let (links, shared) = (&mut self.links, &mut self.shared);
        let link = *self.link_numbers.entry((rank, list, medium)).or_insert_with(|| {
            let ports = [Port { rank, medium, inward: false }, Port { rank: list, medium, inward: true }];
            links.push(SharedLink { queue: VecDeque::new(), ports: shared.ports(ports.into_iter()) });
            links.len() - 1
        });
        self.links[link].queue.push_back((key, busy, latency));
        self.depart(link, now);
        Ok(())
    }

    /// Sets the first message of a link on its way, if none is.
    fn depart(&mut self, link: usize, now: f64) {
        let channel = self.groups.len() + link;
        let SharedLink { queue, ports } = &self.links[link];
        if let (false, Some((_, busy, _))) = (self.shared.busy(channel), queue.front()) {
            self.shared.begin(channel, now, *busy, Rc::clone(ports));
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
            all.push(format!("rank {} waits at event {at} for {waits}", self.step.ranks[rank]));
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
        let missing =
            members.iter().filter(|m| m.begun <= number).map(|m| self.step.ranks[m.rank].to_string());
        format!(
            "{:?} (collective {number} of {}), which rank {} has not started",
            self.step.name_of(name),
            self.step.groups[group].label,
            missing.collect::<Vec<_>>().join(", ")
        )
    }
}
