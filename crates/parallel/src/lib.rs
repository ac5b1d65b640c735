//! One rank of a training job, and how ranks share it.
//!
//! | axis | what its ranks share | traffic |
//! |---|---|---|
//! | replicate | the batch; each has a copy of the model | gradients |
//! | shard | the batch; a copy's optimizer state, gradients, parameters ([`Stage`]) | gradients and values |
//! | tensor | every layer's matrices ([`bessemer_arch::Portion`]) | activations |
//!
//! A [`Worker`] is a [`bessemer_model::Decoder`] of this rank's portion, whose parameters lie where the stage wants them,
//! with an optimizer over the stretches that this rank steps, and communicators that act at the model's seams. One rank is
//! no special case: its groups have one member and nothing travels.
//!
//! Rajbhandari et al. 2020 (ZeRO); Zhao et al. 2023 (FSDP); Shoeybi et al. 2019 (Megatron-LM); Korthikanti et al. 2022.

mod channel;
mod check;
mod columns;
mod config;
mod error;
mod exchange;
mod flat;
mod groups;
mod memory;
mod norm;
mod owner;
mod peers;
mod piece;
mod plan;
mod seams;
mod state;
mod tensor;
mod words;
mod worker;

pub use check::check_layouts;
pub use config::{ParallelConfig, Stage};
pub use error::ParallelError;
pub use plan::{Coord, Plan};
pub use seams::Micro;
pub use state::StateTensor;
pub use worker::{Job, Worker};
