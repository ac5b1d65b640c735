//! IPv4 addresses that the public internet routes, found by datatrove's pattern and replaced in turn.
//!
//! "Public" is Python's `ipaddress.is_global`: not in a block that IANA's special-purpose registry reserves, and
//! written without leading zeros. The turn advances only on a real replacement.

use super::email::replace;
use super::{Document, Edits, Rule, Verdict};
use regex::Regex;
use std::net::Ipv4Addr;

/// The pattern of datatrove's PII formatter.
const PATTERN: &str =
    r"(?:(?:25[0-5]|2[0-4][0-9]|[01]?[0-9][0-9]?)\.){3}(?:25[0-5]|2[0-4][0-9]|[01]?[0-9][0-9]?)";

/// Blocks that are not global: (first address, prefix length). IANA IPv4 Special-Purpose Address Registry, as
/// Python reads it.
const RESERVED: &[([u8; 4], u32)] = &[
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
const GLOBAL: &[[u8; 4]] = &[[192, 0, 0, 9], [192, 0, 0, 10]];

/// Whether the public internet routes an address.
fn is_global(address: Ipv4Addr) -> bool {
    if GLOBAL.iter().any(|global| Ipv4Addr::from(*global) == address) {
        return true;
    }
    !RESERVED.iter().any(|&(first, prefix)| {
        let mask = u32::MAX << (32 - prefix);
        u32::from(address) & mask == u32::from(Ipv4Addr::from(first))
    })
}

/// The rule.
pub(super) struct PublicIps {
    pattern: Regex,
    replacements: Vec<String>,
}

impl PublicIps {
    pub(super) fn new(replacements: &[String]) -> Self {
        let pattern = Regex::new(PATTERN).expect("the pattern is a constant and compiles");
        PublicIps { pattern, replacements: replacements.to_vec() }
    }
}

/// Whether any digit is followed by a dot and a digit: without that there is no address.
fn may_hold_address(bytes: &[u8]) -> bool {
    bytes.windows(3).any(|three| three[1] == b'.' && three[0].is_ascii_digit() && three[2].is_ascii_digit())
}

impl Rule for PublicIps {
    fn name(&self) -> &'static str {
        "public-ips"
    }

    fn judge(&self, document: &Document<'_>) -> Verdict {
        if !may_hold_address(document.text.as_bytes()) {
            return Verdict::Keep;
        }
        let found: Vec<(usize, usize)> = self
            .pattern
            .find_iter(&document.text)
            // Rust's parser refuses leading zeros, as Python's does.
            .filter(|found| found.as_str().parse().is_ok_and(is_global))
            .map(|found| (found.start(), found.end()))
            .collect();
        if found.is_empty() {
            return Verdict::Keep;
        }
        let text = replace(&document.text, &found, &self.replacements);
        Verdict::Edit(text, Edits { ips: found.len() as u32, ..Edits::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::document;

    fn scrub(text: &str) -> String {
        match PublicIps::new(&["IP".into()]).judge(&document("a", text)) {
            Verdict::Edit(text, _) => text,
            _ => text.into(),
        }
    }

    /// Goldens of datatrove's test_pii_removal.
    #[test]
    fn goldens_of_datatrove() {
        for unchanged in ["108.0.0.01", "0.1.2.3", "172.16.0.9", "192.168.254.0"] {
            assert_eq!(scrub(unchanged), unchanged);
        }
        assert_eq!(scrub(".3.3.3.0"), ".IP");
    }

    /// Values of `ipaddress.ip_address(a).is_global` in Python 3.13.
    #[test]
    fn reserved_blocks_end_where_they_should() {
        let global = |text: &str| is_global(text.parse().unwrap());
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
    }

    #[test]
    fn the_turn_advances_only_on_a_replacement() {
        let rule = PublicIps::new(&["1".into(), "2".into()]);
        let expected = Edits { ips: 2, ..Edits::default() };
        assert_eq!(
            rule.judge(&document("a", "8.8.8.8 10.0.0.1 1.1.1.1 v1.2.3")),
            Verdict::Edit("1 10.0.0.1 2 v1.2.3".into(), expected)
        );
    }
}
