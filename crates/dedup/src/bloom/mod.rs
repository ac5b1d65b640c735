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

use crate::config::require;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Shards of a filter: part of its definition, not of the machine.
pub const SHARDS: usize = 64;

/// Part of a text that is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum BloomScope {
    /// Paragraphs (lines); a document of which nothing is left is dropped.
    #[default]
    Paragraphs,
    /// Whole documents only.
    Documents,
    /// Paragraphs, and documents whose n-grams altogether reach the threshold.
    Both,
}

/// `[corpus.dedup.bloom]`: text that repeats earlier text, by n-grams in a Bloom filter.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BloomConfig {
    /// paragraphs, documents or both.
    pub scope: BloomScope,
    /// Words of an n-gram.
    pub ngram: usize,
    /// Share of n-grams seen before from which text is removed.
    pub threshold: f64,
    /// N-grams expected in the corpus, about one for each word: sizes the filter.
    pub expected: u64,
    /// Share of false answers at that number: 0.01 costs 10 to 20 bits for each n-gram.
    pub false_positives: f64,
    /// Seed of the hashes.
    pub seed: u64,
}

impl Default for BloomConfig {
    fn default() -> Self {
        BloomConfig {
            scope: BloomScope::Paragraphs,
            ngram: 13,
            threshold: 0.8,
            expected: 100_000_000,
            false_positives: 0.01,
            seed: 1,
        }
    }
}

impl BloomConfig {
    pub(crate) fn check(&self) -> Result<(), String> {
        require((1..=100).contains(&self.ngram), "bloom.ngram", "from 1 to 100", self.ngram)?;
        let is_share = self.threshold > 0.0 && self.threshold <= 1.0;
        require(is_share, "bloom.threshold", "above 0 and at most 1", self.threshold)?;
        let is_rare = (1e-9..=0.5).contains(&self.false_positives);
        require(is_rare, "bloom.false_positives", "from 1e-9 to 0.5", self.false_positives)?;
        require((1..=1 << 40).contains(&self.expected), "bloom.expected", "from 1 to 2^40", self.expected)
    }
}
