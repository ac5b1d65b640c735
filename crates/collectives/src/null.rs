//! Peers that are not there: for dry runs of one rank of a job of any size.

use crate::{Breaker, CollectiveError, Communicator, Message, Parts, Place, Reduce, Source, Values};

/// A group of which only this rank exists. Every collective is right at once and changes nothing: what would come from
/// others stays as it was.
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

    fn all_reduce(&mut self, _: &str, _: Values<'_>, _: Reduce) -> Result<(), CollectiveError> {
        Ok(())
    }

    fn reduce_scatter(
        &mut self,
        _: &str,
        _: Values<'_>,
        _: &Parts,
        _: Reduce,
    ) -> Result<(), CollectiveError> {
        Ok(())
    }

    fn all_gather(&mut self, _: &str, _: Values<'_>, _: &Parts) -> Result<(), CollectiveError> {
        Ok(())
    }

    fn all_to_all(
        &mut self,
        _: &str,
        _: (Source<'_>, &Parts),
        _: (Values<'_>, &Parts),
    ) -> Result<(), CollectiveError> {
        Ok(())
    }

    fn broadcast(&mut self, _: &str, _: usize, _: Values<'_>) -> Result<(), CollectiveError> {
        Ok(())
    }

    fn send(&mut self, _: Message<'_>, _: Source<'_>) -> Result<(), CollectiveError> {
        Ok(())
    }

    fn receive(&mut self, _: Message<'_>, _: Values<'_>) -> Result<(), CollectiveError> {
        Ok(())
    }

    fn arrived(&mut self, _: Message<'_>) -> Result<bool, CollectiveError> {
        Ok(true)
    }

    fn barrier(&mut self, _: &str) -> Result<(), CollectiveError> {
        Ok(())
    }

    fn group(&mut self, label: &str, ranks: &[usize]) -> Result<Box<dyn Communicator>, CollectiveError> {
        match ranks.iter().position(|r| *r == self.rank) {
            Some(rank) => Ok(Box::new(NullCommunicator::new(label, rank, ranks.len()))),
            None => Err(CollectiveError::Call {
                place: Box::new(Place {
                    group: self.label.clone(),
                    rank: self.rank,
                    collective: "group",
                    name: label.to_owned(),
                }),
                problem: format!("wanted a list with rank {}, found {ranks:?}", self.rank).into(),
            }),
        }
    }
}
