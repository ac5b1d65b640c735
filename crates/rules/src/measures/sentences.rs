use super::{MeasureSpec, compile_pattern};

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "sentences",
    parameters: &[],
    value: "matches of `\\b[^.!?]+[.!?]*`",
    formula: "matches",
    origin: "RedPajama-V2 (Weber et al. 2024)",
    pattern: Some(|_| compile_pattern(r"\b[^.!?]+[.!?]*")),
    compute: |measure, text, _| Some(measure.pattern.as_ref()?.find_iter(text).count() as f64),
};
