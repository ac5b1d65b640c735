//! Exact substring deduplication: bytes that repeat are removed, one copy stays.
//!
//! What is removed (Lee et al. 2022, "Deduplicating training data makes language models better", made precise):
//! - a *window* is T consecutive bytes of one document; windows of equal bytes make a group;
//! - in each group the window lowest in document order is *kept*, every other one is *marked*;
//! - marked windows and kept windows are joined and widened to whole UTF-8 characters;
//! - a byte is removed if it is marked and not kept: where both cover it, as in periodic text, the kept copy wins.
//!
//! So every string of T bytes that occurred is still there, in the place where it occurred first.
//!
//! [`Finder`] finds these ranges without a suffix array: winnowing (`anchors.rs`) picks one position for about T / 4 bytes, only
//! windows whose pick occurs elsewhere are fingerprinted and sorted, and what the sort calls equal is compared byte by
//! byte. Memory is bounded; the rest goes to disk. [`suffix`] holds the suffix-array form, the judge in tests.
//! The result is a pure function of documents and T: not of threads, memory or seeds.

mod anchors;
mod error;
mod finder;
mod ranges;
mod records;
mod stages;
mod store;
pub mod suffix;

pub use error::{Error, Result};
pub use finder::{Finder, Limits, Repeats};
pub use stages::stages;

#[cfg(test)]
mod tests;
