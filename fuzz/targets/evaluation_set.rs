//! Evaluation sets, as JSON lines or Parquet (told by the first byte).
#![no_main]

use bessemer_privacy::decontaminate::{DecontaminateConfig, EvaluationSource, Index, read};
use libfuzzer_sys::fuzz_target;
use std::path::Path;

fuzz_target!(init: bessemer_fuzz::caught_panics_are_errors(), |data: &[u8]| {
    let Some((kind, data)) = data.split_first() else { return };
    let path = bessemer_fuzz::file(["a.jsonl", "a.parquet"][usize::from(*kind) % 2], data);
    let source = EvaluationSource { path: path.display().to_string(), ..EvaluationSource::default() };
    if let Ok(set) = read(&source, Path::new("")) {
        Index::new(&DecontaminateConfig::default(), &[set]);
    }
});
