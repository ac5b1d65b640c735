use super::{MeasureSpec, quotient};
use crate::comments::comment_chars;

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "comment-chars",
    parameters: &["syntax"],
    value: "share of characters in comments of a family of languages: c, hash, python (with docstrings), sql",
    formula: "chars of comments / chars",
    origin: "SantaCoder (Ben Allal et al. 2023)",
    pattern: None,
    compute: |measure, text, scratch| quotient(comment_chars(text, measure.syntax?), scratch.chars(text)),
};
