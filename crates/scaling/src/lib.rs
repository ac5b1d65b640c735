//! Scaling laws: the loss of a language model as a function of its parameters, its text and its compute.
//!
//! - [`compute`]: `C = tau T = 6 P D` in all directions.
//! - [`kaplan`]: the laws of Kaplan et al. 2020, which count parameters without embeddings.
//! - [`ParametricLaw`]: `L = E + A / N^alpha + B / D^beta` with the constants of Hoffmann et al. 2022 and of its correction
//!   (Besiroglu et al. 2024); the best sizes for a compute, for a text, and for a model that will be used much.
//! - [`RepetitionLaw`]: text that is read several times (Muennighoff et al. 2023); [`OvertrainingLaw`]: loss by tokens for each
//!   parameter, and the error of tasks that follows from the loss (Gadre et al. 2024).
//! - [`fit_parametric`], [`bootstrap`], [`approaches`]: the three approaches of Hoffmann et al. 2022 on runs of one's own, with intervals.
//! - [`Optimum`]: the best setting of a sweep, such as of learning rates.
//! - [`batch`]: sizes of batches and learning rates that published studies found.
//!
//! Losses are nats for each token, so they hold for one tokenizer and one kind of text. Everything is a pure value.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod approaches;
pub mod batch;
pub mod bootstrap;
pub mod compute;
mod error;
mod fit;
pub mod kaplan;
mod newton;
mod overtraining;
mod parametric;
mod repeated;
mod search;
mod sweep;

pub use compute::Allocation;
pub use error::ScalingError;
pub use fit::{Exponents, ParametricFit, TrainedRun, fit_parametric, objective};
pub use newton::HUBER_DELTA;
pub use overtraining::{OvertrainingLaw, TaskErrorLaw};
pub use parametric::ParametricLaw;
pub use repeated::RepetitionLaw;
pub use sweep::Optimum;
