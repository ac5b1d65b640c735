//! `word-entropy`: entropy of the words in nats.

use super::{Measure, MeasureSpec, word_counts};
use crate::features::Scratch;

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "word-entropy",
    parameters: &["words"],
    value: "entropy of the words in nats",
    formula: "-Σ p ln p over different words",
    origin: "RedPajama-V2 (Weber et al. 2024)",
    pattern: None,
    compute,
};

fn compute(measure: &Measure, text: &str, scratch: &mut Scratch) -> Option<f64> {
    let list = scratch.words(measure.words, text);
    let words = list.len() as u64;
    // Sorted, so that the sum does not depend on the order of a map.
    let mut counts: Vec<u64> = word_counts(list, text).into_values().collect();
    counts.sort_unstable();
    let entropy = counts.iter().map(|&count| count as f64 / words as f64).map(|p| -p * p.ln());
    (words > 0).then(|| entropy.sum())
}
