use super::{MeasureSpec, share_of_chars};
use bessemer_text::unicode::is_letter;

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "letter-chars",
    parameters: &[],
    value: "share of characters that are letters",
    formula: "letters / chars",
    origin: "StarCoder (Li et al. 2023), RedPajama v1",
    pattern: None,
    compute: |_, text, scratch| share_of_chars(text, scratch, is_letter),
};
