//! `nonsymbol-words`: words with a character that is no punctuation.

use super::{Measure, MeasureSpec};
use crate::features::Scratch;

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "nonsymbol-words",
    parameters: &["words"],
    value: "words with a character that is no punctuation",
    formula: "words with a non-punctuation character",
    origin: "datatrove's Gopher",
    pattern: None,
    compute,
};

fn compute(measure: &Measure, text: &str, scratch: &mut Scratch) -> Option<f64> {
    Some(scratch.stats(measure.words, text).nonsymbol as f64)
}
