//! `later-duplicates`: share of lines that have come before.

use super::{Measure, MeasureSpec, quotient};
use crate::features::Scratch;

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "later-duplicates",
    parameters: &["lines"],
    value: "share of lines that have come before",
    formula: "(lines - different lines) / lines",
    origin: "datatrove's Gopher",
    pattern: None,
    compute,
};

fn compute(measure: &Measure, text: &str, scratch: &mut Scratch) -> Option<f64> {
    let found = scratch.duplicates(measure.lines, text);
    quotient(found.items - found.unique, found.items)
}
