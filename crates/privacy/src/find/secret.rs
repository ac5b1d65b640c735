//! Keys and tokens: by the prefix that their issuer gives them, or by being a random-looking value assigned to a telling name.
//!
//! A token of known form is taken where nothing that could belong to it stands before or after it. An assigned value
//! must be long, hold letters and digits, and have an entropy that words do not have; a placeholder such as
//! `your_api_key_here` or a template such as `${TOKEN}` is none.

use crate::kind::Kind;
use aho_corasick::{AhoCorasick, MatchKind};

/// Characters that a token of known form may hold, as (prefix, kind, set, least, most): what follows the prefix is a run of
/// `set` with a length in these bounds.
struct Form {
    prefix: &'static str,
    kind: Kind,
    set: Set,
    least: usize,
    most: usize,
}

/// Sets of characters.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Set {
    /// A-Z and 2-7.
    Base32,
    /// Letters and digits.
    Alphanumeric,
    /// Letters, digits, `-`.
    Dashed,
    /// Letters, digits, `_`.
    Word,
    /// Letters, digits, `-`, `_`.
    Url,
    /// Letters, digits, `-`, `_`, `.`.
    Dotted,
    /// Letters, digits, `/`.
    Path,
    /// 0-9 and a-f.
    Hex,
}

impl Set {
    fn holds(self, byte: u8) -> bool {
        match self {
            Set::Base32 => byte.is_ascii_uppercase() || (b'2'..=b'7').contains(&byte),
            Set::Alphanumeric => byte.is_ascii_alphanumeric(),
            Set::Dashed => byte.is_ascii_alphanumeric() || byte == b'-',
            Set::Word => byte.is_ascii_alphanumeric() || byte == b'_',
            Set::Url => byte.is_ascii_alphanumeric() || b"-_".contains(&byte),
            Set::Dotted => byte.is_ascii_alphanumeric() || b"-_.".contains(&byte),
            Set::Path => byte.is_ascii_alphanumeric() || byte == b'/',
            Set::Hex => byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte),
        }
    }
}

const fn form(prefix: &'static str, kind: Kind, set: Set, least: usize, most: usize) -> Form {
    Form { prefix, kind, set, least, most }
}

/// Forms that issuers document.
const FORMS: &[Form] = &[
    form("AKIA", Kind::AwsKey, Set::Base32, 16, 16),
    form("ASIA", Kind::AwsKey, Set::Base32, 16, 16),
    form("ABIA", Kind::AwsKey, Set::Base32, 16, 16),
    form("ACCA", Kind::AwsKey, Set::Base32, 16, 16),
    form("ghp_", Kind::GithubToken, Set::Alphanumeric, 36, 36),
    form("gho_", Kind::GithubToken, Set::Alphanumeric, 36, 36),
    form("ghu_", Kind::GithubToken, Set::Alphanumeric, 36, 36),
    form("ghs_", Kind::GithubToken, Set::Alphanumeric, 36, 36),
    form("ghr_", Kind::GithubToken, Set::Alphanumeric, 36, 76),
    form("github_pat_", Kind::GithubToken, Set::Word, 82, 82),
    form("xoxb-", Kind::SlackToken, Set::Dashed, 24, 120),
    form("xoxp-", Kind::SlackToken, Set::Dashed, 24, 120),
    form("xoxa-", Kind::SlackToken, Set::Dashed, 24, 120),
    form("xoxr-", Kind::SlackToken, Set::Dashed, 24, 120),
    form("xoxs-", Kind::SlackToken, Set::Dashed, 24, 120),
    form("xapp-", Kind::SlackToken, Set::Dashed, 24, 150),
    form("hooks.slack.com/services/", Kind::SlackToken, Set::Path, 40, 60),
    form("AIza", Kind::GoogleKey, Set::Url, 35, 35),
    form("GOCSPX-", Kind::GoogleKey, Set::Url, 28, 28),
    form("ya29.", Kind::GoogleKey, Set::Url, 30, 400),
    form("sk_live_", Kind::StripeKey, Set::Alphanumeric, 16, 247),
    form("sk_test_", Kind::StripeKey, Set::Alphanumeric, 16, 247),
    form("rk_live_", Kind::StripeKey, Set::Alphanumeric, 16, 247),
    form("rk_test_", Kind::StripeKey, Set::Alphanumeric, 16, 247),
    form("whsec_", Kind::StripeKey, Set::Alphanumeric, 32, 64),
    form("glpat-", Kind::ServiceToken, Set::Url, 20, 64),
    form("npm_", Kind::ServiceToken, Set::Alphanumeric, 36, 36),
    form("pypi-AgEIcHlwaS5vcmc", Kind::ServiceToken, Set::Url, 50, 400),
    form("hf_", Kind::ServiceToken, Set::Alphanumeric, 34, 40),
    form("sk-ant-", Kind::ServiceToken, Set::Url, 80, 160),
    form("sk-proj-", Kind::ServiceToken, Set::Url, 40, 200),
    form("SG.", Kind::ServiceToken, Set::Dotted, 66, 66),
    form("dop_v1_", Kind::ServiceToken, Set::Hex, 64, 64),
    form("shpat_", Kind::ServiceToken, Set::Hex, 32, 32),
];

const BEGIN: &str = "-----BEGIN ";
const JWT: &str = "eyJ";
/// Least base64 characters of a key block: what a manual writes between the lines is shorter.
const LEAST_KEY: usize = 64;

/// Names whose values are secrets.
const NAMES: &[&str] = &[
    "secret",
    "token",
    "api_key",
    "apikey",
    "api-key",
    "access_key",
    "accesskey",
    "access-key",
    "private_key",
    "password",
    "passwd",
];
/// Characters of a name behind the telling part.
const LONGEST_NAME: usize = 32;
/// Length of an assigned secret.
const SECRET: std::ops::RangeInclusive<usize> = 16..=256;
/// Bits a character: English in identifiers has about 3, sixteen random hexadecimal digits rarely fewer.
const LEAST_ENTROPY: f64 = 3.2;
/// Parts of values that stand for a secret and are none.
const PLACEHOLDERS: &[&str] = &[
    "example",
    "your",
    "xxxx",
    "placeholder",
    "changeme",
    "change_me",
    "dummy",
    "sample",
    "insert",
    "todo",
    "replace",
    "secret",
    "token",
    "password",
    "1234567890",
    "abcdef",
];

/// Finds keys and tokens.
#[derive(Debug)]
pub(super) struct Secrets {
    prefixes: AhoCorasick,
    names: AhoCorasick,
}

fn automaton(patterns: impl Iterator<Item = &'static str>, any_case: bool) -> AhoCorasick {
    AhoCorasick::builder()
        .match_kind(MatchKind::LeftmostLongest)
        .ascii_case_insensitive(any_case)
        .build(patterns)
        .expect("the patterns are constants and few")
}

fn is_url(byte: u8) -> bool {
    Set::Url.holds(byte)
}

fn run(bytes: &[u8], holds: impl Fn(u8) -> bool) -> usize {
    bytes.iter().take_while(|&&byte| holds(byte)).count()
}

impl Secrets {
    pub(super) fn new() -> Secrets {
        let prefixes = FORMS.iter().map(|form| form.prefix).chain([BEGIN, JWT]);
        Secrets { prefixes: automaton(prefixes, false), names: automaton(NAMES.iter().copied(), true) }
    }

    /// Keys and tokens, in no order, possibly one within another.
    pub(super) fn find(&self, text: &str, take: &mut impl FnMut(usize, usize, Kind)) {
        let bytes = text.as_bytes();
        let mut done = 0;
        for found in self.prefixes.find_iter(text) {
            if found.start() < done {
                continue;
            }
            let spot = match FORMS.get(found.pattern().as_usize()) {
                Some(form) => token(bytes, found.start(), found.end(), form).map(|end| (end, form.kind)),
                None if text[found.start()..].starts_with(BEGIN) => {
                    key_block(text, found.start()).map(|end| (end, Kind::PrivateKey))
                }
                None => jwt(bytes, found.start()).map(|end| (end, Kind::Jwt)),
            };
            if let Some((end, kind)) = spot {
                take(found.start(), end, kind);
                done = end;
            }
        }
        done = 0;
        for found in self.names.find_iter(text) {
            if found.start() >= done
                && let Some((start, end)) = assigned(text, found.end())
            {
                take(start, end, Kind::AssignedSecret);
                done = end;
            }
        }
    }
}

/// The end of a token whose prefix stands at `start..body`.
fn token(bytes: &[u8], start: usize, body: usize, form: &Form) -> Option<usize> {
    // The URL of a webhook may stand behind anything.
    let alone = form.set == Set::Path || start == 0 || !is_url(bytes[start - 1]);
    let limit = bytes.len().min(body + form.most + 1);
    let length = run(&bytes[body..limit], |byte| form.set.holds(byte));
    let ends = bytes.get(body + length).is_none_or(|&byte| !Set::Word.holds(byte));
    // Something of one repeated character is a picture of a token.
    let varied = bytes[body..body + length].iter().any(|byte| *byte != bytes[body]);
    (alone && ends && varied && (form.least..=form.most).contains(&length)).then_some(body + length)
}

/// The end of a PEM block of a private key that begins at `start`.
fn key_block(text: &str, start: usize) -> Option<usize> {
    let rest = &text[start + BEGIN.len()..];
    let label = &rest[..rest.bytes().take(40).position(|byte| byte == b'-')?];
    let wanted = label.ends_with("PRIVATE KEY") || label.ends_with("PRIVATE KEY BLOCK");
    let body = rest[label.len()..].strip_prefix("-----").filter(|_| wanted)?;
    // The next five dashes end the block, or begin another one.
    let end = memchr::memmem::find(body.as_bytes(), b"-----")?;
    let tail = body[end..].strip_prefix("-----END ")?.strip_prefix(label)?.strip_prefix("-----")?;
    let base64 = |byte: &u8| byte.is_ascii_alphanumeric() || b"+/=".contains(byte);
    (body.as_bytes()[..end].iter().filter(|byte| base64(byte)).count() >= LEAST_KEY)
        .then(|| text.len() - tail.len())
}

/// The end of a JSON web token (RFC 7519) that begins at `start`: three parts of base64url, the first of which is a JSON
/// object that names an algorithm.
fn jwt(bytes: &[u8], start: usize) -> Option<usize> {
    if start > 0 && (is_url(bytes[start - 1]) || bytes[start - 1] == b'.') {
        return None;
    }
    let header = run(&bytes[start..], is_url);
    let payload_at = start + header + 1;
    bytes.get(payload_at - 1).filter(|&&byte| byte == b'.')?;
    if !bytes[payload_at..].starts_with(JWT.as_bytes()) || header > 4096 {
        return None;
    }
    let payload = run(&bytes[payload_at..], is_url);
    let signature_at = payload_at + payload + 1;
    bytes.get(signature_at - 1).filter(|&&byte| byte == b'.')?;
    let signature = run(&bytes[signature_at..], is_url);
    let json = base64url(&bytes[start..start + header]);
    let names = memchr::memmem::find(&json, b"\"alg\"").is_some();
    (names && signature >= 16).then_some(signature_at + signature)
}

/// Bytes of base64url text without padding; what does not fill a byte is dropped.
fn base64url(text: &[u8]) -> Vec<u8> {
    let (mut bits, mut held, mut out) = (0u32, 0, Vec::with_capacity(text.len()));
    for &symbol in text {
        let value = match symbol {
            b'A'..=b'Z' => symbol - b'A',
            b'a'..=b'z' => symbol - b'a' + 26,
            b'0'..=b'9' => symbol - b'0' + 52,
            b'-' => 62,
            _ => 63,
        };
        bits = bits << 6 | u32::from(value);
        held += 6;
        if held >= 8 {
            held -= 8;
            out.push((bits >> held) as u8);
        }
    }
    out
}

/// The value assigned to the name whose telling part ends at `at`.
fn assigned(text: &str, at: usize) -> Option<(usize, usize)> {
    let bytes = text.as_bytes();
    let limit = bytes.len().min(at + LONGEST_NAME + 12);
    let skip = |from: usize, set: &[u8]| from + run(&bytes[from..limit], |byte| set.contains(&byte));
    let mut at = at + run(&bytes[at..limit], |byte| Set::Url.holds(byte));
    at = skip(at, b"\"' \t])");
    let sign = *bytes.get(at).filter(|byte| b"=:".contains(byte))?;
    at += 1;
    if bytes.get(at).is_some_and(|&byte| (sign == b':' && byte == b'=') || (sign == b'=' && byte == b'>')) {
        at += 1;
    }
    at = skip(at, b" \t");
    let quote = bytes.get(at).copied().filter(|byte| b"\"'`".contains(byte));
    let start = at + usize::from(quote.is_some());
    let holds = |byte: u8| byte.is_ascii_alphanumeric() || b"+/=_-.~".contains(&byte);
    let limit = bytes.len().min(start + SECRET.end() + 1);
    let length = run(bytes.get(start..limit)?, holds);
    let end = start + length;
    let next = bytes.get(end).copied();
    let closed = match quote {
        Some(quote) => next == Some(quote),
        None => next.is_none_or(|byte| byte.is_ascii_whitespace() || b",;\"'&<".contains(&byte)),
    };
    (closed && SECRET.contains(&length) && is_random(&text[start..end])).then_some((start, end))
}

/// Whether a value looks drawn, not written: letters and digits mixed, much entropy, no word of a placeholder.
fn is_random(value: &str) -> bool {
    let bytes = value.as_bytes();
    let digits = bytes.iter().filter(|byte| byte.is_ascii_digit()).count();
    let letters = bytes.iter().filter(|byte| byte.is_ascii_alphabetic()).count();
    // Paths, calls and module names: foo.bar.baz2, /usr/lib/x86_64.
    let parts = bytes.iter().filter(|byte| b"./".contains(byte)).count();
    if digits < 3 || letters < 3 || parts * 6 > bytes.len() || entropy(bytes) < LEAST_ENTROPY {
        return false;
    }
    let lower = value.to_ascii_lowercase();
    !PLACEHOLDERS.iter().any(|word| lower.contains(word))
}

/// Shannon entropy of the bytes in bits a byte: -sum p log2 p.
fn entropy(bytes: &[u8]) -> f64 {
    let mut counts = [0u32; 256];
    for &byte in bytes {
        counts[usize::from(byte)] += 1;
    }
    let total = bytes.len() as f64;
    let part = |&count: &u32| f64::from(count) / total;
    -counts.iter().filter(|&&count| count > 0).map(part).map(|p| p * p.log2()).sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entropy_of_known_distributions() {
        assert_eq!(entropy(b"aaaa"), 0.0);
        assert_eq!(entropy(b"abcd"), 2.0);
        assert_eq!(base64url(b"eyJhbGciOiJIUzI1NiJ9"), b"{\"alg\":\"HS256\"}");
    }
}
