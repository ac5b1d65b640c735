//! Evaluation sets, as JSON lines or Parquet (recognised by the first byte).

use bessemer_corpus_config::decontaminate::{DecontaminateConfig, EvaluationSource};
use bessemer_privacy::decontaminate::{Index, read};
use std::path::Path;

/// Runs the target on one input.
pub fn run(data: &[u8]) {
    let Some((kind, data)) = data.split_first() else { return };
    let path = crate::file(["a.jsonl", "a.parquet"][usize::from(*kind) % 2], data);
    let source = EvaluationSource { path: path.display().to_string(), ..EvaluationSource::default() };
    if let Ok(set) = read(&source, Path::new("")) {
        Index::new(&DecontaminateConfig::default(), &[set]);
    }
}
