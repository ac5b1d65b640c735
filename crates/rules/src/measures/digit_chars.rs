//! `digit-chars`: share of characters that are digits.

use super::{Measure, MeasureSpec, share_of_chars};
use crate::features::Scratch;
use bessemer_text::unicode::{Class, class};

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "digit-chars",
    parameters: &[],
    value: "share of characters that are digits",
    formula: "digits / chars",
    origin: "NeMo Curator",
    pattern: None,
    compute,
};

fn compute(_: &Measure, text: &str, scratch: &mut Scratch) -> Option<f64> {
    share_of_chars(text, scratch, |c| class(c).meets(Class::DIGIT))
}
