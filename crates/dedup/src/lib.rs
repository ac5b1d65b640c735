//! Deduplication: exact, Bloom, SimHash, MinHash with verification, substrings, lines and paragraphs, semantic.

pub mod lines;
pub mod substring;
