//! The keys of deduplication. Every doc comment below is printed to users as the key's documentation.

mod bloom;
mod cuts;
mod minhash;
mod semantic;
mod simhash;

pub use bloom::{BloomConfig, BloomScope};
pub use cuts::{LineUnit, LinesConfig, SubstringConfig};
pub use minhash::{MinHashConfig, Profile, ShingleBy, Signature, Verify};
pub use semantic::{Keep, SemanticConfig};
pub use simhash::SimHashConfig;

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
fn require(is_in_range: bool, key: &str, wanted: &str, found: impl std::fmt::Display) -> Result<(), String> {
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
                let name = format!("{method:?}").to_lowercase();
                return Err(format!("dedup.methods names {name:?} twice; name each method once"));
            }
        }
        check_rehydrate(&self.rehydrate)?;
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
}

/// Upper limit of a weight in the table `rehydrate`.
const MAX_WEIGHT: u64 = 64;

/// Whether a table can be used.
///
/// # Errors
/// Sizes that do not rise, or a weight out of range; the message says which.
fn check_rehydrate(table: &[[u64; 2]]) -> Result<(), String> {
    if let Some(pair) = table.windows(2).find(|pair| pair[0][0] >= pair[1][0]) {
        return Err(format!(
            "dedup.rehydrate: the size {} is before {}: wanted ascending sizes",
            pair[0][0], pair[1][0]
        ));
    }
    match table.iter().find(|[_, weight]| !(1..=MAX_WEIGHT).contains(weight)) {
        Some([size, weight]) => {
            Err(format!("dedup.rehydrate: the weight {weight} of size {size}: wanted 1 to {MAX_WEIGHT}"))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_out_of_range_are_named() {
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
    #[test]
    fn tables_of_weights_are_checked() {
        assert_eq!(check_rehydrate(&[[1, 1], [2, 2], [3, 3], [5, 5], [100, 8], [1000, 1]]), Ok(()));
        assert!(check_rehydrate(&[[2, 1], [2, 2]]).is_err_and(|message| message.contains("ascending")));
        assert!(check_rehydrate(&[[2, 0]]).is_err_and(|message| message.contains("weight 0 of size 2")));
        assert!(check_rehydrate(&[[2, 65]]).is_err());
    }
}
