//! The search held against the suffix array, and that against the definition.
#![allow(clippy::unwrap_used)] // A failed unwrap in a test is a failed test with a backtrace.

use super::ranges::{aligned, merge, subtract};
use super::*;
use bessemer_corpus_config::dedup::SubstringConfig;
use bessemer_durable::ConfinedDir;
use proptest::prelude::*;
use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::AtomicBool;

type Ranges = Vec<Vec<Range<u64>>>;

/// The definition, word by word.
fn naive(documents: &[&[u8]], length: usize) -> Ranges {
    let mut groups: HashMap<&[u8], Vec<(usize, usize)>> = HashMap::new();
    for (index, document) in documents.iter().enumerate() {
        for (start, window) in document.windows(length).enumerate() {
            groups.entry(window).or_default().push((index, start));
        }
    }
    let mut marked = vec![Vec::new(); documents.len()];
    let mut kept = marked.clone();
    for group in groups.values().filter(|group| group.len() > 1) {
        let first = group.iter().min().unwrap();
        for place in group {
            let side = if place == first { &mut kept } else { &mut marked };
            let range = (place.1 as u64, (place.1 + length) as u64);
            side[place.0].push(aligned(documents[place.0], range));
        }
    }
    let mut result = Vec::new();
    for (mut marked, mut kept) in marked.into_iter().zip(kept) {
        for side in [&mut marked, &mut kept] {
            side.sort_unstable();
            merge(side);
        }
        result.push(subtract(&marked, &kept).into_iter().map(|range| range.0..range.1).collect());
    }
    result
}

fn here() -> ConfinedDir {
    ConfinedDir::open_named(Path::new(".")).unwrap()
}

/// The ranges of documents, found on one thread and without disk.
fn repeats(documents: &[&[u8]], length: usize) -> Result<Vec<Vec<Range<u64>>>> {
    let mut finder = Finder::new(length, Limits { threads: 1, memory: usize::MAX, spill: here() })?;
    documents.iter().try_for_each(|document| finder.push(document))?;
    let mut ranges = vec![Vec::new(); documents.len()];
    for (ordinal, found) in finder.finish(&AtomicBool::new(false))?.into_documents() {
        ranges[ordinal as usize] = found;
    }
    Ok(ranges)
}

fn searched(documents: &[&[u8]], length: usize, threads: usize, memory: usize) -> Ranges {
    let folder = tempfile::tempdir().unwrap();
    let limits = Limits { threads, memory, spill: ConfinedDir::open(folder.path()).unwrap() };
    let mut finder = Finder::new(length, limits).unwrap();
    documents.iter().for_each(|document| finder.push(document).unwrap());
    let found = finder.finish(&AtomicBool::new(false)).unwrap();
    assert_eq!(found.spilled_bytes > 0, memory < 4096 && documents.iter().any(|d| d.len() > 1024));
    let mut ranges = vec![Vec::new(); documents.len()];
    for (ordinal, removed) in found.into_documents() {
        ranges[ordinal as usize] = removed;
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "spill files are gone");
    ranges
}

fn cut(document: &[u8], ranges: &[Range<u64>]) -> Vec<u8> {
    let gone = |at: usize| ranges.iter().any(|range| range.contains(&(at as u64)));
    (0..document.len()).filter(|&at| !gone(at)).map(|at| document[at]).collect()
}

fn occurrences(text: &[u8], part: &[u8]) -> usize {
    text.windows(part.len()).filter(|window| *window == part).count()
}

/// Text from few words, so that repeats of all lengths occur.
fn wordy(seed: u64, bytes: usize) -> Vec<u8> {
    let words = ["the ", "naïve ", "cat ", "sat ", "日本 ", "on ", "a ", "mat ", "zz", "\n"];
    let mut state = seed;
    let mut text = Vec::new();
    while text.len() < bytes {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        text.extend_from_slice(words[(state >> 33) as usize % words.len()].as_bytes());
    }
    text
}

#[test]
fn exactly_one_copy_is_kept() {
    let planted = b"exactly this sentence of some length is planted several times";
    let parts: Vec<Vec<u8>> = (0..4).map(|i| wordy(i + 1, 300)).collect();
    let documents: Vec<Vec<u8>> =
        parts.iter().map(|part| [&part[..100], planted, &part[100..]].concat()).collect();
    let slices: Vec<&[u8]> = documents.iter().map(Vec::as_slice).collect();
    let removed = repeats(&slices, 40).unwrap();
    let left: Vec<Vec<u8>> =
        documents.iter().zip(&removed).map(|(document, ranges)| cut(document, ranges)).collect();
    assert!(removed[0].is_empty(), "the first copy stays whole");
    assert_eq!(left.iter().map(|text| occurrences(text, planted)).sum::<usize>(), 1);
    assert_eq!(left[2].len(), documents[2].len() - planted.len());
}

#[test]
fn fibonacci_periodic_and_constant_texts_equal_the_suffix_array() {
    let (mut a, mut b) = (b"a".to_vec(), b"ab".to_vec());
    while b.len() < 3000 {
        let next = [b.as_slice(), a.as_slice()].concat();
        a = std::mem::replace(&mut b, next);
    }
    // Thue-Morse defeats every polynomial hash modulo 2^64.
    let morse: Vec<u8> = (0u32..4096).map(|i| b'a' + (i.count_ones() % 2) as u8).collect();
    let periodic = b"abcdefgh-".repeat(300);
    let documents: [&[u8]; 6] = [&b, &morse, &periodic, &[9; 2000], &b[100..900], b""];
    for length in [8, 13, 64, 1100] {
        let wanted = suffix::repeats(&documents, length);
        assert_eq!(repeats(&documents, length).unwrap(), wanted, "length {length}");
        assert_eq!(naive(&documents, length), wanted, "length {length}");
    }
    let removed = repeats(&[&[9; 2000]], 50).unwrap();
    assert_eq!(removed[0].first(), Some(&(50..2000)), "of constant text one window stays");
}

#[test]
fn threads_memory_and_spills_do_not_change_the_result() {
    let documents: Vec<Vec<u8>> = (0..40).map(|i| wordy(i % 30 + 1, 50 * i as usize)).collect();
    let slices: Vec<&[u8]> = documents.iter().map(Vec::as_slice).collect();
    let wanted = suffix::repeats(&slices, 30);
    assert!(wanted.iter().flatten().count() >= 9);
    for (threads, memory) in [(1, 1 << 30), (3, 1 << 30), (1, 2048), (2, 2048), (2, 0)] {
        assert_eq!(searched(&slices, 30, threads, memory), wanted, "{threads} threads, {memory} bytes");
    }
}

/// A document longer than the pieces that threads take.
#[test]
fn repeats_far_apart_in_one_long_document_are_found() {
    let mut text: Vec<u8> = Vec::new();
    let mut state = 7u64;
    while text.len() < 2_500_000 {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        text.extend_from_slice(&state.to_le_bytes().map(|byte| byte & 0x7F));
    }
    let (source, target, border) = (1000, 2_400_000, (1 << 20) - 150);
    text.copy_within(source..source + 500, target);
    text.copy_within(source..source + 300, border);
    let removed = searched(&[&text], 100, 2, 1 << 30);
    let range = |start: usize, length: usize| start as u64..(start + length) as u64;
    assert_eq!(removed, [vec![range(border, 300), range(target, 500)]]);
}

/// Equal fingerprints of different windows are found out and another seed is taken.
#[test]
fn a_collision_of_fingerprints_does_not_reach_the_result() {
    fn poor(window: &[u8], seed: u64) -> u128 {
        if seed < 2 { u128::MAX } else { xxhash_rust::xxh3::xxh3_128(window) }
    }
    fn hopeless(_: &[u8], _: u64) -> u128 {
        0
    }
    let document = wordy(3, 2000);
    let limits = Limits { threads: 1, memory: 1 << 20, spill: here() };
    let mut finder = Finder::new(20, limits.clone()).unwrap().with_fingerprint(poor);
    finder.push(&document).unwrap();
    let wanted = suffix::repeats(&[&document], 20);
    assert_eq!(finder.finish(&AtomicBool::new(false)).unwrap().into_documents(), [(0, wanted[0].clone())]);
    let mut finder = Finder::new(20, limits).unwrap().with_fingerprint(hopeless);
    finder.push(&document).unwrap();
    assert!(finder.finish(&AtomicBool::new(false)).is_err_and(|error| error.to_string().contains("seeds")));
}

#[test]
fn values_out_of_range_are_refused_by_name() {
    let limits = |threads| Limits { threads, memory: 0, spill: here() };
    for (length, threads, word) in
        [(7, 1, "length 7"), (SubstringConfig::MAX_LENGTH + 1, 1, "length"), (50, 0, "thread")]
    {
        let message = Finder::new(length, limits(threads)).err().unwrap().to_string();
        assert!(message.contains(word), "{message}");
    }
    let folder = tempfile::tempdir().unwrap();
    let missing = Limits { threads: 1, memory: 0, spill: ConfinedDir::open(folder.path()).unwrap() };
    std::fs::remove_dir(folder.path()).unwrap();
    let message = Finder::new(8, missing).unwrap().push(b"text").unwrap_err().to_string();
    assert!(message.contains(folder.path().to_str().unwrap()) && message.contains("create"), "{message}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn the_search_equals_definition_and_suffix_array(
        documents in proptest::collection::vec(proptest::collection::vec(0u8..2, 0..120), 0..6),
        texts in proptest::collection::vec("[aé日]{0,60}", 0..4),
        length in 8usize..20,
        threads in 1usize..3,
        memory in prop_oneof![Just(0usize), Just(1 << 30)],
    ) {
        let mut slices: Vec<&[u8]> = documents.iter().map(Vec::as_slice).collect();
        slices.extend(texts.iter().map(|text| text.as_bytes()));
        let wanted = naive(&slices, length);
        prop_assert_eq!(&suffix::repeats(&slices, length), &wanted);
        let folder = tempfile::tempdir().unwrap();
        let mut finder = Finder::new(length, Limits { threads, memory, spill: ConfinedDir::open(folder.path()).unwrap() }).unwrap();
        slices.iter().for_each(|document| finder.push(document).unwrap());
        let mut found = vec![Vec::new(); slices.len()];
        for (ordinal, removed) in finder.finish(&AtomicBool::new(false)).unwrap().into_documents() {
            found[ordinal as usize] = removed;
        }
        prop_assert_eq!(found, wanted);
        for (text, removed) in texts.iter().zip(&suffix::repeats(&slices, length)[documents.len()..]) {
            prop_assert!(String::from_utf8(cut(text.as_bytes(), removed)).is_ok());
        }
    }
}
