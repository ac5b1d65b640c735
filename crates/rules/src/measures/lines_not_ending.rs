use super::MeasureSpec;

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "lines-not-ending",
    parameters: &["marks", "trim", "lines"],
    value: "share of lines that end with none of the marks",
    formula: "such lines / lines",
    origin: "NeMo Curator",
    pattern: None,
    compute: |measure, text, _| measure.share_of_lines(text, |line| !measure.ends_line(line)),
};
