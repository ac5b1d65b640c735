use super::MeasureSpec;

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "lines",
    parameters: &["lines"],
    value: "lines",
    formula: "lines",
    origin: "FineWeb (Penedo et al. 2024), Ziya2 (Gan et al. 2023)",
    pattern: None,
    compute: |measure, text, scratch| Some(scratch.duplicates(measure.lines, text).items as f64),
};
