//! What one call of a collective is: what ranks must agree on, what cannot be right, and its bytes.

use crate::{CollectiveError, Kind, Message, Parts, Place, Reduce, Source, Values};
use bessemer_units::DType;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// What every rank of a group must say alike in one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Signature {
    /// A receive says "send", so that both ends of a message agree.
    pub(crate) kind: Kind,
    pub(crate) dtype: Option<DType>,
    pub(crate) reduce: Option<Reduce>,
    pub(crate) root: u32,
    /// Elements; zero where they may differ between ranks.
    pub(crate) len: u64,
    /// Hash of the bounds of the parts.
    pub(crate) parts: u64,
    /// Hash of the name.
    pub(crate) name: u64,
}

impl Signature {
    /// For people: `all-reduce of "loss" (sum of 1 F32)`.
    pub(crate) fn describe(&self, name: &str) -> String {
        let mut text = format!("{} of {name:?}", self.kind.name());
        let what = match self.reduce {
            Some(Reduce::Sum) => "sum of ",
            Some(Reduce::Max) => "maximum of ",
            None => "",
        };
        match (self.dtype, self.kind) {
            (None, _) => {}
            (Some(dtype), Kind::AllToAll) => text += &format!(" ({})", dtype.safetensors_name()),
            (Some(dtype), _) => {
                text += &format!(" ({what}{} {}", self.len, dtype.safetensors_name());
                match self.kind {
                    Kind::Broadcast => text += &format!(", root {}", self.root),
                    Kind::ReduceScatter | Kind::AllGather => {
                        text += &format!(", parts {:04x}", self.parts & 0xffff);
                    }
                    _ => {}
                }
                text += ")";
            }
        }
        text
    }
}

/// A name, and the tag of a message: "activation, tag 3".
pub(crate) fn described(name: &str, tag: Option<u64>) -> String {
    tag.map_or_else(|| name.to_owned(), |tag| format!("{name}, tag {tag}"))
}

/// What it means that the message of rank `peer` with the tag that `call` wants is another one.
pub(crate) fn other_message(
    call: &Call<'_>,
    (group, rank, peer): (&str, usize, usize),
    (signature, name): (&Signature, &str),
) -> CollectiveError {
    let there = signature.describe(&described(name, call.tag));
    let wanted = Signature { kind: Kind::Receive, ..call.signature() }.describe(call.name);
    let there = format!("{there} to rank {rank}, which wanted {wanted}").into();
    CollectiveError::Mismatch { place: call.place(group, rank), peer, there }
}

/// For a rank that waits in vain: messages of `from` that came and that it did not ask for.
pub(crate) fn unread_messages<'a>(
    from: usize,
    unread: impl Iterator<Item = (&'a str, u64)>,
) -> Option<String> {
    let list: Vec<String> = unread.take(8).map(|(name, tag)| described(name, Some(tag))).collect();
    (!list.is_empty()).then(|| format!("Came from rank {from} and not asked for: {}.", list.join("; ")))
}

/// Whether a message counts as arrived, and how long it does not yet.
pub(crate) fn still_under_way(not_before: u64) -> Option<Duration> {
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

/// Whose elements belong to whom.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Split<'a> {
    None,
    /// As [`Parts::even`].
    Even,
    Parts(&'a Parts),
    Pairs {
        send: &'a Parts,
        receive: &'a Parts,
        receive_dtype: DType,
        receive_len: usize,
    },
}

/// Part `rank` of [`Parts::even`], without making one.
pub(crate) fn even(len: usize, ranks: usize, rank: usize) -> std::ops::Range<usize> {
    let (each, more) = (len / ranks, len % ranks);
    let from = rank * each + rank.min(more);
    from..from + each + usize::from(rank < more)
}

/// Piece `k` of a part, in pieces of `size`; empty behind its end.
pub(crate) fn piece(part: &std::ops::Range<usize>, k: usize, size: usize) -> std::ops::Range<usize> {
    let from = (part.start + k * size).min(part.end);
    from..(from + size).min(part.end)
}

/// One call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Call<'a> {
    pub(crate) kind: Kind,
    pub(crate) name: &'a str,
    pub(crate) dtype: Option<DType>,
    pub(crate) reduce: Option<Reduce>,
    /// Root of a broadcast, other end of a message.
    pub(crate) other: Option<usize>,
    /// Of a message.
    pub(crate) tag: Option<u64>,
    /// Elements of this rank's values.
    pub(crate) len: usize,
    pub(crate) split: Split<'a>,
}

impl<'a> Call<'a> {
    fn new(kind: Kind, name: &'a str, dtype: DType, len: usize) -> Call<'a> {
        let split = Split::None;
        Call { kind, name, dtype: Some(dtype), reduce: None, other: None, tag: None, len, split }
    }

    pub(crate) fn all_reduce(name: &'a str, values: &Values<'_>, reduce: Reduce) -> Call<'a> {
        let call = Call::new(Kind::AllReduce, name, values.dtype(), values.len());
        Call { reduce: Some(reduce), split: Split::Even, ..call }
    }

    pub(crate) fn reduce_scatter(
        name: &'a str,
        values: &Values<'_>,
        parts: &'a Parts,
        reduce: Reduce,
    ) -> Call<'a> {
        let call = Call::new(Kind::ReduceScatter, name, values.dtype(), values.len());
        Call { reduce: Some(reduce), split: Split::Parts(parts), ..call }
    }

    pub(crate) fn all_gather(name: &'a str, values: &Values<'_>, parts: &'a Parts) -> Call<'a> {
        Call { split: Split::Parts(parts), ..Call::new(Kind::AllGather, name, values.dtype(), values.len()) }
    }

    pub(crate) fn all_to_all(
        name: &'a str,
        send: (&Source<'_>, &'a Parts),
        receive: (&Values<'_>, &'a Parts),
    ) -> Call<'a> {
        let call = Call::new(Kind::AllToAll, name, send.0.dtype(), send.0.len());
        let split = Split::Pairs {
            send: send.1,
            receive: receive.1,
            receive_dtype: receive.0.dtype(),
            receive_len: receive.0.len(),
        };
        Call { split, ..call }
    }

    pub(crate) fn broadcast(name: &'a str, root: usize, values: &Values<'_>) -> Call<'a> {
        Call { other: Some(root), ..Call::new(Kind::Broadcast, name, values.dtype(), values.len()) }
    }

    fn message(kind: Kind, message: Message<'a>, dtype: DType, len: usize) -> Call<'a> {
        let (other, tag) = (Some(message.peer), Some(message.tag));
        Call { other, tag, ..Call::new(kind, message.name, dtype, len) }
    }

    pub(crate) fn send(message: Message<'a>, values: &Source<'_>) -> Call<'a> {
        Call::message(Kind::Send, message, values.dtype(), values.len())
    }

    pub(crate) fn receive(message: Message<'a>, values: &Values<'_>) -> Call<'a> {
        Call::message(Kind::Receive, message, values.dtype(), values.len())
    }

    /// A look for a message.
    pub(crate) fn arrived(message: Message<'a>) -> Call<'a> {
        Call { dtype: None, ..Call::message(Kind::Receive, message, DType::F32, 0) }
    }

    pub(crate) fn barrier(name: &'a str) -> Call<'a> {
        Call { dtype: None, ..Call::new(Kind::Barrier, name, DType::F32, 0) }
    }

    /// What the other ranks must say too.
    pub(crate) fn signature(&self) -> Signature {
        let message = matches!(self.kind, Kind::Send | Kind::Receive);
        let mut hash = Xxh3::new();
        if let Split::Parts(parts) = self.split {
            for r in 0..parts.count() {
                hash.update(&(parts.range(r).end as u64).to_le_bytes());
            }
        }
        Signature {
            kind: if message { Kind::Send } else { self.kind },
            dtype: self.dtype,
            reduce: self.reduce,
            root: if message { 0 } else { self.other.unwrap_or(0) as u32 },
            len: if self.kind == Kind::AllToAll { 0 } else { self.len as u64 },
            parts: hash.digest(),
            name: xxh3_64(self.name.as_bytes()),
        }
    }

    /// Where a rank that is in this call is.
    pub(crate) fn place(&self, group: &str, rank: usize) -> Box<Place> {
        let (collective, name) = (self.kind.name(), described(self.name, self.tag));
        Box::new(Place { group: group.into(), rank, collective, name })
    }

    /// Refuses what cannot be right whatever the others do.
    pub(crate) fn check(&self, group: &str, rank: usize, size: usize) -> Result<(), CollectiveError> {
        let parts_fit = |what: &str, parts: &Parts, len: usize| {
            if parts.count() != size {
                Some(format!("{what}: {} parts for {size} ranks", parts.count()))
            } else if parts.len() != len {
                Some(format!("{what}: the parts are of {} elements, the values of {len}", parts.len()))
            } else {
                None
            }
        };
        let problem = match self.split {
            Split::None | Split::Even => None,
            Split::Parts(parts) => parts_fit("values", parts, self.len),
            Split::Pairs { send, receive, receive_dtype, receive_len } => parts_fit("send", send, self.len)
                .or_else(|| parts_fit("receive", receive, receive_len))
                .or_else(|| {
                    let differ = self.dtype != Some(receive_dtype);
                    differ.then(|| "what is sent and what is received have different types".to_string())
                })
                .or_else(|| {
                    let (own, back) = (send.range(rank).len(), receive.range(rank).len());
                    let differ = own != back;
                    differ
                        .then(|| format!("{own} elements sent to this rank itself, {back} received from it"))
                }),
        };
        let problem = problem.or_else(|| {
            let other = self.other?;
            if other >= size {
                Some(format!("there is no rank {other} in a group of {size}"))
            } else if other == rank && self.kind != Kind::Broadcast {
                Some("a rank does not send to itself".to_string())
            } else {
                None
            }
        });
        match problem {
            None => Ok(()),
            Some(problem) => {
                Err(CollectiveError::Call { place: self.place(group, rank), problem: problem.into() })
            }
        }
    }

    /// Bytes of this rank's values.
    pub(crate) fn bytes(&self) -> u64 {
        (self.len * self.dtype.map_or(0, DType::size)) as u64
    }

    /// What this rank sends and receives if the collective is a ring: each element of a reduce-scatter starts at the
    /// rank after its owner and travels to the owner; of an all-gather, from the owner to the rank before it.
    pub(crate) fn ring(&self, rank: usize, size: usize) -> Volume {
        let (next, previous) = ((rank + 1) % size, (rank + size - 1) % size);
        let n = self.len;
        let part = |r: usize| match self.split {
            Split::Parts(parts) if parts.count() == size => parts.range(r).len(),
            _ => even(n, size, r).len(),
        };
        let (sent, received) = match self.kind {
            Kind::ReduceScatter => (n - part(rank), n - part(previous)),
            Kind::AllGather => (n - part(next), n - part(rank)),
            Kind::AllReduce => (2 * n - part(rank) - part(next), 2 * n - part(previous) - part(rank)),
            Kind::AllToAll => match self.split {
                Split::Pairs { send, receive, .. } if send.count() == size && receive.count() == size => {
                    (send.len() - send.range(rank).len(), receive.len() - receive.range(rank).len())
                }
                _ => (0, 0),
            },
            Kind::Broadcast => {
                let distance = (rank + size - self.other.unwrap_or(0) % size) % size;
                (if distance + 1 < size { n } else { 0 }, if distance > 0 { n } else { 0 })
            }
            Kind::Send => (n, 0),
            Kind::Receive => (0, n),
            Kind::Barrier => (0, 0),
        };
        let bytes = |elements: usize| (elements * self.dtype.map_or(0, DType::size)) as u64;
        Volume { sent: bytes(sent), received: bytes(received) }
    }
}

/// Refuses a list of ranks that is no group with this rank in it; otherwise its position.
pub(crate) fn position(
    parent: &str,
    rank: usize,
    size: usize,
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
            let place = Place { group: parent.into(), rank, collective: "group", name: label.into() };
            Err(CollectiveError::Call { place: Box::new(place), problem })
        }
    }
}
