use super::{MeasureSpec, quotient};

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "repeated-line-chars",
    parameters: &["lines"],
    value: "characters of lines that come more than once / characters of all lines; none with one line",
    formula: "chars of lines with a copy / chars of lines",
    origin: "RefinedWeb (Penedo et al. 2023)",
    pattern: None,
    compute: |measure, text, scratch| {
        let found = scratch.duplicates(measure.lines, text);
        if found.items > 1 { quotient(found.repeated_chars, found.chars) } else { None }
    },
};
