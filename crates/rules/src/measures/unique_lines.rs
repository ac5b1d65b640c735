use super::{MeasureSpec, quotient};

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "unique-lines",
    parameters: &["lines"],
    value: "different lines / lines",
    formula: "different lines / lines",
    origin: "NeMo Curator",
    pattern: None,
    compute: |measure, text, scratch| {
        let found = scratch.duplicates(measure.lines, text);
        quotient(found.unique, found.items)
    },
};
