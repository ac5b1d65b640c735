//! `nonalphanumeric-chars`: share of characters other than ASCII letters, digits, newline and `?!,.`.

use super::{Measure, MeasureSpec, share_of_chars};
use crate::features::Scratch;

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "nonalphanumeric-chars",
    parameters: &[],
    value: "share of characters other than ASCII letters, digits, newline and `?!,.`",
    formula: "such characters / chars",
    origin: "NeMo Curator",
    pattern: None,
    compute,
};

fn compute(_: &Measure, text: &str, scratch: &mut Scratch) -> Option<f64> {
    share_of_chars(text, scratch, |c| {
        !(c.is_ascii_alphanumeric() || matches!(c, '\n' | '?' | '!' | ',' | '.'))
    })
}
