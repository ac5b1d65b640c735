//! The keys of `[corpus.dedup.bloom]`.

use super::require;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
    pub(super) fn check(&self) -> Result<(), String> {
        require((1..=100).contains(&self.ngram), "bloom.ngram", "from 1 to 100", self.ngram)?;
        let is_share = self.threshold > 0.0 && self.threshold <= 1.0;
        require(is_share, "bloom.threshold", "above 0 and at most 1", self.threshold)?;
        let is_rare = (1e-9..=0.5).contains(&self.false_positives);
        require(is_rare, "bloom.false_positives", "from 1e-9 to 0.5", self.false_positives)?;
        require((1..=1 << 40).contains(&self.expected), "bloom.expected", "from 1 to 2^40", self.expected)
    }
}
