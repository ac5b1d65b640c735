use super::{MeasureSpec, newlines, quotient};

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "newlines-per-word",
    parameters: &["words"],
    value: "newlines per word",
    formula: "newlines / words",
    origin: "FineWeb (Penedo et al. 2024)",
    pattern: None,
    compute: |measure, text, scratch| quotient(newlines(text), scratch.word_count(measure.words, text)),
};
