//! Sums in a switch with slots (SwitchML: Sapio et al., NSDI 2021), for ranks that are processes.
//!
//! [`Aggregator`] is the switch and [`SlotWorker`] a rank's end, both without sockets and clocks. [`SwitchServer`] and
//! [`SwitchClient`] drive them over UDP, and [`SwitchReduce`] is a communicator whose all-reduces go through a switch. What must
//! hold between them stands in this crate's README.

mod aggregator;
mod client;
mod communicator;
pub mod fixed_point;
mod packet;
mod server;
mod worker;

pub use aggregator::{Aggregator, SwitchCounts, SwitchMemory};
pub use client::{SwitchClient, SwitchError, SwitchSettings};
pub use communicator::SwitchReduce;
pub use packet::{MOST_VALUES, Packet, SlotUse, WorkerId};
pub use server::{Injected, SwitchServer};
pub use worker::{SlotWorker, WorkerCounts, WorkerSettings};
