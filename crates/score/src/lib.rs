//! Scores of documents: language, quality, perplexity, importance, tags; fastText and KenLM models, read and trained.

pub mod fasttext;
pub mod kenlm;

mod error;
mod random;
mod source;

pub use error::{Result, ScoreError};
