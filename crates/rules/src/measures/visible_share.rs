//! `visible-share`: share of characters outside of tags, scripts and styles.

use super::visible_chars::visible_chars;
use super::{Measure, MeasureSpec, quotient};
use crate::features::Scratch;

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "visible-share",
    parameters: &[],
    value: "share of characters outside of tags, scripts and styles",
    formula: "visible chars / chars",
    origin: "StarCoder (Li et al. 2023), RedPajama v1",
    pattern: None,
    compute,
};

fn compute(_: &Measure, text: &str, scratch: &mut Scratch) -> Option<f64> {
    quotient(visible_chars(text), scratch.chars(text))
}
