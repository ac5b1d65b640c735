//! The optimizer step: learning-rate schedule, clipping by global norm, and the update of AdamW, SGD, Adafactor, Lion,
//! Muon or K-FAC.
//!
//! A step is four moves on the device: the sum of squares of every gradient, their total and the clipping factor on
//! the host, and the update of every parameter. A gradient that is not finite leaves everything as it was.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod adafactor;
mod adamw;
mod config;
mod cost;
mod error;
mod kfac;
mod lion;
mod loss_scale;
mod muon;
mod optimizer;
mod param;
mod peers;
mod rule;
mod schedule;
mod sgd;
mod state;

pub use config::{
    AdafactorConfig, DecayShape, KfacConfig, MuonConfig, MuonMethod, MuonScale, OptimConfig,
    OptimConfigError, OptimizerChoice, ScheduleChoice, SgdConfig, StateChoice,
};
pub use cost::UpdateCost;
pub use error::OptimError;
pub use kfac::{KfacUnit, KfacWork};
pub use loss_scale::{LossScale, LossScaleConfig, LossScaleMode};
pub use optimizer::{Optimizer, StepStats, is_moment_name, is_state_name};
pub use param::{OptimParam, WholeMatrix};
pub use peers::{Alone, Peers, Ranks};
pub use schedule::Schedule;
pub use state::{Int8View, Moment, StateView};
