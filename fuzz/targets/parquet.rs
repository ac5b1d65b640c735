//! Parquet of documents, through a whole build of a corpus.
#![no_main]

use bessemer_corpus::SourceKind;
use libfuzzer_sys::fuzz_target;

fuzz_target!(init: bessemer_fuzz::caught_panics_are_errors(), |data: &[u8]| {
    bessemer_fuzz::build_corpus(SourceKind::Parquet, "a.parquet", data);
});
