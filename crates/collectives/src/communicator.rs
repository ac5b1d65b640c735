//! The trait.

use crate::CollectiveError;
use bessemer_units::DType;
use half::bf16;
use std::sync::Arc;

/// Which collective.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// [`Communicator::all_reduce`].
    AllReduce,
    /// [`Communicator::reduce_scatter`].
    ReduceScatter,
    /// [`Communicator::all_gather`].
    AllGather,
    /// [`Communicator::all_to_all`].
    AllToAll,
    /// [`Communicator::broadcast`].
    Broadcast,
    /// [`Communicator::send`].
    Send,
    /// [`Communicator::receive`].
    Receive,
    /// [`Communicator::barrier`].
    Barrier,
}

impl Kind {
    /// As people write it: "all-reduce".
    pub const fn name(self) -> &'static str {
        match self {
            Kind::AllReduce => "all-reduce",
            Kind::ReduceScatter => "reduce-scatter",
            Kind::AllGather => "all-gather",
            Kind::AllToAll => "all-to-all",
            Kind::Broadcast => "broadcast",
            Kind::Send => "send",
            Kind::Receive => "receive",
            Kind::Barrier => "barrier",
        }
    }
}

/// How values of several ranks become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reduce {
    /// Added in f32, rank 0 first; rounded once at the end if the values are of fewer bits.
    Sum,
    /// The largest; NaN if one of them is.
    Max,
}

/// Host memory that a collective works on, in place.
#[derive(Debug)]
pub enum Values<'a> {
    /// f32.
    F32(&'a mut [f32]),
    /// bfloat16; sums are formed in f32.
    Bf16(&'a mut [bf16]),
}

impl Values<'_> {
    /// Type of the elements.
    pub fn dtype(&self) -> DType {
        match self {
            Values::F32(_) => DType::F32,
            Values::Bf16(_) => DType::Bf16,
        }
    }

    /// The same values, borrowed for a shorter time.
    pub fn reborrow(&mut self) -> Values<'_> {
        match self {
            Values::F32(v) => Values::F32(v),
            Values::Bf16(v) => Values::Bf16(v),
        }
    }

    /// Elements.
    pub fn len(&self) -> usize {
        match self {
            Values::F32(v) => v.len(),
            Values::Bf16(v) => v.len(),
        }
    }

    /// True if there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<'a> From<&'a mut [f32]> for Values<'a> {
    fn from(values: &'a mut [f32]) -> Values<'a> {
        Values::F32(values)
    }
}

impl<'a> From<&'a mut [bf16]> for Values<'a> {
    fn from(values: &'a mut [bf16]) -> Values<'a> {
        Values::Bf16(values)
    }
}

/// Host memory that is only read.
#[derive(Debug, Clone, Copy)]
pub enum Source<'a> {
    /// f32.
    F32(&'a [f32]),
    /// bfloat16.
    Bf16(&'a [bf16]),
}

impl Source<'_> {
    /// Type of the elements.
    pub fn dtype(&self) -> DType {
        match self {
            Source::F32(_) => DType::F32,
            Source::Bf16(_) => DType::Bf16,
        }
    }

    /// Elements.
    pub fn len(&self) -> usize {
        match self {
            Source::F32(v) => v.len(),
            Source::Bf16(v) => v.len(),
        }
    }

    /// True if there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<'a> From<&'a [f32]> for Source<'a> {
    fn from(values: &'a [f32]) -> Source<'a> {
        Source::F32(values)
    }
}

impl<'a> From<&'a [bf16]> for Source<'a> {
    fn from(values: &'a [bf16]) -> Source<'a> {
        Source::Bf16(values)
    }
}

/// Bounds of each rank's part of a whole: part r is elements `bounds[r] .. bounds[r + 1]`. Parts may be of different
/// lengths, or empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Parts {
    bounds: Vec<usize>,
}

impl Parts {
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

    /// Becomes parts of these lengths without asking for memory that it has.
    pub fn set(&mut self, lengths: impl IntoIterator<Item = usize>) {
        self.bounds.clear();
        self.bounds.push(0);
        let mut end = 0;
        self.bounds.extend(lengths.into_iter().map(|length| {
            end += length;
            end
        }));
    }

    /// Becomes equal to `other` without asking for memory that it has.
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

/// One message between two ranks of a group, as either end names it.
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
///   may talk, and the ledger counts under its label, kinds `Send` and `Receive`.
/// - [`Communicator::send`] copies the values and returns; it never waits for the receiver, whatever that is doing, and
///   the values may be used again at once. There is nothing to complete later: no ticket, no flush. Over MPI the bytes move
///   on the thread of the messages (`MPI_Isend`, `MPI_Irecv`, `MPI_Test`), here between two `memcpy`s.
/// - [`Communicator::receive`] waits for the message of this sender with this name and tag, takes it in wherever it stands
///   among those that have arrived, and copies it. Messages with the same tag arrive in the order in which they were sent,
///   so tags may be used again in the next step.
/// - A message under a known tag but with another name, type or number of elements is an error on the rank that receives
///   it, naming both ranks and the tag; so is a sender that is gone, or one that sends nothing for as long as the group is
///   patient (the error then lists the tags that did arrive and that nobody asked for).
/// - What is under way is buffered at the receiver, so a schedule bounds it; buffers are used again, so that a step that
///   sends what the last one sent asks for no memory.
/// - A tag is any number that two ends agree on: the micro-batch, or micro-batch and chunk packed into one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message<'a> {
    /// Whose values: "activation", "gradient".
    pub name: &'a str,
    /// Which of that name.
    pub tag: u64,
    /// The other end: who receives a sent one, who sent a received one.
    pub peer: usize,
    /// It counts as under way until then, in nanoseconds since 1970; 0: it does not. For [`crate::Delayed`].
    pub(crate) not_before: u64,
}

impl<'a> Message<'a> {
    /// Values `name` number `tag` to or from rank `peer` of the group.
    pub fn new(name: &'a str, tag: u64, peer: usize) -> Message<'a> {
        Message { name, tag, peer, not_before: 0 }
    }
}

/// Ends a group from another thread of a rank: its calls under way err, and so do those of the other ranks.
#[derive(Clone)]
pub struct Breaker(Arc<dyn Fn(&str) + Send + Sync>);

impl Breaker {
    /// `end` is given the reason.
    pub fn new(end: impl Fn(&str) + Send + Sync + 'static) -> Breaker {
        Breaker(Arc::new(end))
    }

    /// Ends the group; `problem` is what the others read: "rank 1 is gone: `problem`".
    pub fn break_off(&self, problem: &str) {
        (self.0)(problem);
    }
}

impl std::fmt::Debug for Breaker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Breaker")
    }
}

/// Collectives of one group of ranks. Every rank of the group makes the same calls in the same order.
///
/// `name` says whose values they are ("layers.3.attention.out", "gradients 7"): ranks that call with different names,
/// lengths or kinds are an error on all of them, and a call that does not end in time is reported with it. Calls return
/// when the values of this rank may be used again. After an error the group is unusable: every later call errs.
pub trait Communicator: Send + std::fmt::Debug {
    /// What the group is for, usually the mesh axis: "shard", "tensor".
    fn label(&self) -> &str;

    /// This rank's position in the group.
    fn rank(&self) -> usize;

    /// Ranks in the group.
    fn size(&self) -> usize;

    /// What another thread of this rank can end the group with while a call is under way.
    fn breaker(&self) -> Breaker;

    /// Every rank has the reduction of all ranks' values.
    ///
    /// # Errors
    /// A peer that is gone, late, or at another call.
    fn all_reduce(&mut self, name: &str, values: Values<'_>, reduce: Reduce) -> Result<(), CollectiveError>;

    /// This rank's part of `values` becomes the reduction of that part over the ranks; the other parts are left in an
    /// unspecified state.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    fn reduce_scatter(
        &mut self,
        name: &str,
        values: Values<'_>,
        parts: &Parts,
        reduce: Reduce,
    ) -> Result<(), CollectiveError>;

    /// Part r of every rank's `values` becomes what it is on rank r.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    fn all_gather(&mut self, name: &str, values: Values<'_>, parts: &Parts) -> Result<(), CollectiveError>;

    /// Part r of `send` goes to rank r; part r of `receive` comes from rank r. Parts may differ between ranks as long as
    /// both ends of each pair agree; both must have the same type.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    fn all_to_all(
        &mut self,
        name: &str,
        send: (Source<'_>, &Parts),
        receive: (Values<'_>, &Parts),
    ) -> Result<(), CollectiveError>;

    /// Every rank has what rank `root` had.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    fn broadcast(&mut self, name: &str, root: usize, values: Values<'_>) -> Result<(), CollectiveError>;

    /// Values to one other rank, which receives them under the same name and tag ([`Message`]). Returns before they have
    /// arrived: what is under way is buffered, so whoever sends bounds it. Collectives may lie between the two ends.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    fn send(&mut self, message: Message<'_>, values: Source<'_>) -> Result<(), CollectiveError>;

    /// Waits for values from one other rank: the first of its messages with this tag, whatever others came before it.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    fn receive(&mut self, message: Message<'_>, values: Values<'_>) -> Result<(), CollectiveError>;

    /// Whether [`Communicator::receive`] of this message would not wait.
    ///
    /// # Errors
    /// A sender that is gone and has not sent it.
    fn arrived(&mut self, message: Message<'_>) -> Result<bool, CollectiveError>;

    /// Returns when every rank has called it.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    fn barrier(&mut self, name: &str) -> Result<(), CollectiveError>;

    /// A communicator of some of this group's ranks, in the order listed. Every listed rank calls this with the same
    /// arguments, in the same order as other groups that it shares with them; the others do not call.
    ///
    /// # Errors
    /// A list that lacks this rank, or names a rank twice or one that does not exist.
    fn group(&mut self, label: &str, ranks: &[usize]) -> Result<Box<dyn Communicator>, CollectiveError>;
}
