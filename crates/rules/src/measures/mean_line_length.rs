use super::{MeasureSpec, quotient};

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "mean-line-length",
    parameters: &["lines"],
    value: "characters per line",
    formula: "chars of lines / lines",
    origin: "StarCoder (Li et al. 2023), RedPajama v1",
    pattern: None,
    compute: |measure, text, _| {
        let lengths = measure.line_lengths(text);
        quotient(lengths.chars, lengths.lines)
    },
};
