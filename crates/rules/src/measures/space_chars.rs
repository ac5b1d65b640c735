//! `space-chars`: share of characters that are white space.

use super::{Measure, MeasureSpec, share_of_chars};
use crate::features::Scratch;

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "space-chars",
    parameters: &[],
    value: "share of characters that are white space",
    formula: "white space / chars",
    origin: "NeMo Curator",
    pattern: None,
    compute,
};

fn compute(_: &Measure, text: &str, scratch: &mut Scratch) -> Option<f64> {
    share_of_chars(text, scratch, |c| matches!(c, ' ' | '\n' | '\t' | '\r' | '\u{b}' | '\u{c}'))
}
