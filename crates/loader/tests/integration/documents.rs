//! Samples that are documents: every target once an epoch, padding without targets, an order of the counter alone.

use crate::support;

use bessemer_loader::{Batch, DocumentConfig, IGNORED, LoadError, Loader};
use proptest::prelude::*;
use std::collections::BTreeMap;
use support::{counting_split, document_lengths};

fn config(seq_len: usize, micro_batch: usize, bucketed: bool) -> DocumentConfig {
    let shorter = [1, 2, 3].map(|quarter| seq_len * quarter / 4).into();
    DocumentConfig { seq_len, shorter, micro_batch, bucketed, separated: true, pairs: false }
}

fn batch(loader: &Loader, first: u64, n: usize) -> Batch {
    let mut out = Batch::new();
    loader.batch(first, n, &mut out).unwrap();
    assert_eq!(out.scored, loader.count_targets(first, n as u64).unwrap().scored);
    assert_eq!(out.seq_len, loader.padded_length(first, n).unwrap());
    assert_eq!(out.scored, out.targets.iter().filter(|target| **target != IGNORED).count() as u64);
    out
}

/// Targets of each sequence, which follow each other.
fn targets(batch: &Batch) -> Vec<Vec<u32>> {
    let rows = batch.targets.chunks(batch.seq_len).zip(batch.inputs.chunks(batch.seq_len));
    rows.map(|(targets, inputs)| {
        let scored: Vec<u32> = targets.iter().copied().filter(|target| *target != IGNORED).collect();
        assert!(!scored.is_empty() && targets[..scored.len()] == scored[..], "padding stands behind");
        assert!(scored.windows(2).all(|pair| pair[1] == pair[0] + 1));
        assert!(inputs.iter().zip(&scored).all(|(input, target)| input + 1 == *target));
        assert!(inputs[scored.len()..].iter().all(|input| *input == 0));
        scored
    })
    .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    #[test]
    fn padded_documents_are_pieces_of_one_document_and_every_token_is_a_target_once_an_epoch(
        lengths in prop::collection::vec(0u64..90, 3..150), seq_len in 1usize..40, seed: u64, shuffle: bool, separated: bool,
    ) {
        prop_assume!(lengths.iter().any(|length| *length > 1));
        let dir = tempfile::tempdir().unwrap();
        let set = counting_split(dir.path(), &lengths, 700);
        let config = DocumentConfig { separated, ..config(seq_len, 3, false) };
        let loader = Loader::of_documents(set.clone(), config, seed, shuffle).unwrap();
        let n = loader.samples_per_epoch();
        let of: Vec<usize> =
            lengths.iter().enumerate().flat_map(|(i, length)| std::iter::repeat_n(i, *length as usize)).collect();
        let mut times = vec![0; of.len()];
        for first in (n..2 * n).step_by(5) {
            let got = batch(&loader, first, (2 * n - first).min(5) as usize);
            let rows = targets(&got);
            let longest = rows.iter().map(Vec::len).max().unwrap();
            let fit = [1, 2, 3, 4].map(|quarter| seq_len * quarter / 4);
            prop_assert_eq!(got.seq_len, *fit.iter().find(|length| **length >= longest.max(1)).unwrap());
            for row in rows {
                prop_assert!(row.iter().all(|target| of[*target as usize] == of[row[0] as usize]));
                row.iter().for_each(|target| times[*target as usize] += 1);
            }
            prop_assert!(got.samples.iter().all(|sample| sample.epoch == 1));
        }
        let first_of_document = |at: usize| at == 0 || of[at] != of[at - 1];
        for (at, times) in times.iter().enumerate() {
            let left_out = if separated { at == 0 } else { first_of_document(at) };
            prop_assert_eq!(*times, i32::from(!left_out), "{}", at);
        }
        prop_assert_eq!(loader.tokens_per_epoch(), times.iter().sum::<i32>() as u64);
        prop_assert!((loader.mean_tokens() * n as f64 - loader.tokens_per_epoch() as f64).abs() < 1e-6 * n as f64);
    }

    #[test]
    fn a_bucketed_micro_batch_is_of_one_bucket_and_an_epoch_leaves_out_less_than_one_of_each(
        lengths in prop::collection::vec(0u64..90, 60..200), seed: u64, shuffle: bool, micro_batch in 1usize..5,
    ) {
        let dir = tempfile::tempdir().unwrap();
        let set = counting_split(dir.path(), &lengths, 700);
        let loader = Loader::of_documents(set, config(40, micro_batch, true), seed, shuffle).unwrap();
        let n = loader.samples_per_epoch();
        prop_assert!(n.is_multiple_of(micro_batch as u64));
        let mut times: BTreeMap<u32, u32> = BTreeMap::new();
        for first in (2 * n..3 * n).step_by(micro_batch) {
            let got = batch(&loader, first, micro_batch);
            for row in targets(&got) {
                // Of the bucket, or of a shorter one that had too few.
                prop_assert!(row.len() <= got.seq_len);
                row.iter().for_each(|target| *times.entry(*target).or_default() += 1);
            }
            prop_assert!(got.samples.iter().all(|sample| sample.epoch == 2));
        }
        prop_assert!(times.values().all(|times| *times == 1));
        let left_out = loader.tokens_per_epoch() - times.len() as u64;
        prop_assert!(left_out <= 4 * 40 * (micro_batch as u64 - 1));
    }

    #[test]
    fn the_order_follows_from_the_counter_alone(first in 0u64..900, seed: u64, bucketed: bool) {
        let dir = tempfile::tempdir().unwrap();
        let set = counting_split(dir.path(), &document_lengths(3000), 700);
        let loader = Loader::of_documents(set.clone(), config(48, 2, bucketed), seed, true).unwrap();
        let first = first / 2 * 2;
        let (one, other) = (batch(&loader, first, 2), batch(&loader, first + 2, 2));
        // Another loader, asked in another order, as another rank or a resumed run asks.
        let again = Loader::of_documents(set, config(48, 2, bucketed), seed, true).unwrap();
        prop_assert_eq!(batch(&again, first + 2, 2), other);
        prop_assert_eq!(&batch(&again, first, 2), &one);
        prop_assert_eq!(one.samples[0], again.sample(first).unwrap());
        let state = loader.state(first);
        prop_assert!(state.differences(&again.state(0)).is_empty());
        let seen: Vec<_> = loader.seen(first + 4).unwrap().collect();
        for sample in &one.samples {
            let range = seen.iter().find(|range| range.start == sample.token).unwrap();
            prop_assert!(range.end - range.start >= 2);
        }
    }
}

#[test]
fn buckets_with_few_documents_are_joined_with_longer_ones() {
    let dir = tempfile::tempdir().unwrap();
    // Two of 5, one of 15, four of 30 and 40 tokens.
    let set = counting_split(dir.path(), &[5, 30, 40, 15, 30, 40, 5, 30, 40, 30, 40], 700);
    let lengths = |micro_batch: usize| {
        let loader = Loader::of_documents(set.clone(), config(40, micro_batch, true), 1, true).unwrap();
        let mut lengths: BTreeMap<usize, u64> = BTreeMap::new();
        for first in (0..loader.samples_per_epoch()).step_by(micro_batch) {
            *lengths.entry(batch(&loader, first, micro_batch).seq_len).or_default() += micro_batch as u64;
        }
        lengths.into_iter().collect::<Vec<_>>()
    };
    assert_eq!(lengths(1), [(10, 2), (20, 1), (30, 4), (40, 4)]);
    assert_eq!(lengths(2), [(10, 2), (30, 4), (40, 4)]);
    assert_eq!(lengths(3), [(20, 3), (30, 3), (40, 3)]);
    // The longest bucket takes in the one before it.
    assert_eq!(lengths(5), [(40, 10)]);
    let refused = Loader::of_documents(set.clone(), config(40, 12, true), 1, true).unwrap_err();
    assert!(matches!(refused, LoadError::TooFewDocuments { samples: 11, wanted: 12, .. }), "{refused}");
}

#[test]
fn other_lengths_are_another_order() {
    let dir = tempfile::tempdir().unwrap();
    let set = counting_split(dir.path(), &document_lengths(3000), 700);
    let of = |config: DocumentConfig| Loader::of_documents(set.clone(), config, 1, true).unwrap();
    let windows = Loader::new(set.clone(), 48, 1, true).unwrap();
    let (padded, bucketed) = (of(config(48, 4, false)), of(config(48, 4, true)));
    let text = |now: &Loader, before: &Loader| format!("{:?}", before.state(8).differences(&now.state(0)));
    assert!(text(&windows, &padded).contains("train.lengths"));
    assert!(text(&padded, &windows).contains("before: \"packed\", now: \"padded\""));
    assert!(text(&bucketed, &of(config(48, 2, true))).contains("by 4"));
    // Behind other samples, the same documents.
    let origin = windows.state(40).replaced_by(&padded.state(0)).unwrap();
    let later = padded.clone().from_origin(origin);
    let tokens = |loader: &Loader, first: u64| {
        (first..first + 60).map(|c| loader.sample(c).unwrap().token).collect::<Vec<_>>()
    };
    assert_eq!(tokens(&later, 40), tokens(&padded, 0));
    assert_eq!(later.count_targets(48, 8).unwrap(), padded.count_targets(8, 8).unwrap());
    assert_eq!(later.seen(100).unwrap().count(), 60);
    // What a step's memory is made of does not matter to padded documents.
    let other = DocumentConfig { shorter: vec![24], micro_batch: 8, ..config(48, 4, false) };
    assert!(padded.state(8).differences(&of(other).state(0)).is_empty());
}

/// Documents 2 i and 2 i + 1 are samples next to each other in every epoch, whatever the seed; each pair once.
#[test]
fn pairs_stay_together() {
    let dir = tempfile::tempdir().unwrap();
    let lengths: Vec<u64> = (0..42).map(|i| 2 + i * 7 % 15).collect();
    let set = counting_split(dir.path(), &lengths, 90);
    let begins: Vec<u64> = (0..42).map(|i| lengths[..i].iter().sum()).collect();
    for (seed, shuffle) in [(1, true), (2, true), (1, false)] {
        let config = DocumentConfig { pairs: true, separated: false, ..config(16, 4, false) };
        let loader = Loader::of_documents(set.clone(), config, seed, shuffle).unwrap();
        assert_eq!(loader.samples_per_epoch(), 42);
        let mut seen = BTreeMap::new();
        for first in (42..84).step_by(2) {
            let batch = batch(&loader, first, 2);
            let document = loader.document_of(first).unwrap();
            assert_eq!((document % 2, loader.document_of(first + 1)), (0, Some(document + 1)));
            let tokens: Vec<u64> = batch.samples.iter().map(|sample| sample.token).collect();
            assert_eq!(
                tokens,
                begins[document as usize..][..2],
                "the batch is of the documents that were named"
            );
            *seen.entry(document).or_insert(0) += 1;
        }
        assert!(seen.len() == 21 && seen.values().all(|times| *times == 1));
        assert!(seen.keys().copied().eq((0..42).step_by(2)));
    }
    let plain = Loader::of_documents(set.clone(), config(16, 4, false), 1, true).unwrap();
    assert_eq!(plain.document_of(0), None);
}

#[test]
fn documents_that_are_no_pairs_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let pairs = |lengths: &[u64], micro_batch| {
        let set = counting_split(&dir.path().join(format!("{}-{micro_batch}", lengths.len())), lengths, 90);
        let config = DocumentConfig { pairs: true, separated: false, ..config(16, micro_batch, false) };
        Loader::of_documents(set, config, 1, true).map(|_| ()).map_err(|e| e.to_string())
    };
    assert_eq!(pairs(&[5, 6, 17, 3], 2), Ok(()));
    for (lengths, micro_batch, found) in [
        (&[5, 6, 7][..], 2, "3 documents that give 3 samples"),
        (&[5, 6, 7, 1, 5, 5], 2, "6 documents that give 5 samples"),
        (&[5, 60, 7, 8, 5, 5, 5, 5], 2, "8 documents that give 11 samples"),
        (&[5, 6, 7, 8, 5, 5, 5, 5, 5, 5], 3, "in micro-batches of 3"),
    ] {
        let e = pairs(lengths, micro_batch).unwrap_err();
        assert!(e.contains(found) && e.contains("wanted pairs of documents"), "{lengths:?}: {e}");
    }
}
