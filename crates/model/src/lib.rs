//! The code of a decoder-only transformer for one device, made from one [`bessemer_arch::Model`].
//!
//! [`Recording`] records each unit (embedding, layer, head) once, as a program with explicit forward and backward lists
//! ([`bessemer_program::UnitProgram`]); there is no tape. A pre-normalised layer (Radford et al. 2019; Touvron et al. 2023) is
//!
//! ```text
//! x <- x + dropout(Attention(Norm(x)) Wo)
//! x <- x + dropout(f(Norm(x) Wup) Wdown)          or   (f(gate) * up) Wdown
//! ```
//!
//! where `f` may be a mixture of experts (`record/experts.rs`), and the loss is softmax cross-entropy after a last normalisation, fused with the output projection.
//! `record/residual.rs` has the other placements of the normalisation: after the sum, DeepNorm, none.
//!
//! The crate has no ranks, buffers, files or devices: [`bessemer_program::partition()`] rewrites the programs for a rank, and
//! `bessemer-runtime` runs them. Parameters are those of [`bessemer_arch::Model::params`]; [`initial_values`] draws them.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod init;
mod record;

pub use init::{euclidean, initial_matrix, initial_values};
pub use record::{
    BALANCE_LOSS, DISTILLATION_LOSS, ROUTER_Z_LOSS, Recording, TeacherShape, Z_LOSS, sinusoids,
};
