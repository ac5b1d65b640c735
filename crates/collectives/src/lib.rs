//! What ranks say to each other: one trait, [`Communicator`], over host memory.
//!
//! Sums are formed in the order of the ranks, wherever and whenever the terms arrive, so that every communicator gives
//! the same bits. Volumes per rank are those of ring algorithms: N (n-1)/n elements sent for an all-gather or a
//! reduce-scatter of N elements over n ranks, twice that for an all-reduce.

mod call;
mod communicator;
mod error;
pub mod launch;
mod ledger;
mod order;
mod overlap;
mod threads;
mod transport;
mod wrap;

pub use call::Volume;
pub use communicator::{Breaker, Communicator, Kind, Parts, Reduce, Source, Values};
pub use error::{CollectiveError, Place};
pub use ledger::{Ledger, Traffic};
pub use overlap::{Buffer, Collective, Idle, Overlap, Span, Ticket};
pub use threads::{ThreadCommunicator, ThreadSettings};
pub use transport::{Transport, TransportError};
