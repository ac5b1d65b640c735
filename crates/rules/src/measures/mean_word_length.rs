//! `mean-word-length`: characters per word.

use super::{Measure, MeasureSpec, quotient};
use crate::features::Scratch;

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "mean-word-length",
    parameters: &["words"],
    value: "characters per word",
    formula: "chars of words / words",
    origin: "Gopher (Rae et al. 2021, table A1)",
    pattern: None,
    compute,
};

fn compute(measure: &Measure, text: &str, scratch: &mut Scratch) -> Option<f64> {
    let list = scratch.words(measure.words, text);
    quotient(list.total_chars, list.len() as u64)
}
