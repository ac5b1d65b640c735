//! A decoder-only transformer with explicit forward and backward passes, made from one [`bessemer_arch::Model`].
//!
//! A pass is a list of operators launched on a [`bessemer_tensor::Backend`]; there is no tape. A pre-normalised
//! layer (Radford et al. 2019; Touvron et al. 2023) is
//!
//! ```text
//! x <- x + dropout(Attention(Norm(x)) Wo)
//! x <- x + dropout(f(Norm(x) Wup) Wdown)          or   (f(gate) * up) Wdown
//! ```
//!
//! and the loss is softmax cross-entropy after a last normalisation, fused with the output projection. `residual.rs` has
//! the other placements of the normalisation: after the sum, DeepNorm, none.
//!
//! What is stored for the backward pass, once a layer: the input of each normalisation and its statistics, queries, keys
//! and values, the attention's result and row sums, the pre-activations. Normalised rows and the values between the two
//! products of the feed-forward block are computed again from those ([`bessemer_units::Recompute`]). All other memory is
//! scratch that layers share. [`Decoder::new`] allocates everything and reserves the operators' workspace;
//! no pass after it allocates.
//!
//! The crate knows no ranks, files or devices. What a distributed run needs to do inside a layer enters through
//! [`Seams`]; a decoder may be one portion of a model ([`Decoder::of_portion`]), and one stage of a pipeline with several
//! micro-batches in flight and backward passes in two parts ([`Decoder::of_stage`]): the passes of a whole model are
//! those of a stage that holds everything.
//!
//! Letters of shape suffixes: n rows (tokens), d width, j columns of the fused queries, keys and values, a columns of
//! the attention's result (H E), p columns of the first feed-forward matrix (F or 2F), f F, v vocabulary.

mod activations;
mod attention;
mod cache;
mod decode;
mod decoder;
mod dropout;
mod embedding;
mod error;
mod head;
mod init;
mod mlp;
mod norm;
mod params;
mod pass;
mod passes;
mod pending;
mod portion;
mod qk_norm;
mod residual;
mod seams;
mod slots;
mod stage;
mod stage_memory;
mod step;
mod trace;

pub use activations::ActivationConfig;
pub use bessemer_arch::Unit;
pub use cache::Cache;
pub use decoder::{Decoder, Purpose, Shape};
pub use error::ModelError;
pub use init::initial_values;
pub use params::Param;
pub use portion::Stream;
pub use seams::{OneDevice, Phase, Product, SeamAt, SeamPlace, Seams};
pub use slots::Pending;
pub use stage::StageConfig;
pub use stage_memory::{StageMemory, stage_memory};
pub use step::{Accumulate, LossSum, StepContext, TokenBatch};
pub use trace::LayerTrace;
