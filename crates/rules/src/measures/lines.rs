//! `lines`: lines.

use super::{Measure, MeasureSpec};
use crate::features::Scratch;

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "lines",
    parameters: &["lines"],
    value: "lines",
    formula: "lines",
    origin: "FineWeb (Penedo et al. 2024), Ziya2 (Gan et al. 2023)",
    pattern: None,
    compute,
};

fn compute(measure: &Measure, text: &str, scratch: &mut Scratch) -> Option<f64> {
    Some(scratch.duplicates(measure.lines, text).items as f64)
}
