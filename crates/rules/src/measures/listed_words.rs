//! `listed-words`: how often words of the list occur.

use super::{Measure, MeasureSpec};
use crate::features::Scratch;

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "listed-words",
    parameters: &["list", "ignore-case", "words"],
    value: "how often words of the list occur",
    formula: "occurrences of listed words",
    origin: "Dolma (Soldaini et al. 2024), RefinedWeb (Penedo et al. 2023)",
    pattern: None,
    compute,
};

fn compute(measure: &Measure, text: &str, scratch: &mut Scratch) -> Option<f64> {
    let listed = |word: &&str| match measure.ignore_case {
        true => measure.list.contains_key(word.to_lowercase().as_str()),
        false => measure.list.contains_key(*word),
    };
    Some(scratch.words(measure.words, text).iter(text).filter(listed).count() as f64)
}
