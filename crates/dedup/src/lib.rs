//! Deduplication: exact, Bloom, SimHash, MinHash with verification, substrings, lines and paragraphs, semantic.
//!
//! Every method is a list of stages of a plan. What it decides is a pure function of the rows: not of threads, memory,
//! batches or the order of arrival. Of each group of duplicates the document with the lowest (split, file, row) is
//! kept, and knows how many it stands for.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod bloom;
mod candidates;
mod components;
pub mod exact;
mod keep_first;
mod keys;
pub mod lines;
pub mod minhash;
pub mod rehydrate;
mod representatives;
pub mod semantic;
pub mod simhash;
mod stages;
pub mod substring;
mod verdict;

pub use representatives::similarity;
pub use stages::stages;

/// Version of the verdicts and edited texts that this crate makes. Raised whenever one of them changes for the same input and configuration:
/// finished corpora are reused under it.
pub const VERSION: u32 = 2;
