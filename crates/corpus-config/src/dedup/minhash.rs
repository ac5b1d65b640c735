//! The keys of `[corpus.dedup.minhash]`.

use super::require;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Units that shingles are made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ShingleBy {
    /// Windows of words: runs of letters and digits, lowercased.
    #[default]
    Words,
    /// Windows of characters of the lowercased text, white space as one space: for scripts without spaces.
    Characters,
    /// Windows of the English words of datatrove's simplified text, joined by spaces and hashed by XXH64: datatrove's default.
    Datatrove,
    /// The same, hashed by SHA-1: FineWeb, and datatrove before 0.3.
    DatatroveSha1,
}

/// How candidates are verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Verify {
    /// Jaccard similarity of the sets of shingles: common over all.
    #[default]
    Jaccard,
    /// Containment: common over the smaller set, so that an excerpt counts as a duplicate.
    Containment,
    /// No verification: connected components of candidates are duplicates, as in datatrove. Chains, and drops what is not similar.
    None,
}

/// Signatures, shingles and bands by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Profile {
    /// The keys below as they stand.
    #[default]
    Native,
    /// FineWeb (datatrove's examples/fineweb.py): 14 bands of 8, five English words of simplified text hashed by SHA-1 to 64 bits,
    /// datatrove's permutations of seed 1; the keys signature, shingle, length, bands, rows and seed are not read.
    Fineweb,
}

/// Hash family that signs a set of shingles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Signature {
    /// Fast similarity sketches: one or two hashes for each shingle, however many values there are.
    #[default]
    Sketch,
    /// datatrove's 64-bit signatures, bit for bit: one hash for each shingle and value.
    Datatrove,
    /// datatrove's 32-bit signatures.
    Datatrove32,
}

/// `[corpus.dedup.minhash]`: similar texts. Two documents of Jaccard similarity s become candidates with probability
/// 1 − (1 − s^rows)^bands, and duplicates if verification agrees.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct MinHashConfig {
    /// native or fineweb.
    pub profile: Profile,
    /// What a document is a set of: words, characters, datatrove or datatrove-sha1.
    pub shingle: ShingleBy,
    /// Words or characters of a shingle.
    pub length: usize,
    /// What signs the set: sketch, datatrove or datatrove32.
    pub signature: Signature,
    /// Bands; 0 chooses bands and rows for `similarity` with at most 256 values.
    pub bands: usize,
    /// Values of a band.
    pub rows: usize,
    /// How candidates are verified: jaccard, containment or none.
    pub verify: Verify,
    /// Least similarity of duplicates.
    pub similarity: f64,
    /// Seed of the signatures.
    pub seed: u64,
}

/// Most values of a signature.
const MAX_VALUES: usize = 16_384;

impl Default for MinHashConfig {
    fn default() -> Self {
        MinHashConfig {
            profile: Profile::Native,
            shingle: ShingleBy::Words,
            length: 5,
            signature: Signature::Sketch,
            bands: 20,
            rows: 7,
            verify: Verify::Jaccard,
            similarity: 0.8,
            seed: 1,
        }
    }
}

impl MinHashConfig {
    /// FineWeb's, with datatrove's clusters: connected components, not verified.
    pub fn fineweb() -> Self {
        MinHashConfig { profile: Profile::Fineweb, verify: Verify::None, ..MinHashConfig::default() }
    }

    pub(super) fn check(&self) -> Result<(), String> {
        require((1..=100).contains(&self.length), "minhash.length", "from 1 to 100", self.length)?;
        let is_share = self.similarity > 0.0 && self.similarity <= 1.0;
        require(is_share, "minhash.similarity", "above 0 and at most 1", self.similarity)?;
        require(self.bands == 0 || self.rows > 0, "minhash.rows", "at least 1", self.rows)?;
        let fits = self.bands.saturating_mul(self.rows) <= MAX_VALUES;
        let wanted = format!("set so that bands x rows is at most {MAX_VALUES}");
        require(fits, "minhash.bands", &wanted, format!("{} x {}", self.bands, self.rows))?;
        let is_seed = self.signature == Signature::Sketch || u32::try_from(self.seed).is_ok();
        require(is_seed, "minhash.seed", "below 2^32 for datatrove's signatures", self.seed)
    }
}
