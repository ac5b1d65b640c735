//! `top-ngram-chars`: share of characters in the most frequent window of n words.

use super::{Measure, MeasureSpec};
use crate::features::Scratch;

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "top-ngram-chars",
    parameters: &["n", "variant", "words"],
    value: "share of characters in the most frequent window of n words",
    formula: "chars of the top n-gram · its count / chars; what chars are: the variant",
    origin: "Gopher (Rae et al. 2021, table A1)",
    pattern: None,
    compute,
};

fn compute(measure: &Measure, text: &str, scratch: &mut Scratch) -> Option<f64> {
    scratch.top_ngram(measure.variant, measure.words, measure.n, text)
}
