//! Every parser takes any bytes: an error or something usable, never a panic, and never memory that the input does not
//! justify.

use bessemer_corpus_config::scores::ScoresConfig;
use bessemer_score::LanguageId;
use bessemer_score::date::{Date, date_of};
use bessemer_score::domain::{DomainTags, host_of};
use bessemer_score::dsir::{Bag, Importance};
use bessemer_score::fasttext::{FastText, labelled_lines};
use bessemer_score::kenlm::LanguageModel;
use bessemer_score::language::BuiltInLanguages;
use bessemer_score::unigram::Unigrams;
use bessemer_text::Words;
use proptest::prelude::*;
use std::path::Path;

fn golden(name: &str) -> Vec<u8> {
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)).expect("golden file")
}

/// A file with some bytes changed and perhaps its end cut off or doubled.
fn damaged(bytes: &[u8], changes: &[(u16, u8)], end: u16) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for &(at, value) in changes {
        // Mostly the header, where sizes stand.
        let range = if value.is_multiple_of(2) { bytes.len().min(256) } else { bytes.len() };
        let at = at as usize % range;
        bytes[at] = value;
    }
    match end % 4 {
        0 => bytes.truncate(end as usize % bytes.len()),
        1 => bytes.extend_from_within(..end as usize % bytes.len()),
        _ => {}
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn models(changes in prop::collection::vec(any::<(u16, u8)>(), 0..6), end: u16, text in ".{0,60}") {
        for name in ["fasttext/softmax.bin", "fasttext/hs.bin", "fasttext/pruned.ftz"] {
            let bytes = damaged(&golden(name), &changes, end);
            if let Ok(model) = FastText::read(&bytes[..], bytes.len() as u64, name) {
                prop_assert!(model.predict(&text, 3, 0.0).iter().all(|p| p.probability.is_finite()));
            }
        }
        for name in ["kenlm/probing.bin", "kenlm/trie.bin", "kenlm/quantised_array.bin"] {
            let bytes = damaged(&golden(name), &changes, end);
            if let Ok(model) = LanguageModel::read_binary(&bytes[..], bytes.len() as u64, name) {
                prop_assert!(!model.score_sentence(&text).0.is_nan());
                prop_assert!(!model.score_sentence("the cat likes a river").0.is_nan());
            }
        }
        let bytes = damaged(&golden("kenlm/small.arpa"), &changes, end);
        if let Ok(model) = LanguageModel::read_arpa(&bytes[..], bytes.len() as u64, "arpa") {
            prop_assert!(!model.score_sentence(&text).0.is_nan());
        }
    }

    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let len = bytes.len() as u64;
        prop_assert!(FastText::read(&bytes[..], len, "x").is_err());
        prop_assert!(LanguageModel::read_binary(&bytes[..], len, "x").is_err());
        prop_assert!(LanguageModel::read_arpa(&bytes[..], len, "x").is_err());
        prop_assert!(Importance::read(&bytes[..], len, "x").is_err());
    }

    #[test]
    fn any_text(text in "(\\PC|[\\n\\t,/.:@#-]|[0-9]{1,5}|May|http://){0,60}") {
        let _ = Unigrams::parse(&text, Words::Uax29, "x").map(|table| table.score(&text));
        let _ = DomainTags::with_lines(&text, "x").map(|tags| tags.tag(&text).len());
        let _ = (host_of(&text), Date::from_warc(&text), date_of(Some(&text), &text, Some(&text)));
        let _ = labelled_lines(&text).count();
        let (language, score) = BuiltInLanguages.identify(&text);
        prop_assert!(!language.is_empty() && (0.0..=1.0).contains(&score));
        let mut bag = Bag::default();
        bag.add(&text);
        prop_assert!(Importance::new(&bag, &Bag::default()).weight(&text).is_finite());
        if let Ok(config) = serde_json::from_str::<ScoresConfig>(&text) {
            let _ = config.check();
        }
    }
}

#[test]
fn sizes_in_headers_are_believed_only_as_far_as_the_file_goes() {
    // 2^62 rows, 2^31 - 1 entries, 2^60 n-grams: each must fail at once and allocate nothing of the sort.
    let mut model = golden("fasttext/softmax.bin");
    for at in [8 + 12 * 4 + 8, 8 + 12 * 4 + 12] {
        model[at..at + 4].copy_from_slice(&i32::MAX.to_le_bytes());
    }
    assert!(FastText::read(&model[..], model.len() as u64, "x").is_err());
    for name in ["kenlm/probing.bin", "kenlm/trie.bin", "kenlm/array.bin"] {
        let whole = golden(name);
        for order in 0..4 {
            for value in [1u64 << 40, 1 << 60, u64::MAX] {
                let mut model = whole.clone();
                let at = 108 + 8 * order;
                model[at..at + 8].copy_from_slice(&value.to_le_bytes());
                assert!(LanguageModel::read_binary(&model[..], model.len() as u64, name).is_err());
            }
        }
    }
}
