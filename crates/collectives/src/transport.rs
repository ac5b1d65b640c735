//! Messages between two ranks: the interface of a foreign engine.

use std::time::Duration;

/// Errors of a message between two ranks.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum TransportError {
    /// No message came in time.
    #[error("no message from rank {from} for {:.1} s", waited.as_secs_f64())]
    Timeout {
        /// Rank that was waited for.
        from: usize,
        /// Time that it was waited for.
        waited: Duration,
    },
    /// The peer is gone.
    #[error("rank {peer} is gone: {problem}")]
    PeerLost {
        /// Rank that is gone.
        peer: usize,
        /// Sign by which this was noticed.
        problem: String,
    },
    /// The engine refused.
    #[error("{0}")]
    Engine(String),
}

/// Messages between all ranks of a job, whole and in the order in which they were sent on each channel. Several threads may
/// use it at once.
pub trait Transport: Send + Sync + std::fmt::Debug {
    /// Number of this rank.
    fn rank(&self) -> usize;

    /// Number of ranks.
    fn size(&self) -> usize;

    /// Sends a message; returns before it has arrived.
    ///
    /// # Errors
    /// A peer that is gone, or a failure of the engine.
    fn send(&self, to: usize, channel: u32, message: Vec<u8>) -> Result<(), TransportError>;

    /// Receives the next message of `from` on `channel`, waiting at most `patience`.
    ///
    /// # Errors
    /// Those of [`Transport::send`], and a message that does not come.
    fn receive(&self, from: usize, channel: u32, patience: Duration) -> Result<Vec<u8>, TransportError>;

    /// Returns memory for a message of `length` bytes, with unspecified contents: that of an earlier message if the transport keeps it.
    fn buffer(&self, length: usize) -> Vec<u8> {
        Vec::with_capacity(length)
    }

    /// Takes the memory of a message that was received, for later ones. By default it is dropped.
    fn keep(&self, message: Vec<u8>) {
        drop(message);
    }
}
