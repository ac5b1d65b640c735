use super::{MeasureSpec, newlines, quotient};

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "later-duplicate-chars-of-lines",
    parameters: &["lines"],
    value: "characters of lines that have come before / characters of the text without newlines",
    formula: "chars of later copies / (chars - newlines)",
    origin: "FineWeb (Penedo et al. 2024)",
    pattern: None,
    compute: |measure, text, scratch| {
        let found = scratch.duplicates(measure.lines, text);
        quotient(found.chars - found.unique_chars, scratch.chars(text) - newlines(text))
    },
};
