//! Copies of a run's state in memory: they are made every few steps, outlive the worker, and are recovered from in seconds (Gemini: Wang et
//! al. 2023; DLRover's flash checkpoints).
//!
//! | part | what it does |
//! |---|---|
//! | [`Slot`], [`SlotPair`], [`SlotDirectory`] | one rank's state in a file of `/dev/shm`, two of them a rank |
//! | [`Placement`], [`RankPlacement`] | whose memory holds copies of whose state; the probability that it can be recovered |
//! | [`PeerCopies`] | the thread that sends a rank's copies and receives those of others: when no collective is in flight, at most at a rate |
//! | [`RecoveryPlan`], [`exchange_elements`] | which copies a restarted run goes on from, and the elements that each rank needs of them |
//!
//! The crate knows no tensors: state is bytes, and a layout is a hash.

mod directory;
mod error;
mod message;
mod peers;
mod placement;
mod rate;
mod recovery;
mod slot;

pub use directory::{FoundCopy, SlotDirectory};
pub use error::{MemoryError, Result};
pub use message::{receive_copy, send_copy};
pub use peers::{CopySource, Pacing, PeerCopies, PeerTraffic};
pub use placement::{Placement, RankPlacement, recovery_bound};
pub use recovery::{CopyOffer, ElementRange, ReadData, RecoveryPlan, exchange_elements, lost_ranks};
pub use slot::{CHUNK, CompleteCopy, NOTES_ROOM, Slot, SlotKey, SlotPair, SlotWriter, stable_hash};
