use super::{MeasureSpec, quotient};

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "repeated-lines",
    parameters: &["lines"],
    value: "share of lines that come more than once, all occurrences; none with one line",
    formula: "lines with a copy / lines",
    origin: "Dolma (Soldaini et al. 2024), RefinedWeb (Penedo et al. 2023)",
    pattern: None,
    compute: |measure, text, scratch| {
        let found = scratch.duplicates(measure.lines, text);
        if found.items > 1 { quotient(found.repeated, found.items) } else { None }
    },
};
