//! Paragraphs and documents most of whose n-grams were seen before: the rule of `bff` (Dolma, DCLM).
//!
//! The n-grams of UAX #29 words of every paragraph are looked up in a Bloom filter and then inserted. A paragraph is
//! removed if `threshold` of its n-grams or more were there; one with fewer than n words is one n-gram. With
//! `scope = "both"` a document goes too if that holds for its n-grams altogether, with `documents` nothing else goes.
//!
//! What was seen before is a matter of order alone: rows come by (file, row), every n-gram belongs to one of [`SHARDS`]
//! shards of the filter by its hash's highest bits, and each shard answers in the order of the rows. Threads share
//! shards among them, so their number changes nothing. (With concurrent inserts into one filter the survivors depend
//! on timing.)

mod filter;
mod stages;

pub use filter::{Filter, Size};
pub(crate) use stages::stages;

/// Shards of a filter: part of its definition, not of the machine.
pub const SHARDS: usize = 64;
