//! A decoder-only transformer with explicit forward and backward passes, made from one [`bessemer_arch::Model`].
//!
//! The model's code states what one device does; it is recorded once, as a program for each unit (`record`), and
//! interpreted in every pass ([`bessemer_program::run()`]); there is no tape. A pre-normalised layer (Radford et al. 2019;
//! Touvron et al. 2023) is
//!
//! ```text
//! x <- x + dropout(Attention(Norm(x)) Wo)
//! x <- x + dropout(f(Norm(x) Wup) Wdown)          or   (f(gate) * up) Wdown
//! ```
//!
//! and the loss is softmax cross-entropy after a last normalisation, fused with the output projection.
//! `record/residual.rs` has the other placements of the normalisation: after the sum, DeepNorm, none.
//!
//! What is saved for the backward pass follows from the programs, after normalised rows and hidden values are set to be
//! computed again ([`bessemer_units::RecomputePlan`]); all other memory is scratch that all passes share. [`Decoder::new`]
//! allocates everything and reserves the operators' workspace; no pass after it allocates.
//!
//! The crate knows no ranks, files or devices: its code records one device, and [`bessemer_program::partition()`] rewrites
//! the programs for one tensor shard of a model ([`Decoder::of_tensor_shard`]). A decoder may also be one stage of a pipeline with
//! several micro-batches in flight and backward passes in two parts ([`Decoder::of_stage`]): the passes of a whole model
//! are those of a stage that holds everything.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod cache;
mod config;
mod decode;
mod decoder;
mod error;
mod gradient_memory;
mod init;
mod lengths;
mod logits;
mod memory;
mod offload;
mod params;
mod prefix;
mod ranks;
mod record;
mod shape;
mod slots;
mod stage;
mod step;
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
pub use init::initial_values;
pub use lengths::LengthPlan;
pub use offload::OffloadLayout;
pub use params::Param;
pub use prefix::{MIN_PASS_ROWS, PrefixCache};
pub use ranks::StageRanks;
pub use record::Z_LOSS;
pub use slots::Pending;
pub use stage::{BackwardPart, SlotMemory, StageConfig, StagePass};
pub use step::{Accumulate, LossSum, StepContext, TokenBatch, WeighedLoss};
pub use tensor_shard::{LineStream, Stream};
pub use trace::LayerTrace;
pub use units::Rewrite;
