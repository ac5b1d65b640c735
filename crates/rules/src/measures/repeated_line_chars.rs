//! `repeated-line-chars`: characters of lines that come more than once / characters of all lines; none with one line.

use super::{Measure, MeasureSpec, quotient};
use crate::features::Scratch;

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "repeated-line-chars",
    parameters: &["lines"],
    value: "characters of lines that come more than once / characters of all lines; none with one line",
    formula: "chars of lines with a copy / chars of lines",
    origin: "RefinedWeb (Penedo et al. 2023)",
    pattern: None,
    compute,
};

fn compute(measure: &Measure, text: &str, scratch: &mut Scratch) -> Option<f64> {
    let found = scratch.duplicates(measure.lines, text);
    if found.items > 1 { quotient(found.repeated_chars, found.chars) } else { None }
}
