//! Errors between ranks.

use std::time::Duration;

/// Call that a rank was in when a collective failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallSite {
    /// Label of the group.
    pub group: String,
    /// Position of this rank in the group.
    pub rank: usize,
    /// Kind of the collective: "all-reduce", "reduce-scatter".
    pub collective: &'static str,
    /// Name of the values.
    pub name: String,
}

impl std::fmt::Display for CallSite {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "group {}, rank {}, {} of {:?}", self.group, self.rank, self.collective, self.name)
    }
}

/// Errors of a collective.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum CollectiveError {
    /// Peers did not come in time.
    #[error("{site}: no message from rank {} for {:.1} s. {report}", list(missing), waited.as_secs_f64())]
    Timeout {
        /// Call of this rank.
        site: Box<CallSite>,
        /// Ranks of the group that have not come.
        missing: Vec<usize>,
        /// Time that this rank waited for them.
        waited: Duration,
        /// The flight recorder's report of all ranks; may be empty.
        report: Box<str>,
    },
    /// A peer is gone.
    #[error("{site}: rank {peer} is gone: {problem}")]
    PeerLost {
        /// Call of this rank.
        site: Box<CallSite>,
        /// Rank of the group that is gone.
        peer: usize,
        /// Sign by which this was noticed.
        problem: Box<str>,
    },
    /// Ranks are not at the same call.
    #[error("{site}, but rank {peer} is in {there}")]
    Mismatch {
        /// Call of this rank.
        site: Box<CallSite>,
        /// Rank of the group that is at another call.
        peer: usize,
        /// Call of that rank.
        there: Box<str>,
    },
    /// The call cannot be right whatever the others do.
    #[error("{site}: {problem}")]
    Call {
        /// Call of this rank.
        site: Box<CallSite>,
        /// Description: what was wanted and what was found.
        problem: Box<str>,
    },
    /// Another thread of this rank ended the group.
    #[error("{site}: aborted: {problem}")]
    BrokenOff {
        /// Call of this rank.
        site: Box<CallSite>,
        /// Reason.
        problem: Box<str>,
    },
    /// The engine below refused the call.
    #[error("{site}: {problem}")]
    Engine {
        /// Call of this rank.
        site: Box<CallSite>,
        /// The engine's message.
        problem: Box<str>,
    },
}

impl CollectiveError {
    /// Call that this rank was in.
    pub fn site(&self) -> &CallSite {
        match self {
            CollectiveError::Timeout { site, .. }
            | CollectiveError::PeerLost { site, .. }
            | CollectiveError::Mismatch { site, .. }
            | CollectiveError::Call { site, .. }
            | CollectiveError::BrokenOff { site, .. }
            | CollectiveError::Engine { site, .. } => site,
        }
    }

    /// Returns the same error for a later call of the same rank.
    pub(crate) fn at(&self, now: Box<CallSite>) -> CollectiveError {
        let mut error = self.clone();
        match &mut error {
            CollectiveError::Timeout { site, .. }
            | CollectiveError::PeerLost { site, .. }
            | CollectiveError::Mismatch { site, .. }
            | CollectiveError::Call { site, .. }
            | CollectiveError::BrokenOff { site, .. }
            | CollectiveError::Engine { site, .. } => *site = now,
        }
        error
    }

    /// Returns the error of a rank of the group that is at `here`, if rank `by` met this one.
    pub(crate) fn seen_from(&self, by: usize, here: Box<CallSite>) -> CollectiveError {
        match self {
            _ if by == here.rank => self.at(here),
            CollectiveError::Timeout { missing, .. } if !missing.contains(&here.rank) => self.at(here),
            CollectiveError::PeerLost { peer, .. } if *peer != here.rank => self.at(here),
            CollectiveError::BrokenOff { problem, .. } => {
                CollectiveError::PeerLost { site: here, peer: by, problem: problem.clone() }
            }
            _ => {
                let problem = format!("it stopped in {self}").into();
                CollectiveError::PeerLost { site: here, peer: by, problem }
            }
        }
    }
}

fn list(ranks: &[usize]) -> String {
    ranks.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")
}
