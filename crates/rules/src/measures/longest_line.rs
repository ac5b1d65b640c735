use super::MeasureSpec;

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "longest-line",
    parameters: &["lines"],
    value: "characters of the longest line",
    formula: "max(chars of a line)",
    origin: "StarCoder (Li et al. 2023), RedPajama v1",
    pattern: None,
    compute: |measure, text, _| {
        let lengths = measure.line_lengths(text);
        (lengths.lines > 0).then_some(lengths.longest[0] as f64)
    },
};
