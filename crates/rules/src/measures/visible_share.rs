use super::visible_chars::visible_chars;
use super::{MeasureSpec, quotient};

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "visible-share",
    parameters: &[],
    value: "share of characters outside of tags, scripts and styles",
    formula: "visible chars / chars",
    origin: "StarCoder (Li et al. 2023), RedPajama v1",
    pattern: None,
    compute: |_, text, scratch| quotient(visible_chars(text), scratch.chars(text)),
};
