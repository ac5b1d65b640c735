use super::{MeasureSpec, compile_pattern, quotient};
use bessemer_text::unicode::char_count;

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "url-chars",
    parameters: &[],
    value: "share of characters in URLs with a scheme",
    formula: "chars of matches / chars",
    origin: "NeMo Curator",
    pattern: Some(|_| compile_pattern(URL)),
    compute: |measure, text, scratch| {
        let found = measure.pattern.as_ref()?.find_iter(text);
        quotient(found.map(|found| char_count(found.as_str()) as u64).sum(), scratch.chars(text))
    },
};

/// NeMo Curator's pattern.
const URL: &str = r"https?://(?:[a-zA-Z]|[0-9]|[$-_@.&+]|[!*\\(\\),]|(?:%[0-9a-fA-F][0-9a-fA-F]))+";
