//! `comment-lines`: share of lines with content that begin as a comment does in some language.

use super::{Measure, MeasureSpec, quotient};
use crate::features::Scratch;
use crate::lines::Lines;

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "comment-lines",
    parameters: &[],
    value: "share of lines with content that begin as a comment does in some language",
    formula: "such lines / lines with content",
    origin: "StarCoder (Li et al. 2023), RedPajama v1",
    pattern: None,
    compute,
};

fn compute(_: &Measure, text: &str, _: &mut Scratch) -> Option<f64> {
    let (mut comments, mut lines) = (0, 0);
    Lines::Stripped.for_each(text, |line| {
        lines += 1;
        comments += u64::from(STARTS.iter().any(|start| line.starts_with(start)));
    });
    quotient(comments, lines)
}

/// Beginnings of comments.
const STARTS: [&str; 9] = ["//", "#", "/*", "*", "--", ";", "%", "\"\"\"", "<!--"];
