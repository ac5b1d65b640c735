use super::MeasureSpec;

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "third-longest-line",
    parameters: &["lines"],
    value: "characters of the third longest line; 0 with fewer lines",
    formula: "third of the chars of lines, sorted",
    origin: "mC4 (Xue et al. 2021)",
    pattern: None,
    compute: |measure, text, _| Some(measure.line_lengths(text).longest[2] as f64),
};
