//! Lines and paragraphs, as each profile of rules cuts them.

use crate::unicode::strip;

/// Bytes that end a line for Python or may begin a character that does.
const CANDIDATE: [bool; 256] = {
    let mut table = [false; 256];
    let breaks = [b'\n', 0x0b, 0x0c, b'\r', 0x1c, 0x1d, 0x1e, 0xc2, 0xe2];
    let mut index = 0;
    while index < breaks.len() {
        table[breaks[index] as usize] = true;
        index += 1;
    }
    table
};

/// Lines of Python's `str.splitlines()`.
#[derive(Debug, Clone)]
pub struct SplitLines<'t> {
    rest: &'t str,
}

/// Python's `str.splitlines()`: cut at \n, \r, \r\n, \v, \f, U+001C to U+001E, U+0085, U+2028 and U+2029; a break at
/// the end adds no empty line, and an empty text has no line.
pub fn splitlines(text: &str) -> SplitLines<'_> {
    SplitLines { rest: text }
}

impl<'t> Iterator for SplitLines<'t> {
    type Item = &'t str;

    #[inline]
    fn next(&mut self) -> Option<&'t str> {
        if self.rest.is_empty() {
            return None;
        }
        let bytes = self.rest.as_bytes();
        let mut at = 0;
        while at < bytes.len() {
            if !CANDIDATE[usize::from(bytes[at])] {
                at += 1;
                continue;
            }
            let len = break_len(&bytes[at..]);
            if len > 0 {
                let (line, rest) = (&self.rest[..at], &self.rest[at + len..]);
                self.rest = rest;
                return Some(line);
            }
            // The first byte of another character of two or three bytes.
            at += 1;
        }
        Some(std::mem::take(&mut self.rest))
    }
}

/// Bytes of the line break that begins here, 0 if none does.
fn break_len(bytes: &[u8]) -> usize {
    match bytes {
        [b'\r', b'\n', ..] | [0xc2, 0x85, ..] => 2,
        [b'\n' | 0x0b | 0x0c | b'\r' | 0x1c..=0x1e, ..] => 1,
        [0xe2, 0x80, 0xa8 | 0xa9, ..] => 3,
        _ => 0,
    }
}

/// Python's `text.split("\n")`: an empty text is one empty line.
pub fn newlines(text: &str) -> std::str::Split<'_, char> {
    text.split('\n')
}

/// Python's `re.split(r"\n+", text)`: an empty piece at an end that is a break.
pub fn newline_runs(text: &str) -> Runs<'_> {
    Runs { rest: Some(text), least: 1 }
}

/// Paragraphs: Python's `re.split(r"\n{2,}", text.strip())`.
pub fn paragraphs(text: &str) -> Runs<'_> {
    Runs { rest: Some(strip(text)), least: 2 }
}

/// Pieces between runs of at least so many newlines.
#[derive(Debug, Clone)]
pub struct Runs<'t> {
    rest: Option<&'t str>,
    least: usize,
}

impl<'t> Iterator for Runs<'t> {
    type Item = &'t str;

    #[inline]
    fn next(&mut self) -> Option<&'t str> {
        let text = self.rest?;
        let bytes = text.as_bytes();
        let mut from = 0;
        while let Some(found) = find_newline(&bytes[from..]) {
            let start = from + found;
            let run = bytes[start..].iter().take_while(|&&b| b == b'\n').count();
            if run >= self.least {
                self.rest = Some(&text[start + run..]);
                return Some(&text[..start]);
            }
            from = start + run;
        }
        self.rest = None;
        Some(text)
    }
}

#[inline]
fn find_newline(bytes: &[u8]) -> Option<usize> {
    memchr::memchr(b'\n', bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(text: &str) -> Vec<&str> {
        splitlines(text).collect()
    }

    #[test]
    fn like_python() {
        assert_eq!(all(""), [""; 0]);
        assert_eq!(all("\n"), [""]);
        assert_eq!(all("a\r\nb\rc\n\nd"), ["a", "b", "c", "", "d"]);
        assert_eq!(
            all("a\u{b}b\u{c}c\u{1c}d\u{1d}e\u{1e}f\u{85}g\u{2028}h\u{2029}"),
            ["a", "b", "c", "d", "e", "f", "g", "h"]
        );
        assert_eq!(all("â€é\u{2027}"), ["â€é\u{2027}"]);
        assert_eq!(newlines("").collect::<Vec<_>>(), [""]);
        assert_eq!(newlines("a\n\nb\n").collect::<Vec<_>>(), ["a", "", "b", ""]);
        assert_eq!(newline_runs("").collect::<Vec<_>>(), [""]);
        assert_eq!(newline_runs("\na\n\n\nb\n").collect::<Vec<_>>(), ["", "a", "b", ""]);
        assert_eq!(paragraphs(" \n\n").collect::<Vec<_>>(), [""]);
        assert_eq!(paragraphs("\n\na\nb\n\n\nc\n \n\nd \n").collect::<Vec<_>>(), ["a\nb", "c\n ", "d"]);
    }

    proptest! {
        #[test]
        fn equal_to_the_definition(text in "[ab\n\r\u{b}\u{1c}\u{85}\u{2028}é‰â]{0,20}") {
            let breaks = regex::Regex::new("\r\n|[\n\u{b}\u{c}\r\u{1c}\u{1d}\u{1e}\u{85}\u{2028}\u{2029}]")
                .expect("a fixed pattern");
            let mut plain: Vec<&str> = breaks.split(&text).collect();
            if plain.last() == Some(&"") {
                plain.pop();
            }
            prop_assert_eq!(all(&text), plain);
            let runs = regex::Regex::new("\n+").expect("a fixed pattern");
            prop_assert_eq!(newline_runs(&text).collect::<Vec<_>>(), runs.split(&text).collect::<Vec<_>>());
            let gaps = regex::Regex::new("\n{2,}").expect("a fixed pattern");
            prop_assert_eq!(paragraphs(&text).collect::<Vec<_>>(), gaps.split(strip(&text)).collect::<Vec<_>>());
        }
    }
}
