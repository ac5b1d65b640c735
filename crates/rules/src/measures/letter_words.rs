//! `letter-words`: share of words with a letter.

use super::{Measure, MeasureSpec, quotient};
use crate::features::Scratch;

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "letter-words",
    parameters: &["words"],
    value: "share of words with a letter",
    formula: "words with a letter / words",
    origin: "Gopher (Rae et al. 2021, table A1)",
    pattern: None,
    compute,
};

fn compute(measure: &Measure, text: &str, scratch: &mut Scratch) -> Option<f64> {
    quotient(scratch.stats(measure.words, text).with_letter, scratch.word_count(measure.words, text))
}
