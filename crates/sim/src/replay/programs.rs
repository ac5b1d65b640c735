//! Events of the lists that a rank runs: operators, collectives, messages, each with what it costs there.
//!
//! A collective costs its rank three things: copies between the device and the memory that the collective works on, work of the
//! processor that moves and sums values, and time on the link. Ranks that take all cores of a machine have no core left for
//! the second, wherever its thread runs, so it is counted as the rank's own.

use super::{Medium, Progress, RankEvent, ReplayGroup, StepEvents};
use crate::SimError;
use bessemer_program::{Collective, CollectiveKind, Node, Phase, UnitProgram};
use bessemer_tensor::op::Op;
use std::collections::{BTreeMap, HashMap, VecDeque};

/// A collective, as far as its cost depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Traffic {
    /// Kind of work.
    pub kind: CollectiveKind,
    /// Bytes of the whole values: all ranks' parts of a gather or a reduce-scatter, all that a rank brings to an all-to-all.
    pub bytes: u64,
    /// Most bytes that a rank sends under ring algorithms.
    pub sent: u64,
    /// Ranks of the group.
    pub ranks: usize,
}

impl Traffic {
    /// A collective over parts that are even.
    pub fn even(kind: CollectiveKind, bytes: u64, ranks: usize) -> Traffic {
        let times = if kind == CollectiveKind::AllReduce { 2 } else { 1 };
        let sent = times * bytes * (ranks as u64).saturating_sub(1) / (ranks as u64).max(1);
        Traffic { kind, bytes, sent, ranks }
    }

    /// Times that a rank sends under ring algorithms.
    pub fn rounds(&self) -> usize {
        let times = if self.kind == CollectiveKind::AllReduce { 2 } else { 1 };
        times * (self.ranks - 1)
    }
}

/// Seconds of a collective on one rank, from when all ranks have come.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct CollectiveSeconds {
    /// Work of a processor.
    pub processor: f64,
    /// Time on the link, in which the processor's work is done too.
    pub link: f64,
    /// Time that it takes longer if a progress thread runs it.
    pub handoff: f64,
}

/// Seconds of a message.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct MessageSeconds {
    /// The sender's work to hand it over.
    pub send: f64,
    /// The receiver's work to take it.
    pub receive: f64,
    /// Time in which the link is busy with it.
    pub busy: f64,
    /// Time from then to its arrival.
    pub latency: f64,
}

/// What the nodes of a rank's lists cost, in seconds.
pub trait NodeCosts {
    /// From an operator's launch to that of the next one.
    ///
    /// # Errors
    /// [`SimError::Cost`] for an operator whose cost is not known.
    fn op(&mut self, op: &Op) -> Result<f64, SimError>;

    /// A copy between the device and the memory that collectives work on.
    fn copy(&mut self, bytes: u64) -> f64;

    /// A collective of a group, where nothing else uses what carries it.
    fn collective(&mut self, group: &ReplayGroup, traffic: Traffic) -> CollectiveSeconds;

    /// A message of so many bytes from one rank of the job to another.
    fn message(&mut self, ranks: [usize; 2], bytes: u64) -> MessageSeconds;

    /// Bytes between a buffer of the host and the second memory, one way: nothing where the machine says nothing of one.
    fn second_memory(&mut self, bytes: u64) -> f64 {
        let _ = bytes;
        0.0
    }

    /// What carries collectives and messages between these ranks of the job.
    fn medium(&mut self, ranks: &[usize]) -> Medium;
}

/// Bytes that one rank copies for a collective.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Copied {
    /// From the device, before it.
    pub read: u64,
    /// To the device, after it.
    pub written: u64,
}

/// A collective that was started.
#[derive(Debug, Clone, Copy)]
struct Started {
    number: usize,
    written: u64,
}

/// Writes the events of one rank.
pub struct RankWriter<'a> {
    step: &'a mut StepEvents,
    costs: &'a mut dyn NodeCosts,
    rank: usize,
    /// Computation that no event has yet.
    compute: f64,
    /// Collectives begun, by group.
    begun: HashMap<usize, usize>,
    /// Those that are not waited for, by group and the list's number.
    started: HashMap<(usize, usize), Started>,
    /// Messages of permutations so far, by sender and receiver.
    permuted: HashMap<(usize, usize), u64>,
    second: SecondMemory,
}

/// Traffic of a rank with its second memory. One thread writes and one reads, each one value after the other. What a unit writes is on its
/// way while the next one runs, and what a unit reads is begun when the unit before it begins.
#[derive(Debug, Default)]
struct SecondMemory {
    /// Places in the list at which this unit and the one before began.
    began: [usize; 2],
    /// Writes of this unit, and those before them that nobody has waited for.
    writes: usize,
    due: VecDeque<usize>,
    /// Reads so far, and the place behind the start of the last.
    reads: usize,
    behind_read: usize,
}

/// Label of the group of a rank and its second memory.
pub const SECOND_MEMORY: &str = "second memory";

/// Bit of a tag that tells messages of permutations from those of a pipeline.
pub const PERMUTATIONS: u64 = 1 << 63;

impl<'a> RankWriter<'a> {
    /// Appends to the list of `rank`. Nothing is written for a rank that has none.
    pub fn new(step: &'a mut StepEvents, costs: &'a mut dyn NodeCosts, rank: usize) -> RankWriter<'a> {
        RankWriter {
            step,
            costs,
            rank,
            compute: 0.0,
            begun: HashMap::new(),
            started: HashMap::new(),
            permuted: HashMap::new(),
            second: SecondMemory::default(),
        }
    }

    /// The number of a group ([`StepEvents::group`]), over the medium of the costs.
    pub fn group(&mut self, label: &str, number: usize, ranks: Vec<usize>, progress: Progress) -> usize {
        let medium = self.costs.medium(&ranks);
        self.step.group(ReplayGroup { label: label.to_owned(), number, ranks, progress, medium })
    }

    /// Ends the list.
    pub fn finish(mut self) {
        self.flush();
    }

    fn flush(&mut self) {
        let seconds = std::mem::take(&mut self.compute);
        if seconds > 0.0 {
            self.event(RankEvent::Compute { seconds });
        }
    }

    fn push(&mut self, event: RankEvent) {
        self.flush();
        self.event(event);
    }

    fn event(&mut self, event: RankEvent) {
        if let Some(list) = self.step.list_of(self.rank) {
            self.step.lists[list].push(event);
        }
    }

    /// An operator.
    ///
    /// # Errors
    /// [`SimError::Cost`].
    pub fn op(&mut self, op: &Op) -> Result<(), SimError> {
        self.compute += self.costs.op(op)?;
        Ok(())
    }

    /// The copies and the processor's work, as the rank's own. What the collective costs, with what is left of the time on the
    /// link.
    fn prepare(&mut self, group: usize, read: u64, traffic: Traffic) -> CollectiveSeconds {
        let cost = self.costs.collective(&self.step.groups[group], traffic);
        self.compute += self.costs.copy(read) + cost.processor;
        *self.begun.entry(group).or_default() += 1;
        CollectiveSeconds { link: (cost.link - cost.processor).max(0.0), ..cost }
    }

    /// A collective that is complete before the rank goes on. Nothing happens in a group of one rank.
    pub fn collective(&mut self, group: usize, name: &str, traffic: Traffic, copied: Copied) {
        if traffic.ranks > 1 {
            let seconds = self.prepare(group, copied.read, traffic).link;
            let name = self.step.name(name);
            self.push(RankEvent::Collective { group, seconds, name });
            self.compute += self.costs.copy(copied.written);
        }
    }

    /// Begins a collective, which [`RankWriter::wait`] knows as `id`. Nothing happens in a group of one rank.
    pub fn start(&mut self, group: usize, id: usize, name: &str, traffic: Traffic, copied: Copied) {
        if traffic.ranks > 1 {
            let cost = self.prepare(group, copied.read, traffic);
            let by_caller = self.step.groups[group].progress == Progress::Caller;
            let seconds = if by_caller { cost.link } else { cost.link + cost.handoff };
            let number = self.begun[&group] - 1;
            self.started.insert((group, id), Started { number, written: copied.written });
            let name = self.step.name(name);
            self.push(RankEvent::Start { group, seconds, name });
        }
    }

    /// Waits for a collective that was started as `id`; what it gives is copied to the device.
    pub fn wait(&mut self, group: usize, id: usize) {
        if let Some(Started { number, written }) = self.started.remove(&(group, id)) {
            self.push(RankEvent::Wait { group, number });
            self.compute += self.costs.copy(written);
        }
    }

    /// Hands over a message of so many bytes of the device.
    pub fn send(&mut self, to: usize, tag: u64, bytes: u64) {
        let ends = [self.rank, to];
        let MessageSeconds { send, busy, latency, .. } = self.costs.message(ends, bytes);
        self.compute += self.costs.copy(bytes) + send;
        let medium = self.costs.medium(&ends);
        self.push(RankEvent::Send { to, tag, busy, latency, medium });
    }

    /// Waits for a message of so many bytes and copies it to the device.
    pub fn receive(&mut self, from: usize, tag: u64, bytes: u64) {
        self.push(RankEvent::Receive { from, tag });
        self.compute += self.costs.message([from, self.rank], bytes).receive + self.costs.copy(bytes);
    }

    /// Hands over what this rank sends in a permutation. The sender, tag and bytes of what it receives, if it receives something.
    fn permute(&mut self, group: usize, c: &Collective) -> Option<(usize, u64, u64)> {
        let ranks = self.step.groups[group].ranks.clone();
        let me = ranks.iter().position(|rank| *rank == self.rank)?;
        if let Some(to) = c.to(me) {
            let (to, bytes) = (ranks[to], c.src.bytes());
            let tag = self.message_tag(self.rank, to);
            self.send(to, tag, bytes);
        }
        let from = ranks[c.from(me)?];
        Some((from, self.message_tag(from, self.rank), c.dst.bytes()))
    }

    fn begin_unit(&mut self) {
        self.flush();
        let place = self.step.list_of(self.rank).map_or(0, |list| self.step.lists[list].len());
        self.second.began = [self.second.began[1], place];
        self.second.writes = 0;
    }

    fn second_group(&mut self, number: usize) -> usize {
        let (label, ranks) = (SECOND_MEMORY.to_owned(), vec![self.rank]);
        self.step.group(ReplayGroup { label, number, ranks, progress: Progress::Thread, medium: Medium::Own })
    }

    /// The copy to a buffer of the host, from where the value goes on to the second memory. Writes of the unit before this one that are
    /// still in flight have the buffers.
    fn offload(&mut self, bytes: u64) {
        let seconds = self.costs.second_memory(bytes);
        if seconds > 0.0 {
            let group = self.second_group(0);
            let written = *self.begun.entry(group).or_default();
            if self.second.due.len() > self.second.writes
                && let Some(number) = self.second.due.pop_front()
            {
                self.push(RankEvent::Wait { group, number });
            }
            self.compute += self.costs.copy(bytes);
            let name = self.step.name("offload");
            self.push(RankEvent::Start { group, seconds, name });
            self.begun.insert(group, written + 1);
            self.second.due.push_back(written);
            self.second.writes += 1;
        } else {
            self.compute += self.costs.copy(bytes);
        }
    }

    /// Waits for a value of the second memory, whose read began when the unit before this one did, and copies it to the device.
    fn reload(&mut self, bytes: u64) {
        let seconds = self.costs.second_memory(bytes);
        if seconds > 0.0
            && let Some(list) = self.step.list_of(self.rank)
        {
            let group = self.second_group(1);
            let name = self.step.name("reload");
            let place = self.second.began[0].max(self.second.behind_read);
            self.step.lists[list].insert(place, RankEvent::Start { group, seconds, name });
            self.second.behind_read = place + 1;
            self.second.began[1] += 1;
            let number = self.second.reads;
            self.second.reads += 1;
            self.push(RankEvent::Wait { group, number });
        }
        self.compute += self.costs.copy(bytes);
    }

    /// A tag for the next message of a permutation from one rank to another: both count them alike.
    fn message_tag(&mut self, from: usize, to: usize) -> u64 {
        let count = self.permuted.entry((from, to)).or_default();
        *count += 1;
        PERMUTATIONS | *count
    }

    /// One phase of a unit. `group_of` gives the group of a collective and the number of its ranks; `first`: the pass begins the
    /// gradients of an update.
    ///
    /// # Errors
    /// [`SimError::Cost`].
    pub fn unit(
        &mut self,
        unit: &UnitProgram,
        phase: Phase,
        first: bool,
        group_of: &dyn Fn(&Collective) -> (usize, usize),
    ) -> Result<(), SimError> {
        self.begin_unit();
        // What permutations that were started bring.
        let mut coming: HashMap<usize, (usize, u64, u64)> = HashMap::new();
        let mut in_flight = BTreeMap::new();
        for node in unit.list(phase) {
            match node {
                Node::Launch(launch) if launch.first_only && !first => {}
                Node::Launch(launch) => self.op(&launch.op)?,
                Node::Collective(c) if c.kind == CollectiveKind::Permute => {
                    let (group, _) = group_of(c);
                    let receive = self.permute(group, c);
                    receive.into_iter().for_each(|(from, tag, bytes)| self.receive(from, tag, bytes));
                }
                Node::Collective(c) => {
                    let (group, ranks) = group_of(c);
                    let (traffic, copied) = of_program(c, ranks);
                    self.collective(group, &c.name, traffic, copied);
                }
                Node::Start(c) if c.kind == CollectiveKind::Permute => {
                    let (group, _) = group_of(c);
                    let receive = self.permute(group, c);
                    // Without a thread a start lasts until what it receives is there.
                    if self.step.groups[group].progress == Progress::Caller {
                        receive.into_iter().for_each(|(from, tag, bytes)| self.receive(from, tag, bytes));
                    } else if let Some(message) = receive {
                        coming.insert(c.id, message);
                    }
                }
                Node::Start(c) => {
                    let (group, ranks) = group_of(c);
                    let (traffic, copied) = of_program(c, ranks);
                    in_flight.insert(c.id, group);
                    self.start(group, c.id, &c.name, traffic, copied);
                }
                Node::Offload(moved) => self.offload(moved.bytes() as u64),
                Node::Reload(moved) => self.reload(moved.bytes() as u64),
                Node::Wait { id, .. } => match coming.remove(id) {
                    Some((from, tag, bytes)) => self.receive(from, tag, bytes),
                    None => in_flight.get(id).into_iter().for_each(|group| self.wait(*group, *id)),
                },
            }
        }
        Ok(())
    }
}

/// Cost of a collective of a unit program. The rows of the whole matrix are spread evenly over the ranks, those of a piece are
/// not: they may all be one rank's, which then sends to all others.
fn of_program(c: &Collective, ranks: usize) -> (Traffic, Copied) {
    let element = c.src.dtype().size() as u64;
    let bytes = (c.rows.len() * c.row_len()) as u64 * element;
    let part = bytes / ranks as u64;
    let (bytes, read, written) = match c.kind {
        CollectiveKind::AllReduce => (bytes, bytes, bytes),
        CollectiveKind::ReduceScatter => (bytes, bytes, part),
        CollectiveKind::AllGather => (bytes, part, bytes),
        // Messages ([`RankWriter::permute`]).
        CollectiveKind::Permute => (bytes, c.src.bytes(), c.dst.bytes()),
        CollectiveKind::AllToAll => {
            let sent: usize = (0..ranks).map(|to| c.exchanged(ranks, 0, to)).sum();
            (sent as u64 * element, sent as u64 * element, c.dst.len() as u64 * element)
        }
    };
    let sent = (0..ranks).map(|rank| c.bytes_sent(ranks, rank)).max().unwrap_or(0);
    (Traffic { kind: c.kind, bytes, sent, ranks }, Copied { read, written })
}
