use super::{MeasureSpec, quotient};

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "letterless-words",
    parameters: &["words"],
    value: "share of words without a letter",
    formula: "words without a letter / words",
    origin: "RefinedWeb (Penedo et al. 2023)",
    pattern: None,
    compute: |measure, text, scratch| {
        let words = scratch.word_count(measure.words, text);
        quotient(words - scratch.stats(measure.words, text).with_letter, words)
    },
};
