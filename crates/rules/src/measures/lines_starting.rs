//! `lines-starting`: share of lines that begin with a mark.

use super::{Measure, MeasureSpec};
use crate::features::Scratch;
use bessemer_text::unicode::strip_start;

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "lines-starting",
    parameters: &["marks", "trim", "lines"],
    value: "share of lines that begin with a mark",
    formula: "such lines / lines",
    origin: "Gopher (Rae et al. 2021, table A1)",
    pattern: None,
    compute,
};

fn compute(measure: &Measure, text: &str, _: &mut Scratch) -> Option<f64> {
    measure.share_of_lines(text, |line| {
        let line = if measure.trim { strip_start(line) } else { line };
        measure.marks.iter().any(|mark| line.starts_with(mark.as_str()))
    })
}
