//! `longest-word`: characters of the longest word.

use super::{Measure, MeasureSpec};
use crate::features::Scratch;

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "longest-word",
    parameters: &["words"],
    value: "characters of the longest word",
    formula: "max(chars of a word)",
    origin: "NeMo Curator",
    pattern: None,
    compute,
};

fn compute(measure: &Measure, text: &str, scratch: &mut Scratch) -> Option<f64> {
    scratch.words(measure.words, text).chars.iter().max().map(|&chars| f64::from(chars))
}
