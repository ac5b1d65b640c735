//! What the nodes of a rank's lists cost.
//!
//! A collective costs its rank three things: copies between the device and the memory that the collective works on, work of the
//! processor that moves and sums values, and time on the link. Ranks that take all cores of a machine have no core left for
//! the second, wherever its thread runs, so it is counted as the rank's own.

use super::{Medium, ReplayGroup};
use crate::SimError;
use bessemer_program::CollectiveKind;
use bessemer_tensor::op::Op;

/// A collective, as far as its cost depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Traffic {
    /// Kind of work.
    pub kind: CollectiveKind,
    /// Bytes of the whole values: all ranks' parts of a gather or a reduce-scatter, all that a rank brings to an all-to-all. Of an exchange by
    /// counts: as much as an even one has in which a rank sends [`Traffic::sent`].
    pub bytes: u64,
    /// Most bytes that a rank sends under ring algorithms; of an exchange by counts, that a rank sends or receives.
    pub sent: u64,
    /// Bytes that this rank sends.
    pub own: u64,
    /// Ranks of the group.
    pub ranks: usize,
}

impl Traffic {
    /// A collective over parts that are even.
    pub fn even(kind: CollectiveKind, bytes: u64, ranks: usize) -> Traffic {
        let times = if kind == CollectiveKind::AllReduce { 2 } else { 1 };
        let sent = times * bytes * (ranks as u64).saturating_sub(1) / (ranks as u64).max(1);
        Traffic { kind, bytes, sent, own: sent, ranks }
    }

    /// Times that a rank sends under ring algorithms.
    pub fn rounds(&self) -> usize {
        let times = if self.kind == CollectiveKind::AllReduce { 2 } else { 1 };
        times * (self.ranks - 1)
    }
}

/// Seconds of a collective on one rank, from when all ranks have come.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct CollectiveSeconds {
    /// Work of a processor.
    pub processor: f64,
    /// Time on the link, in which the processor's work is done too.
    pub link: f64,
    /// Time that it takes longer if a progress thread runs it.
    pub handoff: f64,
}

/// Seconds of a message.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct MessageSeconds {
    /// The sender's work to hand it over.
    pub send: f64,
    /// The receiver's work to take it.
    pub receive: f64,
    /// Time in which the link is busy with it.
    pub busy: f64,
    /// Time from then to its arrival.
    pub latency: f64,
}

/// What the nodes of a rank's lists cost, in seconds.
pub trait NodeCosts {
    /// From an operator's launch to that of the next one.
    ///
    /// # Errors
    /// [`SimError::Cost`] for an operator whose cost is not known.
    fn op(&mut self, op: &Op) -> Result<f64, SimError>;

    /// A copy between the device and the memory that collectives work on.
    fn copy(&mut self, bytes: u64) -> f64;

    /// A collective of a group, where nothing else uses what carries it.
    fn collective(&mut self, group: &ReplayGroup, traffic: Traffic) -> CollectiveSeconds;

    /// A message of so many bytes from one rank of the job to another.
    fn message(&mut self, ranks: [usize; 2], bytes: u64) -> MessageSeconds;

    /// Bytes between a buffer of the host and the second memory, one way: nothing where the machine says nothing of one.
    fn second_memory(&mut self, bytes: u64) -> f64 {
        let _ = bytes;
        0.0
    }

    /// What carries collectives and messages between these ranks of the job.
    fn medium(&mut self, ranks: &[usize]) -> Medium;

    /// Whether a node is asked about each time that it runs, for costs that count what they are asked; else a pass over a unit is asked about
    /// once a rank.
    fn counts(&self) -> bool {
        false
    }
}

/// Bytes that one rank copies for a collective.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Copied {
    /// From the device, before it.
    pub read: u64,
    /// To the device, after it.
    pub written: u64,
}
