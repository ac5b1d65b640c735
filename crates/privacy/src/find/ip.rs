//! IP addresses that the public internet routes.
//!
//! "Public" is Python's `ipaddress.is_global`: not in a block that IANA's special-purpose registries reserve.

use super::is_word;
use regex::Regex;
use std::net::{Ipv4Addr, Ipv6Addr};

/// The pattern of datatrove's PII formatter.
pub(super) const DATATROVE: &str =
    r"(?:(?:25[0-5]|2[0-4][0-9]|[01]?[0-9][0-9]?)\.){3}(?:25[0-5]|2[0-4][0-9]|[01]?[0-9][0-9]?)";

/// Blocks that are not global: (first address, prefix length). IANA IPv4 Special-Purpose Address Registry.
const RESERVED_V4: &[([u8; 4], u32)] = &[
    ([0, 0, 0, 0], 8),
    ([10, 0, 0, 0], 8),
    ([100, 64, 0, 0], 10),
    ([127, 0, 0, 0], 8),
    ([169, 254, 0, 0], 16),
    ([172, 16, 0, 0], 12),
    ([192, 0, 0, 0], 24),
    ([192, 0, 2, 0], 24),
    ([192, 168, 0, 0], 16),
    ([198, 18, 0, 0], 15),
    ([198, 51, 100, 0], 24),
    ([203, 0, 113, 0], 24),
    ([240, 0, 0, 0], 4),
];
/// Exceptions within 192.0.0.0/24.
const GLOBAL_V4: &[[u8; 4]] = &[[192, 0, 0, 9], [192, 0, 0, 10]];

/// IANA IPv6 Special-Purpose Address Registry: (first segments, prefix length).
const RESERVED_V6: &[([u16; 3], u32)] = &[
    ([0, 0, 0], 80), // ::, ::1, mapped IPv4 and what else begins with 80 zero bits
    ([0x64, 0xff9b, 1], 48),
    ([0x100, 0, 0], 64),
    ([0x2001, 0, 0], 23),
    ([0x2001, 0xdb8, 0], 32),
    ([0x2002, 0, 0], 16),
    ([0x3fff, 0, 0], 20),
    ([0xfc00, 0, 0], 7),
    ([0xfe80, 0, 0], 10),
];
/// Exceptions within 2001::/23.
const GLOBAL_V6: &[([u16; 3], u32)] =
    &[([0x2001, 3, 0], 32), ([0x2001, 4, 0x112], 48), ([0x2001, 0x20, 0], 28), ([0x2001, 0x30, 0], 28)];
/// 2001:1::1 and 2001:1::2.
const GLOBAL_ANYCAST: [u128; 2] = [0x2001_0001 << 96 | 1, 0x2001_0001 << 96 | 2];

/// Whether the public internet routes an address.
pub fn is_global_v4(address: Ipv4Addr) -> bool {
    if GLOBAL_V4.iter().any(|global| Ipv4Addr::from(*global) == address) {
        return true;
    }
    !RESERVED_V4.iter().any(|&(first, prefix)| {
        let mask = u32::MAX << (32 - prefix);
        u32::from(address) & mask == u32::from(Ipv4Addr::from(first))
    })
}

fn within(address: u128, blocks: &[([u16; 3], u32)]) -> bool {
    blocks.iter().any(|&([a, b, c], prefix)| {
        let first = u128::from(Ipv6Addr::new(a, b, c, 0, 0, 0, 0, 0));
        address & (u128::MAX << (128 - prefix)) == first
    })
}

/// Whether the public internet routes an address.
pub fn is_global_v6(address: Ipv6Addr) -> bool {
    let bits = u128::from(address);
    within(bits, GLOBAL_V6) || GLOBAL_ANYCAST.contains(&bits) || !within(bits, RESERVED_V6)
}

/// Global addresses in `run`, which is the longest run of digits and dots around them and begins at `offset`:
/// datatrove's pattern finds nothing across such runs.
pub(super) fn v4_datatrove(pattern: &Regex, run: &str, offset: usize, mut take: impl FnMut(usize, usize)) {
    for found in pattern.find_iter(run) {
        // Rust's parser refuses leading zeros, as Python's does.
        if found.as_str().parse().is_ok_and(is_global_v4) {
            take(offset + found.start(), offset + found.end());
        }
    }
}

/// Words before a number with dots that make it a version or the number of a section.
const NUMBERED: &[&str] = &[
    "version",
    "versions",
    "ver",
    "ver.",
    "v",
    "v.",
    "release",
    "releases",
    "released",
    "rev",
    "rev.",
    "revision",
    "build",
    "firmware",
    "driver",
    "drivers",
    "kernel",
    "patch",
    "patches",
    "hotfix",
    "upgrade",
    "upgraded",
    "downgrade",
    "update",
    "updated",
    "bump",
    "bumped",
    "tag",
    "tagged",
    "package",
    "library",
    "plugin",
    "module",
    "runtime",
    "sdk",
    "api",
    "bios",
    "section",
    "sections",
    "sec",
    "sec.",
    "subsection",
    "\u{a7}",
    "\u{a7}\u{a7}",
    "chapter",
    "clause",
    "clauses",
    "subclause",
    "appendix",
    "annex",
    "table",
    "tables",
    "figure",
    "figures",
    "fig",
    "fig.",
    "paragraph",
    "para",
    "para.",
    "article",
    "item",
    "items",
    "step",
    "requirement",
    "rule",
    "part",
    "lemma",
    "theorem",
    "definition",
    "equation",
    "eq",
    "eq.",
    "example",
    "exercise",
    "oid",
    "oids",
    "identifier",
    "ec",
    "since",
    "until",
    "before",
    "after",
    "requires",
    "require",
    "==",
    "===",
    ">=",
    "<=",
    "~=",
    "~>",
    "!=",
    "^",
    "~",
    ">",
    "<",
];
/// Words near an address that say that it is one.
const ADDRESSED: &[&str] = &[
    "ip",
    "ips",
    "ipv4",
    "addr",
    "address",
    "addresses",
    "host",
    "hosts",
    "server",
    "servers",
    "dns",
    "nameserver",
    "resolver",
    "ping",
    "traceroute",
    "tracert",
    "whois",
    "dig",
    "nslookup",
    "client",
    "peer",
    "gateway",
    "router",
    "firewall",
    "port",
    "connect",
    "connected",
    "connection",
    "connecting",
    "login",
    "attacker",
    "blocked",
    "banned",
    "bind",
    "listen",
    "listening",
    "inet",
    "src",
    "dst",
    "remote",
    "proxy",
    "endpoint",
    "subnet",
    "netmask",
    "route",
    "telnet",
    "ssh",
    "curl",
    "wget",
    "packets",
];
/// Addresses of public name servers, which are written without further words.
const NAME_SERVERS: &[&str] = &["8.8.8.8", "8.8.4.4", "9.9.9.9"];
/// Least value of one part from which four numbers look like an address rather than a version.
const LARGE_PART: u8 = 100;
/// Words before and behind an address that are looked at.
const WORDS_BEFORE: usize = 6;
const WORDS_BEHIND: usize = 3;
/// Bytes on either side that are searched for words.
const CONTEXT: usize = 60;

/// The run is one address, apart from a full stop after it, stands by itself, and is no version, section or object identifier.
pub(super) fn v4_strict(text: &str, start: usize, end: usize) -> Option<(usize, usize)> {
    let bytes = text.as_bytes();
    let end = if text[start..end].ends_with('.') { end - 1 } else { end };
    if start > 0
        && (is_word(bytes[start - 1]) || matches!(bytes[start - 1], b'-' | b'+' | b'~' | b'^' | b'.'))
    {
        return None;
    }
    if bytes.get(end).is_some_and(|&byte| is_word(byte) || matches!(byte, b'-' | b'+' | b'*')) {
        return None;
    }
    let address: Ipv4Addr = text[start..end].parse().ok().filter(|address| is_global_v4(*address))?;
    is_written_as_address(text, start, end, address).then_some((start, end))
}

/// Whether one of the first words is one of [`ADDRESSED`].
fn is_addressed<'t>(words: impl Iterator<Item = &'t str>, most: usize) -> bool {
    let mut words = words.filter(|word| !word.is_empty()).take(most);
    words.any(|word| ADDRESSED.contains(&word.to_lowercase().as_str()))
}

fn is_written_as_address(text: &str, start: usize, end: usize, address: Ipv4Addr) -> bool {
    let from = text.floor_char_boundary(start.saturating_sub(CONTEXT));
    let line_start = text[from..start].rfind('\n').map(|at| from + at + 1);
    let before = &text[line_start.unwrap_or(from)..start];
    let behind = text[end..text.ceil_char_boundary((end + CONTEXT).min(text.len()))]
        .split('\n')
        .next()
        .unwrap_or_default();
    // `http://1.2.3.4`, `1.2.3.4:80`, `user@1.2.3.4`
    let port = behind.strip_prefix(':').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    if port || before.ends_with("://") || before.ends_with('@') {
        return true;
    }
    // `Product/1.2.3.4`, but not a path of a URL.
    let token = before
        .rsplit(|c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '(' | ','))
        .next()
        .unwrap_or_default();
    if let Some(product) = token.strip_suffix('/')
        && product.starts_with(|c: char| c.is_ascii_alphabetic())
        && !product.contains(['/', ':'])
    {
        return false;
    }
    let octets = address.octets();
    // Arcs of ITU and ISO whose object identifiers are written everywhere: internet, X.520 attributes, X.509 extensions.
    if octets[..3] == [1, 3, 6] || octets[..3] == [2, 5, 4] || octets[..3] == [2, 5, 29] {
        return false;
    }
    let small = before.to_lowercase();
    let is_edge = |c: char| {
        c.is_whitespace() || matches!(c, '(' | '[' | '{' | '"' | '\'' | '`' | ',' | ';' | '*' | '|')
    };
    // A colon parts a key from its value. An IPv6 address is one word, or another address in its place would count otherwise.
    let colons = |word: &str| word.bytes().filter(|&byte| byte == b':').count();
    let words: Vec<&str> = small
        .split(is_edge)
        .flat_map(|word| word.splitn(if colons(word) > 1 { 1 } else { 2 }, ':'))
        .filter(|word| !word.is_empty())
        .collect();
    let mut words = words.into_iter().rev();
    // Up to two words, and the first number of a range.
    let nearest = words.next().unwrap_or_default();
    let is_numbered = |word: &str| {
        NUMBERED.contains(&word)
            || word.strip_suffix('=').is_some_and(|key| key.ends_with("version") || key == "oid")
    };
    let joins = |word: &str| {
        matches!(
            word,
            "to" | "and"
                | "or"
                | "from"
                | "number"
                | "no."
                | "is"
                | "was"
                | "of"
                | "in"
                | "than"
                | "the"
                | "-"
                | "–"
                | "->"
                | "="
        ) || word.starts_with(|c: char| c.is_ascii_digit()) && colons(word) < 2
    };
    let mut passed = 0;
    let mut numbered = is_numbered(nearest);
    if !numbered && joins(nearest) {
        for word in words.by_ref() {
            passed += 1;
            numbered = is_numbered(word);
            if numbered || !joins(word) && passed > 1 || passed > 4 {
                break;
            }
        }
    }
    let letters = |text: &str, wanted: &[&str]| {
        text.to_lowercase().split(|c: char| !c.is_alphanumeric()).any(|word| wanted.contains(&word))
    };
    let is_mark = |c: char| !c.is_alphanumeric();
    let addressed = is_addressed(before.rsplit(is_mark), WORDS_BEFORE)
        || is_addressed(behind.split(is_mark), WORDS_BEHIND);
    // The heading of a version in Markdown.
    if before.trim_start().starts_with('#') && before.trim_matches([' ', '\t', '#']).is_empty() {
        return false;
    }
    if octets.iter().any(|&octet| octet >= LARGE_PART) {
        return !numbered
            || addressed && !letters(before, &["version", "release", "firmware", "build", "driver"]);
    }
    if NAME_SERVERS.contains(&&text[start..end]) {
        return !numbered;
    }
    // Four small numbers: the heading of a section or a version, unless words say otherwise.
    let heading = before.trim_matches([' ', '\t', '#', '*']).is_empty()
        && behind.trim_start_matches(['.', ')']).trim_start().starts_with(char::is_uppercase);
    addressed && !numbered && !heading
}

/// Longest text of an IPv6 address: eight groups, the last two as IPv4.
const LONGEST_V6: usize = 45;

fn is_v6(byte: u8) -> bool {
    byte.is_ascii_hexdigit() || byte == b':' || byte == b'.'
}

/// The address around the colon at `at`, if one stands there by itself; and where to go on.
///
/// Only 2000::/3 counts, the part of the address space that is given out: `a::b` in a program is a path.
pub(super) fn v6(text: &str, at: usize) -> (Option<(usize, usize)>, usize) {
    let bytes = text.as_bytes();
    let back = bytes[..at].iter().rev().take(5).take_while(|&&byte| byte.is_ascii_hexdigit()).count();
    let start = at - back;
    let length = bytes[at..].iter().take_while(|&&byte| is_v6(byte)).count();
    let mut end = at + length;
    if length + back < 4 || back == 0 || back > 4 || length + back > LONGEST_V6 + 1 {
        return (None, end);
    }
    if start > 0 && is_word(bytes[start - 1]) || bytes.get(end).is_some_and(|&byte| is_word(byte)) {
        return (None, end);
    }
    // A full stop or a colon behind the address ends a phrase.
    if matches!(bytes[end - 1], b'.' | b':') && !text[..end].ends_with("::") {
        end -= 1;
    }
    let global = text[start..end]
        .parse::<Ipv6Addr>()
        .is_ok_and(|address| u128::from(address) >> 125 == 1 && is_global_v6(address));
    (global.then_some((start, end)), at + length)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // A failed unwrap in a test is a failed test with a backtrace.
mod tests {
    use super::*;

    /// Values of `ipaddress.ip_address(a).is_global` in Python 3.13.
    #[test]
    fn reserved_blocks_end_where_they_should() {
        let global = |text: &str| is_global_v4(text.parse().unwrap());
        for address in ["8.8.8.8", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0", "172.32.0.0"]
        {
            assert!(global(address), "{address}");
        }
        for address in ["192.0.0.9", "192.0.1.0", "198.20.0.0", "224.0.0.1", "239.255.255.255"] {
            assert!(global(address), "{address}");
        }
        for address in ["10.0.0.1", "100.64.0.0", "127.0.0.1", "172.31.255.255", "192.0.0.8", "192.0.2.1"] {
            assert!(!global(address), "{address}");
        }
        for address in ["198.19.255.255", "203.0.113.7", "240.0.0.0", "255.255.255.255", "0.0.0.0"] {
            assert!(!global(address), "{address}");
        }
        let global = |text: &str| is_global_v6(text.parse().unwrap());
        for address in ["2606:4700::1111", "2001:3::1", "2001:20::1", "2001:200::1", "2001:1::1", "2003::1"] {
            assert!(global(address), "{address}");
        }
        for address in
            ["::1", "::", "2001:db8::1", "2001::1", "fe80::1", "fc00::1", "2002::1", "::ffff:8.8.8.8"]
        {
            assert!(!global(address), "{address}");
        }
    }
}
