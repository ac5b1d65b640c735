use super::{MeasureSpec, occurrences, quotient};
use bessemer_text::unicode::char_count;

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "mark-chars",
    parameters: &["marks"],
    value: "share of characters that belong to the marks",
    formula: "chars of marks / chars",
    origin: "NeMo Curator, RedPajama-V2 (Weber et al. 2024)",
    pattern: None,
    compute: |measure, text, scratch| {
        let of = |mark: &String| occurrences(text, mark) * char_count(mark) as u64;
        quotient(measure.marks.iter().map(of).sum(), scratch.chars(text))
    },
};
