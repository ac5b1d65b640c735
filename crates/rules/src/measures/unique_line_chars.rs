//! `unique-line-chars`: characters of different lines / characters of all lines.

use super::{Measure, MeasureSpec, quotient};
use crate::features::Scratch;

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "unique-line-chars",
    parameters: &["lines"],
    value: "characters of different lines / characters of all lines",
    formula: "chars of different lines / chars of lines",
    origin: "NeMo Curator",
    pattern: None,
    compute,
};

fn compute(measure: &Measure, text: &str, scratch: &mut Scratch) -> Option<f64> {
    let found = scratch.duplicates(measure.lines, text);
    quotient(found.unique_chars, found.chars)
}
