//! Predicts how long a step takes on machines that are not here, and holds predictions against measured steps.
//!
//! - [`Job`] is a model, its batch and its [`Layout`]; [`Machine`] what devices, nodes and networks can do, each figure with a source.
//! - [`step_time`] is the time of a step in closed form, by part; [`Efficiency`] the constants in it that depend on the software.
//! - [`Calibration`] holds these constants, fitted to a few measured steps that [`choose`] picks from a [table](read_table);
//!   [`validate`] predicts other steps and says how wrong that was.
//! - [`op_seconds`] and [`collective_seconds`] are the times of the nodes of a program, [`MachineCosts`] those of ranks' lists.
//! - [`Measurements`] of a machine take the place of its model, where it has them.
//! - [`layerwise`] plans layers that differ, by the programs that ranks would run.
//! - [`StepWork`] on [`ManyCores`] is a step on the sockets, memory nodes and threads of one machine.
//! - [`candidates`] lists every layout of a job that may fit into memory, the fastest first.
//!
//! This crate is pure: no file, clock, thread or random source.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod bubble;
mod calibration;
mod context;
mod cores;
mod cost;
mod efficiency;
mod error;
mod errors;
mod fit;
mod grid;
mod job;
pub mod layerwise;
mod least;
mod machine;
mod machine_costs;
mod measured;
mod memory;
mod operator;
mod search;
pub mod sharding;
mod stages;
mod switches;
mod table;
mod validate;

pub use bessemer_mesh::formulas::{ParameterBytes, ZeroStage};
pub use bessemer_mesh::{Axis, TensorGrid};
pub use calibration::{Band, Calibration, MOST_FITTED, Regret, choose, choose_at_most};
pub use cores::{Cores, CoresTime, ManyCores, OperatorWork, Placement, StepWork};
pub use cost::{StepTime, step_time};
pub use efficiency::Efficiency;
pub use error::PlanError;
pub use errors::{Errors, best_constant, errors, ranking};
pub use fit::Measurement;
pub use grid::grids;
pub use job::{Job, Layout, PipelineSchedule, Recompute, Transformer};
pub use least::{ElementBytes, StageSplit, least_memory};
pub use machine::{AllReduce, DeviceCost, Machine, Measured};
pub use machine_costs::MachineCosts;
pub use measured::{
    ByteSeconds, InProcess, MeasuredCollective, MeasuredOperator, Measurements, ProductGrid, ProductKind,
    kind_name,
};
pub use memory::expected_memory;
pub use operator::{CollectiveChoice, Spread, collective_choice, collective_seconds, op_seconds};
pub use search::{Candidate, Candidates, MOST_KEPT, Question, candidates};
pub use stages::{Stage, StageCosts, StagePlan, StageQuestion, stages};
pub use switches::{NetworkSwitch, NodeSwitch, SummingSwitches};
pub use table::{GivenColumns, LeftOut, MeasuredMemory, Table, TableReader, read_table};
pub use validate::{Group, LeftOutBy, LeftOutGroup, Prediction, Validation, leave_groups_out, validate};
