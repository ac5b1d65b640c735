//! `marks-per-word`: occurrences of the marks in the text, per word.

use super::{Measure, MeasureSpec, occurrences, quotient};
use crate::features::Scratch;

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "marks-per-word",
    parameters: &["marks", "words"],
    value: "occurrences of the marks in the text, per word",
    formula: "marks in the text / words",
    origin: "Gopher (Rae et al. 2021, table A1)",
    pattern: None,
    compute,
};

fn compute(measure: &Measure, text: &str, scratch: &mut Scratch) -> Option<f64> {
    let found = measure.marks.iter().map(|mark| occurrences(text, mark)).sum();
    quotient(found, scratch.word_count(measure.words, text))
}
