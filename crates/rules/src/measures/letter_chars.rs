//! `letter-chars`: share of characters that are letters.

use super::{Measure, MeasureSpec, share_of_chars};
use crate::features::Scratch;
use bessemer_text::unicode::is_letter;

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "letter-chars",
    parameters: &[],
    value: "share of characters that are letters",
    formula: "letters / chars",
    origin: "StarCoder (Li et al. 2023), RedPajama v1",
    pattern: None,
    compute,
};

fn compute(_: &Measure, text: &str, scratch: &mut Scratch) -> Option<f64> {
    share_of_chars(text, scratch, is_letter)
}
