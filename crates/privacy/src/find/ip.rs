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

/// The run is one address, apart from a full stop after it, and stands by itself.
pub(super) fn v4_strict(text: &str, start: usize, end: usize) -> Option<(usize, usize)> {
    let bytes = text.as_bytes();
    let end = if text[start..end].ends_with('.') { end - 1 } else { end };
    if start > 0 && (is_word(bytes[start - 1]) || bytes[start - 1] == b'-') {
        return None;
    }
    if bytes.get(end).is_some_and(|&byte| is_word(byte) || byte == b'-') {
        return None;
    }
    text[start..end].parse().is_ok_and(is_global_v4).then_some((start, end))
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
