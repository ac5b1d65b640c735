//! Words and values in messages: numbers with their noun, values of bounded length, and text escaped for markup.

use std::borrow::Cow;
use std::fmt::Display;

/// Longest value from outside that a message repeats, in characters.
const LONGEST_VALUE: usize = 200;

/// A number with its noun: "1 run", "2 runs", "1 entry", "2 entries".
///
/// ```
/// assert_eq!(bessemer_units::counted(1, "run"), "1 run");
/// assert_eq!(bessemer_units::counted(0, "entry"), "0 entries");
/// assert_eq!(bessemer_units::counted(2, "batch"), "2 batches");
/// ```
pub fn counted(n: impl Display + TryInto<u64> + Copy, noun: &str) -> String {
    if n.try_into().is_ok_and(|n| n == 1) {
        return format!("{n} {noun}");
    }
    let hisses = ["s", "x", "z", "ch", "sh"].iter().any(|end| noun.ends_with(end));
    match noun.strip_suffix('y').filter(|stem| !stem.ends_with(['a', 'e', 'i', 'o', 'u'])) {
        Some(stem) => format!("{n} {stem}ies"),
        None if hisses => format!("{n} {noun}es"),
        None => format!("{n} {noun}s"),
    }
}

/// Escapes text for element content and for quoted attributes of HTML and SVG.
///
/// Characters that XML 1.0 forbids (most control characters) become U+FFFD, so that an inline SVG stays
/// well-formed whatever a model has generated.
pub fn escape_xml(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len() + text.len() / 8);
    for c in text.chars() {
        match c {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            '\'' => escaped += "&#39;",
            '\t' | '\n' | '\r' => escaped.push(c),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

/// A message of at most about `most` characters: of a longer one the beginning, which states the place, and the end, which states the remedy.
///
/// ```
/// let long = format!("a.json: {}; try b", "x".repeat(5000));
/// let shown = bessemer_units::bounded(&long, 400);
/// assert!(shown.starts_with("a.json: ") && shown.ends_with("; try b") && shown.chars().count() < 450);
/// ```
pub fn bounded(text: &str, most: usize) -> Cow<'_, str> {
    // No shorter than its bytes.
    let characters = if text.len() <= most { 0 } else { text.chars().count() };
    if characters <= most {
        return Cow::Borrowed(text);
    }
    let at = |n: usize| text.char_indices().nth(n).map_or(text.len(), |(at, _)| at);
    let (head, tail) = (most - most / 4, most / 4);
    let left_out = characters - head - tail;
    Cow::Owned(format!(
        "{} … {left_out} characters left out … {}",
        &text[..at(head)],
        &text[at(characters - tail)..]
    ))
}

/// A value from outside as a message repeats it: at most 200 characters, the rest as "…" with its length.
///
/// ```
/// assert_eq!(bessemer_units::cut("short"), "short");
/// assert_eq!(bessemer_units::cut(&"x".repeat(1000)).chars().filter(|c| *c == 'x').count(), 200);
/// ```
pub fn cut(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(LONGEST_VALUE) {
        None => Cow::Borrowed(text),
        Some((at, _)) => Cow::Owned(format!("{}… ({} bytes in all)", &text[..at], text.len())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_could_leave_its_element_survives() {
        assert_eq!(
            escape_xml("<script>alert('x' & \"y\")</script>\u{0}\u{1b}[31m\n"),
            "&lt;script&gt;alert(&#39;x&#39; &amp; &quot;y&quot;)&lt;/script&gt;\u{fffd}\u{fffd}[31m\n"
        );
    }
}
