//! `unique-lines`: different lines / lines.

use super::{Measure, MeasureSpec, quotient};
use crate::features::Scratch;

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "unique-lines",
    parameters: &["lines"],
    value: "different lines / lines",
    formula: "different lines / lines",
    origin: "NeMo Curator",
    pattern: None,
    compute,
};

fn compute(measure: &Measure, text: &str, scratch: &mut Scratch) -> Option<f64> {
    let found = scratch.duplicates(measure.lines, text);
    quotient(found.unique, found.items)
}
