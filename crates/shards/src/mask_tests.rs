//! Masks of scored tokens, held against plain vectors of bools; damaged, forged and ill-formed ones.
#![allow(clippy::single_range_in_vec_init, reason = "scored tokens are ranges, one of them too")]

use crate::damage_tests::{forge, meta, open_and_verify};
use crate::{Fingerprint, Part, ScoredRangeFault, ShardError, ShardReader, ShardSet, ShardSetWriter};
use crate::{ShardWriter, SplitMeta};
use proptest::prelude::*;
use std::fs;
use std::ops::Range;
use std::path::Path;
use xxhash_rust::xxh3::xxh3_64;

/// A token that is not in any vocabulary here.
const UNSCORED: u32 = u32::MAX;

/// 77 tokens, in a document that is scored, one that is in part, and one that is not at all: 5 + 12 tokens are scored.
pub(crate) fn write_masked(path: &Path) {
    let tokens: Vec<u32> = (0..77).map(|i| (i * 7919 + 13) % 1000).collect();
    let mut writer = ShardWriter::create_with_blocks(path, meta(1000), 64).unwrap();
    writer.push_document([1; 16], 10, &tokens[..5]).unwrap();
    writer.push_scored([3; 16], 99, &tokens[5..70], &[0..3, 3..3, 20..28, 64..65]).unwrap();
    writer.push_scored([4; 16], 1, &tokens[70..], &[]).unwrap();
    let summary = writer.finish().unwrap();
    assert_eq!((summary.file_bytes, summary.scored), (fs::metadata(path).unwrap().len(), 17));
}

/// The file of [`write_masked`], as the first program with masks wrote it.
const MASKED: &[u8] = include_bytes!("../tests/masked.shard");

#[test]
fn the_file_is_that_of_the_readme() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("00003.shard");
    write_masked(&path);
    let b = fs::read(&path).unwrap();
    let u32_at = |at: usize| u32::from_le_bytes(b[at..at + 4].try_into().unwrap());
    let u64_at = |at: usize| u64::from_le_bytes(b[at..at + 8].try_into().unwrap());
    // Three documents: the index of 96 bytes from 312 on, its checksum at 408, the mask from 416 on, the table from 448 on.
    assert_eq!(u64_at(416), 17);
    let scored = [0..5, 5..8, 25..33, 69..70].into_iter().flatten();
    let bits = scored.fold(0u128, |bits, token| bits | 1 << token);
    assert_eq!([u64_at(432), u64_at(440)], [bits as u64, (bits >> 64) as u64]);
    assert_eq!(u64_at(424), xxh3_64(&b[432..448]));
    let at = 448 + 3 * 32;
    assert_eq!((u32_at(at), u32_at(at + 4), u64_at(at + 8), u64_at(at + 16)), (4, 1, 416, 32));
    assert_eq!(u64_at(at + 24), xxh3_64(&b[416..432]));
    assert_eq!((u64_at(at + 32), b.len()), (4, at + 40 + 40));
    assert!(b == MASKED, "the bytes of files with a mask changed");
    assert_eq!(open_and_verify(&path).unwrap().len(), 77);
}

/// A document that is scored throughout leaves the bytes as they were, whichever way it was pushed.
#[test]
fn files_whose_tokens_are_all_scored_have_no_mask() {
    let dir = tempfile::tempdir().unwrap();
    let paths = ["a.shard", "b.shard"].map(|name| dir.path().join(name));
    let tokens: Vec<u32> = (0..100).collect();
    for (number, path) in paths.iter().enumerate() {
        let mut writer = ShardWriter::create(path, meta(1000)).unwrap();
        for document in tokens.chunks(30) {
            match number {
                0 => writer.push_document([1; 16], 5, document).unwrap(),
                _ => writer.push_scored([1; 16], 5, document, &[0..4, 4..document.len()]).unwrap(),
            }
        }
        assert_eq!(writer.finish().unwrap().scored, 100);
    }
    assert!(fs::read(&paths[0]).unwrap() == fs::read(&paths[1]).unwrap());
    let reader = ShardReader::open(&paths[0]).unwrap();
    assert!(!reader.has_mask());
    assert_eq!((reader.scored_count(), reader.count_scored(3, 20).unwrap()), (100, 20));
    let mut read = tokens[10..40].to_vec();
    assert_eq!(reader.replace_unscored(10, &mut read, UNSCORED).unwrap(), 30);
    assert_eq!(read, tokens[10..40]);
}

/// The tokens at which `scored` is true, as ranges.
fn ranges(scored: &[bool]) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for (at, _) in scored.iter().enumerate().filter(|(_, scored)| **scored) {
        match ranges.last_mut() {
            Some(range) if range.end == at => range.end += 1,
            _ => ranges.push(at..at + 1),
        }
    }
    ranges
}

/// Documents as bools: scored throughout, not at all, or in stretches.
fn documents() -> impl Strategy<Value = Vec<Vec<bool>>> {
    let stretches = prop::collection::vec((any::<bool>(), 0usize..150), 0..6);
    let stretched = stretches.prop_map(|stretches| {
        stretches.into_iter().flat_map(|(scored, length)| std::iter::repeat_n(scored, length)).collect()
    });
    let whole = (any::<bool>(), 0usize..200).prop_map(|(scored, length)| vec![scored; length]);
    let document = prop_oneof![whole, stretched, prop::collection::vec(any::<bool>(), 0..140)];
    prop::collection::vec(document, 0..14)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, ..ProptestConfig::default() })]
    #[test]
    fn masks_are_those_of_a_vector_of_bools(
        documents in documents(),
        file_bytes in prop::sample::select(vec![700u64, 3000, 1 << 20]),
        cuts in prop::collection::vec((0.0f64..1.0, 0.0f64..1.0), 12),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let meta = SplitMeta { split: "train".into(), vocab_size: 1000, tokenizer: Fingerprint([1; 32]) };
        let mut writer = ShardSetWriter::create(dir.path(), meta, file_bytes).unwrap();
        for (number, document) in documents.iter().enumerate() {
            let tokens = vec![number as u32; document.len()];
            writer.push_scored([number as u8; 16], 1, &tokens, &ranges(document)).unwrap();
        }
        let summary = writer.finish().unwrap();
        let wanted = documents.concat();
        let count = |range: &[bool]| range.iter().filter(|scored| **scored).count() as u64;
        let set = ShardSet::open(dir.path(), "train").unwrap();
        set.verify().unwrap();
        prop_assert_eq!((summary.scored, set.scored_count()), (count(&wanted), count(&wanted)));
        prop_assert_eq!(summary.file_bytes, set.file_bytes());
        for file in set.files() {
            // Only a single document exceeds the limit, with its mask; a mask is there exactly if it has to be.
            prop_assert!(file.file_bytes() <= file_bytes || file.document_count() == 1);
            prop_assert_eq!(file.has_mask(), file.scored_count() < file.token_count());
        }
        for (a, b) in cuts.into_iter().chain([(0.0, 1.0)]) {
            let at = |share: f64| (share * wanted.len() as f64) as usize;
            let (a, b) = (at(a).min(at(b)), at(a).max(at(b)));
            prop_assert_eq!(set.count_scored(a as u64..b as u64).unwrap(), count(&wanted[a..b]));
            let mut tokens = vec![5; b - a];
            let scored = set.replace_unscored(a as u64, &mut tokens, UNSCORED).unwrap();
            prop_assert_eq!(scored, count(&wanted[a..b]));
            let found: Vec<bool> = tokens.iter().map(|token| *token == 5).collect();
            prop_assert_eq!(&found, &wanted[a..b]);
        }
        let end = wanted.len() as u64;
        for past in [end..end + 1, 0..u64::MAX, u64::MAX - 1..u64::MAX] {
            let error = set.count_scored(past).unwrap_err();
            prop_assert!(matches!(error, ShardError::OutOfRange { .. }), "{}", error);
        }
        let error = set.replace_unscored(end, &mut [1], UNSCORED).unwrap_err();
        prop_assert!(matches!(error, ShardError::OutOfRange { .. }), "{}", error);
    }
}

/// A mask of several pieces: each is verified when it is first touched, and no byte of it is read when the file is opened.
#[test]
fn a_damaged_piece_is_named_on_first_touch_and_the_others_stay_readable() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("00003.shard");
    let tokens = vec![1; 1_200_001];
    let mut writer = ShardWriter::create(&path, meta(1000)).unwrap();
    writer.push_document([0; 16], 1, &tokens[..700_000]).unwrap();
    // Every third token of the second document.
    let thirds: Vec<Range<usize>> = (0..500_001).step_by(3).map(|at| at..at + 1).collect();
    writer.push_scored([1; 16], 1, &tokens[700_000..], &thirds).unwrap();
    writer.finish().unwrap();
    let wanted = |token: u64| token < 700_000 || (token - 700_000).is_multiple_of(3);
    let reader = ShardReader::open(&path).unwrap();
    assert!(reader.counters().storage < 4096, "{:?}", reader.counters());
    reader.verify().unwrap();
    for start in [0, 63, 524_280, 699_990, 1_048_570, 1_199_900] {
        let mut tokens = vec![5; 100];
        let scored = reader.replace_unscored(start, &mut tokens, UNSCORED).unwrap();
        let found: Vec<bool> = tokens.iter().map(|token| *token == 5).collect();
        let wanted: Vec<bool> = (start..start + 100).map(wanted).collect();
        assert_eq!(found, wanted);
        assert_eq!(scored, wanted.iter().filter(|scored| **scored).count() as u64);
    }
    assert_eq!(reader.scored_count(), 700_000 + 166_667);
    assert_eq!(reader.count_scored(0, 1_200_001).unwrap(), 700_000 + 166_667);

    let mask = reader_mask_start(&path);
    let mut bytes = fs::read(&path).unwrap();
    let words = mask + 8 + 3 * 8;
    bytes[words + 65_536 + 10] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let reader = ShardReader::open(&path).unwrap();
    assert_eq!(reader.count_scored(0, 524_288).unwrap(), 524_288);
    assert_eq!(reader.count_scored(1_048_576, 100).unwrap(), 34);
    match reader.count_scored(524_200, 200) {
        Err(ShardError::Checksum { part, .. }) => {
            let start = (words + 65_536) as u64;
            assert_eq!(part, Part::Mask { start, end: start + 65_536 });
        }
        other => panic!("{other:?}"),
    }
    let error = reader.verify().unwrap_err().to_string();
    assert!(error.contains("the mask of scored tokens") && error.contains("00003.shard"), "{error}");
    // Count and checksums are verified when the file is opened.
    bytes[mask] ^= 1;
    fs::write(&path, &bytes).unwrap();
    assert!(ShardReader::open(&path).is_err());
}

/// First byte of the mask, from the fourth entry of the table of sections.
fn reader_mask_start(path: &Path) -> usize {
    let b = fs::read(path).unwrap();
    let entry = b.len() - 40 - 8 - 32;
    assert_eq!(b[entry], 4);
    u64::from_le_bytes(b[entry + 8..entry + 16].try_into().unwrap()) as usize
}

#[test]
fn ranges_that_are_none_are_refused_and_leave_the_writer_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("00003.shard");
    let mut writer = ShardWriter::create(&path, meta(1000)).unwrap();
    writer.push_scored([1; 16], 1, &[1, 2, 3], &[1..2]).unwrap();
    let reversed = Range { start: 3, end: 2 };
    for (ranges, wanted) in [
        (vec![0..4], "document 1: wanted range 0 of scored tokens within 0..3, found 0..4"),
        (vec![0..1, reversed], "wanted range 1 of scored tokens within 0..3, found 3..2"),
        (vec![0..2, 1..3], "wanted range 1 of scored tokens to begin at 2 or later, found 1..3"),
        (vec![2..3, 0..1], "wanted range 1 of scored tokens to begin at 3 or later, found 0..1"),
        (vec![0..usize::MAX, 0..usize::MAX], "within 0..3"),
    ] {
        let error = writer.push_scored([2; 16], 1, &[4, 5, 6], &ranges).unwrap_err();
        assert!(matches!(&error, ShardError::ScoredRange { document: 1, .. }), "{error}");
        assert!(error.to_string().contains(wanted) && error.to_string().contains("00003.shard"), "{error}");
    }
    let fault = ScoredRangeFault::Outside { number: 0, range: 0..4, tokens: 3 };
    assert_eq!(crate::mask::check_ranges(3, std::slice::from_ref(&(0..4))), Err(fault));
    writer.push_scored([2; 16], 1, &[4, 5, 6], &[0..1, 1..2]).unwrap();
    writer.finish().unwrap();
    let reader = ShardReader::open(&path).unwrap();
    let mut tokens = [0; 6];
    reader.replace_unscored(0, &mut tokens, 1).unwrap();
    assert_eq!(tokens, [1, 0, 1, 0, 0, 1]);
}

/// Masks whose checksums are right and that no writer produces. A mask that its entry does not require would be ignored by a reader
/// without masks, which would train on all tokens.
#[test]
fn forged_masks_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("00003.shard");
    let mask = |scored: u64, words: [u64; 2]| {
        let bits = words.map(u64::to_le_bytes).concat();
        [scored.to_le_bytes().to_vec(), xxh3_64(&bits).to_le_bytes().to_vec(), bits].concat()
    };
    let good = mask(3, [7, 0]);
    forge(&path, &[(99, 0, &[1; 8]), (4, 1, &good), (98, 0, &[1; 8])], |_| {});
    assert_eq!(open_and_verify(&path).unwrap().len(), 77);
    assert_eq!(ShardReader::open(&path).unwrap().scored_count(), 3);
    let refused = |sections: &[(u32, u32, &[u8])], wanted: &str| {
        forge(&path, sections, |_| {});
        let error = open_and_verify(&path).unwrap_err();
        assert!(matches!(error, ShardError::Malformed { .. }), "{error}");
        assert!(error.to_string().contains(wanted), "{error}");
    };
    let one = "wanted one required mask of 32 bytes for 77 tokens";
    refused(&[(4, 0, &good)], one);
    refused(&[(4, 1, &good), (4, 1, &good)], one);
    refused(&[(4, 1, &good[..24])], one);
    refused(&[(4, 1, &[good.clone(), vec![0; 8]].concat())], one);
    refused(&[(4, 1, &mask(78, [7, 0]))], "the mask scores 78 of 77 tokens");
    refused(&[(4, 1, &mask(4, [7, 0]))], "the mask scores 3 tokens, its count states 4");
    refused(&[(4, 1, &mask(4, [7, 1 << 13]))], "the mask scores tokens behind the last of 77");
}
