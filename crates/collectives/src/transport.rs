//! Messages between two ranks: what a foreign engine has to provide.

use std::time::Duration;

/// Why a message did not get through.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum TransportError {
    /// Nothing came in time.
    #[error("nothing from rank {from} for {:.1} s", waited.as_secs_f64())]
    Timeout {
        /// Who was waited for.
        from: usize,
        /// How long.
        waited: Duration,
    },
    /// The peer is known to be gone.
    #[error("rank {peer} is gone: {problem}")]
    PeerLost {
        /// Which.
        peer: usize,
        /// How it was noticed.
        problem: String,
    },
    /// The engine refused.
    #[error("{0}")]
    Engine(String),
}

/// Messages between the ranks of a world, whole and in the order in which they were sent on each channel. May be used from
/// several threads at once.
pub trait Transport: Send + Sync + std::fmt::Debug {
    /// This rank.
    fn rank(&self) -> usize;

    /// Ranks of the world.
    fn size(&self) -> usize;

    /// Hands over a message; returns before it has arrived.
    ///
    /// # Errors
    /// A peer that is gone, or what the engine says.
    fn send(&self, to: usize, channel: u32, message: Vec<u8>) -> Result<(), TransportError>;

    /// The next message of `from` on `channel`, waited for at most `patience`.
    ///
    /// # Errors
    /// As [`Transport::send`], or that nothing came.
    fn receive(&self, from: usize, channel: u32, patience: Duration) -> Result<Vec<u8>, TransportError>;
}
