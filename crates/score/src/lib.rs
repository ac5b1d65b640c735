//! Scores of documents: language, quality, perplexity, importance, tags; fastText and KenLM models, read and trained.
//!
//! Everything is a function of one document. A `ScoreConfig` of `corpus-config` names a score and its model, a [`Scorer`] has the model
//! in memory and may be asked from many threads; the trainers take iterators of documents. docs/scores.md says what
//! each score means and how to make its model.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod classifier;
pub mod date;
pub mod domain;
pub mod dsir;
pub mod fasttext;
pub mod kenlm;
pub mod language;
pub mod quantile;
pub mod sentencepiece;
pub mod toxicity;
pub mod unigram;

mod error;
mod random;
mod scorer;
mod source;

pub use error::{Result, ScoreError};
pub use language::LanguageId;
pub use scorer::{Document, Scorer, Value};

/// Version of the scores that this crate makes. Raised whenever one of them changes for the same input and configuration:
/// finished corpora are reused under it.
pub const VERSION: u32 = 1;
