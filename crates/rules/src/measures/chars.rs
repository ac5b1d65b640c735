use super::MeasureSpec;

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "chars",
    parameters: &[],
    value: "characters",
    formula: "chars",
    origin: "datatrove, Ziya2 (Gan et al. 2023)",
    pattern: None,
    compute: |_, text, scratch| Some(scratch.chars(text) as f64),
};
