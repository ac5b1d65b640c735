//! A model's shapes, parameters and FLOPs, as pure values: what a recipe's `[model]` table means.
//!
//! [`ModelConfig`] is what was written, [`Model`] what it means; only a `Model` that can be built exists.

mod config;
mod flops;
mod named;
mod params;

pub use config::{ActivationChoice, ArchError, MlpKind, Model, ModelConfig, NormChoice, PositionChoice};
pub use named::{NAMED, named};
pub use params::{Init, ParamSpec, Role};
