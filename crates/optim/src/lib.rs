//! The optimizer step: learning-rate schedule, clipping by global norm, AdamW.
//!
//! A step is four moves on the device: the sum of squares of every gradient, their total and the clipping factor on
//! the host, and one fused update for every parameter. A gradient that is not finite leaves everything as it was.

mod adamw;
mod config;
mod schedule;

pub use adamw::{AdamW, OptimError, OptimParam, StepStats};
pub use config::{DecayShape, OptimConfig, OptimConfigError, OptimizerChoice, ScheduleChoice};
pub use schedule::Schedule;
