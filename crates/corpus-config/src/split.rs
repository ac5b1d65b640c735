//! The keys of `[corpus.split]`.

use crate::in_range;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What the split into train and validation follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SplitBy {
    /// By source where that puts at least one source on each side and holds out no more than twice the bytes that were asked
    /// for, else by document.
    #[default]
    Auto,
    /// All documents of one source (one crate in all its versions, one top folder, one file) on one side.
    Source,
    /// Each document by itself.
    Document,
}

/// `[corpus.split]`: which documents are held out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SplitConfig {
    /// Share held out for validation: of the sources or documents by a keyed hash of their names, or the last
    /// share of the characters of a single `file`. Above 0 at least one document, or the end of one, is held out.
    pub validation_fraction: f64,
    /// What the split follows: auto, source or document.
    pub by: SplitBy,
    /// Key of the hash: another seed gives another split.
    pub seed: u64,
    /// Sources that are validation whatever their hash says.
    pub validation: Vec<String>,
    /// Sources that are train whatever their hash says.
    pub train: Vec<String>,
}

impl Default for SplitConfig {
    fn default() -> Self {
        SplitConfig {
            validation_fraction: 0.1,
            by: SplitBy::Auto,
            seed: 0,
            validation: Vec::new(),
            train: Vec::new(),
        }
    }
}

impl SplitConfig {
    /// Checks the fraction and that no source is on both lists.
    pub fn check(&self) -> Result<(), String> {
        in_range("corpus.split.validation_fraction", self.validation_fraction, 0.0, 0.9)?;
        match self.validation.iter().find(|name| self.train.contains(name)) {
            Some(name) => Err(format!(
                "corpus.split.validation and corpus.split.train both name {name:?}: expected one side"
            )),
            None => Ok(()),
        }
    }
}
