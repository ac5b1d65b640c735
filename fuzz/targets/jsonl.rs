//! JSON lines, plain, gzip or zstd (told by the first byte), through a whole build of a corpus.
#![no_main]

use bessemer_corpus::SourceKind;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((kind, data)) = data.split_first() else { return };
    let name = ["a.jsonl", "a.jsonl.gz", "a.jsonl.zst"][usize::from(*kind) % 3];
    bessemer_fuzz::build_corpus(SourceKind::Jsonl, name, data);
});
