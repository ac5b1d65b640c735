//! Collectives between ranks: a plain value ([`Collective`]), the memory it works on ([`Memory`]), and one trait that runs
//! it ([`Communicator`]). [`DeviceCommunicator`] runs it over views of a device, on a stream.
//!
//! Sums are formed in the order of the ranks, wherever and whenever the terms arrive, so that every communicator gives
//! the same bits. Volumes per rank are those of ring algorithms: N (n-1)/n elements sent for an all-gather or a
//! reduce-scatter of N elements over n ranks, twice that for an all-reduce. [`Message`] describes how ranks send to each other
//! without waiting for the receiver.
//!
//! This crate starts a thread in one case only: [`CollectiveQueue::with_progress_thread`].
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod call;
mod channels;
mod collective;
mod communicator;
mod delayed;
mod element;
mod engine;
mod error;
mod faulty;
mod fingerprint;
mod in_flight;
pub mod launch;
mod ledger;
mod memory;
mod message;
mod null;
mod queue;
mod recorder;
mod reduce;
mod spare;
mod stopwatch;
mod sum_check;
pub mod switch;
mod threads;
mod transport;
mod views;
mod wrap;

pub use call::Volume;
pub use channels::ChannelTransport;
pub use collective::{Collective, CollectiveKind, Message, Parts, Pattern, Reduce};
pub use communicator::{Breaker, Communicator};
pub use delayed::Delayed;
pub use element::{Element, ElementType};
pub use error::{CallSite, CollectiveError};
pub use faulty::{Fault, Faulty, FaultySums, FaultyTransport, MessageFault};
pub use fingerprint::{Disagreement, Fingerprint, disagreement};
pub use in_flight::{IdleSpan, InFlight};
pub use ledger::{Ledger, Traffic};
pub use memory::{HostBuffer, HostSlice, HostSliceMut, Memory};
pub use message::{MessageCommunicator, MessageSettings};
pub use null::NullCommunicator;
pub use queue::{CollectiveQueue, Idle, Ticket};
pub use recorder::{Entry, FlightRecorder, Progress};
pub use spare::SpareBuffers;
pub use stopwatch::{CallSpan, Stopwatch};
pub use sum_check::SumCheck;
pub use threads::{ThreadCommunicator, ThreadSettings};
pub use transport::{Transport, TransportError};
pub use views::{DeviceCommunicator, HostStaging, StagedCommunicator, Started, ViewError};
