//! E-mail addresses by the pattern of datatrove or by that of Dolma.
//!
//! Neither pattern matches without `@`, so only the surroundings of each `@` are looked at, and no character belongs to the
//! surroundings of more than two of them: the search is linear. Tests hold both against the patterns run over whole texts.

use regex::Regex;

/// The pattern of datatrove's PII formatter.
pub(super) const DATATROVE: &str = r"\b[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(?:\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*@(?:(?:[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?\.)+[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?|\[(?:(?:25[0-5]|2[0-4][0-9]|[01]?[0-9][0-9]?)\.){3}(?:25[0-5]|2[0-4][0-9]|[01]?[0-9][0-9]?|[A-Za-z0-9-]*[A-Za-z0-9]:)])";

/// The pattern of Dolma's PII tagger; its first group is the address.
#[cfg(test)]
const DOLMA: &str = r"[.\s@,?!;:)(]*([^\s@]+@[^\s@,?!;:)(]+?)[.\s@,?!;:)(]?[\s\n\r]";

fn is_local(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+/=?^_`{|}~-.".contains(&byte)
}

fn is_domain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-.[]:".contains(&byte)
}

/// Datatrove's matches, in order.
pub(super) fn datatrove(pattern: &Regex, text: &str, mut take: impl FnMut(usize, usize)) {
    let bytes = text.as_bytes();
    let mut done = 0;
    for at in memchr::memchr_iter(b'@', bytes) {
        if at < done {
            continue;
        }
        let start = at - bytes[done..at].iter().rev().take_while(|&&byte| is_local(byte)).count();
        let end = at + 1 + bytes[at + 1..].iter().take_while(|&&byte| is_domain(byte)).count();
        if start == at || end == at + 1 {
            continue;
        }
        if let Some(found) = pattern.find_at(&text[..end], start) {
            take(found.start(), found.end());
            done = found.end();
        }
    }
}

/// Whether the part behind the last dot can be a top-level domain: two letters or more, or punycode.
pub(super) fn has_top_level_domain(address: &str) -> bool {
    let last = address.rsplit('.').next().unwrap_or_default();
    let letters = last.len() >= 2 && last.bytes().all(|byte| byte.is_ascii_alphabetic());
    let punycode = last.len() > 4 && last.as_bytes()[..4].eq_ignore_ascii_case(b"xn--");
    address.ends_with(']') || letters || punycode
}

/// Characters that Dolma takes for the surroundings of an address.
fn is_mark(c: char) -> bool {
    matches!(c, '.' | ',' | '?' | '!' | ';' | ':' | ')' | '(')
}

/// White space of a pattern over Unicode text.
fn is_space(c: char) -> bool {
    c.is_whitespace()
}

/// Dolma's addresses, in order: a run of anything but white space and `@`, the `@`, and a domain with a dot in it, behind
/// which at most one mark stands before white space.
pub(super) fn dolma(text: &str, mut take: impl FnMut(usize, usize)) {
    let mut done = 0;
    for at in memchr::memchr_iter(b'@', text.as_bytes()) {
        if at < done {
            continue;
        }
        let before = &text[done..at];
        let run = before.rfind(|c: char| c == '@' || is_space(c)).map_or(before, |last| {
            let width = before[last..].chars().next().map_or(1, char::len_utf8);
            &before[last + width..]
        });
        let Some(last) = run.chars().next_back() else { continue };
        // Leading marks belong to the surroundings, but one character is the address's whatever it is.
        let stripped = run.trim_start_matches(is_mark).len().max(last.len_utf8());
        let start = at - stripped;
        let Some(domain) = dolma_domain(&text[at + 1..]) else { continue };
        let end = at + 1 + domain;
        // Nothing but marks: the surroundings of a later address, or of none.
        if text[start..end].chars().all(|c| c == '@' || is_mark(c)) {
            continue;
        }
        // What follows the address up to the white space is used up too.
        let tail = &text[end..];
        let mark = tail.chars().next().filter(|&c| is_mark(c) || c == '@' || is_space(c));
        let with_mark = mark.filter(|mark| tail[mark.len_utf8()..].chars().next().is_some_and(is_space));
        let width = |c: Option<char>| c.map_or(0, char::len_utf8);
        let used = width(with_mark);
        done = end + used + width(tail[used..].chars().next());
        if text[at + 1..end].contains('.') {
            take(start, end);
        }
    }
}

/// Length of the shortest domain behind which the pattern can end.
fn dolma_domain(text: &str) -> Option<usize> {
    let end = text.find(|c: char| c == '@' || is_space(c) || (c != '.' && is_mark(c))).unwrap_or(text.len());
    let mut rest = text[end..].chars();
    let (next, after) = (rest.next(), rest.next());
    let spaced = next.is_some_and(is_space);
    if spaced && end > 1 && text[..end].ends_with('.') {
        return Some(end - 1);
    }
    let marked = next.is_some() && after.is_some_and(is_space);
    (end > 0 && (spaced || marked)).then_some(end)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // A failed unwrap in a test is a failed test with a backtrace.
mod tests {
    use super::*;

    /// Texts that are full of addresses and of what almost is one.
    fn texts(pieces: &[&str], seed: u64) -> impl Iterator<Item = String> {
        let pieces: Vec<String> = pieces.iter().map(|piece| piece.to_string()).collect();
        let mut state = seed;
        (0..10_000).map(move |_| {
            let mut text = String::new();
            for _ in 0..12 {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                text.push_str(&pieces[(state >> 33) as usize % pieces.len()]);
            }
            text
        })
    }

    #[test]
    fn datatrove_around_each_at_sign_is_datatrove_over_the_text() {
        let pattern = Regex::new(DATATROVE).unwrap();
        let pieces = ["a", "b1", ".", "@", "-", "[1.2.3.4]", ":", "é", " ", "+", "\"", "..", "@x.y"];
        let mut matches = 0;
        for text in texts(&pieces, 7) {
            let whole: Vec<(usize, usize)> =
                pattern.find_iter(&text).map(|found| (found.start(), found.end())).collect();
            let mut found = Vec::new();
            datatrove(&pattern, &text, |start, end| found.push((start, end)));
            assert_eq!(found, whole, "{text:?}");
            matches += whole.len();
        }
        assert!(matches > 1000, "the alphabet makes addresses: {matches}");
    }

    #[test]
    fn dolma_around_each_at_sign_is_dolma_over_the_text() {
        let pattern = Regex::new(DOLMA).unwrap();
        let pieces = ["a", "b.c", ".", "@", ",", "(", ")", "é", " ", "\n", "\u{2003}", "@x.y ", "!", "-"];
        let mut matches = 0;
        for text in texts(&pieces, 11) {
            let groups = pattern.captures_iter(&text).map(|all| all.get(1).unwrap());
            let real = groups.filter(|group| !group.as_str().chars().all(|c| c == '@' || is_mark(c)));
            let dotted = real.filter(|group| group.as_str().split_once('@').unwrap().1.contains('.'));
            let whole: Vec<(usize, usize)> = dotted.map(|group| (group.start(), group.end())).collect();
            let mut found = Vec::new();
            dolma(&text, |start, end| found.push((start, end)));
            assert_eq!(found, whole, "{text:?}");
            matches += whole.len();
        }
        assert!(matches > 1000, "the alphabet makes addresses: {matches}");
    }

    #[test]
    fn top_level_domains_are_letters() {
        for (address, wanted) in [
            ("a@b.com", true),
            ("a@b.c1", false),
            ("a@b.c", false),
            ("a@x.xn--p1ai", true),
            ("a@[1.2.3.4]", true),
        ] {
            assert_eq!(has_top_level_domain(address), wanted, "{address}");
        }
    }
}
