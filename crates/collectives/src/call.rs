//! One call of a collective: what ranks must agree on, what cannot be right, and its bytes.

use crate::error::CallSite;
use crate::{Collective, CollectiveError, CollectiveKind, ElementType, Memory, Parts, Pattern, Reduce};
use std::ops::Range;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// Description of a call on which all ranks of a group must agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Signature {
    /// Kind; "send" at both ends of a message.
    pub(crate) kind: CollectiveKind,
    pub(crate) element: Option<ElementType>,
    pub(crate) reduce: Option<Reduce>,
    pub(crate) root: u32,
    /// Number of elements; zero where it may differ between ranks.
    pub(crate) len: u64,
    /// Hash of the bounds of the parts.
    pub(crate) parts: u64,
    /// Hash of the name.
    pub(crate) name: u64,
}

impl Signature {
    /// Text for messages: `all-reduce of "loss" (sum of 1 f32)`.
    pub(crate) fn describe(&self, name: &str) -> String {
        let mut text = format!("{} of {name:?}", self.kind.name());
        let Some(element) = self.element.map(ElementType::name) else { return text };
        let reduction = match self.reduce {
            Some(Reduce::Sum) => "sum of ",
            Some(Reduce::Max) => "maximum of ",
            None => "",
        };
        text += &match self.kind {
            CollectiveKind::AllToAll => format!(" ({element})"),
            CollectiveKind::Broadcast => format!(" ({} {element}, root {})", self.len, self.root),
            CollectiveKind::ReduceScatter | CollectiveKind::AllGather => {
                format!(" ({reduction}{} {element}, parts {:04x})", self.len, self.parts & 0xffff)
            }
            _ => format!(" ({reduction}{} {element})", self.len),
        };
        text
    }
}

/// A name with the tag of a message: "activation, tag 3".
pub(crate) fn with_tag(name: &str, tag: Option<u64>) -> String {
    tag.map_or_else(|| name.to_owned(), |tag| format!("{name}, tag {tag}"))
}

/// The error of a receive that finds another message of rank `peer` under its tag.
pub(crate) fn other_message(
    call: &Call<'_>,
    group: (&str, usize),
    peer: usize,
    signature: &Signature,
    name: &str,
) -> CollectiveError {
    let there = signature.describe(&with_tag(name, call.tag()));
    let wanted = Signature { kind: CollectiveKind::Receive, ..call.signature() }.describe(call.name);
    let there = format!("{there} to rank {}, which wanted {wanted}", group.1).into();
    CollectiveError::Mismatch { site: call.site(group.0, group.1), peer, there }
}

/// Text for a time-out error: messages of `from` that arrived and that no call asked for.
pub(crate) fn unread_messages<'a>(
    from: usize,
    unread: impl Iterator<Item = (&'a str, u64)>,
) -> Option<String> {
    let list: Vec<String> = unread.take(8).map(|(name, tag)| with_tag(name, Some(tag))).collect();
    (!list.is_empty()).then(|| format!("Unexpected from rank {from}: {}.", list.join("; ")))
}

/// Time until a message counts as arrived; `None` once it has.
pub(crate) fn still_in_flight(not_before: u64) -> Option<Duration> {
    let until = UNIX_EPOCH + Duration::from_nanos(not_before);
    (not_before > 0).then(|| until.duration_since(SystemTime::now()).ok()).flatten()
}

/// Bytes over the links of one rank.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Volume {
    /// Bytes sent.
    pub sent: u64,
    /// Bytes received.
    pub received: u64,
}

/// Part `rank` of [`Parts::even`], without making one.
pub(crate) fn even(len: usize, ranks: usize, rank: usize) -> Range<usize> {
    let (each, more) = (len / ranks, len % ranks);
    let from = rank * each + rank.min(more);
    from..from + each + usize::from(rank < more)
}

/// Piece `k` of a part, in pieces of `size`; empty behind its end.
pub(crate) fn piece(part: &Range<usize>, k: usize, size: usize) -> Range<usize> {
    let from = (part.start + k * size).min(part.end);
    from..(from + size).min(part.end)
}

/// A collective with what its memory says: the type and number of this rank's elements.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Call<'a> {
    collective: &'a Collective<'a>,
    /// `None` for barriers and looks for a message.
    pub(crate) element: Option<ElementType>,
    /// Number of elements of this rank's values.
    pub(crate) len: usize,
    /// Type and number of what an all-to-all receives.
    received: Option<(ElementType, usize)>,
    /// The memory is of the form that the pattern takes.
    fits: bool,
}

impl<'a> std::ops::Deref for Call<'a> {
    type Target = Collective<'a>;

    fn deref(&self) -> &Collective<'a> {
        self.collective
    }
}

impl<'a> Call<'a> {
    pub(crate) fn new(collective: &'a Collective<'a>, memory: &Memory<'_>) -> Call<'a> {
        let (values, received) = match memory {
            Memory::Empty => (None, None),
            Memory::Read(values) => (Some(*values), None),
            Memory::InPlace(values) => (Some(values.as_slice()), None),
            Memory::Exchange { send, receive } => {
                (Some(*send), Some((receive.element, receive.as_slice().len())))
            }
        };
        let fits = match collective.pattern {
            Pattern::Barrier => matches!(memory, Memory::Empty),
            Pattern::Send { .. } => matches!(memory, Memory::Read(_)),
            Pattern::AllToAll { .. } => matches!(memory, Memory::Exchange { .. }),
            _ => matches!(memory, Memory::InPlace(_)),
        };
        let (element, len) = (values.map(|v| v.element), values.map_or(0, |v| v.len()));
        Call { collective, element, len, received, fits }
    }

    /// A look for a message, which has no memory.
    pub(crate) fn look(collective: &'a Collective<'a>) -> Call<'a> {
        Call { collective, element: None, len: 0, received: None, fits: true }
    }

    /// Bytes of one element.
    pub(crate) fn element_bytes(&self) -> usize {
        self.element.map_or(0, ElementType::size)
    }

    /// Returns what the other ranks must call too.
    pub(crate) fn signature(&self) -> Signature {
        let kind = self.kind();
        let message = matches!(kind, CollectiveKind::Send | CollectiveKind::Receive);
        let mut hash = Xxh3::new();
        if let Some(parts) = self.parts().filter(|_| kind != CollectiveKind::AllToAll) {
            for r in 0..parts.count() {
                hash.update(&(parts.range(r).end as u64).to_le_bytes());
            }
        }
        Signature {
            kind: if message { CollectiveKind::Send } else { kind },
            element: self.element,
            reduce: self.reduce(),
            root: if message { 0 } else { self.peer().unwrap_or(0) as u32 },
            len: if kind == CollectiveKind::AllToAll { 0 } else { self.len as u64 },
            parts: hash.digest(),
            name: xxh3_64(self.name.as_bytes()),
        }
    }

    /// Returns where a rank is that runs this call.
    pub(crate) fn site(&self, group: &str, rank: usize) -> Box<CallSite> {
        let (collective, name) = (self.kind().name(), with_tag(self.name, self.tag()));
        Box::new(CallSite { group: group.into(), rank, collective, name })
    }

    /// Refuses what cannot be right whatever the others do.
    pub(crate) fn check(&self, group: &str, rank: usize, size: usize) -> Result<(), CollectiveError> {
        let problem = self.memory_problem().or_else(|| self.parts_problem(rank, size)).or_else(|| match self
            .peer(
        )? {
            peer if peer >= size => Some(format!("there is no rank {peer} in a group of {size}")),
            peer if peer == rank && self.tag().is_some() => {
                Some("a rank does not send to itself".to_string())
            }
            _ => None,
        });
        match problem {
            None => Ok(()),
            Some(problem) => {
                Err(CollectiveError::Call { site: self.site(group, rank), problem: problem.into() })
            }
        }
    }

    fn memory_problem(&self) -> Option<String> {
        if !self.fits {
            return Some(format!("the memory does not have the form that {} needs", self.kind().name()));
        }
        if self.reduce().is_some() && self.element == Some(ElementType::U8) {
            return Some("u8 values are bytes, which have no sum and no maximum: send them as u32".into());
        }
        let (received, _) = self.received?;
        (self.element != Some(received))
            .then(|| "the values to send and those to receive have different types".to_string())
    }

    fn parts_problem(&self, rank: usize, size: usize) -> Option<String> {
        let parts_fit = |what: &str, parts: &Parts, len: usize| {
            if parts.count() != size {
                Some(format!("{what}: {} parts for {size} ranks", parts.count()))
            } else if parts.len() != len {
                Some(format!("{what}: the parts are of {} elements, the values of {len}", parts.len()))
            } else {
                None
            }
        };
        match self.pattern {
            Pattern::ReduceScatter(parts, _) | Pattern::AllGather(parts) => {
                parts_fit("values", parts, self.len)
            }
            Pattern::AllToAll { send, receive } => parts_fit("send", send, self.len)
                .or_else(|| parts_fit("receive", receive, self.received.map_or(0, |r| r.1)))
                .or_else(|| {
                    let (own, back) = (send.range(rank).len(), receive.range(rank).len());
                    (own != back)
                        .then(|| format!("{own} elements sent to this rank itself, {back} received from it"))
                }),
            _ => None,
        }
    }

    /// Bytes of this rank's values.
    pub(crate) fn bytes(&self) -> u64 {
        (self.len * self.element_bytes()) as u64
    }

    /// Bytes that this rank sends and receives if the collective is a ring: each element of a reduce-scatter starts at
    /// the rank after its owner and travels to the owner; of an all-gather, from the owner to the rank before it.
    pub(crate) fn ring(&self, rank: usize, size: usize) -> Volume {
        let (next, previous) = ((rank + 1) % size, (rank + size - 1) % size);
        let n = self.len;
        let part = |r: usize| match self.parts() {
            Some(parts) => parts.range(r).len(),
            None => even(n, size, r).len(),
        };
        let (sent, received) = match self.pattern {
            Pattern::ReduceScatter(..) => (n - part(rank), n - part(previous)),
            Pattern::AllGather(_) => (n - part(next), n - part(rank)),
            Pattern::AllReduce(_) => (2 * n - part(rank) - part(next), 2 * n - part(previous) - part(rank)),
            Pattern::AllToAll { send, receive } => {
                (send.len() - send.range(rank).len(), receive.len() - receive.range(rank).len())
            }
            Pattern::Broadcast { root } => {
                let distance = (rank + size - root % size) % size;
                (if distance + 1 < size { n } else { 0 }, if distance > 0 { n } else { 0 })
            }
            Pattern::Send { .. } => (n, 0),
            Pattern::Receive { .. } => (0, n),
            Pattern::Barrier => (0, 0),
        };
        let bytes = |elements: usize| (elements * self.element_bytes()) as u64;
        Volume { sent: bytes(sent), received: bytes(received) }
    }
}

/// Returns this rank's position in a list of ranks, or refuses a list that is no group with this rank in it.
pub(crate) fn position(
    (parent, rank, size): (&str, usize, usize),
    label: &str,
    ranks: &[usize],
) -> Result<usize, CollectiveError> {
    let mut problem = None;
    for (i, r) in ranks.iter().enumerate() {
        if *r >= size {
            problem = Some(format!("there is no rank {r} in a group of {size}"));
        } else if ranks[..i].contains(r) {
            problem = Some(format!("rank {r} is listed twice"));
        }
    }
    let found = ranks.iter().position(|r| *r == rank);
    match (problem, found) {
        (None, Some(position)) => Ok(position),
        (problem, _) => {
            let problem =
                problem.unwrap_or_else(|| format!("the list {ranks:?} lacks this rank")).into_boxed_str();
            let site = CallSite { group: parent.into(), rank, collective: "group", name: label.into() };
            Err(CollectiveError::Call { site: Box::new(site), problem })
        }
    }
}
