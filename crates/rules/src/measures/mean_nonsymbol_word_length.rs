//! `mean-nonsymbol-word-length`: characters per word, over words with a character that is no punctuation.

use super::{Measure, MeasureSpec, quotient};
use crate::features::Scratch;

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "mean-nonsymbol-word-length",
    parameters: &["words"],
    value: "characters per word, over words with a character that is no punctuation",
    formula: "chars of such words / such words",
    origin: "datatrove's Gopher",
    pattern: None,
    compute,
};

fn compute(measure: &Measure, text: &str, scratch: &mut Scratch) -> Option<f64> {
    let stats = scratch.stats(measure.words, text);
    quotient(stats.nonsymbol_chars, stats.nonsymbol)
}
