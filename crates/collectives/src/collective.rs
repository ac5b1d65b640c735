//! A collective as a plain value: what is moved between which ranks, under which name.

use crate::{HostSliceMut, Memory};

/// Kind of a collective.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CollectiveKind {
    /// [`Pattern::AllReduce`].
    AllReduce,
    /// [`Pattern::ReduceScatter`].
    ReduceScatter,
    /// [`Pattern::AllGather`].
    AllGather,
    /// [`Pattern::AllToAll`].
    AllToAll,
    /// [`Pattern::Broadcast`].
    Broadcast,
    /// [`Pattern::Send`].
    Send,
    /// [`Pattern::Receive`].
    Receive,
    /// [`Pattern::Barrier`].
    Barrier,
}

impl CollectiveKind {
    /// Every kind, in the order of their codes in frames.
    pub const ALL: [CollectiveKind; 8] = [
        CollectiveKind::AllReduce,
        CollectiveKind::ReduceScatter,
        CollectiveKind::AllGather,
        CollectiveKind::AllToAll,
        CollectiveKind::Broadcast,
        CollectiveKind::Send,
        CollectiveKind::Receive,
        CollectiveKind::Barrier,
    ];

    /// Name in messages: "all-reduce".
    pub const fn name(self) -> &'static str {
        match self {
            CollectiveKind::AllReduce => "all-reduce",
            CollectiveKind::ReduceScatter => "reduce-scatter",
            CollectiveKind::AllGather => "all-gather",
            CollectiveKind::AllToAll => "all-to-all",
            CollectiveKind::Broadcast => "broadcast",
            CollectiveKind::Send => "send",
            CollectiveKind::Receive => "receive",
            CollectiveKind::Barrier => "barrier",
        }
    }
}

/// How the values of several ranks become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reduce {
    /// The sum. Floats are added in f32, rank 0 first, and rounded once at the end; u32 are added modulo 2^32.
    Sum,
    /// The largest value; NaN if one of them is.
    Max,
}

/// Bounds of each rank's part of a whole: part r is elements `bounds[r] .. bounds[r + 1]`. Parts may have different
/// lengths, or be empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Parts {
    bounds: Vec<usize>,
}

impl Parts {
    /// No parts.
    pub(crate) const fn none() -> Parts {
        Parts { bounds: Vec::new() }
    }

    /// `len` elements over `ranks` ranks, the first `len % ranks` of which have one more.
    pub fn even(len: usize, ranks: usize) -> Parts {
        let (each, more) = (len / ranks, len % ranks);
        Parts { bounds: (0..=ranks).map(|r| r * each + r.min(more)).collect() }
    }

    /// Parts of these lengths.
    pub fn of(lengths: impl IntoIterator<Item = usize>) -> Parts {
        let mut parts = Parts::default();
        parts.set(lengths);
        parts
    }

    /// Changes the parts to these lengths. Memory that it has is used again.
    pub fn set(&mut self, lengths: impl IntoIterator<Item = usize>) {
        self.bounds.clear();
        self.bounds.push(0);
        let mut end = 0;
        self.bounds.extend(lengths.into_iter().map(|length| {
            end += length;
            end
        }));
    }

    /// Changes the parts to those of `other`. Memory that it has is used again.
    pub(crate) fn copy_from(&mut self, other: &Parts) {
        self.bounds.clone_from(&other.bounds);
    }

    /// Number of parts.
    pub fn count(&self) -> usize {
        self.bounds.len().saturating_sub(1)
    }

    /// Elements of the whole.
    pub fn len(&self) -> usize {
        self.bounds.last().copied().unwrap_or(0)
    }

    /// True if the whole has no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Elements of part `rank`.
    pub fn range(&self, rank: usize) -> std::ops::Range<usize> {
        self.bounds[rank]..self.bounds[rank + 1]
    }
}

/// Address of one point-to-point message, as either end names it.
///
/// # How a pipeline uses messages
/// ```text
/// stage s, micro-batch m, forward           pipeline.receive(Message::new("activation", m, s - 1), values)?;
///                                           ... compute ...
///                                           pipeline.send(Message::new("activation", m, s + 1), values)?;
/// backward                                  pipeline.receive(Message::new("gradient", m, s + 1), values)?;
///                                           ... compute ...
///                                           pipeline.send(Message::new("gradient", m, s - 1), values)?;
/// is there anything to do meanwhile?        pipeline.arrived(Message::new("activation", m + 1, s - 1))?
/// ```
/// - The communicator is a group of the stages, in their order: `world.group("pipeline", &stages)?`. Any two ranks of it
///   may exchange messages. The ledger counts them under its label, kinds `Send` and `Receive`.
/// - A send copies the values and returns. It never waits for the receiver, and the values may be used again at once.
///   There is nothing to complete later. Over MPI the progress thread moves the bytes.
/// - A receive waits for the first message of this sender with this tag, wherever it stands among those that have
///   arrived, and copies it. Messages with the same tag arrive in the order in which they were sent, so a tag may be used
///   again in the next step.
/// - A message under a known tag but with another name, type or number of elements is an error on the receiver, naming
///   both ranks and the tag. So is a sender that is gone, or one that sends nothing for as long as the group's patience;
///   the error then lists the tags that did arrive and that nobody asked for.
/// - Messages in flight are buffered at the receiver, so a schedule bounds them. Buffers are used again: a step that
///   sends what the last one sent allocates nothing.
/// - A tag is any number that both ends agree on: the micro-batch, or micro-batch and chunk packed into one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message<'a> {
    /// Name of the values: "activation", "gradient".
    pub name: &'a str,
    /// Number among the messages of that name.
    pub tag: u64,
    /// Rank of the group at the other end.
    pub peer: usize,
}

impl<'a> Message<'a> {
    /// Message `tag` of values `name` to or from rank `peer` of the group.
    pub fn new(name: &'a str, tag: u64, peer: usize) -> Message<'a> {
        Message { name, tag, peer }
    }
}

/// Data movement of a collective. Memory is what [`crate::Communicator::run`] gets beside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pattern<'a> {
    /// Every rank has the reduction of all ranks' values. In place.
    AllReduce(Reduce),
    /// This rank's part of the values becomes the reduction of that part over the ranks. In place; the other parts are
    /// left in an unspecified state.
    ReduceScatter(&'a Parts, Reduce),
    /// Part r of every rank's values becomes what it is on rank r. In place.
    AllGather(&'a Parts),
    /// Part r of what is sent goes to rank r; part r of what is received comes from rank r. Parts may differ between
    /// ranks as long as both ends of each pair agree; both sides have the same type.
    AllToAll {
        /// Parts of what is sent.
        send: &'a Parts,
        /// Parts of what is received.
        receive: &'a Parts,
    },
    /// Every rank has what this rank had. In place.
    Broadcast {
        /// Rank whose values all get.
        root: usize,
    },
    /// Values to one other rank, which receives them under the same name and tag. Returns before they have arrived.
    Send {
        /// Receiver.
        peer: usize,
        /// Number among the messages of this name.
        tag: u64,
    },
    /// Values from one other rank.
    Receive {
        /// Sender.
        peer: usize,
        /// Number among the messages of this name.
        tag: u64,
    },
    /// Returns when every rank has called it.
    Barrier,
}

impl Pattern<'_> {
    /// Returns the same pattern over other parts; `received` are those of what an all-to-all receives.
    pub(crate) fn with_parts<'p>(&self, parts: &'p Parts, received: &'p Parts) -> Pattern<'p> {
        match *self {
            Pattern::AllReduce(reduce) => Pattern::AllReduce(reduce),
            Pattern::ReduceScatter(_, reduce) => Pattern::ReduceScatter(parts, reduce),
            Pattern::AllGather(_) => Pattern::AllGather(parts),
            Pattern::AllToAll { .. } => Pattern::AllToAll { send: parts, receive: received },
            Pattern::Broadcast { root } => Pattern::Broadcast { root },
            Pattern::Send { peer, tag } => Pattern::Send { peer, tag },
            Pattern::Receive { peer, tag } => Pattern::Receive { peer, tag },
            Pattern::Barrier => Pattern::Barrier,
        }
    }
}

/// One collective of a group, without its memory. Every rank of the group runs the same collectives in the same order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Collective<'a> {
    /// Name of the values: "layers.3.attention.out", "gradients 7". Ranks that run collectives of different names are an
    /// error on all of them, and errors name it.
    pub name: &'a str,
    /// Pattern of the collective.
    pub pattern: Pattern<'a>,
    /// Time before which a sent message counts as in flight, in nanoseconds since 1970; 0: none. For [`crate::Delayed`].
    pub(crate) not_before: u64,
}

impl<'a> Collective<'a> {
    /// Collective `pattern` of values `name`.
    pub fn new(name: &'a str, pattern: Pattern<'a>) -> Collective<'a> {
        Collective { name, pattern, not_before: 0 }
    }

    /// Sends a message.
    pub fn send(message: Message<'a>) -> Collective<'a> {
        Collective::new(message.name, Pattern::Send { peer: message.peer, tag: message.tag })
    }

    /// Receives a message.
    pub fn receive(message: Message<'a>) -> Collective<'a> {
        Collective::new(message.name, Pattern::Receive { peer: message.peer, tag: message.tag })
    }

    /// Kind of the collective.
    pub fn kind(&self) -> CollectiveKind {
        match self.pattern {
            Pattern::AllReduce(_) => CollectiveKind::AllReduce,
            Pattern::ReduceScatter(..) => CollectiveKind::ReduceScatter,
            Pattern::AllGather(_) => CollectiveKind::AllGather,
            Pattern::AllToAll { .. } => CollectiveKind::AllToAll,
            Pattern::Broadcast { .. } => CollectiveKind::Broadcast,
            Pattern::Send { .. } => CollectiveKind::Send,
            Pattern::Receive { .. } => CollectiveKind::Receive,
            Pattern::Barrier => CollectiveKind::Barrier,
        }
    }

    /// Memory of this collective in one slice; that of an all-to-all holds what is sent, and after it what is received.
    pub(crate) fn memory<'m>(&self, values: HostSliceMut<'m>) -> Memory<'m> {
        match self.pattern {
            Pattern::Barrier => Memory::Empty,
            Pattern::Send { .. } => Memory::Read(values.into_slice()),
            Pattern::AllToAll { send, .. } => {
                let (send, receive) = values.split(send.len());
                Memory::Exchange { send: send.into_slice(), receive }
            }
            _ => Memory::InPlace(values),
        }
    }

    /// Reduction of the values, if there is one.
    pub fn reduce(&self) -> Option<Reduce> {
        match self.pattern {
            Pattern::AllReduce(reduce) | Pattern::ReduceScatter(_, reduce) => Some(reduce),
            _ => None,
        }
    }

    /// Parts of the values that this rank brings, if they have parts of their own.
    pub fn parts(&self) -> Option<&'a Parts> {
        match self.pattern {
            Pattern::ReduceScatter(parts, _)
            | Pattern::AllGather(parts)
            | Pattern::AllToAll { send: parts, .. } => Some(parts),
            _ => None,
        }
    }

    /// Parts of what this rank receives in an all-to-all.
    pub(crate) fn received_parts(&self) -> Option<&'a Parts> {
        match self.pattern {
            Pattern::AllToAll { receive, .. } => Some(receive),
            _ => None,
        }
    }

    /// Root of a broadcast, or the other end of a message.
    pub fn peer(&self) -> Option<usize> {
        match self.pattern {
            Pattern::Broadcast { root: peer }
            | Pattern::Send { peer, .. }
            | Pattern::Receive { peer, .. } => Some(peer),
            _ => None,
        }
    }

    /// Tag of a message.
    pub fn tag(&self) -> Option<u64> {
        match self.pattern {
            Pattern::Send { tag, .. } | Pattern::Receive { tag, .. } => Some(tag),
            _ => None,
        }
    }
}
