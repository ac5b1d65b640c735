//! A decoder as it runs on one rank: its memory, its passes, its caches.
//!
//! The programs that [`bessemer_model::Recording`] records are rewritten for this rank and interpreted in every pass
//! ([`bessemer_program::run()`]). They determine the values saved for the backward pass, after normalised rows and hidden values
//! are set to be computed again ([`bessemer_units::RecomputePlan`]); all other memory is scratch that all passes share.
//! [`Decoder::new`] allocates everything and reserves the operators' workspace; no pass after it allocates.
//!
//! A [`Decoder`] may be one tensor shard of a model ([`Decoder::of_tensor_shard`]), and one stage of a pipeline with several
//! micro-batches in flight and backward passes in two parts ([`Decoder::of_stage`]): the passes of a whole model are those of a
//! stage that holds everything. Communication is the caller's ([`StageRanks`]). [`Cache`] holds keys and values for decoding.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod cache;
mod config;
mod decode;
mod decoder;
mod error;
mod expert_rows;
mod gradient_memory;
mod init;
mod lengths;
mod logits;
mod memory;
mod offload;
mod params;
mod peers;
mod prefix;
mod ranks;
mod shape;
mod slots;
mod stage;
mod step;
mod teacher;
mod tensor_shard;
mod trace;
mod units;

pub use bessemer_arch::Unit;
pub use bessemer_program::{Collective, OneDevice, Phase, Ranks};
pub use cache::{Cache, CacheShape};
pub use config::{ActivationConfig, UnitPass};
pub use decode::NextPosition;
pub use decoder::{Decoder, Purpose, Shape};
pub use error::ModelError;
pub use expert_rows::ExpertRows;
pub use lengths::LengthPlan;
pub use offload::OffloadLayout;
pub use params::Param;
pub use peers::Peers;
pub use prefix::{MIN_PASS_ROWS, PrefixCache};
pub use ranks::StageRanks;
pub use slots::Pending;
pub use stage::{BackwardPart, SlotMemory, StageConfig, StagePass};
pub use step::{Accumulate, LossSum, StepContext, TokenBatch, WeighedLoss};
pub use teacher::{Teacher, TeacherOperands};
pub use tensor_shard::{LineStream, Stream};
pub use trace::LayerTrace;
pub use units::Rewrite;
