//! The keys of `[corpus.dedup.substring]` and `[corpus.dedup.lines]`, which cut repeated parts out of documents.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Exact substring deduplication: of every string of `length` bytes that occurs several times one copy stays, the one lowest in
/// document order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SubstringConfig {
    /// Bytes of the shortest repeat that is removed. The authors of the method remove 50 tokens, about 200 bytes of English.
    pub length: u32,
    /// Documents with fewer bytes than this left after a cut are dropped (`repeated-substrings`).
    pub min_bytes_left: u64,
}

impl Default for SubstringConfig {
    fn default() -> Self {
        SubstringConfig { length: 200, min_bytes_left: 100 }
    }
}

impl SubstringConfig {
    /// Smallest allowed `length`.
    pub const MIN_LENGTH: usize = 8;
    /// Largest allowed `length`.
    pub const MAX_LENGTH: usize = 1 << 16;

    /// Checks the values. The message begins with `key`, the name of this table.
    pub fn check(&self, key: &str) -> Result<(), String> {
        let (least, most) = (Self::MIN_LENGTH, Self::MAX_LENGTH);
        if (least..=most).contains(&(self.length as usize)) {
            return Ok(());
        }
        Err(format!("{key}.length = {}: expected {least} to {most} bytes", self.length))
    }
}

/// Unit of text that is compared.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LineUnit {
    /// Lines in the normal form of cc_net.
    #[default]
    Lines,
    /// Spans of consecutive sentences, as C4 and datatrove do.
    Sentences,
}

/// Deduplication of lines or sentences across documents: the first occurrence stays.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LinesConfig {
    /// Unit that is compared: lines or sentences.
    pub unit: LineUnit,
    /// Sentences of a span, with `sentences`.
    pub span: u32,
    /// Documents with fewer words than this after a cut are dropped (`repeated-lines`); 0 keeps all.
    pub min_words: u32,
    /// Documents with fewer sentences than this after a cut are dropped; 0 keeps all.
    pub min_sentences: u32,
}

impl Default for LinesConfig {
    fn default() -> Self {
        LinesConfig { unit: LineUnit::Lines, span: 3, min_words: 50, min_sentences: 3 }
    }
}

impl LinesConfig {
    /// Checks the values. The message begins with `key`, the name of this table.
    pub fn check(&self, key: &str) -> Result<(), String> {
        if (1..=100).contains(&self.span) {
            return Ok(());
        }
        Err(format!("{key}.span = {}: expected 1 to 100 sentences", self.span))
    }
}
