//! Which strings are URLs for the tokenizer: scheme, user, host and port may be there, a path too, and the host has a
//! top-level domain in lower case or is a public IPv4 address.

use super::affixes::is_lower;
use crate::unicode::{Class, class};

/// Whether the whole string is a URL.
pub(super) fn is_url(text: &str) -> bool {
    if !text.as_bytes().contains(&b'.') {
        return false;
    }
    is_after_scheme(text) || scheme_len(text).is_some_and(|len| is_after_scheme(&text[len..]))
}

/// Bytes of the scheme and its `://`.
fn scheme_len(text: &str) -> Option<usize> {
    let colon = text.find("://")?;
    let scheme = &text[..colon];
    let allowed =
        |c: char| matches!(c, '+' | '-' | '.' | '_') || c.is_alphanumeric() || class(c).meets(Class::LETTER);
    (scheme.chars().count() >= 2 && scheme.chars().all(allowed)).then_some(colon + 3)
}

/// The host begins here or after some `@`.
fn is_after_scheme(text: &str) -> bool {
    is_host(text) || text.char_indices().skip(1).any(|(at, c)| c == '@' && is_host(&text[at + 1..]))
}

/// Host, port and path.
fn is_host(text: &str) -> bool {
    // A host holds no `@`: stopping there keeps the search linear over a string of them.
    let end = text.find([':', '/', '?', '#', '@']).unwrap_or(text.len());
    let (host, rest) = text.split_at(end);
    (is_domain(host) || is_public_ip(host)) && is_port_and_path(rest)
}

fn is_port_and_path(rest: &str) -> bool {
    let rest = match rest.strip_prefix(':') {
        None => rest,
        Some(port) => {
            let after = port.trim_start_matches(is_digit);
            if !(2..=5).contains(&port[..port.len() - after.len()].chars().count()) {
                return false;
            }
            after
        }
    };
    rest.is_empty() || rest.starts_with(['/', '?', '#'])
}

fn is_digit(c: char) -> bool {
    class(c).meets(Class::DIGIT)
}

/// Labels and a top-level domain of 2 to 63 letters.
fn is_domain(host: &str) -> bool {
    let Some((labels, top)) = host.rsplit_once('.') else { return false };
    top.chars().all(is_lower) && (2..=63).contains(&top.chars().count()) && labels.split('.').all(is_label)
}

/// 1 to 64 characters; dashes and underscores within.
fn is_label(label: &str) -> bool {
    let alphanumeric = |c: char| c.is_ascii_alphanumeric() || matches!(c, '\u{a1}'..='\u{ffff}');
    let mut count = 0;
    for c in label.chars() {
        count += 1;
        if count > 64 || !(alphanumeric(c) || matches!(c, '-' | '_')) {
            return false;
        }
    }
    count > 0 && label.starts_with(alphanumeric) && label.ends_with(alphanumeric)
}

/// Four octets, outside the private and local networks that the pattern names.
fn is_public_ip(host: &str) -> bool {
    let mut octets = [0u16; 4];
    let mut parts = host.split('.');
    for (index, octet) in octets.iter_mut().enumerate() {
        let Some(part) = parts.next() else { return false };
        if !(1..=3).contains(&part.len()) || !part.bytes().all(|b| b.is_ascii_digit()) {
            return false;
        }
        let Ok(value) = part.parse::<u16>() else { return false };
        // A leading zero is possible in the middle, in numbers of two digits.
        let leading_zero = part.len() > 1 && part.starts_with('0');
        let allowed = match index {
            0 => (1..=223).contains(&value) && !leading_zero,
            3 => (1..=254).contains(&value) && !leading_zero,
            _ => value <= 255 && !(part.len() == 3 && leading_zero),
        };
        if !allowed {
            return false;
        }
        *octet = value;
    }
    let private = matches!(octets, [10 | 127, ..] | [169, 254, ..] | [192, 168, ..] | [172, 16..=31, ..]);
    parts.next().is_none() && !private
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_and_not() {
        for url in [
            "example.com",
            "http://x.org",
            "https://a-b.c_d.example.co.uk:8080/x?y#z",
            "user:pw@host.org",
            "a@b.de",
            "8.8.8.8",
            "8.08.8.8:80/x",
            "mailto:a@b.de",
            "x.org/a,b(c)",
            "ftp://a@b@c.net",
            "日本.jp",
            "1.2.3.4.example.com",
        ] {
            assert!(is_url(url), "{url}");
        }
        for other in [
            "example",
            "example.c",
            "lower.Upper",
            "10.0.0.1",
            "192.168.1.1",
            "172.20.0.1",
            "169.254.1.1",
            "1.2.3",
            "8.8.8.8:1",
            "x.org:123456",
            "-a.org",
            "a-.org",
            "a..org",
            ".org",
            "0.8.8.8",
            "8.8.8.255",
            "x.org:80x",
            "http://",
            "a://x.org.",
            "@x.org",
        ] {
            assert!(!is_url(other), "{other}");
        }
        assert!(is_url(&format!("{}.org", "a".repeat(64))) && !is_url(&format!("{}.org", "a".repeat(65))));
    }
}
