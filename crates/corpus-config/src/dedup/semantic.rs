//! The keys of `[corpus.dedup.semantic]`.

use super::require;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Which document of a group of close ones is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Keep {
    /// The one with the lowest (split, file, row).
    #[default]
    First,
    /// The one farthest from its cluster's centre: "hard" examples, as SemDeDup does.
    Hard,
    /// The one closest to its cluster's centre.
    Easy,
}

/// `[corpus.dedup.semantic]`: texts whose embeddings point the same way.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SemanticConfig {
    /// Field of JSON lines (a list of numbers) or column of Parquet (a list of 32- or 64-bit floats) that holds a document's
    /// embedding; documents without one are kept. Empty: hashed n-gram bags.
    pub column: String,
    /// Dimensions of hashed bags.
    pub dimensions: usize,
    /// Clusters; 0 means the square root of the number of documents.
    pub clusters: usize,
    /// Documents, chosen by a hash of their place, from which centres are found.
    pub sample: usize,
    /// Most rounds of k-means.
    pub iterations: usize,
    /// Share by which the mean distance must fall for another round.
    pub tolerance: f64,
    /// Documents of cosine similarity 1 − eps or more are duplicates.
    pub eps: f64,
    /// Document of a group that is kept: first, hard or easy.
    pub keep: Keep,
    /// Seed of the sample and of the first centres.
    pub seed: u64,
}

impl Default for SemanticConfig {
    fn default() -> Self {
        SemanticConfig {
            column: String::new(),
            dimensions: 256,
            clusters: 0,
            sample: 50_000,
            iterations: 50,
            tolerance: 1e-4,
            eps: 0.05,
            keep: Keep::First,
            seed: 42,
        }
    }
}

impl SemanticConfig {
    pub(super) fn check(&self) -> Result<(), String> {
        let (dimensions, sample) = (self.dimensions, self.sample);
        require((8..=65_536).contains(&dimensions), "semantic.dimensions", "from 8 to 65536", dimensions)?;
        require(self.clusters <= 1 << 20, "semantic.clusters", "at most 2^20", self.clusters)?;
        require((1..=1 << 30).contains(&sample), "semantic.sample", "from 1 to 2^30", sample)?;
        require(self.iterations <= 10_000, "semantic.iterations", "at most 10000", self.iterations)?;
        let falls = (0.0..1.0).contains(&self.tolerance);
        require(falls, "semantic.tolerance", "from 0 to below 1", self.tolerance)?;
        require((0.0..=1.0).contains(&self.eps), "semantic.eps", "from 0 to 1", self.eps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges() {
        assert_eq!(SemanticConfig::default().check(), Ok(()));
        let wrong = SemanticConfig { eps: f64::NAN, ..SemanticConfig::default() };
        assert!(wrong.check().unwrap_err().contains("semantic.eps"));
    }
}
