//! Character references: `&amp;`, `&#8212;`, `&#x2014;`, and the forms without semicolon that pages still use.

use super::named::NAMED;
use std::borrow::Cow;

/// Longest name in the standard's list.
const LONGEST: usize = 31;

/// Replaces character references by their characters (HTML standard, section 13.2.5.72, in text).
pub fn decode_references(text: &str) -> Cow<'_, str> {
    let Some(first) = memchr::memchr(b'&', text.as_bytes()) else { return Cow::Borrowed(text) };
    let mut out = String::with_capacity(text.len());
    out.push_str(&text[..first]);
    let mut rest = &text[first..];
    while !rest.is_empty() {
        let length = reference(rest, &mut out);
        rest = &rest[length..];
        let next = memchr::memchr(b'&', rest.as_bytes()).unwrap_or(rest.len());
        out.push_str(&rest[..next]);
        rest = &rest[next..];
    }
    Cow::Owned(out)
}

/// Decodes the reference at the start of `text`, which is `&`, and returns the bytes read.
fn reference(text: &str, out: &mut String) -> usize {
    let bytes = text.as_bytes();
    if bytes.get(1) == Some(&b'#') {
        return numeric(bytes, out);
    }
    let name = bytes[1..].iter().take(LONGEST + 1).take_while(|b| b.is_ascii_alphanumeric()).count();
    let name = &text[1..1 + name];
    if bytes.get(1 + name.len()) == Some(&b';')
        && let Ok(at) = NAMED.binary_search_by(|(n, _, _)| n.cmp(&name))
    {
        out.push_str(NAMED[at].1);
        return name.len() + 2;
    }
    // The longest beginning that is known without a semicolon; those have at most six letters.
    for length in (2..=name.len().min(6)).rev() {
        if let Ok(at) = NAMED.binary_search_by(|(n, _, _)| n.cmp(&&name[..length]))
            && NAMED[at].2
        {
            out.push_str(NAMED[at].1);
            return 1 + length;
        }
    }
    out.push('&');
    1
}

fn numeric(bytes: &[u8], out: &mut String) -> usize {
    let hex = matches!(bytes.get(2), Some(b'x' | b'X'));
    let start = if hex { 3 } else { 2 };
    let radix = if hex { 16 } else { 10 };
    let mut at = start;
    let mut code: u32 = 0;
    while let Some(digit) = bytes.get(at).and_then(|b| (*b as char).to_digit(radix)) {
        code = code.saturating_mul(radix).saturating_add(digit);
        at += 1;
    }
    if at == start {
        out.push('&');
        return 1;
    }
    if bytes.get(at) == Some(&b';') {
        at += 1;
    }
    let c = match code {
        0 => '\u{fffd}',
        // Numbers from 128 to 159 mean windows-1252 (the standard's table).
        0x80..=0x9f => {
            let byte = [code as u8];
            encoding_rs::WINDOWS_1252
                .decode_without_bom_handling(&byte)
                .0
                .chars()
                .next()
                .unwrap_or('\u{fffd}')
        }
        _ => char::from_u32(code).unwrap_or('\u{fffd}'),
    };
    out.push(c);
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_sorted() {
        assert!(NAMED.windows(2).all(|w| w[0].0 < w[1].0));
        assert!(NAMED.iter().all(|n| n.0.len() <= LONGEST && (!n.2 || n.0.len() <= 6)));
    }

    #[test]
    fn references_of_every_kind() {
        for (text, wanted) in [
            ("no references", "no references"),
            ("a &amp; b &lt;c&gt; &quot;&apos;", "a & b <c> \"'"),
            ("&eacute;&eacute &copy2026 &notin; &notit; &not;", "éé ©2026 ∉ ¬it; ¬"),
            (
                "&#8212;&#x2014;&#X2014 &#150; &#0; &#xD800; &#99999999999; &#; &#x;",
                "——— – \u{fffd} \u{fffd} \u{fffd} &#; &#x;",
            ),
            (
                "&CounterClockwiseContourIntegral; &NotEqualTilde; &unknown; & &&amp; &",
                "∳ ≂̸ &unknown; & && &",
            ),
            ("AT&T R&D &ltd", "AT&T R&D <d"),
        ] {
            assert_eq!(decode_references(text), wanted);
        }
    }
}
