//! Verdicts of the FineWeb chain against those of datatrove 0.10.1, and every profile on any text.
//!
//! The documents are pieces of this project's pages and of Shakespeare, half of them made wrong on purpose; made by
//! `CARGO_HOME=/nonexistent python bench/peers/rules/corpus.py fineweb_documents.jsonl 110 docs/training.md
//! docs/parallel.md docs/data.md docs/performance.md tinyshakespeare.txt` and
//! `python bench/peers/rules/datatrove_rules.py fineweb_documents.jsonl > fineweb_verdicts.txt`.

use bessemer_rules::{DocumentView, Profile, Scratch, Verdict};
use bessemer_text::hash::xxh64;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::sync::LazyLock;

#[test]
fn verdicts_reasons_and_kept_texts_are_those_of_datatrove() {
    let profile = Profile::named("fineweb").expect("it is carried");
    let documents = include_str!("../fineweb_documents.jsonl").lines();
    let mut scratch = Scratch::new();
    let mut reasons = BTreeSet::new();
    for (number, (document, expected)) in
        documents.zip(include_str!("../fineweb_verdicts.txt").lines()).enumerate()
    {
        let document: serde_json::Value = serde_json::from_str(document).expect("JSON");
        let text = document["text"].as_str().expect("a text");
        let found = match profile.evaluate_with(&DocumentView::of(text), &mut scratch).verdict {
            Verdict::Drop(label) => format!("drop {label}"),
            Verdict::Keep => format!("keep {:016x}", xxh64(text.as_bytes())),
            Verdict::Edit(text) => format!("keep {:016x}", xxh64(text.as_bytes())),
        };
        assert_eq!(found, expected, "document {number}");
        reasons.insert(expected.split(' ').next_back().filter(|_| expected.starts_with("drop")));
    }
    assert!(reasons.len() > 10, "{reasons:?}");
}

#[test]
fn an_explanation_names_the_first_line_that_loses_a_document() {
    let profile = Profile::named("c4").expect("it is carried");
    for (text, reason) in [
        ("There is a { here.\nThere is lorem ipsum here.", "curly_bracket"),
        ("There is lorem ipsum here.\nThere is a { here.", "lorem_ipsum"),
    ] {
        let document = DocumentView::of(text);
        let explained = profile.explain(&document, &mut Scratch::new());
        assert_eq!(explained.verdict, Verdict::Drop(reason.into()));
        assert_eq!(explained.verdict, profile.evaluate(&document).verdict);
    }
}

/// What breaks assumptions: marks, breaks of every kind, controls, scripts without spaces, characters that change their
/// length in lower case.
const PIECES: &str = "([a-z]{1,4}[ .]|[A-Z]{2} |\\PC|[\n\r\u{b}\u{1c}\u{85}\u{2028}]|\\[1\\]|\\{|javascript |lorem ipsum |\
                      \\.\\.\\. |• |- |#|<a>|http://a.b/c |İ|ß|\u{301}|漢字|\u{0}|1,000 |don't |:\\)|the the ){0,80}";

static PROFILES: LazyLock<Vec<Profile>> = LazyLock::new(|| {
    let names = Profile::names().into_iter().chain(["fineweb2-deu_Latn", "fineweb2-tha_Thai"]);
    names.map(|name| Profile::named(name).expect("it is carried")).collect()
});

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn any_text_gives_the_same_verdict_again(text in PIECES) {
        let mut scratch = Scratch::new();
        for profile in PROFILES.iter() {
            let name = profile.name();
            let document = DocumentView::of(&text);
            let explained = profile.explain(&document, &mut scratch);
            let evaluated = profile.evaluate_with(&document, &mut scratch);
            prop_assert_eq!(&explained.verdict, &evaluated.verdict, "{}", name);
            prop_assert_eq!(&explained.failed, &evaluated.failed, "{}", name);
            prop_assert_eq!(explained.rules.iter().find(|rule| rule.failed()), evaluated.failed.as_ref(), "{}", name);
            prop_assert_eq!(&explained.verdict, &profile.evaluate(&document).verdict, "{}", name);
            for rule in &explained.rules {
                prop_assert!(rule.value.is_none_or(f64::is_finite), "{}: {:?}", name, rule);
            }
        }
    }
}
