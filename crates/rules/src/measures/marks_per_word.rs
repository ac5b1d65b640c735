use super::{MeasureSpec, occurrences, quotient};

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "marks-per-word",
    parameters: &["marks", "words"],
    value: "occurrences of the marks in the text, per word",
    formula: "marks in the text / words",
    origin: "Gopher (Rae et al. 2021, table A1)",
    pattern: None,
    compute: |measure, text, scratch| {
        let found = measure.marks.iter().map(|mark| occurrences(text, mark)).sum();
        quotient(found, scratch.word_count(measure.words, text))
    },
};
