//! `lines-ending`: share of lines that end with a mark.

use super::{Measure, MeasureSpec};
use crate::features::Scratch;

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "lines-ending",
    parameters: &["marks", "trim", "lines"],
    value: "share of lines that end with a mark",
    formula: "such lines / lines",
    origin: "Gopher (Rae et al. 2021, table A1)",
    pattern: None,
    compute,
};

fn compute(measure: &Measure, text: &str, _: &mut Scratch) -> Option<f64> {
    measure.share_of_lines(text, |line| measure.ends_line(line))
}
