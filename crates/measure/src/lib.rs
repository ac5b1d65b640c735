//! Measurements of this machine: a training step, its operators, and transport between ranks of one process.
//!
//! `bessemer doctor`, the planner and the benchmarks of `bessemer-bench` measure with the same code.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod cases;
mod costs;
mod error;
mod job;
pub mod machine;
pub mod many_cores;
mod observed;
mod operators;
mod paced;
mod products;
mod setup;
mod step;
mod text;
mod this_machine;
mod timed;

pub use cases::{LayoutCase, layout_cases};
pub use costs::{Transport, launches, layout_costs, transport_of};
pub use error::MeasureError;
pub use job::Job;
pub use setup::{Bench, Setup, StepSize};
pub use step::{Steps, Times, measure_steps};
pub use text::{RandomText, SEED};
pub use this_machine::{Effort, measure_machine, small_job};
pub use timed::{Launched, Ledger, Spent, Timed};

use bessemer_kernels_cpu::Engine;

/// The engine of this name.
///
/// # Errors
/// A name that no engine has.
pub fn engine(name: &str) -> Result<Engine, MeasureError> {
    let known: Vec<&str> = Engine::ALL.iter().map(|e| e.name()).collect();
    (Engine::ALL.into_iter().find(|e| e.name() == name))
        .ok_or_else(|| MeasureError::request(format!("--engine {name}: wanted one of {}", known.join(", "))))
}
