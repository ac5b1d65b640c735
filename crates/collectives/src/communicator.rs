//! The trait.

use crate::{Collective, CollectiveError, HostSlice, HostSliceMut, Memory, Message, Parts, Pattern, Reduce};
use std::sync::Arc;

/// Ends a group from another thread of a rank: its calls in progress err, and so do those of the other ranks.
#[derive(Clone)]
pub struct Breaker(Arc<dyn Fn(&str) + Send + Sync>);

impl Breaker {
    /// Wraps a function that ends the group and takes the reason.
    pub fn new(end: impl Fn(&str) + Send + Sync + 'static) -> Breaker {
        Breaker(Arc::new(end))
    }

    /// Ends the group; the others read "rank 1 is gone: `problem`".
    pub fn break_off(&self, problem: &str) {
        (self.0)(problem);
    }
}

impl std::fmt::Debug for Breaker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Breaker")
    }
}

/// One rank's end of a group of ranks. Every rank of the group runs the same collectives in the same order.
///
/// [`Communicator::run`] is the one method that moves anything; threads, messages and MPI differ below it, and wrappers
/// wrap it. `dyn Communicator` has a short form of it for each pattern.
pub trait Communicator: Send + std::fmt::Debug {
    /// Purpose of the group, usually the mesh axis: "shard", "tensor".
    fn label(&self) -> &str;

    /// Returns the position of this rank in the group.
    fn rank(&self) -> usize;

    /// Number of ranks in the group.
    fn size(&self) -> usize;

    /// Handle with which another thread of this rank can end the group while a call is in progress.
    fn breaker(&self) -> Breaker;

    /// Runs one collective and returns when this rank's memory may be used again. After an error the group is unusable:
    /// every later call errs.
    ///
    /// # Errors
    /// A peer that is gone, late, or at another call; memory that does not fit the collective.
    fn run(&mut self, collective: &Collective<'_>, memory: Memory<'_>) -> Result<(), CollectiveError>;

    /// Tells whether a receive of this message would not wait.
    ///
    /// # Errors
    /// A sender that is gone and has not sent it.
    fn arrived(&mut self, message: Message<'_>) -> Result<bool, CollectiveError>;

    /// Makes a communicator of some of this group's ranks, in the order listed. Every listed rank calls this with the same
    /// arguments, in the same order as other groups that it shares with them; the others do not call.
    ///
    /// # Errors
    /// A list that lacks this rank, or names a rank twice or one that does not exist.
    fn group(&mut self, label: &str, ranks: &[usize]) -> Result<Box<dyn Communicator>, CollectiveError>;
}

/// Short forms of [`Communicator::run`], with its errors.
#[allow(clippy::missing_errors_doc, reason = "the errors of all of them are those of Communicator::run")]
impl dyn Communicator + '_ {
    /// Runs [`Pattern::AllReduce`].
    pub fn all_reduce<'m>(
        &mut self,
        name: &str,
        values: impl Into<HostSliceMut<'m>>,
        reduce: Reduce,
    ) -> Result<(), CollectiveError> {
        self.run(&Collective::new(name, Pattern::AllReduce(reduce)), Memory::InPlace(values.into()))
    }

    /// Runs [`Pattern::ReduceScatter`].
    pub fn reduce_scatter<'m>(
        &mut self,
        name: &str,
        values: impl Into<HostSliceMut<'m>>,
        parts: &Parts,
        reduce: Reduce,
    ) -> Result<(), CollectiveError> {
        let collective = Collective::new(name, Pattern::ReduceScatter(parts, reduce));
        self.run(&collective, Memory::InPlace(values.into()))
    }

    /// Runs [`Pattern::AllGather`].
    pub fn all_gather<'m>(
        &mut self,
        name: &str,
        values: impl Into<HostSliceMut<'m>>,
        parts: &Parts,
    ) -> Result<(), CollectiveError> {
        self.run(&Collective::new(name, Pattern::AllGather(parts)), Memory::InPlace(values.into()))
    }

    /// Runs [`Pattern::AllToAll`].
    pub fn all_to_all<'s, 'm>(
        &mut self,
        name: &str,
        send: (impl Into<HostSlice<'s>>, &Parts),
        receive: (impl Into<HostSliceMut<'m>>, &Parts),
    ) -> Result<(), CollectiveError> {
        let collective = Collective::new(name, Pattern::AllToAll { send: send.1, receive: receive.1 });
        self.run(&collective, Memory::Exchange { send: send.0.into(), receive: receive.0.into() })
    }

    /// Runs [`Pattern::Broadcast`].
    pub fn broadcast<'m>(
        &mut self,
        name: &str,
        root: usize,
        values: impl Into<HostSliceMut<'m>>,
    ) -> Result<(), CollectiveError> {
        self.run(&Collective::new(name, Pattern::Broadcast { root }), Memory::InPlace(values.into()))
    }

    /// Runs [`Pattern::Send`].
    pub fn send<'s>(
        &mut self,
        message: Message<'_>,
        values: impl Into<HostSlice<'s>>,
    ) -> Result<(), CollectiveError> {
        self.run(&Collective::send(message), Memory::Read(values.into()))
    }

    /// Runs [`Pattern::Receive`].
    pub fn receive<'m>(
        &mut self,
        message: Message<'_>,
        values: impl Into<HostSliceMut<'m>>,
    ) -> Result<(), CollectiveError> {
        self.run(&Collective::receive(message), Memory::InPlace(values.into()))
    }

    /// Runs [`Pattern::Barrier`].
    pub fn barrier(&mut self, name: &str) -> Result<(), CollectiveError> {
        self.run(&Collective::new(name, Pattern::Barrier), Memory::Empty)
    }
}
