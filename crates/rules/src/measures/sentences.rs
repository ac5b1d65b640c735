//! `sentences`: matches of `\b[^.!?]+[.!?]*`.

use super::{Measure, MeasureSpec, compile_pattern};
use crate::features::Scratch;

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "sentences",
    parameters: &[],
    value: "matches of `\\b[^.!?]+[.!?]*`",
    formula: "matches",
    origin: "RedPajama-V2 (Weber et al. 2024)",
    pattern: Some(|_| compile_pattern(r"\b[^.!?]+[.!?]*")),
    compute,
};

fn compute(measure: &Measure, text: &str, _: &mut Scratch) -> Option<f64> {
    Some(measure.pattern.as_ref()?.find_iter(text).count() as f64)
}
