//! `distinct-listed-words`: how many words of the list occur.

use super::{Measure, MeasureSpec};
use crate::features::Scratch;

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "distinct-listed-words",
    parameters: &["list", "words"],
    value: "how many words of the list occur",
    formula: "listed words that occur",
    origin: "Gopher (Rae et al. 2021, table A1)",
    pattern: None,
    compute,
};

fn compute(measure: &Measure, text: &str, scratch: &mut Scratch) -> Option<f64> {
    Some(scratch.occurring(measure.words, text, measure.list.keys()) as f64)
}
