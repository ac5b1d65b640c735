//! The keys of `[corpus.clean]`.

use crate::in_range;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Handling of bytes that are not UTF-8.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum InvalidUtf8 {
    /// Files of a `folder` are decoded if they are in a legacy encoding or UTF-16, which is detected as browsers detect it; other
    /// documents are dropped.
    #[default]
    Detect,
    /// Drop the document.
    Drop,
    /// Replace each invalid sequence by U+FFFD.
    Repair,
}

/// Handling of texts that are longer than `max_bytes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LongTexts {
    /// Cut at borders of paragraphs into documents `id#1`, `id#2`, … on one side of the split. Code, by extension, is dropped.
    #[default]
    Cut,
    /// Drop the document (`too-large`).
    Drop,
}

/// Documents that the line rules check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Scope {
    /// Code files, recognised by extension.
    #[default]
    Code,
    /// Every document.
    All,
    /// No document.
    None,
}

/// `[corpus.clean]`: which documents are kept. Each rule gives the reason under which it drops. The rules do not
/// touch a single `file` source, which is kept byte for byte.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CleanConfig {
    /// Apply the rules below; `false` keeps every readable text.
    pub enabled: bool,
    /// Documents with fewer bytes, after edits, are dropped (`too-short`).
    pub min_bytes: u64,
    /// Bytes of the longest document. A web page may have 16 times as many with its markup, or 8 MiB where long texts are cut.
    pub max_bytes: u64,
    /// Texts that are longer: `cut` into documents `id#1`, `id#2`, … at borders of paragraphs, all on one side of the split, or
    /// `drop`ped (`too-large`) without being read whole. Code is dropped in any case, and texts that no memory would hold: files
    /// above 256 MiB, lines of JSON above 16 MiB.
    pub long: LongTexts,
    /// Bytes that are not UTF-8: `detect` the encoding of a folder's files, `drop` the document or `repair` it.
    pub invalid_utf8: InvalidUtf8,
    /// Drop files whose first comment lines say that a program wrote them (`generated`).
    pub drop_generated: bool,
    /// Drop code whose non-blank characters are numeric literals to more than this share (`numeric-table`);
    /// 1 switches the rule off.
    pub max_numeric_share: f64,
    /// Documents that the line rules check: `code`, `all` or `none`.
    pub line_rules: Scope,
    /// Longest allowed line in characters (`long-line`).
    pub max_line_chars: u64,
    /// Largest allowed mean line length in characters (`long-mean-line`).
    pub max_mean_line_chars: f64,
    /// Smallest allowed share of letters and digits among all characters (`low-alphanumeric`).
    pub min_alphanumeric_share: f64,
    /// Drop documents whose text, apart from white space at line ends and blank lines, was seen before
    /// (`duplicate`), across the splits too.
    pub exact_dedup: bool,
}

impl Default for CleanConfig {
    fn default() -> Self {
        CleanConfig {
            enabled: true,
            min_bytes: 100,
            max_bytes: 200_000,
            long: LongTexts::Cut,
            invalid_utf8: InvalidUtf8::Detect,
            drop_generated: true,
            max_numeric_share: 0.4,
            line_rules: Scope::Code,
            max_line_chars: 1000,
            max_mean_line_chars: 100.0,
            min_alphanumeric_share: 0.25,
            exact_dedup: true,
        }
    }
}

impl CleanConfig {
    /// Largest allowed `max_bytes`: documents are held in memory whole while they are filtered.
    pub const LARGEST_DOCUMENT: u64 = 256 << 20;

    /// Bytes above which a text is cut into parts, if it is.
    pub fn cuts(&self) -> Option<u64> {
        (self.enabled && self.long == LongTexts::Cut).then_some(self.max_bytes)
    }

    /// Checks every value against its range.
    pub fn check(&self) -> Result<(), String> {
        if self.max_bytes == 0 || self.max_bytes > Self::LARGEST_DOCUMENT {
            return Err(format!(
                "corpus.clean.max_bytes = {}: expected 1 to {} (documents are held in memory whole)",
                self.max_bytes,
                Self::LARGEST_DOCUMENT
            ));
        }
        if self.min_bytes > self.max_bytes {
            return Err(format!(
                "corpus.clean.min_bytes = {}: expected at most corpus.clean.max_bytes = {}",
                self.min_bytes, self.max_bytes
            ));
        }
        if self.max_line_chars == 0 {
            return Err("corpus.clean.max_line_chars = 0: expected at least 1".into());
        }
        in_range("corpus.clean.max_numeric_share", self.max_numeric_share, 0.0, 1.0)?;
        in_range("corpus.clean.max_mean_line_chars", self.max_mean_line_chars, 1.0, 1e9)?;
        in_range("corpus.clean.min_alphanumeric_share", self.min_alphanumeric_share, 0.0, 1.0)
    }
}
