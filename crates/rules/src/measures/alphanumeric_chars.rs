use super::{MeasureSpec, share_of_chars};
use bessemer_text::unicode::is_letter;

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "alphanumeric-chars",
    parameters: &[],
    value: "share of characters that are letters or numbers",
    formula: "letters and numbers / chars",
    origin: "StarCoder (Li et al. 2023), RedPajama v1",
    pattern: None,
    compute: |_, text, scratch| share_of_chars(text, scratch, |c| is_letter(c) || c.is_numeric()),
};
