//! Collectives against plain sums over the ranks' values, for every communicator.
#![allow(clippy::unwrap_used, reason = "a failed unwrap here is a failed test")]

mod failures;
mod groups;
mod launch;
mod ledger;
mod messages;
mod queue;
mod recorder;
mod results;
mod stopwatch;
mod sum_check;
mod switch;
mod views;
mod wires;
mod world;
