//! Events of the lists that a rank runs: operators, collectives, messages.

use super::routed::RoutedUnit;
use super::{
    CollectiveSeconds, Copied, Medium, MessageSeconds, NodeCosts, Progress, RankEvent, ReplayGroup,
    RoutingProfile, StepEvents, Traffic,
};
use crate::SimError;
use crate::shadow::ShadowChoice;
use bessemer_program::{Collective, CollectiveKind, Node, Phase, UnitProgram};
use bessemer_tensor::op::Op;
use std::collections::{BTreeMap, HashMap, VecDeque};

/// A collective of a rank's list.
#[derive(Debug, Clone, Copy)]
struct Planned {
    group: usize,
    /// Number of its name.
    name: usize,
    seconds: CollectiveSeconds,
    /// Seconds of the copies before and after it.
    copies: [f64; 2],
}

/// Messages of a permutation.
#[derive(Debug, Clone, Copy)]
struct Permuted {
    group: usize,
    /// What this rank sends, and where.
    sent: Option<(usize, Sent)>,
    /// Where what it receives comes from, and its seconds of work for that.
    received: Option<(usize, f64)>,
}

/// A message that is sent.
#[derive(Debug, Clone, Copy)]
struct Sent {
    /// The sender's work.
    work: f64,
    busy: f64,
    latency: f64,
    medium: Medium,
}

/// What a node of a unit costs a rank.
#[derive(Debug, Clone, Copy)]
enum NodeCost {
    /// Launches: seconds.
    Compute(f64),
    Collective(Planned),
    Permute(Permuted),
    /// Launches that do not happen, waits, collectives of one rank, and what moves to or from the second memory, which depends on the units before.
    Nothing,
}

/// What the nodes of a pass over a unit cost a rank. It is the same in every micro-batch of as many tokens.
#[derive(Debug, Clone)]
pub struct UnitCosts {
    nodes: Vec<NodeCost>,
}

/// A collective that was started and is not waited for.
#[derive(Debug, Clone, Copy)]
struct Started {
    group: usize,
    id: usize,
    number: usize,
    /// Seconds of the copy after it.
    written: f64,
}

/// A message that is on its way to a rank.
#[derive(Debug, Clone, Copy)]
struct Coming {
    from: usize,
    tag: u64,
    /// The receiver's work.
    work: f64,
}

/// Writes the events of one rank.
pub struct RankWriter<'a> {
    step: &'a mut StepEvents,
    costs: &'a mut dyn NodeCosts,
    rank: usize,
    /// Position of its list.
    list: Option<usize>,
    /// Computation that no event has yet.
    compute: f64,
    /// Collectives begun, by group.
    begun: Vec<usize>,
    /// Those that are not waited for.
    started: Vec<Started>,
    /// Messages of permutations so far, by sender and receiver.
    permuted: HashMap<(usize, usize), u64>,
    second: SecondMemory,
    /// Routes of tokens to experts.
    routing: RoutingProfile,
    /// Shadows of experts by layer, where there may be some.
    shadows: BTreeMap<usize, ShadowChoice>,
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
            list: step.list_of(rank),
            step,
            costs,
            rank,
            compute: 0.0,
            begun: Vec::new(),
            started: Vec::new(),
            permuted: HashMap::new(),
            second: SecondMemory::default(),
            routing: RoutingProfile::default(),
            shadows: BTreeMap::new(),
        }
    }

    /// The same with other routes than balanced ones.
    pub fn routed(self, routing: RoutingProfile) -> RankWriter<'a> {
        RankWriter { routing, ..self }
    }

    /// The number of a group ([`StepEvents::group`]), over the medium of the costs.
    pub fn group(&mut self, label: &str, number: usize, ranks: Vec<usize>, progress: Progress) -> usize {
        let medium = self.costs.medium(&ranks);
        self.step.group(ReplayGroup { label: label.to_owned(), number, ranks, progress, medium })
    }

    /// Ends the list. Returns the shadows of experts by layer.
    pub fn finish(mut self) -> BTreeMap<usize, ShadowChoice> {
        self.flush();
        self.shadows
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
        if let Some(list) = self.list {
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

    /// A collective as this rank plans it; nothing in a group of one rank.
    fn plan(&mut self, group: usize, name: &str, traffic: Traffic, copied: Copied) -> Option<Planned> {
        (traffic.ranks > 1).then(|| Planned {
            group,
            name: self.step.name(name),
            seconds: self.costs.collective(&self.step.groups[group], traffic),
            copies: [copied.read, copied.written].map(|bytes| self.costs.copy(bytes)),
        })
    }

    /// The copy before a collective and the processor's work, as the rank's own. What is left of the time on the link, and the collective's
    /// number.
    fn begin(&mut self, Planned { group, seconds, copies, .. }: Planned) -> (f64, usize) {
        self.compute += copies[0] + seconds.processor;
        ((seconds.link - seconds.processor).max(0.0), self.count(group))
    }

    /// The number of the next collective of a group.
    fn count(&mut self, group: usize) -> usize {
        if self.begun.len() <= group {
            self.begun.resize(group + 1, 0);
        }
        self.begun[group] += 1;
        self.begun[group] - 1
    }

    /// A collective that is complete before the rank goes on. Nothing happens in a group of one rank.
    pub fn collective(&mut self, group: usize, name: &str, traffic: Traffic, copied: Copied) {
        if let Some(planned) = self.plan(group, name, traffic, copied) {
            self.run_collective(planned);
        }
    }

    fn run_collective(&mut self, planned: Planned) {
        let (seconds, _) = self.begin(planned);
        let Planned { group, name, copies, .. } = planned;
        self.push(RankEvent::Collective { group, seconds, name });
        self.compute += copies[1];
    }

    /// Begins a collective, which [`RankWriter::wait`] knows as `id`. Nothing happens in a group of one rank.
    pub fn start(&mut self, group: usize, id: usize, name: &str, traffic: Traffic, copied: Copied) {
        if let Some(planned) = self.plan(group, name, traffic, copied) {
            self.start_collective(id, planned);
        }
    }

    fn start_collective(&mut self, id: usize, planned: Planned) {
        let (link, number) = self.begin(planned);
        let Planned { group, name, seconds, copies } = planned;
        let by_caller = self.step.groups[group].progress == Progress::Caller;
        let seconds = if by_caller { link } else { link + seconds.handoff };
        self.started.push(Started { group, id, number, written: copies[1] });
        self.push(RankEvent::Start { group, seconds, name });
    }

    /// Waits for a collective that was started as `id`; what it gives is copied to the device.
    pub fn wait(&mut self, group: usize, id: usize) {
        if let Some(place) = self.started.iter().position(|s| (s.group, s.id) == (group, id)) {
            let Started { number, written, .. } = self.started.swap_remove(place);
            self.push(RankEvent::Wait { group, number });
            self.compute += written;
        }
    }

    /// A message of so many bytes of the device between two ranks, of which this one is the first.
    fn sent(&mut self, ends: [usize; 2], bytes: u64) -> Sent {
        let MessageSeconds { send, busy, latency, .. } = self.costs.message(ends, bytes);
        Sent { work: self.costs.copy(bytes) + send, busy, latency, medium: self.costs.medium(&ends) }
    }

    /// A rank's work for a message of so many bytes from another one, the copy to the device included.
    fn received(&mut self, from: usize, bytes: u64) -> f64 {
        self.costs.message([from, self.rank], bytes).receive + self.costs.copy(bytes)
    }

    /// Hands over a message of so many bytes of the device.
    pub fn send(&mut self, to: usize, tag: u64, bytes: u64) {
        let sent = self.sent([self.rank, to], bytes);
        self.hand_over(to, tag, sent);
    }

    fn hand_over(&mut self, to: usize, tag: u64, Sent { work, busy, latency, medium }: Sent) {
        self.compute += work;
        self.push(RankEvent::Send { to, tag, busy, latency, medium });
    }

    /// Waits for a message of so many bytes and copies it to the device.
    pub fn receive(&mut self, from: usize, tag: u64, bytes: u64) {
        let work = self.received(from, bytes);
        self.take(Coming { from, tag, work });
    }

    fn take(&mut self, Coming { from, tag, work }: Coming) {
        self.push(RankEvent::Receive { from, tag });
        self.compute += work;
    }

    /// Messages of a permutation. Where only the first ranks of the group have lists, they stand for the others in turn: a message to a
    /// rank without a list goes to the one that stands for it, which may be the sender.
    fn plan_permutation(&mut self, group: usize, c: &Collective) -> Permuted {
        let ranks = self.step.groups[group].ranks.clone();
        let lists = ranks.iter().filter(|rank| self.step.list_of(**rank).is_some()).count().max(1);
        let me = ranks.iter().position(|rank| *rank == self.rank);
        let stands = |member: usize| ranks[member % lists];
        let to = me.and_then(|me| c.to(me));
        let from = me.and_then(|me| c.from(me));
        Permuted {
            group,
            sent: to.map(|to| (stands(to), self.sent([self.rank, ranks[to]], c.src.bytes()))),
            received: from.map(|from| (stands(from), self.received(ranks[from], c.dst.bytes()))),
        }
    }

    /// Hands over what this rank sends in a permutation, and returns what it receives.
    fn permute(&mut self, Permuted { sent, received, .. }: Permuted) -> Option<Coming> {
        let mut to_itself = None;
        if let Some((to, sent)) = sent {
            let tag = self.message_tag(self.rank, to);
            self.hand_over(to, tag, sent);
            to_itself = (to == self.rank).then_some(tag);
        }
        let (from, work) = received?;
        let tag = match to_itself {
            Some(tag) => tag,
            None => self.message_tag(from, self.rank),
        };
        Some(Coming { from, tag, work })
    }

    fn begin_unit(&mut self) {
        self.flush();
        let place = self.list.map_or(0, |list| self.step.lists[list].len());
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
            let written = self.count(group);
            if self.second.due.len() > self.second.writes
                && let Some(number) = self.second.due.pop_front()
            {
                self.push(RankEvent::Wait { group, number });
            }
            self.compute += self.costs.copy(bytes);
            let name = self.step.name("offload");
            self.push(RankEvent::Start { group, seconds, name });
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
            && let Some(list) = self.list
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

    /// What the nodes of a pass over a unit cost this rank. `group_of` gives the group of a collective and the number of its ranks; `first`: the
    /// pass begins the gradients of an update. `layer`: the model's, if the unit is one.
    ///
    /// # Errors
    /// [`SimError::Cost`]; [`SimError::Routing`] for loads of another model.
    pub fn unit_costs(
        &mut self,
        unit: &UnitProgram,
        (layer, phase): (Option<usize>, Phase),
        first: bool,
        group_of: &dyn Fn(&Collective) -> (usize, usize),
    ) -> Result<UnitCosts, SimError> {
        let routed = match layer {
            Some(layer) => RoutedUnit::new(unit, layer, &self.routing, &|c| self.place(group_of(c).0))?,
            None => None,
        };
        let choice = routed.as_ref().and_then(RoutedUnit::choice);
        self.shadows.extend(layer.zip(choice.cloned()));
        let cost = |node: &Node| {
            Ok(match node {
                Node::Launch(launch) if launch.first_only && !first => NodeCost::Nothing,
                Node::Launch(launch) => {
                    let cut = routed.as_ref().and_then(|routed| routed.on_rows(&launch.op));
                    NodeCost::Compute(self.costs.op(cut.as_ref().unwrap_or(&launch.op))?)
                }
                Node::Collective(c) | Node::Start(c) if c.kind == CollectiveKind::Permute => {
                    NodeCost::Permute(self.plan_permutation(group_of(c).0, c))
                }
                Node::Collective(c) | Node::Start(c) => {
                    if let Some(bytes) = routed.as_ref().and_then(|routed| routed.own_copy(c)) {
                        return Ok(NodeCost::Compute(self.costs.copy(bytes)));
                    }
                    let (group, ranks) = group_of(c);
                    let (traffic, copied) = match (&routed, c.by_counts) {
                        (Some(routed), Some(by)) => routed.traffic(c, by),
                        _ => of_program(c, ranks, self.place(group)),
                    };
                    let planned = self.plan(group, &c.name, traffic, copied);
                    planned.map_or(NodeCost::Nothing, NodeCost::Collective)
                }
                Node::Offload(_) | Node::Reload(_) | Node::Wait { .. } => NodeCost::Nothing,
            })
        };
        let list = unit.list(phase);
        let nodes = list.iter().map(cost).collect::<Result<_, SimError>>()?;
        Ok(UnitCosts { nodes })
    }

    /// Place of this rank in a group.
    fn place(&self, group: usize) -> usize {
        let index = self.step.groups[group].ranks.iter().position(|member| *member == self.rank);
        index.unwrap_or(0)
    }

    /// Whether a unit's costs are wanted anew for each pass over it ([`NodeCosts::counts`]).
    pub fn counts(&self) -> bool {
        self.costs.counts()
    }

    /// A pass over a unit, of which [`RankWriter::unit_costs`] gave the costs.
    pub fn unit(&mut self, unit: &UnitProgram, phase: Phase, costs: &UnitCosts) {
        self.begin_unit();
        // What permutations that were started bring, and the groups of other collectives that were, by their numbers.
        let mut coming: Vec<(usize, Coming)> = Vec::new();
        let mut in_flight: Vec<(usize, usize)> = Vec::new();
        for (node, cost) in unit.list(phase).iter().zip(&costs.nodes) {
            match (node, *cost) {
                (_, NodeCost::Compute(seconds)) => self.compute += seconds,
                (Node::Start(c), NodeCost::Permute(permuted)) => {
                    let message = self.permute(permuted);
                    // Without a thread a start lasts until what it receives is there.
                    if self.step.groups[permuted.group].progress == Progress::Caller {
                        message.into_iter().for_each(|message| self.take(message));
                    } else {
                        coming.extend(message.map(|message| (c.id, message)));
                    }
                }
                (_, NodeCost::Permute(permuted)) => {
                    let message = self.permute(permuted);
                    message.into_iter().for_each(|message| self.take(message));
                }
                (Node::Start(c), NodeCost::Collective(planned)) => {
                    in_flight.push((c.id, planned.group));
                    self.start_collective(c.id, planned);
                }
                (_, NodeCost::Collective(planned)) => self.run_collective(planned),
                (Node::Offload(moved), _) => self.offload(moved.bytes() as u64),
                (Node::Reload(moved), _) => self.reload(moved.bytes() as u64),
                (Node::Wait { id, .. }, _) => {
                    if let Some(place) = coming.iter().position(|(of, _)| of == id) {
                        self.take(coming.swap_remove(place).1);
                    } else if let Some((_, group)) = in_flight.iter().find(|(of, _)| of == id) {
                        self.wait(*group, *id);
                    }
                }
                (_, NodeCost::Nothing) => {}
            }
        }
    }
}

/// Cost of a collective of a unit program. The rows of the whole matrix are spread evenly over the ranks, those of a piece are
/// not: they may all be one rank's, which then sends to all others.
fn of_program(c: &Collective, ranks: usize, me: usize) -> (Traffic, Copied) {
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
    let own = c.bytes_sent(ranks, me);
    (Traffic { kind: c.kind, bytes, sent, own, ranks }, Copied { read, written })
}
