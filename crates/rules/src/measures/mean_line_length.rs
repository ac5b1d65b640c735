//! `mean-line-length`: characters per line.

use super::{Measure, MeasureSpec, quotient};
use crate::features::Scratch;

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "mean-line-length",
    parameters: &["lines"],
    value: "characters per line",
    formula: "chars of lines / lines",
    origin: "StarCoder (Li et al. 2023), RedPajama v1",
    pattern: None,
    compute,
};

fn compute(measure: &Measure, text: &str, _: &mut Scratch) -> Option<f64> {
    let lengths = measure.line_lengths(text);
    quotient(lengths.chars, lengths.lines)
}
