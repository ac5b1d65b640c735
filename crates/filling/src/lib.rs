//! Work that ranks do in the bubbles of a pipeline: what it is, and in which bubble it stands.
//!
//! | work | done by | planned by |
//! |---|---|---|
//! | K-FAC's curvature, inverses and directions | the refresh of [`RankFill`] | [`plan_fill`] |
//! | copies of the state for checkpoints | [`plan_snapshot`], [`take_snapshot`] | [`plan_copies`] |
//! | batches of evaluations | passes of the chunks themselves | [`plan_evaluations`] |
//!
//! A [`FillPlan`] has the programs of a job's steps and supplies each rank's [`RankFill`]. `parallel` knows neither: it runs the
//! programs, and hands the work its instructions ([`bessemer_parallel::FillerWork`]).
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod check;
mod copies;
mod curvature;
mod evaluations;
mod operands;
mod plan;
mod rank;
mod refresh;
mod snapshot;

pub use check::check;
pub use copies::{PlannedCopies, plan_copies};
pub use curvature::plan_fill;
pub use evaluations::plan_evaluations;
pub use plan::{FillPlan, PlannedStep, StepFill};
pub use rank::RankFill;
pub use snapshot::{give_snapshot_memory, plan_snapshot, take_snapshot};
