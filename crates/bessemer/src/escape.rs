//! Escaping of untrusted text for a terminal.
//!
//! A document, a file name or an error message may hold escape sequences that recolour, retitle or rewrite the terminal.
//! [`crate::console::print`], [`crate::console::Console::say`] and the failure message of `main` pass everything through
//! here, so no command has to remember it.

use bessemer_units::bounded;
use bessemer_web::redact::redact;
use std::borrow::Cow;

/// Replaces control characters by `\u001b` and the like: C0 without line feed and tab, DEL, and C1.
///
/// A carriage return before a line feed is left out. The escapes are those of JSON, so a line of JSON stays the same value.
pub(crate) fn controls(text: &str) -> Cow<'_, str> {
    replace(text, |_| 0)
}

/// Escapes as [`controls`] does, but keeps the sequences that select colours (`ESC [ … m`), which the program writes itself.
pub(crate) fn controls_but_colours(text: &str) -> Cow<'_, str> {
    replace(text, colour)
}

/// Longest error, in characters.
pub(crate) const LONGEST_ERROR: usize = 4 << 10;
/// Longest message on standard error, in characters. Texts that a model writes on the way are shorter.
const LONGEST_MESSAGE: usize = 16 << 10;

/// A message for standard error: without credentials, without control characters, of bounded length.
pub(crate) fn message(text: &str) -> String {
    controls(&redact(&bounded(text, LONGEST_MESSAGE))).into_owned()
}

/// An error as [`message`], shorter: it may repeat what a file holds.
pub(crate) fn error(text: &str) -> String {
    message(&bounded(text, LONGEST_ERROR))
}

/// Bytes of the sequence that selects a colour at the beginning of `text`; 0 if there is none.
fn colour(text: &str) -> usize {
    let Some(rest) = text.strip_prefix("\u{1b}[") else { return 0 };
    let end = rest.find(|c: char| !c.is_ascii_digit() && c != ';');
    end.filter(|&end| rest[end..].starts_with('m')).map_or(0, |end| end + 3)
}

fn replace(text: &str, allowed: fn(&str) -> usize) -> Cow<'_, str> {
    let is_plain = |c: char| !c.is_control() || c == '\n' || c == '\t';
    if text.chars().all(is_plain) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    let mut rest = text;
    while let Some(at) = rest.find(|c| !is_plain(c)) {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let through = allowed(rest);
        if through > 0 {
            out.push_str(&rest[..through]);
            rest = &rest[through..];
            continue;
        }
        let mut chars = rest.chars();
        let control = chars.next().unwrap_or_default();
        rest = chars.as_str();
        if control != '\r' || !rest.starts_with('\n') {
            out.push_str(&format!("\\u{:04x}", u32::from(control)));
        }
    }
    out.push_str(rest);
    Cow::Owned(out)
}

/// A path as a word of a shell command.
pub(crate) fn shell_word(text: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_./+=,@".contains(c);
    if text.chars().all(plain) { text.to_owned() } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_control_character_but_line_feed_and_tab_is_replaced() {
        let all: String = (0..0x100).filter_map(char::from_u32).collect();
        let shown = controls(&all);
        assert!(shown.chars().all(|c| !c.is_control() || c == '\n' || c == '\t'), "{shown:?}");
        assert!(shown.contains("\\u0000") && shown.contains("\\u001b") && shown.contains("\\u007f\\u0080"));
        assert_eq!(controls("a\tb\r\nc\rd é 漢"), "a\tb\nc\\u000dd é 漢");
        assert!(matches!(controls("plain é\n"), Cow::Borrowed(_)));
    }

    #[test]
    fn json_keeps_its_value() {
        let value = serde_json::json!({ "text": "\u{1b}[2J \u{9b}31m \u{7f}" });
        let line = value.to_string();
        assert_ne!(controls(&line), line, "DEL and C1 are no escapes of serde_json");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&controls(&line)).unwrap(), value);
    }

    #[test]
    fn colours_of_the_program_pass_and_nothing_else() {
        let line = "\u{1b}[1;31mred\u{1b}[0m \u{1b}[2J \u{1b}]0;title\u{7} \u{1b}[";
        let shown = "\u{1b}[1;31mred\u{1b}[0m \\u001b[2J \\u001b]0;title\\u0007 \\u001b[";
        assert_eq!(controls_but_colours(line), shown);
        assert_eq!(controls(line).matches('\u{1b}').count(), 0);
    }

    #[test]
    fn messages_hold_no_credentials() {
        assert_eq!(message("cannot read https://u:p@h/x\u{7}"), "cannot read https://REDACTED@h/x\\u0007");
    }
}
