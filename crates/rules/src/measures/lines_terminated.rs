use super::MeasureSpec;
use bessemer_text::unicode::{Class, class};

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "lines-terminated",
    parameters: &["lines"],
    value: "share of lines that end with a sentence-ending sign of any script",
    formula: "such lines / lines",
    origin: "FineWeb (Penedo et al. 2024)",
    pattern: None,
    compute: |measure, text, _| {
        measure.share_of_lines(text, |line| {
            line.chars().next_back().is_some_and(|c| class(c).meets(Class::TERMINAL))
        })
    },
};
