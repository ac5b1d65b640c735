use super::MeasureSpec;

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "nonsymbol-words",
    parameters: &["words"],
    value: "words with a character that is no punctuation",
    formula: "words with a non-punctuation character",
    origin: "datatrove's Gopher",
    pattern: None,
    compute: |measure, text, scratch| Some(scratch.stats(measure.words, text).nonsymbol as f64),
};
