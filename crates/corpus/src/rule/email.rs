//! E-mail addresses, found by datatrove's pattern and replaced in turn.
//!
//! The pattern has no match without `@`, its local part holds none, and what it accepts on either side is a
//! small set of ASCII characters. So it is tried only around each `@`, from the beginning of the run of
//! local-part characters before it to the end of the run of domain characters behind it. The matches are those
//! of a search over the whole text (a test compares them), and text without `@` costs one scan for a byte.

use super::{Document, Edits, Rule, Verdict};
use regex::Regex;

/// The pattern of datatrove's PII formatter.
const PATTERN: &str = r"\b[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(?:\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*@(?:(?:[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?\.)+[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?|\[(?:(?:25[0-5]|2[0-4][0-9]|[01]?[0-9][0-9]?)\.){3}(?:25[0-5]|2[0-4][0-9]|[01]?[0-9][0-9]?|[A-Za-z0-9-]*[A-Za-z0-9]:)])";

/// The rule.
pub(super) struct Emails {
    pattern: Regex,
    replacements: Vec<String>,
}

fn is_local(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+/=?^_`{|}~-.".contains(&byte)
}

fn is_domain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-.[]:".contains(&byte)
}

impl Emails {
    pub(super) fn new(replacements: &[String]) -> Self {
        let pattern = Regex::new(PATTERN).expect("the pattern is a constant and compiles");
        Emails { pattern, replacements: replacements.to_vec() }
    }

    /// Ranges of the matches, in order.
    fn find(&self, text: &str) -> Vec<(usize, usize)> {
        let bytes = text.as_bytes();
        let mut found = Vec::new();
        let mut done = 0;
        for (at, _) in text.match_indices('@') {
            if at < done {
                continue;
            }
            let start = at - bytes[done..at].iter().rev().take_while(|&&byte| is_local(byte)).count();
            let end = at + 1 + bytes[at + 1..].iter().take_while(|&&byte| is_domain(byte)).count();
            if start == at || end == at + 1 {
                continue;
            }
            if let Some(found_at) = self.pattern.find_at(&text[..end], start) {
                found.push((found_at.start(), found_at.end()));
                done = found_at.end();
            }
        }
        found
    }
}

impl Rule for Emails {
    fn name(&self) -> &'static str {
        "emails"
    }

    fn judge(&self, document: &Document<'_>) -> Verdict {
        let found = self.find(&document.text);
        if found.is_empty() {
            return Verdict::Keep;
        }
        let text = replace(&document.text, &found, &self.replacements);
        Verdict::Edit(text, Edits { emails: found.len() as u32, ..Edits::default() })
    }
}

/// The text with ranges replaced, in turn.
pub(super) fn replace(text: &str, ranges: &[(usize, usize)], replacements: &[String]) -> String {
    let mut result = String::with_capacity(text.len());
    let mut done = 0;
    for (&(start, end), with) in ranges.iter().zip(replacements.iter().cycle()) {
        result.push_str(&text[done..start]);
        result.push_str(with);
        done = end;
    }
    result.push_str(&text[done..]);
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::document;

    fn scrub(text: &str) -> String {
        match Emails::new(&["EMAIL".into()]).judge(&document("a", text)) {
            Verdict::Edit(text, _) => text,
            _ => text.into(),
        }
    }

    /// Goldens of datatrove's test_pii_removal.
    #[test]
    fn goldens_of_datatrove() {
        assert_eq!(scrub("email@[123.123.123.123]"), "EMAIL");
        assert_eq!(scrub("\"email\"@example.com"), "\"email\"@example.com");
        assert_eq!(scrub("email@example..com"), "email@example..com");
        assert_eq!(scrub("email..email@example.com"), "email..EMAIL");
    }

    #[test]
    fn ordinary_addresses_go_and_the_text_around_stays() {
        assert_eq!(scrub("Jane Doe <jane.doe@mail.example.org>, (x@y.zz)."), "Jane Doe <EMAIL>, (EMAIL).");
        assert_eq!(scrub("a@b.c@d.e"), "EMAIL@d.e");
        assert_eq!(scrub("#[derive] @param x @ y"), "#[derive] @param x @ y");
        assert_eq!(scrub("éjane@example.com"), "éjane@example.com");
    }

    #[test]
    fn replacements_take_turns_within_a_document() {
        let rule = Emails::new(&["1".into(), "2".into()]);
        let expected = Edits { emails: 3, ..Edits::default() };
        assert_eq!(rule.judge(&document("a", "a@b.c d@e.f g@h.i")), Verdict::Edit("1 2 1".into(), expected));
    }

    #[test]
    fn searching_around_each_at_sign_equals_searching_the_whole_text() {
        let rule = Emails::new(&["EMAIL".into()]);
        let pieces = ["a", "b1", ".", "@", "-", "[1.2.3.4]", ":", "é", " ", "+", "\"", "..", "@x.y"];
        let mut state = 7u64;
        let mut matches = 0;
        for _ in 0..20_000 {
            let mut text = String::new();
            for _ in 0..10 {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                text.push_str(pieces[(state >> 33) as usize % pieces.len()]);
            }
            let whole: Vec<(usize, usize)> =
                rule.pattern.find_iter(&text).map(|found| (found.start(), found.end())).collect();
            assert_eq!(rule.find(&text), whole, "{text:?}");
            matches += whole.len();
        }
        assert!(matches > 1000, "the alphabet makes addresses: {matches}");
    }
}
