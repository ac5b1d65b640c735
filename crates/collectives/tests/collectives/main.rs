//! Collectives against plain sums over the ranks' values, for every communicator.

mod failures;
mod groups;
mod ledger;
mod overlap;
mod results;
mod world;
