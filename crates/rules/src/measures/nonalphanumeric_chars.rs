use super::{MeasureSpec, share_of_chars};

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "nonalphanumeric-chars",
    parameters: &[],
    value: "share of characters other than ASCII letters, digits, newline and `?!,.`",
    formula: "such characters / chars",
    origin: "NeMo Curator",
    pattern: None,
    compute: |_, text, scratch| {
        share_of_chars(text, scratch, |c| {
            !(c.is_ascii_alphanumeric() || matches!(c, '\n' | '?' | '!' | ',' | '.'))
        })
    },
};
