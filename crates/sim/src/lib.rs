//! Times programs without running them: discrete events over instructions and links.
//!
//! - [`simulate`] gives a [`Timeline`]: when every instruction of a [`Program`](bessemer_schedule::Program) begins and
//!   ends, from [`Costs`]. Receives wait, sends do not; messages on one link queue behind each other.
//! - [`Summary`] reads a timeline: makespan, span, bubble, peak activations, weight versions, utilisation.
//! - [`lower_bound`] is what no order of the same passes can beat.
//! - [`Samples`] makes costs from measured times, so that a run can be compared with its simulation.
//! - [`energy`] plans clocks: work that waits for nothing may run slower.
//! - [`fill`] puts other work into bubbles: K-FAC's, evaluation, copies.
//! - [`replay`] replays the programs that ranks run, with loads of experts ([`replay::RoutingProfile`]); [`shadow`] chooses the experts
//!   that every rank computes for itself.
//! - [`formulas`] holds the published closed forms, against which the simulator is tested.
//!
//! This crate is pure: no tensor, file, clock, thread or random source. Jitter is computed from a seed and counters.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod bounds;
mod costs;
pub mod energy;
mod error;
pub mod fill;
pub mod formulas;
mod jitter;
mod memory;
pub mod replay;
mod samples;
pub mod shadow;
mod simulate;
mod summary;
mod timeline;

pub use bessemer_units::Link;
pub use bounds::lower_bound;
pub use costs::{ChunkTimes, Costs, Messages, PassTimes, visits};
pub use error::SimError;
pub use jitter::Jitter;
pub use memory::{live_over_time, peak_live, weight_copies, weight_versions};
pub use samples::{Kind, Sample, Samples, parse_name};
pub use simulate::simulate;
pub use summary::Summary;
pub use timeline::{Interval, Step, Timeline};
