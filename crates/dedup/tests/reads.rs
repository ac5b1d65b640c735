//! Bytes that semantic deduplication reads. Alone in its file: the system counts the reads of the whole process.

#![allow(clippy::unwrap_used, reason = "a failed unwrap in a test is a failed test")]

#[path = "integration/common/mod.rs"]
mod common;

use bessemer_corpus_config::dedup::{DedupConfig, Method};
use bessemer_dedup::stages;
use common::{PLAIN, run, words};

/// Bytes that this process has read through system calls so far; `None` where the system does not tell.
fn bytes_read() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/io").ok()?;
    text.lines().find_map(|line| line.strip_prefix("rchar: "))?.trim().parse().ok()
}

#[test]
fn each_embedding_is_read_a_few_times_and_nothing_beside_it() {
    let Some(before) = bytes_read() else {
        eprintln!("skipped: this system does not count reads in /proc/self/io");
        return;
    };
    let texts: Vec<String> = (0..2000).map(|index| words(index, 0, 30).join(" ")).collect();
    let mut config = DedupConfig { methods: vec![Method::Semantic], ..DedupConfig::default() };
    config.semantic.clusters = 16;
    assert_eq!(run(&texts, stages(&config), PLAIN).len(), texts.len());
    let embeddings = (texts.len() * 4 * config.semantic.dimensions) as u64;
    // For the centres, for the clusters, for the comparisons; once more for what a buffer reads ahead.
    let read = bytes_read().unwrap() - before;
    assert!(read < 4 * embeddings + (1 << 20), "{read} bytes read of {embeddings}");
}
