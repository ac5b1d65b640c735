use super::{MeasureSpec, quotient};

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "unique-line-chars",
    parameters: &["lines"],
    value: "characters of different lines / characters of all lines",
    formula: "chars of different lines / chars of lines",
    origin: "NeMo Curator",
    pattern: None,
    compute: |measure, text, scratch| {
        let found = scratch.duplicates(measure.lines, text);
        quotient(found.unique_chars, found.chars)
    },
};
