//! Splits made for tests.
#![allow(clippy::unwrap_used, dead_code)] // Tests; not every test file uses every function.

use bessemer_shards::{Fingerprint, ShardSet, ShardSetWriter, SplitMeta};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// A split whose token at offset i is i, cut into documents of the given lengths and files of `file_bytes`.
pub(crate) fn counting_split(dir: &Path, lengths: &[u64], file_bytes: u64) -> Arc<ShardSet> {
    masked_split(dir, lengths, file_bytes, &|_| true)
}

/// The split of [`counting_split`], of whose tokens those are scored for which `scored` is true.
pub(crate) fn masked_split(
    dir: &Path,
    lengths: &[u64],
    file_bytes: u64,
    scored: &dyn Fn(u32) -> bool,
) -> Arc<ShardSet> {
    let total: u64 = lengths.iter().sum();
    let meta = SplitMeta {
        split: "train".into(),
        vocab_size: (total as u32).max(1),
        tokenizer: Fingerprint([1; 32]),
    };
    let mut writer = ShardSetWriter::create(dir, meta, file_bytes).unwrap();
    let mut at = 0;
    for (i, &length) in lengths.iter().enumerate() {
        let tokens: Vec<u32> = (at..at + length as u32).collect();
        writer.push_scored((i as u128).to_le_bytes(), length, &tokens, &ranges(&tokens, scored)).unwrap();
        at += length as u32;
    }
    writer.finish().unwrap();
    Arc::new(ShardSet::open(dir, "train").unwrap())
}

/// Positions of the scored ones of some tokens.
fn ranges(tokens: &[u32], scored: &dyn Fn(u32) -> bool) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for (at, _) in tokens.iter().enumerate().filter(|(_, token)| scored(**token)) {
        match ranges.last_mut() {
            Some(range) if range.end == at => range.end += 1,
            _ => ranges.push(at..at + 1),
        }
    }
    ranges
}

/// A split of components with these names and tokens; the token at offset i is i.
pub(crate) fn mixed_split(dir: &Path, components: &[(&str, u32)]) -> Arc<ShardSet> {
    masked_mixed_split(dir, components, &|_| true)
}

/// The split of [`mixed_split`], of whose tokens those are scored for which `scored` is true.
pub(crate) fn masked_mixed_split(
    dir: &Path,
    components: &[(&str, u32)],
    scored: &dyn Fn(u32) -> bool,
) -> Arc<ShardSet> {
    let total: u32 = components.iter().map(|(_, tokens)| tokens).sum();
    let meta = SplitMeta { split: "train".into(), vocab_size: total, tokenizer: Fingerprint([1; 32]) };
    let mut writer = ShardSetWriter::create(dir, meta, 700).unwrap();
    let mut at = 0;
    for (name, tokens) in components {
        writer.begin_component(name).unwrap();
        let end = at + tokens;
        while at < end {
            let document: Vec<u32> = (at..end.min(at + 30)).collect();
            let ranges = ranges(&document, scored);
            writer.push_scored(u128::from(at).to_le_bytes(), 1, &document, &ranges).unwrap();
            at += document.len() as u32;
        }
    }
    writer.finish().unwrap();
    Arc::new(ShardSet::open(dir, "train").unwrap())
}

/// Document lengths that sum to `total`, some of them 0.
pub(crate) fn document_lengths(total: u64) -> Vec<u64> {
    let (mut lengths, mut rest, mut i) = (Vec::new(), total, 0u64);
    while rest > 0 {
        let length = [7, 0, 23, 1, 112, 3][(i % 6) as usize].min(rest);
        lengths.push(length);
        rest -= length;
        i += 1;
    }
    lengths
}
