//! JSON that strict readers refuse and other writers produce: numbers that are none, and halves of surrogate pairs.
//!
//! Python's `json` writes `NaN`, `Infinity` and `-Infinity`, and every language with UTF-16 strings can write a lone
//! surrogate. RFC 8259 has no such numbers, and UTF-8 has no such characters. A line is not worth losing for that.

use std::borrow::Cow;

/// The bytes of U+FFFD as an escape.
const REPLACEMENT: &[u8] = b"\\ufffd";
/// Names that stand where a number should.
const NO_NUMBERS: &[&[u8]] = &[b"-Infinity", b"Infinity", b"NaN"];

/// A line of JSON with `null` for `NaN`, `Infinity` and `-Infinity`, and with U+FFFD for every surrogate that is not one
/// of a pair, be it escaped or in bytes. Borrowed where there is nothing to replace; what else is wrong stays.
///
/// ```
/// let line = br#"{"loss": NaN, "text": "a \ud83d b"}"#;
/// assert_eq!(bessemer_corpus::repair_json(line).as_ref(), br#"{"loss": null, "text": "a \ufffd b"}"#);
/// ```
pub fn repair_json(line: &[u8]) -> Cow<'_, [u8]> {
    let mut out = Vec::new();
    // Bytes up to here are in `out`.
    let mut copied = 0;
    let (mut at, mut in_string) = (0, false);
    while at < line.len() {
        let rest = &line[at..];
        let (length, replacement): (usize, &[u8]) = match (in_string, rest[0]) {
            (_, b'"') => {
                in_string = !in_string;
                (1, b"")
            }
            (true, b'\\') => match escaped_unit(rest) {
                Some(0xD800..=0xDBFF) => match escaped_unit(&rest[6..]) {
                    Some(0xDC00..=0xDFFF) => (12, b""),
                    _ => (6, REPLACEMENT),
                },
                Some(0xDC00..=0xDFFF) => (6, REPLACEMENT),
                Some(_) => (6, b""),
                None => (2, b""),
            },
            // A surrogate in bytes, as CESU-8 and "WTF-8" have it.
            (true, 0xED) if matches!(rest, [_, 0xA0..=0xBF, 0x80..=0xBF, ..]) => (3, REPLACEMENT),
            (false, b'-' | b'I' | b'N') => match no_number(line, at) {
                Some(length) => (length, b"null"),
                None => (1, b""),
            },
            _ => (1, b""),
        };
        if !replacement.is_empty() {
            out.extend_from_slice(&line[copied..at]);
            out.extend_from_slice(replacement);
            copied = at + length;
        }
        at += length;
    }
    if copied == 0 {
        return Cow::Borrowed(line);
    }
    out.extend_from_slice(line.get(copied..).unwrap_or_default());
    Cow::Owned(out)
}

/// The UTF-16 unit of an escape `\uXXXX` at the beginning of `bytes`.
fn escaped_unit(bytes: &[u8]) -> Option<u16> {
    let digits = bytes.strip_prefix(b"\\u")?.get(..4)?;
    digits.iter().try_fold(0, |unit, digit| Some(unit << 4 | char::from(*digit).to_digit(16)? as u16))
}

/// Length of the name at `at` that stands where a number should.
fn no_number(line: &[u8], at: usize) -> Option<usize> {
    let name = NO_NUMBERS.iter().find(|name| line[at..].starts_with(name))?;
    let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    let ends = !line.get(at + name.len()).is_some_and(is_word);
    let begins = at == 0 || !is_word(&line[at - 1]);
    (begins && ends).then_some(name.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_json_has_not_is_replaced_and_all_else_stays() {
        for (line, wanted) in [
            (
                r#"{"a": NaN, "b": [Infinity,-Infinity], "t": "NaN -Infinity"}"#,
                r#"{"a": null, "b": [null,null], "t": "NaN -Infinity"}"#,
            ),
            (
                r#"{"t": "\ud83d\ude00 \ud83d \ude00 \uD83D\uD83D\uDE00"}"#,
                r#"{"t": "\ud83d\ude00 \ufffd \ufffd \ufffd\uD83D\uDE00"}"#,
            ),
            (r#"{"t": "\\ud83d \" NaN", "u": NaN}"#, r#"{"t": "\\ud83d \" NaN", "u": null}"#),
            (r#"{"t": "\ud83d"#, r#"{"t": "\ufffd"#),
        ] {
            assert_eq!(repair_json(line.as_bytes()).as_ref(), wanted.as_bytes(), "{line}");
        }
        for line in [
            r#"{"t": "é \u00e9 \n", "n": -1.5, "NaN": 3}"#,
            "NaNo",
            "Infinity_1",
            "",
            "\\",
            "\"\\",
            "\"\\u12",
            "-",
        ] {
            assert!(matches!(repair_json(line.as_bytes()), Cow::Borrowed(_)), "{line}");
        }
        let bytes = b"{\"t\": \"a\xed\xa0\xbdb\"}";
        assert_eq!(repair_json(bytes).as_ref(), br#"{"t": "a\ufffdb"}"#);
    }
}
