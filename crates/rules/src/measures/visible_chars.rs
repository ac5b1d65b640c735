use super::MeasureSpec;
use bessemer_text::unicode::char_count;

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "visible-chars",
    parameters: &[],
    value: "characters outside of tags, scripts and styles",
    formula: "visible chars",
    origin: "StarCoder (Li et al. 2023), RedPajama v1",
    pattern: None,
    compute: |_, text, _| Some(visible_chars(text) as f64),
};

/// Characters outside of `<...>`, scripts, styles and comments. A rough look, no parser: what is shown of a page.
pub(super) fn visible_chars(text: &str) -> u64 {
    let (mut visible, mut rest) = (0, text);
    while let Some(open) = rest.find('<') {
        visible += char_count(&rest[..open]) as u64;
        rest = &rest[open..];
        let starts = |name: &str| {
            rest.as_bytes().get(1..=name.len()).is_some_and(|head| head.eq_ignore_ascii_case(name.as_bytes()))
        };
        let close = if starts("script") {
            "</script"
        } else if starts("style") {
            "</style"
        } else if starts("!--") {
            "-->"
        } else {
            ">"
        };
        let Some(end) = find_ignoring_case(rest, close) else { return visible };
        rest = &rest[end + close.len()..];
        if close.starts_with("</") {
            let Some(end) = rest.find('>') else { return visible };
            rest = &rest[end + 1..];
        }
    }
    visible + char_count(rest) as u64
}

fn find_ignoring_case(text: &str, ascii: &str) -> Option<usize> {
    text.as_bytes().windows(ascii.len()).position(|window| window.eq_ignore_ascii_case(ascii.as_bytes()))
}
