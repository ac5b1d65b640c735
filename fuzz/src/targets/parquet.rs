//! Parquet of documents, through a whole build of a corpus.

use bessemer_corpus_config::SourceKind;

/// Runs the target on one input.
pub fn run(data: &[u8]) {
    crate::build_corpus(SourceKind::Parquet, "a.parquet", data);
}
