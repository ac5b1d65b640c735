//! Quantities, element types and their human formatting.
//!
//! A number that carries a unit is a type of its own, so that bytes are not added to tokens and a report
//! prints every figure in one way. Everything here is a plain value: no file, clock, thread or random source.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod activations;
mod compress;
mod dtype;
mod interval;
mod link;
mod matmul;
mod nearest;
mod offload;
mod params;
mod quantity;
mod recompute;
pub mod splitmix;
pub mod stats;
mod text;

pub use activations::Storage;
pub use compress::{Compression, CompressionPlan};
pub use dtype::DType;
pub use interval::{best_interval, daly_interval, young_interval};
pub use link::Link;
pub use matmul::MatmulPrecision;
pub use nearest::{did_you_mean, nearest, with_suggestion};
pub use offload::{Offload, OffloadPlan};
pub use params::{ParamDType, ParamStorage, ReduceDType};
pub use quantity::{Bytes, Flops, Seconds, Tokens};
pub use recompute::{Recompute, RecomputeLayers, RecomputePlan, RecomputePolicy};
pub use text::{bounded, counted, cut, escape_xml};
