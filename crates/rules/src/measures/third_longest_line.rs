//! `third-longest-line`: characters of the third longest line; 0 with fewer lines.

use super::{Measure, MeasureSpec};
use crate::features::Scratch;

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "third-longest-line",
    parameters: &["lines"],
    value: "characters of the third longest line; 0 with fewer lines",
    formula: "third of the chars of lines, sorted",
    origin: "mC4 (Xue et al. 2021)",
    pattern: None,
    compute,
};

fn compute(measure: &Measure, text: &str, _: &mut Scratch) -> Option<f64> {
    Some(measure.line_lengths(text).longest[2] as f64)
}
