//! Copies of a run's state in memory: they are made every few steps, outlive the worker, and are recovered from in seconds (Gemini: Wang et
//! al. 2023; DLRover's flash checkpoints).
//!
//! | part | what it does |
//! |---|---|
//! | [`Slot`], [`SlotPair`], [`SlotDirectory`] | one rank's state in a file of `/dev/shm`, two of them a rank |
//! | [`Placement`], [`RankPlacement`] | whose memory holds copies of whose state; the probability that it can be recovered |
//! | [`Tiers`], [`StatePart`] | where the part of a state goes that a rank's memory has no space for: other ranks' memory, a slower store |
//! | [`PeerCopies`] | the thread that sends a rank's copies and receives those of others: when no collective is in flight, at most at a rate |
//! | [`RecoveryPlan`], [`exchange_elements`] | which copies a restarted run goes on from, and the elements that each rank needs of them |
//!
//! The crate knows no tensors: state is bytes, and a layout is a hash.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod directory;
mod error;
mod message;
mod overflow;
mod part;
mod peers;
mod placement;
mod rate;
mod recovery;
mod slot;

pub use directory::{CurrentRun, FoundCopy, SlotDirectory};
pub use error::{MemoryError, Result};
pub use message::{receive_copy, send_copy};
pub use overflow::{OverflowPlan, Pair, Tiers, Transfer};
pub use part::{ReadPart, StatePart, Tier, measure_rates, receive_part, send_part};
pub use peers::{CopySource, Pacing, PeerCopies, PeerTraffic};
pub use placement::{Placement, RankPlacement, recovery_bound};
pub use recovery::{CopyOffer, ElementRange, ReadData, RecoveryPlan, exchange_elements, lost_parts};
pub use slot::{CHUNK, CompleteCopy, NOTES_ROOM, Slot, SlotKey, SlotPair, SlotWriter, stable_hash};
