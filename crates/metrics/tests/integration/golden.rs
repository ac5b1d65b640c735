//! The numbers of sacrebleu, rouge_score and NLTK, written by `golden/metrics/make.py`.

use bessemer_metrics::{Bleu, ChrF, CorpusMetric, Meteor, Rouge, Smoothing, Ter, Tokens, porter};
use serde_json::Value;

fn golden() -> Value {
    serde_json::from_str(include_str!("golden.json")).expect("JSON")
}

fn near(found: f64, wanted: &Value, what: &str) {
    let wanted = wanted.as_f64().expect("a number");
    assert!((found - wanted).abs() < 1e-9 * (1.0 + wanted.abs()), "{what}: found {found}, wanted {wanted}");
}

/// A hypothesis, its references, and the entry that has its scores.
type Segment<'a> = (&'a str, Vec<&'a str>, &'a Value);

fn text(value: &Value) -> &str {
    value.as_str().expect("text")
}

fn list(value: &Value) -> &[Value] {
    value.as_array().expect("a list")
}

fn segments(golden: &Value) -> Vec<Segment<'_>> {
    fn segment(value: &Value) -> Segment<'_> {
        (text(&value["hypothesis"]), list(&value["references"]).iter().map(text).collect(), value)
    }
    list(&golden["segments"]).iter().map(segment).collect()
}

fn bleus() -> Vec<(&'static str, Bleu)> {
    let bleu = Bleu::default();
    vec![
        ("default", bleu),
        ("none", Bleu { tokens: Tokens::Blanks, ..bleu }),
        ("char", Bleu { tokens: Tokens::Characters, ..bleu }),
        ("lower", Bleu { lower: true, ..bleu }),
        ("floor", Bleu { smoothing: Smoothing::Floor(0.1), ..bleu }),
        ("add", Bleu { smoothing: Smoothing::Add(1.0), ..bleu }),
        ("off", Bleu { smoothing: Smoothing::Off, ..bleu }),
        ("effective", Bleu { effective_order: true, ..bleu }),
        ("intl", Bleu { tokens: Tokens::International, ..bleu }),
        ("zh", Bleu { tokens: Tokens::Chinese, ..bleu }),
    ]
}

fn chrfs() -> Vec<(&'static str, ChrF)> {
    let chrf = ChrF::default();
    vec![
        ("default", chrf),
        ("plus", ChrF { words: 2, ..chrf }),
        ("eps", ChrF { eps: true, ..chrf }),
        ("beta3", ChrF { beta: 3.0, ..chrf }),
        ("lower", ChrF { lower: true, words: 2, ..chrf }),
    ]
}

#[test]
fn translations_have_the_scores_of_sacrebleu() {
    let golden = golden();
    let segments = segments(&golden);
    let all = || segments.iter().map(|(hypothesis, references, _)| (*hypothesis, references.as_slice()));
    for (name, bleu) in bleus() {
        for (hypothesis, references, value) in &segments {
            let sentence = Bleu { effective_order: true, ..bleu };
            let score = sentence.score(&sentence.counts(hypothesis, references));
            near(score, &value["bleu"][name], &format!("BLEU {name} of {hypothesis:?}"));
        }
        near(bleu.corpus(all()), &golden["corpus"]["bleu"][name][0], name);
    }
    for (name, chrf) in chrfs() {
        for (hypothesis, references, value) in &segments {
            let score = chrf.score(&chrf.counts(hypothesis, references));
            near(score, &value["chrf"][name], &format!("chrF {name} of {hypothesis:?}"));
        }
        near(chrf.corpus(all()), &golden["corpus"]["chrf"][name][0], name);
    }
    for (i, case_sensitive) in [false, true].into_iter().enumerate() {
        let ter = Ter { case_sensitive };
        for (hypothesis, references, value) in &segments {
            let score = ter.score(&ter.counts(hypothesis, references));
            near(score, &value["ter"][i], &format!("TER of {hypothesis:?} and {references:?}"));
        }
        near(ter.corpus(all()), &golden["corpus"]["ter"][i], "TER");
    }
}

#[test]
fn signatures_and_tokens_are_those_of_sacrebleu() {
    let golden = golden();
    let found = [
        Bleu::default().signature(2),
        Bleu { smoothing: Smoothing::Floor(0.1), lower: true, ..Bleu::default() }.signature(2),
        ChrF::default().signature(2),
        ChrF { words: 2, eps: true, ..ChrF::default() }.signature(2),
        Ter::default().signature(2),
    ];
    for (found, wanted) in found.iter().zip(golden["signatures"].as_array().unwrap()) {
        assert_eq!(found, wanted);
    }
    for (text, wanted) in golden["tokens_13a"].as_object().unwrap() {
        assert_eq!(&Tokens::Thirteen.apply(text), wanted, "{text:?}");
    }
}

/// 300 pairs in several scripts.
#[test]
fn international_and_chinese_tokens_are_those_of_sacrebleu() {
    let golden = golden();
    let pairs = list(&golden["pairs"]);
    assert_eq!(pairs.len(), 300);
    for pair in pairs {
        let (hypothesis, reference) = (text(&pair[0]), text(&pair[1]));
        for (at, tokens) in [Tokens::International, Tokens::Chinese].into_iter().enumerate() {
            let trimmed = hypothesis.trim_end();
            assert_eq!(tokens.apply(trimmed), text(&pair[2 + at]), "{} of {hypothesis:?}", tokens.name());
            let bleu = Bleu { tokens, effective_order: true, ..Bleu::default() };
            let score = bleu.score(&bleu.counts(hypothesis, &[reference]));
            near(score, &pair[4 + at], &format!("{} of {hypothesis:?} and {reference:?}", tokens.name()));
        }
    }
}

#[test]
fn summaries_have_the_scores_of_rouge_score() {
    let golden = golden();
    // The script breaks lines there.
    let lines = |text: &str| text.replace(" . ", " .\n").replace(',', "\n");
    for (hypothesis, references, value) in segments(&golden) {
        for (i, stemmed) in [false, true].into_iter().enumerate() {
            for variant in [Rouge::N(1), Rouge::N(2), Rouge::L, Rouge::Lsum] {
                let found = variant.score(&lines(hypothesis), &lines(references[0]), stemmed);
                let wanted = &value["rouge"][i][variant.name()];
                let what = format!("{} of {hypothesis:?}", variant.name());
                near(found.precision, &wanted[0], &what);
                near(found.recall, &wanted[1], &what);
                near(found.f1, &wanted[2], &what);
            }
        }
    }
}

#[test]
fn stems_and_meteor_are_those_of_nltk() {
    let golden = golden();
    for (word, wanted) in golden["stems"].as_object().unwrap() {
        assert_eq!(&porter::stem(word), wanted, "{word}");
    }
    for (hypothesis, references, value) in segments(&golden) {
        let found = Meteor::default().best(hypothesis, &references, None);
        near(found, &value["meteor"], &format!("METEOR of {hypothesis:?}"));
    }
}
