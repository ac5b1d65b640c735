//! JSON lines, plain, gzip or zstd (recognised by the first byte), through a whole build of a corpus.

use bessemer_corpus_config::SourceKind;

/// Runs the target on one input.
pub fn run(data: &[u8]) {
    let Some((kind, data)) = data.split_first() else { return };
    let name = ["a.jsonl", "a.jsonl.gz", "a.jsonl.zst"][usize::from(*kind) % 3];
    crate::build_corpus(SourceKind::Jsonl, name, data);
}
