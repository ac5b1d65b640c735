use super::{MeasureSpec, quotient};

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "mean-nonsymbol-word-length",
    parameters: &["words"],
    value: "characters per word, over words with a character that is no punctuation",
    formula: "chars of such words / such words",
    origin: "datatrove's Gopher",
    pattern: None,
    compute: |measure, text, scratch| {
        let stats = scratch.stats(measure.words, text);
        quotient(stats.nonsymbol_chars, stats.nonsymbol)
    },
};
