//! `unique-words`: different words / words.

use super::{Measure, MeasureSpec, quotient, word_counts};
use crate::features::Scratch;

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "unique-words",
    parameters: &["words"],
    value: "different words / words",
    formula: "different words / words",
    origin: "RedPajama-V2 (Weber et al. 2024)",
    pattern: None,
    compute,
};

fn compute(measure: &Measure, text: &str, scratch: &mut Scratch) -> Option<f64> {
    let list = scratch.words(measure.words, text);
    quotient(word_counts(list, text).len() as u64, list.len() as u64)
}
