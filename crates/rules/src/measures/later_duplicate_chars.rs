//! `later-duplicate-chars`: characters of lines that have come before / characters of the text.

use super::{Measure, MeasureSpec, quotient};
use crate::features::Scratch;

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "later-duplicate-chars",
    parameters: &["lines"],
    value: "characters of lines that have come before / characters of the text",
    formula: "chars of later copies / chars",
    origin: "datatrove's Gopher",
    pattern: None,
    compute,
};

fn compute(measure: &Measure, text: &str, scratch: &mut Scratch) -> Option<f64> {
    let found = scratch.duplicates(measure.lines, text);
    quotient(found.chars - found.unique_chars, scratch.chars(text))
}
