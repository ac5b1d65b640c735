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

/// Top-level domains of more than two letters under which people have mailboxes: of IANA's list the older ones and the most registered.
const GENERIC_DOMAINS: &str = "com org net edu gov mil int info biz name pro aero coop museum jobs mobi travel tel asia cat post xxx app dev \
    page blog shop store online site website tech cloud email mail xyz top club live life world space digital agency studio design \
    software systems solutions services network academy education school university institute foundation group team media news press \
    art music photo photos church health care clinic bank finance capital company consulting engineering science technology energy \
    london berlin paris nyc tokyo wien hamburg koeln bayern amsterdam brussels swiss scot wales cymru quebec bzh eus gal africa eu \
    icu vip work works fun games today guru expert zone center community social chat ngo ong law legal tax land farm garden house one link click win ltd gmbh tips team zone run";
/// Two letters that are no top-level domain, though files and units end so. All others of two letters count.
const NO_COUNTRIES: &str = "gz xz bz js ts hs jl cs cu dx ex fs go kt mm pb qt rc sv tf tt vb yml";
/// Names of accounts that belong to a service, and not to a person.
const SERVICE_ACCOUNTS: &[&str] = &["git", "hg", "svn", "aur"];
/// Commands whose arguments are logins.
const LOGIN_COMMANDS: &[&str] = &["ssh ", "scp ", "sftp ", "rsync ", "mosh ", "ssh-copy-id "];
/// Fields of a message whose value is an identifier of messages.
const MESSAGE_FIELDS: &[&str] = &["message-id:", "in-reply-to:", "references:", "content-id:"];
/// Bytes before an address that are searched for what makes it none.
const CONTEXT: usize = 160;

/// Signs that datatrove's pattern takes for parts of an address, though only the text around it holds them: `key=a@b.org`.
const SEPARATORS: [char; 15] = ['=', '/', '?', '#', '$', '&', '*', '!', '^', '%', '`', '{', '|', '}', '~'];

/// The mailbox in a match of datatrove's pattern: where it begins.
pub(super) fn mailbox(text: &str, start: usize, end: usize) -> Option<usize> {
    let local = text[start..end].split('@').next().unwrap_or_default();
    let skipped = local.rfind(SEPARATORS).map_or(0, |at| at + 1);
    (skipped < local.len() && is_mailbox(text, start + skipped, end)).then_some(start + skipped)
}

/// Whether this is the address of a mailbox, and no login at a host, no part of a URL and no identifier.
fn is_mailbox(text: &str, start: usize, end: usize) -> bool {
    let address = &text[start..end];
    let (local, behind) = (address.split('@').next().unwrap_or_default(), &text[end..]);
    if !has_top_level_domain(address) || SERVICE_ACCOUNTS.contains(&local) {
        return false;
    }
    // `user@host:path`, but not `user@host: text`.
    if let Some(path) = behind.strip_prefix(':') {
        let path = path
            .split(|c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '<' | '`'))
            .next()
            .unwrap_or_default();
        if path.starts_with(['/', '~', '.'])
            || path.contains('/')
            || path.starts_with(|c: char| c.is_ascii_digit())
        {
            return false;
        }
    }
    let from = text.floor_char_boundary(start.saturating_sub(CONTEXT));
    let line = text[from..start].rsplit('\n').next().unwrap_or_default();
    let word = line
        .rsplit(|c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '<' | '('))
        .next()
        .unwrap_or_default();
    // The user of a URL, with or without a password.
    if word.rsplit_once("://").is_some_and(|(_, user)| !user.contains(['/', '?'])) {
        return false;
    }
    let line = line.to_ascii_lowercase();
    !MESSAGE_FIELDS.iter().any(|field| line.trim_start().starts_with(field))
        && !word.contains("cid:")
        && !word.contains("mid:")
        && !LOGIN_COMMANDS.iter().any(|command| {
            line.rfind(command).is_some_and(|at| {
                line[..at].chars().next_back().is_none_or(|c| !c.is_alphanumeric() && c != '-')
                    && !line[at..].contains([',', ';', '.'])
            })
        })
}

/// Whether the part behind the last dot is a top-level domain: of a country, a known generic one, or punycode.
fn has_top_level_domain(address: &str) -> bool {
    let last = address.rsplit('.').next().unwrap_or_default().to_ascii_lowercase();
    let among = |list: &str| list.split_whitespace().any(|domain| domain == last);
    let letters = last.bytes().all(|byte| byte.is_ascii_lowercase());
    let known = letters && (last.len() == 2 && !among(NO_COUNTRIES) || among(GENERIC_DOMAINS));
    let punycode = last.len() > 4 && last.starts_with("xn--");
    address.ends_with(']') || known || punycode
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
