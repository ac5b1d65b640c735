use super::{MeasureSpec, quotient};
use crate::lines::Lines;

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "comment-lines",
    parameters: &[],
    value: "share of lines with content that begin as a comment does in some language",
    formula: "such lines / lines with content",
    origin: "StarCoder (Li et al. 2023), RedPajama v1",
    pattern: None,
    compute: |_, text, _| {
        let (mut comments, mut lines) = (0, 0);
        Lines::Stripped.for_each(text, |line| {
            lines += 1;
            comments += u64::from(STARTS.iter().any(|start| line.starts_with(start)));
        });
        quotient(comments, lines)
    },
};

/// Beginnings of comments.
const STARTS: [&str; 9] = ["//", "#", "/*", "*", "--", ";", "%", "\"\"\"", "<!--"];
