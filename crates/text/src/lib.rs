//! Normal forms of text, and how it is cut into words, lines, sentences and n-grams.
//!
//! Rules, deduplication, privacy and scores are each defined over one of these forms, and which one is part of their
//! name: "five-word shingles" of two tools differ when their words do. Everything here works on `&str` and `&[u8]`, is
//! pure, and has a plain reference beside each fast path.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod hash;
pub mod ngram;
pub mod normal;
pub mod split;
pub mod unicode;

pub use normal::{Simplify, cc_net_dedup, cc_net_normalize, paragraph_key};
pub use split::Words;

/// Version of the words, sentences and normal forms that this crate makes. Raised whenever one of them changes for the same input and configuration:
/// finished corpora are reused under it.
pub const VERSION: u32 = 1;
