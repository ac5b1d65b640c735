//! Part of `bessemer corpus stats` about shards with a mask: tokens of each split that are scored.

use crate::failure::Failure;
use crate::run_dir::{RunDir, SHARDS};
use bessemer_corpus::Split;
use bessemer_shards::{INDEX_FILE, ShardSet};
use bessemer_units::Tokens;
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::Path;

/// A split whose tokens are not all scored.
#[derive(Debug)]
pub(super) struct ScoredSplit {
    split: &'static str,
    tokens: u64,
    scored: u64,
}

/// The splits of the shards of a run directory that have a mask.
pub(super) fn splits(path: &Path) -> Result<Vec<ScoredSplit>, Failure> {
    let dir = RunDir::new(path);
    let mut found = Vec::new();
    for split in Split::ALL.map(Split::name) {
        if !dir.has(Path::new(SHARDS).join(split).join(INDEX_FILE)) {
            continue;
        }
        let set = ShardSet::open(dir.dir(SHARDS)?, split)?;
        if set.has_mask() {
            found.push(ScoredSplit { split, tokens: set.token_count(), scored: set.scored_count() });
        }
    }
    Ok(found)
}

/// An object a split.
pub(super) fn objects(splits: &[ScoredSplit]) -> Value {
    let object = |s: &ScoredSplit| json!({ "split": s.split, "tokens": s.tokens, "scored": s.scored });
    splits.iter().map(object).collect()
}

/// A line a split.
pub(super) fn text(splits: &[ScoredSplit]) -> String {
    let mut text = String::new();
    for ScoredSplit { split, tokens, scored } in splits {
        let share = 100.0 * *scored as f64 / (*tokens).max(1) as f64;
        let _ = writeln!(
            text,
            "scored      {split:<10} {} of {} tokens ({share:.1} %)",
            Tokens(*scored),
            Tokens(*tokens)
        );
    }
    text
}
