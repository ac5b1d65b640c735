//! Replays a step: each rank's list of events, with the collectives and messages that connect the lists.
//!
//! [`replay`] works on seconds and group numbers only. [`RankWriter`] makes the lists from the programs that ranks run, with
//! the times of [`NodeCosts`]: a replay that differs from a run has a wrong cost, not a missing node. [`CostTable`] holds
//! measured costs.
//!
//! ```text
//! rank 0   compute | start g | compute        | wait g ....| compute
//! rank 1   compute        | start g | compute    | wait g .| compute
//! group g                 |<--------- seconds ---------->|           begins when the last rank has started it
//! ```

mod costs;
mod counted;
mod events;
mod programs;
mod routed;
mod routing;
mod sharing;
mod table;

pub use costs::{CollectiveSeconds, Copied, MessageSeconds, NodeCosts, Traffic};
pub use counted::{counted_by, counted_rows, on_rows};
pub use events::{CollectiveSpan, Medium, Progress, RankEvent, Replay, ReplayGroup, StepEvents, replay};
pub use programs::{PERMUTATIONS, RankWriter, SECOND_MEMORY, UnitCosts};
pub use routing::{GroupChoices, Loads, RoutedRows, RoutingProfile};
pub use table::{CostTable, LinearSeconds, RowSeconds, op_key};
