//! Peers that are not there: for dry runs of one rank of a job of any size.

use crate::call::{Call, position};
use crate::{Breaker, Collective, CollectiveError, Communicator, Memory, Message};

/// A group of which only this rank exists. Every collective that is right succeeds at once and changes nothing: what
/// would come from others stays as it was.
#[derive(Debug, Clone)]
pub struct NullCommunicator {
    label: String,
    rank: usize,
    size: usize,
}

impl NullCommunicator {
    /// Rank `rank` of `size`.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn new(label: &str, rank: usize, size: usize) -> NullCommunicator {
        assert!(rank < size, "rank {rank} of {size}");
        NullCommunicator { label: label.to_owned(), rank, size }
    }
}

impl Communicator for NullCommunicator {
    fn label(&self) -> &str {
        &self.label
    }

    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn breaker(&self) -> Breaker {
        Breaker::new(|_| {})
    }

    fn run(&mut self, collective: &Collective<'_>, memory: Memory<'_>) -> Result<(), CollectiveError> {
        Call::new(collective, &memory).check(&self.label, self.rank, self.size)
    }

    fn arrived(&mut self, _: Message<'_>) -> Result<bool, CollectiveError> {
        Ok(true)
    }

    fn group(&mut self, label: &str, ranks: &[usize]) -> Result<Box<dyn Communicator>, CollectiveError> {
        let rank = position((&self.label, self.rank, self.size), label, ranks)?;
        Ok(Box::new(NullCommunicator::new(label, rank, ranks.len())))
    }
}
