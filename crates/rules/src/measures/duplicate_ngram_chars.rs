//! `duplicate-ngram-chars`: share of characters in windows of n words that repeat.

use super::{Measure, MeasureSpec};
use crate::features::Scratch;

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "duplicate-ngram-chars",
    parameters: &["n", "variant", "words"],
    value: "share of characters in windows of n words that repeat",
    formula: "chars of repeated n-grams / chars; which of them: the variant",
    origin: "Gopher (Rae et al. 2021, table A1)",
    pattern: None,
    compute,
};

fn compute(measure: &Measure, text: &str, scratch: &mut Scratch) -> Option<f64> {
    scratch.duplicate_ngrams(measure.variant, measure.words, measure.n, text)
}
