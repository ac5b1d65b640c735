//! `mark-words`: share of words that are a mark, or `#` to more than a half.

use super::{Measure, MeasureSpec};
use crate::features::Scratch;

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "mark-words",
    parameters: &["marks", "words"],
    value: "share of words that are a mark, or `#` to more than a half",
    formula: "words that are marks / words",
    origin: "NeMo Curator",
    pattern: None,
    compute,
};

fn compute(measure: &Measure, text: &str, scratch: &mut Scratch) -> Option<f64> {
    measure.share_of_words(text, scratch, |word| {
        let hashes = word.bytes().filter(|&byte| byte == b'#').count();
        measure.marks.iter().any(|mark| mark == word) || 2 * hashes > word.chars().count()
    })
}
