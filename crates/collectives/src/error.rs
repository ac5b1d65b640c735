//! What can go wrong between ranks.

use std::time::Duration;

/// Where a rank was when a collective failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Label of the group.
    pub group: String,
    /// This rank's position in it.
    pub rank: usize,
    /// "all-reduce", "reduce-scatter", ...
    pub collective: &'static str,
    /// Whose values.
    pub name: String,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "group {}, rank {}, {} of {:?}", self.group, self.rank, self.collective, self.name)
    }
}

/// Errors of a collective.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum CollectiveError {
    /// Peers that did not come in time.
    #[error("{place}: nothing from rank {} for {:.1} s. {report}", list(missing), waited.as_secs_f64())]
    Timeout {
        /// Where this rank was.
        place: Box<Place>,
        /// The ranks of the group that have not come.
        missing: Vec<usize>,
        /// How long they were waited for.
        waited: Duration,
        /// What the flight recorder says of all ranks, or nothing.
        report: Box<str>,
    },
    /// A peer that is gone.
    #[error("{place}: rank {peer} is gone: {problem}")]
    PeerLost {
        /// Where this rank was.
        place: Box<Place>,
        /// The rank of the group that is gone.
        peer: usize,
        /// How it was noticed.
        problem: Box<str>,
    },
    /// Ranks that are not at the same call.
    #[error("{place}, but rank {peer} is in {there}")]
    Mismatch {
        /// Where this rank was.
        place: Box<Place>,
        /// The other rank.
        peer: usize,
        /// Its call.
        there: Box<str>,
    },
    /// A call that cannot be right whatever the others do.
    #[error("{place}: {problem}")]
    Call {
        /// Where this rank was.
        place: Box<Place>,
        /// What was wanted and found.
        problem: Box<str>,
    },
    /// This rank itself ended the group, from another thread.
    #[error("{place}: broken off: {problem}")]
    BrokenOff {
        /// Where this rank was.
        place: Box<Place>,
        /// Why.
        problem: Box<str>,
    },
    /// The engine below refused.
    #[error("{place}: {problem}")]
    Engine {
        /// Where this rank was.
        place: Box<Place>,
        /// What it said.
        problem: Box<str>,
    },
}

impl CollectiveError {
    /// Where the rank was.
    pub fn place(&self) -> &Place {
        match self {
            CollectiveError::Timeout { place, .. }
            | CollectiveError::PeerLost { place, .. }
            | CollectiveError::Mismatch { place, .. }
            | CollectiveError::Call { place, .. }
            | CollectiveError::BrokenOff { place, .. }
            | CollectiveError::Engine { place, .. } => place,
        }
    }

    /// The same, met by a later call of the same rank.
    pub(crate) fn again(&self, now: Box<Place>) -> CollectiveError {
        let mut error = self.clone();
        match &mut error {
            CollectiveError::Timeout { place, .. }
            | CollectiveError::PeerLost { place, .. }
            | CollectiveError::Mismatch { place, .. }
            | CollectiveError::Call { place, .. }
            | CollectiveError::BrokenOff { place, .. }
            | CollectiveError::Engine { place, .. } => *place = now,
        }
        error
    }

    /// What it means for another rank of the group, which is at `here`, if rank `by` met it.
    pub(crate) fn seen_from(&self, by: usize, here: Box<Place>) -> CollectiveError {
        match self {
            _ if by == here.rank => self.again(here),
            CollectiveError::Timeout { missing, .. } if !missing.contains(&here.rank) => self.again(here),
            CollectiveError::PeerLost { peer, .. } if *peer != here.rank => self.again(here),
            CollectiveError::BrokenOff { problem, .. } => {
                CollectiveError::PeerLost { place: here, peer: by, problem: problem.clone() }
            }
            _ => {
                let problem = format!("it stopped in {self}").into();
                CollectiveError::PeerLost { place: here, peer: by, problem }
            }
        }
    }
}

fn list(ranks: &[usize]) -> String {
    ranks.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")
}
