use super::MeasureSpec;

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "lines-ending",
    parameters: &["marks", "trim", "lines"],
    value: "share of lines that end with a mark",
    formula: "such lines / lines",
    origin: "Gopher (Rae et al. 2021, table A1)",
    pattern: None,
    compute: |measure, text, _| measure.share_of_lines(text, |line| measure.ends_line(line)),
};
