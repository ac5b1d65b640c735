use super::{MeasureSpec, quotient};

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "letter-words",
    parameters: &["words"],
    value: "share of words with a letter",
    formula: "words with a letter / words",
    origin: "Gopher (Rae et al. 2021, table A1)",
    pattern: None,
    compute: |measure, text, scratch| {
        quotient(scratch.stats(measure.words, text).with_letter, scratch.word_count(measure.words, text))
    },
};
