use super::{MeasureSpec, share_of_chars};
use bessemer_text::unicode::{Class, class};

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "digit-chars",
    parameters: &[],
    value: "share of characters that are digits",
    formula: "digits / chars",
    origin: "NeMo Curator",
    pattern: None,
    compute: |_, text, scratch| share_of_chars(text, scratch, |c| class(c).meets(Class::DIGIT)),
};
