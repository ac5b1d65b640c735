//! Pieces and perplexities are those of SentencePiece and KenLM (golden/score/sentencepiece_models.py makes the files), and files
//! that are broken are reported or do no harm.

use bessemer_score::kenlm::{LanguageModel, perplexity_of_document};
use bessemer_score::sentencepiece::SentencePiece;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/sentencepiece").join(name)
}

#[derive(serde::Deserialize)]
struct Golden {
    texts: Vec<String>,
    pieces: BTreeMap<String, Vec<Vec<String>>>,
    documents: Vec<String>,
    perplexities: Vec<f64>,
}

fn golden() -> Golden {
    serde_json::from_slice(&std::fs::read(data("pieces.json")).expect("golden file")).expect("JSON")
}

#[test]
fn pieces_are_those_of_the_original() {
    let golden = golden();
    assert_eq!(golden.pieces.len(), 2);
    for (name, wanted) in &golden.pieces {
        let model = SentencePiece::open(&data(&format!("{name}.model"))).expect("a model");
        assert_eq!(wanted.len(), golden.texts.len());
        for (text, wanted) in golden.texts.iter().zip(wanted) {
            assert_eq!(&model.pieces(text), wanted, "{name}: {text:?}");
        }
    }
}

#[test]
fn perplexities_over_pieces_are_those_of_cc_net() {
    let golden = golden();
    let pieces = SentencePiece::open(&data("small.model")).expect("a model");
    let model = LanguageModel::open(&data("small.arpa")).expect("a model");
    for (document, wanted) in golden.documents.iter().zip(golden.perplexities) {
        let found = perplexity_of_document(&model, &pieces, document);
        assert!((found / wanted - 1.0).abs() < 1e-5, "{document:?}: {found}, {wanted}");
    }
}

#[test]
fn broken_files_are_told_or_do_no_harm() {
    let told = |bytes: &[u8]| SentencePiece::read(bytes, "x.model").expect_err("broken").to_string();
    assert!(told(b"").contains("no pieces"));
    assert!(told(b"\\data\\\nngram 1=3").contains("SentencePiece"));
    assert!(SentencePiece::open(Path::new("/nowhere/x.model")).is_err());
    // trainer_spec { model_type: BPE } and a piece.
    assert!(told(b"\x0a\x03\x0a\x01a\x12\x02\x18\x02").contains("Bpe"));
    assert!(told(b"\x0a\x03\x0a\x01a\x0a\x03\x0a\x01a").contains("twice"));
    let whole = std::fs::read(data("small.model")).expect("golden file");
    for cut in (0..whole.len()).step_by(7) {
        let _ = SentencePiece::read(&whole[..cut], "cut");
    }
    for at in 0..whole.len() {
        for value in [0, 0x7f, 0x80, 0xff] {
            let mut bad = whole.clone();
            bad[at] = value;
            if let Ok(model) = SentencePiece::read(&bad, "bad") {
                model.for_each("the \u{ff21}\u{fb01} \u{2026}\u{ad} <user>", &mut |_| ());
            }
        }
    }
}

proptest! {
    #[test]
    fn fuzz_sentencepiece_arbitrary_bytes(bytes in prop::collection::vec(any::<u8>(), 0..400), text in ".{0,40}") {
        if let Ok(model) = SentencePiece::read(&bytes, "fuzz") {
            model.for_each(&text, &mut |_| ());
        }
    }

    /// Letters and words are neither lost nor invented, whatever the text.
    #[test]
    fn pieces_joined_are_the_words(text in "([a-z]{1,6} ?|[A-EG-Z]|[é日\u{1f600}]|  ){0,30}") {
        let model = SentencePiece::open(&data("small.model")).expect("a model");
        let words: Vec<&str> = text.split(' ').filter(|word| !word.is_empty()).collect();
        let normal = words.join("\u{2581}").replace("ffi", "\u{fb03}");
        let expected = if words.is_empty() { normal } else { format!("\u{2581}{normal}") };
        prop_assert_eq!(model.pieces(&text).concat(), expected);
    }
}
