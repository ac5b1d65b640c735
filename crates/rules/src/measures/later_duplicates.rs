use super::{MeasureSpec, quotient};

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "later-duplicates",
    parameters: &["lines"],
    value: "share of lines that have come before",
    formula: "(lines - different lines) / lines",
    origin: "datatrove's Gopher",
    pattern: None,
    compute: |measure, text, scratch| {
        let found = scratch.duplicates(measure.lines, text);
        quotient(found.items - found.unique, found.items)
    },
};
