//! Loss, perplexity, bits per byte, answers to tasks, n-gram baselines, text generation.
//!
//! - [`score`]: how well a model predicts a validation split or a document.
//! - [`score::rows`], [`score::answers`]: log-likelihoods of parts of texts, and with them what the requests of tasks ask for.
//! - [`kneser_ney`]: the byte n-gram model that a neural one has to beat, in the same bits per byte.
//! - [`baseline`]: that model trained on the tokens of a split that a neural model saw.
//! - [`ngram_ladder`]: what each further character of context is worth by plain counting.
//! - [`generate`], [`sampling`]: text from a model, the same for the same seed.
//! - [`windows`]: which targets are scored with which context.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod baseline;
pub mod config;
mod error;
pub mod generate;
pub mod kneser_ney;
pub mod ngram_ladder;
pub mod sampling;
pub mod score;
mod utf8_stream;
pub mod windows;

pub use config::{EvalConfig, TasksConfig};
pub use error::EvalError;
pub use utf8_stream::Utf8Stream;
