//! `later-duplicate-chars-of-lines`: characters of lines that have come before / characters of the text without newlines.

use super::{Measure, MeasureSpec, newlines, quotient};
use crate::features::Scratch;

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "later-duplicate-chars-of-lines",
    parameters: &["lines"],
    value: "characters of lines that have come before / characters of the text without newlines",
    formula: "chars of later copies / (chars - newlines)",
    origin: "FineWeb (Penedo et al. 2024)",
    pattern: None,
    compute,
};

fn compute(measure: &Measure, text: &str, scratch: &mut Scratch) -> Option<f64> {
    let found = scratch.duplicates(measure.lines, text);
    quotient(found.chars - found.unique_chars, scratch.chars(text) - newlines(text))
}
