//! `newlines-per-word`: newlines per word.

use super::{Measure, MeasureSpec, newlines, quotient};
use crate::features::Scratch;

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "newlines-per-word",
    parameters: &["words"],
    value: "newlines per word",
    formula: "newlines / words",
    origin: "FineWeb (Penedo et al. 2024)",
    pattern: None,
    compute,
};

fn compute(measure: &Measure, text: &str, scratch: &mut Scratch) -> Option<f64> {
    quotient(newlines(text), scratch.word_count(measure.words, text))
}
