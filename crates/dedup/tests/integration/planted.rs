//! Planted duplicates: what is found before and after verification, and that nothing else decides.

use crate::common;

use bessemer_corpus_config::dedup::{DedupConfig, Method, MinHashConfig, ShingleBy, Signature, Verify};
use bessemer_dedup::minhash::{BandKeys, Shingler, hit_probability, resolved};
use bessemer_dedup::{similarity, stages};
use common::{PLAIN, kept, pair, random, run, same_however_it_runs, words};

/// Words of both texts of a pair together.
const UNION: u64 = 600;
/// Pairs of each similarity.
const PAIRS: u64 = 500;

fn single_words(signature: Signature, bands: usize, rows: usize) -> MinHashConfig {
    MinHashConfig { signature, bands, rows, length: 1, ..MinHashConfig::default() }
}

fn keys_of(keys: &mut BandKeys, text: &str) -> Vec<u64> {
    let mut found = Vec::new();
    assert!(keys.keys(text, |key| found.push(key)));
    found
}

#[test]
fn hits_before_verification_follow_the_curve() {
    for (signature, bands, rows) in
        [(Signature::Sketch, 20, 7), (Signature::Sketch, 14, 8), (Signature::Datatrove, 14, 8)]
    {
        let mut maker = BandKeys::new(&single_words(signature, bands, rows));
        for percent in (50..=95).step_by(5) {
            let common = UNION * percent / 100;
            let own = (UNION - common) / 2;
            let s = common as f64 / (common + 2 * own) as f64;
            let hits = (0..PAIRS)
                .filter(|&index| {
                    let [a, b] =
                        pair(percent * 10_000 + index, common, own).map(|text| keys_of(&mut maker, &text));
                    a.iter().zip(&b).any(|(a, b)| a == b)
                })
                .count() as f64;
            let p = hit_probability(s, bands, rows);
            let sigma = (PAIRS as f64 * p * (1.0 - p)).sqrt();
            let far = (hits - PAIRS as f64 * p).abs();
            // One pair more or less is no deviation where the curve is at 1.
            assert!(
                far <= (3.0 * sigma).max(1.0),
                "{signature:?} {bands} x {rows} at {s}: {hits} of {PAIRS}, expected {:.1} within {:.1}",
                PAIRS as f64 * p,
                3.0 * sigma
            );
        }
    }
}

/// Documents of about 300 words, one in three with a near copy further on: some words in a row replaced.
fn corpus(documents: u64) -> Vec<String> {
    let mut texts = Vec::new();
    for index in 0..documents {
        texts.push(words(index, 0, 300));
    }
    for index in (0..documents).step_by(3) {
        let mut copy = texts[index as usize].clone();
        // From 1 to 60 words in a row: similarities of 5-word windows from 0.98 to 0.65.
        let count = 1 + random(7, index) % 60;
        let at = (random(8, index) % 200) as usize;
        copy.splice(at..at + count as usize, words(index + 1_000_000, 0, count));
        texts.push(copy);
    }
    texts.into_iter().map(|words| words.join(" ")).collect()
}

fn minhash(config: MinHashConfig) -> DedupConfig {
    DedupConfig { methods: vec![Method::Minhash], minhash: config, ..DedupConfig::default() }
}

#[test]
fn what_is_dropped_is_similar_and_what_is_similar_is_dropped() {
    let texts = corpus(600);
    let config = minhash(MinHashConfig { similarity: 0.75, ..MinHashConfig::default() });
    let fates = same_however_it_runs(&texts, &|| stages(&config));
    let mut shingler = Shingler::new(ShingleBy::Words, 5);
    let sets: Vec<Vec<u64>> = texts
        .iter()
        .map(|text| {
            let mut set = Vec::new();
            shingler.set(text, &mut set);
            set
        })
        .collect();
    let (mut expected, mut missed, mut dropped) = (0.0, 0.0, 0);
    for (row, fate) in fates.iter().enumerate() {
        if let Some(first) = fate.first() {
            let s = similarity(Verify::Jaccard, &sets[row], &sets[first]);
            assert!(s >= 0.75 && first < row && fates[first].reason.is_none(), "{row} for {first} at {s}");
            assert_eq!(fate.reason.as_deref(), Some("near-duplicate"));
            dropped += 1;
        }
        if row >= 600 {
            let s = similarity(Verify::Jaccard, &sets[row], &sets[3 * (row - 600)]);
            if s >= 0.75 {
                let p = hit_probability(s, 20, 7);
                expected += 1.0 - p;
                missed += if fate.reason.is_none() { 1.0 } else { 0.0 };
            }
        }
    }
    assert!(dropped > 100);
    assert!((missed - expected).abs() <= 3.0_f64.mul_add(expected.sqrt(), 1.0), "{missed} {expected}");
    let copies: u64 = kept(&fates).iter().map(|&row| fates[row].copies.unwrap()).sum();
    assert_eq!(copies, texts.len() as u64, "every document is counted once");
}

#[test]
fn chains_are_cut_by_verification_and_followed_by_components() {
    // Each text replaces the next forty words of the one before: neighbours are similar, ends are not.
    let texts: Vec<String> = (0..6)
        .map(|step| [words(2, 1_000, 40 * step), words(1, 40 * step, 400 - 40 * step)].concat().join(" "))
        .collect();
    let base = MinHashConfig { bands: 60, rows: 3, similarity: 0.75, ..MinHashConfig::default() };
    let verified = same_however_it_runs(&texts, &|| stages(&minhash(base.clone())));
    assert_eq!(kept(&verified), [0, 2, 4]);
    let chained = MinHashConfig { verify: Verify::None, ..base };
    let fates = same_however_it_runs(&texts, &|| stages(&minhash(chained.clone())));
    assert_eq!(kept(&fates), [0]);
    assert_eq!(fates[0].copies, Some(6));
}

#[test]
fn containment_finds_excerpts() {
    let whole = words(3, 0, 400);
    let texts = vec![whole.join(" "), whole[100..300].join(" "), words(4, 0, 300).join(" ")];
    let base = MinHashConfig { bands: 60, rows: 3, similarity: 0.9, ..MinHashConfig::default() };
    assert_eq!(kept(&run(&texts, stages(&minhash(base.clone())), PLAIN)), [0, 1, 2]);
    let excerpts = MinHashConfig { verify: Verify::Containment, ..base };
    assert_eq!(kept(&run(&texts, stages(&minhash(excerpts)), PLAIN)), [0, 2]);
}

#[test]
fn clusters_of_datatrove() {
    // Windows of 400 characters at these offsets; see lorem.txt.
    let lorem: Vec<char> = include_str!("../lorem.txt").chars().collect();
    let clusters: [&[usize]; 6] =
        [&[0, 20, 50], &[400, 420], &[800, 810, 820, 840, 860], &[1205, 1215, 1225, 1245], &[1600], &[2000]];
    let texts: Vec<String> = clusters
        .iter()
        .flat_map(|offsets| offsets.iter().map(|&at| lorem[at..at + 400].iter().collect()))
        .collect();
    let native = MinHashConfig::fineweb();
    let variants = [
        native.clone(),
        MinHashConfig { shingle: ShingleBy::Datatrove, profile: Default::default(), ..resolved(&native) },
        MinHashConfig { signature: Signature::Datatrove32, profile: Default::default(), ..resolved(&native) },
    ];
    for config in variants {
        let fates = same_however_it_runs(&texts, &|| stages(&minhash(config.clone())));
        assert_eq!(kept(&fates), [0, 3, 5, 10, 14, 15], "{config:?}");
        let sizes: Vec<u64> = kept(&fates).iter().map(|&row| fates[row].copies.unwrap()).collect();
        assert_eq!(sizes, [3, 2, 5, 4, 1, 1]);
    }
}

/// Eight pairs of similar texts, of which SHA-1 at 64 bits finds the first four and XXH64 the last four. The profile is FineWeb's.
#[test]
fn the_profile_fineweb_hashes_as_fineweb_does() {
    let texts: Vec<String> = include_str!("../minhash-fineweb.jsonl")
        .lines()
        .map(|line| {
            serde_json::from_str::<serde_json::Value>(line).unwrap()["text"].as_str().unwrap().to_string()
        })
        .collect();
    let dropped = |config: MinHashConfig| {
        let kept = kept(&run(&texts, stages(&minhash(config)), PLAIN));
        (0..texts.len()).filter(|row| !kept.contains(row)).map(|row| row + 1).collect::<Vec<_>>()
    };
    assert_eq!(dropped(MinHashConfig::fineweb()), [2, 4, 6, 8]);
    let default_of_datatrove =
        MinHashConfig { shingle: ShingleBy::Datatrove, ..resolved(&MinHashConfig::fineweb()) };
    assert_eq!(dropped(default_of_datatrove), [10, 12, 14, 16]);
}
