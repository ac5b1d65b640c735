//! The keys of `[corpus.dedup.simhash]`.

use super::ShingleBy;
use super::require;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `[corpus.dedup.simhash]`: texts whose 64-bit fingerprints differ in few bits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SimHashConfig {
    /// What features are windows of: words, characters, datatrove or datatrove-sha1.
    pub shingle: ShingleBy,
    /// Words or characters of a feature.
    pub length: usize,
    /// Bits in which duplicates may differ.
    pub distance: u32,
    /// Blocks into which fingerprints are cut to find candidates; more blocks, fewer comparisons and more disk.
    pub blocks: u32,
}

impl Default for SimHashConfig {
    fn default() -> Self {
        SimHashConfig { shingle: ShingleBy::Words, length: 3, distance: 3, blocks: 6 }
    }
}

impl SimHashConfig {
    pub(super) fn check(&self) -> Result<(), String> {
        let (distance, blocks) = (self.distance, self.blocks);
        require((1..=100).contains(&self.length), "simhash.length", "from 1 to 100", self.length)?;
        require(distance <= 16, "simhash.distance", "at most 16", distance)?;
        let wanted = format!("from distance + 1 = {} to distance + 8", distance + 1);
        require(blocks > distance && blocks <= distance + 8, "simhash.blocks", &wanted, blocks)?;
        // Binomial coefficient of blocks over distance.
        let choices = (1..=u64::from(distance)).fold(1, |n, k| n * (u64::from(blocks) + 1 - k) / k);
        let wanted = "set so that there are at most 255 choices of equal blocks";
        require(choices <= 255, "simhash.blocks", wanted, format!("{blocks} ({choices} choices)"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges() {
        assert_eq!(SimHashConfig::default().check(), Ok(()));
        let with = |blocks, distance| SimHashConfig { blocks, distance, ..SimHashConfig::default() }.check();
        assert!(with(3, 3).unwrap_err().contains("simhash.blocks"));
        assert!(with(12, 5).unwrap_err().contains("choices"));
        assert!(with(20, 17).unwrap_err().contains("simhash.distance"));
        assert_eq!(with(4, 3), Ok(()));
    }
}
