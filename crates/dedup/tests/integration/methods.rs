//! Exact, SimHash, Bloom and semantic deduplication, and methods one after the other.

use crate::common;

use bessemer_corpus_config::dedup::{DedupConfig, Method, ShingleBy};
use bessemer_dataflow::column;
use bessemer_dedup::minhash::Shingler;
use bessemer_dedup::simhash::fingerprint;
use bessemer_dedup::stages;
use common::{PLAIN, Run, batches, fates, kept, random, run, run_batches, same_however_it_runs, words};

fn only(method: Method) -> DedupConfig {
    DedupConfig { methods: vec![method], ..DedupConfig::default() }
}

fn texts(list: &[&str]) -> Vec<String> {
    list.iter().map(|text| (*text).to_string()).collect()
}

#[test]
fn exact_keeps_the_first_and_counts_the_rest() {
    let texts = texts(&["a\nb", "c", "a \n\nb\n", "a\n b", "c", "a\nb"]);
    let fates = same_however_it_runs(&texts, &|| stages(&only(Method::Exact)));
    assert_eq!(kept(&fates), [0, 1, 3]);
    assert_eq!(fates[2].detail.as_deref(), Some("same text as file 0 row 0"));
    assert_eq!([0, 1, 3].map(|row| fates[row].copies), [Some(3), Some(2), Some(1)]);
}

#[test]
fn a_training_text_is_kept_before_a_validation_text() {
    let texts = texts(&["same", "same", "same", "other"]);
    let (rows, _) = run_batches(batches(&texts, &[1, 0, 0, 1], 2), stages(&only(Method::Exact)), PLAIN);
    assert_eq!(kept(&fates(&rows)), [1, 3]);
}

/// Documents with copies that differ in one word of 400.
fn edited(documents: u64) -> Vec<String> {
    let mut texts: Vec<Vec<String>> = (0..documents).map(|index| words(index, 0, 400)).collect();
    for index in (0..documents).step_by(4) {
        let mut copy = texts[index as usize].clone();
        copy[(random(1, index) % 400) as usize] = "edited".into();
        texts.push(copy);
    }
    texts.into_iter().map(|words| words.join(" ")).collect()
}

#[test]
fn simhash_finds_every_pair_within_the_distance() {
    let texts = edited(200);
    let fates = same_however_it_runs(&texts, &|| stages(&only(Method::Simhash)));
    let mut shingler = Shingler::new(ShingleBy::Words, 3);
    let prints: Vec<u64> = texts
        .iter()
        .map(|text| {
            let mut features = Vec::new();
            shingler.push(text, &mut features);
            fingerprint(&features)
        })
        .collect();
    // The plain way: each document against those that are kept so far.
    let mut kept_so_far: Vec<usize> = Vec::new();
    for row in 0..texts.len() {
        let near = kept_so_far.iter().copied().find(|&other| (prints[row] ^ prints[other]).count_ones() <= 3);
        assert_eq!(fates[row].first(), near, "{row}");
        if near.is_none() {
            kept_so_far.push(row);
        }
    }
    assert!((201..215).contains(&kept_so_far.len()), "{}", kept_so_far.len());
}

#[test]
fn bloom_removes_repeated_lines_and_empty_documents() {
    let line = |seed| words(seed, 0, 30).join(" ");
    let (a, b, c) = (line(1), line(2), line(3));
    let texts = vec![format!("{a}\n{b}"), format!("{c}\n{a}"), format!("{b}\n{a}"), c.clone(), line(4)];
    let mut config = only(Method::Bloom);
    config.bloom.expected = 10_000;
    // The filter of 1 MiB must fit into what an operator is granted.
    for how in [PLAIN, Run { threads: 2, ..PLAIN }, Run { threads: 3, memory: 8 << 20, batch: 1 }] {
        let fates = run(&texts, stages(&config), how);
        assert_eq!(fates[0].text, texts[0]);
        assert_eq!(fates[1].text, c);
        assert_eq!(kept(&fates), [0, 1, 4]);
        assert_eq!(fates[2].reason.as_deref(), Some("repeated-text"));
        assert_eq!(fates[2].detail.as_deref(), Some("100.0 % of its n-grams were seen before"));
    }
}

#[test]
fn semantic_finds_the_same_words_in_another_order() {
    let mut texts = Vec::new();
    for index in 0..60 {
        texts.push(words(index, 0, 200).join(" "));
    }
    for index in 0..20 {
        let mut sentences: Vec<Vec<String>> =
            words(index, 0, 200).chunks(50).map(<[String]>::to_vec).collect();
        sentences.rotate_left(1);
        texts.push(sentences.concat().join(" "));
    }
    let config = only(Method::Semantic);
    let fates = same_however_it_runs(&texts, &|| stages(&config));
    let gone: Vec<usize> = (0..texts.len()).filter(|row| fates[*row].reason.is_some()).collect();
    assert!(gone.iter().all(|&row| row >= 60 && fates[row].first() == Some(row - 60)), "{gone:?}");
    assert!(gone.len() >= 18, "{} of 20", gone.len());
}

#[test]
fn methods_follow_each_other_and_sizes_add_up() {
    let mut all = edited(60);
    all.extend(all.clone());
    let config = DedupConfig { methods: vec![Method::Exact, Method::Minhash], ..DedupConfig::default() };
    let fates = same_however_it_runs(&all, &|| stages(&config));
    assert_eq!(kept(&fates), (0..60).collect::<Vec<_>>());
    assert!((0..60).all(|row| fates[row].copies == Some(if row % 4 == 0 { 4 } else { 2 })));
}

#[test]
fn verification_is_the_same_however_components_fall_to_partitions_and_threads() {
    let altered = |seed: u64, number: u64| {
        let mut text = words(seed, 0, 400);
        if number > 0 {
            text[(random(seed, number) % 400) as usize] = format!("{number}");
        }
        text.join(" ")
    };
    // 450 versions of one text (a partition far larger than the others), among them 300 groups of two and four.
    let mut texts = Vec::new();
    for index in 0..450 {
        texts.push(altered(1, index));
        texts.extend((0..2).map(|version| altered(2 + index % 300, 2 * (index / 300) + version)));
    }
    let config = only(Method::Minhash);
    let fates = same_however_it_runs(&texts, &|| stages(&config));
    let left = kept(&fates);
    // Two versions differ in two words of 400: all but the first of each text go.
    assert!((301..=310).contains(&left.len()), "{}", left.len());
    assert_eq!(left.iter().filter_map(|&row| fates[row].copies).sum::<u64>(), texts.len() as u64);
}

#[test]
fn rows_keep_their_columns() {
    let (rows, _) = run_batches(
        batches(&texts(&["a", "a"]), &[], 10),
        stages(&DedupConfig { methods: vec![Method::Exact, Method::Minhash], ..DedupConfig::default() }),
        PLAIN,
    );
    let names: Vec<String> = rows[0].schema().fields().iter().map(|field| field.name().clone()).collect();
    assert_eq!(names, ["file", "row", "split", "reason", "detail", "text", "copies"]);
    assert!(column::<arrow_array::UInt64Array>("test", &rows[0], "copies").is_ok());
}
