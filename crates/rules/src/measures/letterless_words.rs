//! `letterless-words`: share of words without a letter.

use super::{Measure, MeasureSpec, quotient};
use crate::features::Scratch;

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "letterless-words",
    parameters: &["words"],
    value: "share of words without a letter",
    formula: "words without a letter / words",
    origin: "RefinedWeb (Penedo et al. 2023)",
    pattern: None,
    compute,
};

fn compute(measure: &Measure, text: &str, scratch: &mut Scratch) -> Option<f64> {
    let words = scratch.word_count(measure.words, text);
    quotient(words - scratch.stats(measure.words, text).with_letter, words)
}
