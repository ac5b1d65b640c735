//! `chars`: characters.

use super::{Measure, MeasureSpec};
use crate::features::Scratch;

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "chars",
    parameters: &[],
    value: "characters",
    formula: "chars",
    origin: "datatrove, Ziya2 (Gan et al. 2023)",
    pattern: None,
    compute,
};

fn compute(_: &Measure, text: &str, scratch: &mut Scratch) -> Option<f64> {
    Some(scratch.chars(text) as f64)
}
