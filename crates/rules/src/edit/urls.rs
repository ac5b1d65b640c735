//! URLs and IPv4 addresses cut out of a text, as RefinedWeb describes it and DCLM's `url_removal_modifier` means it.
//!
//! ```text
//! URL    \s{0,10} [(https?|ftp)://] [-a-zA-Z0-9@:%._+~#=]{1,256} \. TLD \b [-a-zA-Z0-9()@:%_+.~#?&/=]*
//! IPv4   \s{0,10} \b [(https?|ftp)://] four numbers of up to three digits [-a-zA-Z0-9()@:%_+.~#?&/=]*
//! ```
//!
//! TLD is a top-level domain of the public suffix list. Upstream first asks whether the whole text begins with the name of
//! one, and else leaves every URL; that question is left out here.

use crate::error::{Error, Result};
use bessemer_text::unicode::is_space;
use regex::Regex;
use std::borrow::Cow;

/// Most white space before a URL that goes with it, in characters.
const SPACE: usize = 10;
/// Most characters before the dot of the top-level domain.
const HOST: usize = 256;
const SCHEMES: [&str; 3] = ["https://", "http://", "ftp://"];
const IPV4: &str =
    r"\s{0,10}\b(?:(?:https?|ftp)://)?(?:[0-2]?[0-9]{1,2}\.){3}[0-2]?[0-9]{1,2}[-a-zA-Z0-9()@:%_+.~#?&/=]*";

/// The compiled pattern of addresses.
#[derive(Debug, Clone)]
pub(super) struct Urls(Regex);

impl Urls {
    pub(super) fn new() -> Result<Urls> {
        Regex::new(IPV4).map(Urls).map_err(|error| Error::new(error.to_string()))
    }

    /// The text without them, and how many there were.
    pub(super) fn remove<'t>(&self, text: &'t str) -> (Cow<'t, str>, u64) {
        let (without, mut found) = without_names(text);
        let addresses = self.0.find_iter(&without).count() as u64;
        if addresses == 0 {
            return (without, found);
        }
        found += addresses;
        (Cow::Owned(self.0.replace_all(&without, "").into_owned()), found)
    }
}

/// Cuts what has a top-level domain. Linear: every run of characters of a host is looked at once.
fn without_names(text: &str) -> (Cow<'_, str>, u64) {
    let bytes = text.as_bytes();
    let (mut out, mut copied, mut found, mut at) = (String::new(), 0, 0, 0);
    while let Some(dot) = memchr::memchr(b'.', &bytes[at..]).map(|n| at + n) {
        // The run of host characters around the dot; what was cut before is not looked at again.
        let start = dot - bytes[at..dot].iter().rev().take_while(|&&b| is_host(b)).count();
        let end = dot + bytes[dot..].iter().take_while(|&&b| is_host(b)).count();
        let Some((before, after)) = domain(text, start, end) else {
            at = end;
            continue;
        };
        let mut from = start.max(before.saturating_sub(HOST));
        if from == start {
            let head = &text[copied..from];
            from -= SCHEMES.iter().find(|scheme| head.ends_with(**scheme)).map_or(0, |scheme| scheme.len());
            from = space_before(text, copied, from);
        }
        let to = after + bytes[after..].iter().take_while(|&&b| is_host(b) || b"()?&/".contains(&b)).count();
        out.push_str(&text[copied..from]);
        (copied, at) = (to, to);
        found += 1;
    }
    if found == 0 {
        return (Cow::Borrowed(text), 0);
    }
    out.push_str(&text[copied..]);
    (Cow::Owned(out), found)
}

fn is_host(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-@:%._+~#=".contains(&byte)
}

/// The last dot of the run `start..end` that has a character before it and a top-level domain after it: where it stands,
/// and where the domain ends.
fn domain(text: &str, start: usize, end: usize) -> Option<(usize, usize)> {
    let bytes = text.as_bytes();
    let mut search = end;
    while let Some(dot) = memchr::memrchr(b'.', &bytes[start..search]).map(|n| start + n) {
        if dot == start {
            return None;
        }
        let rest = &bytes[dot + 1..end];
        let length = rest.iter().take_while(|b| b.is_ascii_alphanumeric()).count();
        let after = dot + 1 + length;
        // \b: no letter, digit or underscore of any script follows.
        let bounded = !text[after..].chars().next().is_some_and(|c| c == '_' || c.is_alphanumeric());
        if bounded && is_top_level(&text[dot + 1..after]) {
            return Some((dot, after));
        }
        search = dot;
    }
    None
}

/// Longest names of top-level domains (without `xn--`) have 18 letters; anything longer is none.
fn is_top_level(label: &str) -> bool {
    (2..=24).contains(&label.len())
        && label.bytes().all(|b| b.is_ascii_alphabetic())
        && psl::suffix(label.to_ascii_lowercase().as_bytes())
            .is_some_and(|suffix| suffix.typ() == Some(psl::Type::Icann))
}

/// The beginning of up to ten characters of white space before `at`, not before `least`.
fn space_before(text: &str, least: usize, at: usize) -> usize {
    let space = text[least..at].chars().rev().take(SPACE).take_while(|&c| is_space(c));
    at - space.map(char::len_utf8).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn without(text: &str) -> String {
        Urls::new().unwrap_or_else(|error| panic!("{error}")).remove(text).0.into_owned()
    }

    #[test]
    fn urls_and_addresses_go_and_text_stays() {
        for (text, expected) in [
            ("see https://www.example.com/a?b=c&d#e now", "see now"),
            ("see example.org.", "see"),
            ("mail me@example.co.uk!", "mail!"),
            ("a\n\n  ftp://x.net/y(z) b", "a b"),
            ("at 192.168.0.1:8080/x and 1.2.3", "at and 1.2.3"),
            ("(http://10.0.0.1)", "("),
            ("One. Two... e.g. this v1.2 main.rs", "One. Two... e.g. this v1.2"),
            ("file.notadomain stays, .com too", "file.notadomain stays, .com too"),
            ("a.com.notadomain", ""),
            ("a.comé b.com_x", "a.comé b.com_x"),
            ("EXAMPLE.COM up", " up"),
            ("https://a.com and http://b.org/", " and"),
            ("xhttps://a.com", "x"),
            (".comhttps://a.de", ".com"),
            ("", ""),
        ] {
            assert_eq!(without(text), expected, "{text:?}");
        }
        let (text, found) =
            Urls::new().unwrap_or_else(|error| panic!("{error}")).remove("a.com 1.1.1.1 b.de");
        assert_eq!((text.as_ref(), found), ("", 3));
    }

    /// More white space than ten characters: the rest stays, as a pattern that is searched from the left leaves it.
    #[test]
    fn limits_are_those_of_the_pattern() {
        assert_eq!(without(&format!("a{}b.com", " ".repeat(13))), "a   ");
        let long = "x".repeat(300);
        assert_eq!(without(&format!("{long}.com")), "x".repeat(44));
    }

    proptest! {
        /// What the pattern says, on texts small enough to ask the pattern itself.
        #[test]
        fn the_scan_agrees_with_the_pattern(text in "([ab.:/@é_ \n-]|\\.com|https://|\\.de|1\\.2){0,30}") {
            let pattern = Regex::new(
                r"\s{0,10}(?:(?:https?|ftp)://)?[-a-zA-Z0-9@:%._+~#=]{1,256}\.(?:com|de)\b[-a-zA-Z0-9()@:%_+.~#?&/=]*",
            ).map_err(|error| TestCaseError::fail(error.to_string()))?;
            // Other names of domains that these letters can form.
            prop_assume!(!["ab", "ba", "aa", "bb"].iter().any(|name| is_top_level(name) && text.contains(&format!(".{name}"))));
            prop_assert_eq!(without_names(&text).0, pattern.replace_all(&text, ""));
        }
    }
}
