//! MinHash with locality-sensitive hashing, and verification of what it proposes.
//!
//! A document is the set of its shingles. A signature is a list of values such that two documents agree in each with
//! a probability near the Jaccard similarity s of their sets (Broder 1997). Cut into b bands of r values, two
//! documents share at least one whole band with probability 1 − (1 − s^r)^b: those are candidates. A candidate is no
//! duplicate yet: with 14 bands of 8, one pair in nineteen at s = 0.5 is one. [`Verify`](bessemer_corpus_config::dedup::Verify) says how the sets are compared.

pub mod lsh;
pub mod permutations;
pub mod shingle;
pub mod sketch;
pub mod stages;

pub use lsh::{hit_probability, optimal_bands, resolved, threshold};
pub use permutations::{Permutations, Width};
pub use shingle::Shingler;
pub use sketch::Sketcher;
pub use stages::BandKeys;
