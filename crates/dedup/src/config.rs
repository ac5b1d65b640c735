//! The keys of deduplication. Every doc comment below is printed to users as the key's documentation.

use crate::bloom::BloomConfig;
use crate::lines::LinesConfig;
use crate::minhash::{ShingleBy, lsh};
use crate::representatives::Verify;
use crate::semantic::SemanticConfig;
use crate::simhash::SimHashConfig;
use crate::substring::SubstringConfig;
use bessemer_dataflow::Stage;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A method of deduplication.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// Equal texts, apart from white space at line ends and blank lines (`duplicate`).
    Exact,
    /// Similar texts by MinHash and banding, verified (`near-duplicate`).
    Minhash,
    /// Similar texts by SimHash fingerprints (`near-duplicate`).
    Simhash,
    /// Paragraphs or documents most of whose n-grams were seen before, by a Bloom filter (`repeated-text`).
    Bloom,
    /// Texts whose embeddings are close (`semantic-duplicate`).
    Semantic,
    /// Strings of bytes that repeat are cut out (`repeated-substrings` where too little is left).
    Substring,
    /// Lines or sentences that repeat are cut out (`repeated-lines` where too little is left).
    Lines,
}

/// Deduplication across documents: which methods, in which order, and their parameters. Of each group of duplicates
/// the document with the lowest (split, file, row) is kept, with the size of its group. `substring` and `lines` cut repeated
/// parts out of documents.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DedupConfig {
    /// Methods, one after the other; empty: none. There are: exact, minhash, simhash, bloom, semantic, substring, lines.
    pub methods: Vec<Method>,
    /// How often a kept document goes into the shards of the training split, by the size of its group: a table of `[size, weight]`
    /// with rising sizes, of which the largest that the group reaches counts. Empty: once. FineWeb-2 takes
    /// `[[1, 1], [2, 2], [3, 3], [5, 5], [100, 8], [1000, 1]]`.
    pub rehydrate: Vec<[u64; 2]>,
    /// Parameters of `minhash`.
    pub minhash: MinHashConfig,
    /// Parameters of `simhash`.
    pub simhash: SimHashConfig,
    /// Parameters of `bloom`.
    pub bloom: BloomConfig,
    /// Parameters of `semantic`.
    pub semantic: SemanticConfig,
    /// Parameters of `substring`.
    pub substring: SubstringConfig,
    /// Parameters of `lines`.
    pub lines: LinesConfig,
}

/// Errors with the key of `[corpus.dedup]`, what is wanted and what was found, unless a value is in its range.
pub(crate) fn require(
    is_in_range: bool,
    key: &str,
    wanted: &str,
    found: impl std::fmt::Display,
) -> Result<(), String> {
    if is_in_range { Ok(()) } else { Err(format!("dedup.{key} must be {wanted}; it is {found}")) }
}

impl DedupConfig {
    /// Whether every value is within its range.
    ///
    /// # Errors
    /// The first value that is not, with what was wanted.
    pub fn check(&self) -> Result<(), String> {
        for (index, method) in self.methods.iter().enumerate() {
            if self.methods[..index].contains(method) {
                return Err(format!("dedup.methods names {method:?} twice; name each method once"));
            }
        }
        crate::rehydrate::check(&self.rehydrate)?;
        if !self.rehydrate.is_empty() && self.methods.is_empty() {
            return Err("dedup.rehydrate needs groups of duplicates: name a method in dedup.methods".into());
        }
        self.minhash.check()?;
        self.simhash.check()?;
        self.bloom.check()?;
        self.semantic.check()?;
        self.substring.check("dedup.substring")?;
        self.lines.check("dedup.lines")
    }

    /// The stages of all methods, in order. Rows carry `file`, `row`, `text`, `reason`, `detail`, perhaps `split`
    /// and `copies`, and are ordered by (file, row). The keys of all methods before the first that edits texts come first: no later
    /// method of them reads the texts.
    pub fn stages(&self) -> Vec<Stage> {
        let edits = |method: &Method| matches!(method, Method::Bloom | Method::Substring | Method::Lines);
        let first = self.methods.iter().position(edits).unwrap_or(self.methods.len());
        let (unedited, others) = self.methods.split_at(first);
        let mut stages: Vec<Stage> = unedited.iter().filter_map(|method| self.keys(*method)).collect();
        stages.extend(unedited.iter().flat_map(|method| self.behind_keys(*method)));
        for method in others {
            stages.extend(self.keys(*method));
            stages.extend(self.behind_keys(*method));
        }
        stages
    }

    /// The map that makes the keys of a method, where it keeps them.
    fn keys(&self, method: Method) -> Option<Stage> {
        match method {
            Method::Exact => Some(crate::exact::keys()),
            Method::Minhash => Some(crate::minhash::stages::keys(&self.minhash)),
            Method::Simhash => Some(crate::simhash::keys(&self.simhash)),
            Method::Semantic => Some(crate::semantic::keys(&self.semantic)),
            Method::Bloom | Method::Substring | Method::Lines => None,
        }
    }

    fn behind_keys(&self, method: Method) -> Vec<Stage> {
        match method {
            Method::Exact => crate::exact::stages(),
            Method::Minhash => crate::minhash::stages::stages(&self.minhash),
            Method::Simhash => crate::simhash::stages(&self.simhash),
            Method::Bloom => crate::bloom::stages(&self.bloom),
            Method::Semantic => crate::semantic::stages(&self.semantic),
            Method::Substring => crate::substring::stages(&self.substring),
            Method::Lines => crate::lines::stages(&self.lines),
        }
    }
}

/// The stages that `config` describes.
pub fn stages(config: &DedupConfig) -> Vec<Stage> {
    config.stages()
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

/// Values that the optimiser may use where bands are 0.
const OPTIMISED_VALUES: usize = 256;
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

    /// The profile's values in place, bands and rows chosen.
    #[must_use]
    pub fn resolved(&self) -> Self {
        let mut config = self.clone();
        if config.profile == Profile::Fineweb {
            config.shingle = ShingleBy::DatatroveSha1;
            config.signature = Signature::Datatrove;
            (config.length, config.bands, config.rows, config.seed) = (5, 14, 8, 1);
            config.profile = Profile::Native;
        }
        if config.bands == 0 {
            (config.bands, config.rows) = lsh::optimal_bands(OPTIMISED_VALUES, config.similarity);
        }
        config
    }

    fn check(&self) -> Result<(), String> {
        require((1..=100).contains(&self.length), "minhash.length", "from 1 to 100", self.length)?;
        let is_share = self.similarity > 0.0 && self.similarity <= 1.0;
        require(is_share, "minhash.similarity", "above 0 and at most 1", self.similarity)?;
        require(self.bands == 0 || self.rows > 0, "minhash.rows", "at least 1", self.rows)?;
        let fits = self.bands.saturating_mul(self.rows) <= MAX_VALUES;
        let wanted = format!("such that bands x rows is at most {MAX_VALUES}");
        require(fits, "minhash.bands", &wanted, format!("{} x {}", self.bands, self.rows))?;
        let is_seed = self.signature == Signature::Sketch || u32::try_from(self.seed).is_ok();
        require(is_seed, "minhash.seed", "below 2^32 for datatrove's signatures", self.seed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_and_ranges() {
        let fineweb = MinHashConfig::fineweb().resolved();
        assert_eq!((fineweb.bands, fineweb.rows, fineweb.length, fineweb.seed), (14, 8, 5, 1));
        // examples/fineweb.py: HashConfig(hash_fc="sha1", precision=64), and 64 bits of SHA-1 before that key existed.
        assert_eq!((fineweb.shingle, fineweb.signature), (ShingleBy::DatatroveSha1, Signature::Datatrove));
        let chosen = MinHashConfig { bands: 0, similarity: 0.7, ..MinHashConfig::default() }.resolved();
        assert!(chosen.bands * chosen.rows <= OPTIMISED_VALUES && chosen.bands > 10);

        assert_eq!(DedupConfig::default().check(), Ok(()));
        let wrong = |change: fn(&mut DedupConfig)| {
            let mut config = DedupConfig::default();
            change(&mut config);
            config.check().unwrap_err()
        };
        assert!(wrong(|c| c.minhash.similarity = 0.0).contains("minhash.similarity"));
        assert!(wrong(|c| c.minhash.similarity = f64::NAN).contains("minhash.similarity"));
        assert!(wrong(|c| c.minhash.length = 0).contains("minhash.length"));
        assert!(wrong(|c| c.minhash.rows = 0).contains("minhash.rows"));
        assert!(wrong(|c| c.minhash.bands = usize::MAX).contains("minhash.bands"));
        assert!(wrong(|c| c.substring.length = 1).contains("dedup.substring.length"));
        assert!(wrong(|c| c.lines.span = 0).contains("dedup.lines.span"));
        assert!(wrong(|c| c.methods = vec![Method::Exact, Method::Exact]).contains("twice"));
        let json =
            r#"{"methods": ["exact", "minhash"], "minhash": {"profile": "fineweb", "verify": "none"}}"#;
        let config: DedupConfig = serde_json::from_str(json).unwrap();
        assert_eq!(config.minhash, MinHashConfig::fineweb());
        assert!(serde_json::from_str::<DedupConfig>(r#"{"minhash": {"band": 3}}"#).is_err());
    }
}
