//! What ranks say to each other: one trait, [`Communicator`], over host memory.
//!
//! Sums are formed in the order of the ranks, wherever and whenever the terms arrive, so that every communicator gives
//! the same bits. Volumes per rank are those of ring algorithms: N (n-1)/n elements sent for an all-gather or a
//! reduce-scatter of N elements over n ranks, twice that for an all-reduce. Tagged messages between any two ranks, sent
//! without waiting for the receiver: [`Message`].

mod call;
mod channels;
mod communicator;
mod delayed;
mod engine;
mod error;
mod faulty;
pub mod launch;
mod ledger;
mod message;
mod null;
mod order;
mod overlap;
mod recorder;
mod stopwatch;
mod threads;
mod transport;
mod wrap;

pub use call::Volume;
pub use channels::ChannelTransport;
pub use communicator::{Breaker, Communicator, Kind, Message, Parts, Reduce, Source, Values};
pub use delayed::Delayed;
pub use error::{CollectiveError, Place};
pub use faulty::{Fault, Faulty, FaultyTransport, MessageFault};
pub use ledger::{Ledger, Traffic};
pub use message::{MessageCommunicator, MessageSettings};
pub use null::NullCommunicator;
pub use overlap::{Buffer, Collective, Idle, Overlap, Span, Ticket};
pub use recorder::{Entry, FlightRecorder, Progress, RankLog};
pub use stopwatch::{CallSpan, Stopwatch};
pub use threads::{ThreadCommunicator, ThreadSettings};
pub use transport::{Transport, TransportError};
