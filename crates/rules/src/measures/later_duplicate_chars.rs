use super::{MeasureSpec, quotient};

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "later-duplicate-chars",
    parameters: &["lines"],
    value: "characters of lines that have come before / characters of the text",
    formula: "chars of later copies / chars",
    origin: "datatrove's Gopher",
    pattern: None,
    compute: |measure, text, scratch| {
        let found = scratch.duplicates(measure.lines, text);
        quotient(found.chars - found.unique_chars, scratch.chars(text))
    },
};
