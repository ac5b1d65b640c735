//! `lines-not-ending`: share of lines that end with none of the marks.

use super::{Measure, MeasureSpec};
use crate::features::Scratch;

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "lines-not-ending",
    parameters: &["marks", "trim", "lines"],
    value: "share of lines that end with none of the marks",
    formula: "such lines / lines",
    origin: "NeMo Curator",
    pattern: None,
    compute,
};

fn compute(measure: &Measure, text: &str, _: &mut Scratch) -> Option<f64> {
    measure.share_of_lines(text, |line| !measure.ends_line(line))
}
