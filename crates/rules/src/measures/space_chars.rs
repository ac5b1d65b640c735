use super::{MeasureSpec, share_of_chars};

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "space-chars",
    parameters: &[],
    value: "share of characters that are white space",
    formula: "white space / chars",
    origin: "NeMo Curator",
    pattern: None,
    compute: |_, text, scratch| {
        share_of_chars(text, scratch, |c| matches!(c, ' ' | '\n' | '\t' | '\r' | '\u{b}' | '\u{c}'))
    },
};
