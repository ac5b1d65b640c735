//! Finds personal data and secrets in a text.
//!
//! One pass over the bytes looks for what each kind cannot be without: `@`, a digit, a colon. Keys and tokens have a
//! pass of their own for their prefixes (Aho-Corasick with vector instructions). Patterns run only around what was
//! found, over bounded distances or over runs that no other match shares, so the time is linear in the text
//! whatever it holds.

mod email;
mod ip;
mod number;
mod phone;
mod secret;

pub use ip::{is_global_v4, is_global_v6};
pub use number::luhn;

use crate::kind::{Kind, Span};
use bessemer_corpus_config::privacy::{EmailRule, Ipv4Rule, PhoneRule, PrivacyRules};
use number::Countries;
use phone::NumberingPlans;
use regex::Regex;
use secret::Secrets;

/// Class of each byte: 0 for none, and one for digits and colons each.
const CLASS: [u8; 256] = {
    let mut table = [0; 256];
    let mut digit = b'0';
    while digit <= b'9' {
        table[digit as usize] = 1;
        digit += 1;
    }
    table[b':' as usize] = 2;
    table
};

/// Whether a number that touches this byte may be a part of a longer word: letters, digits, `_`, and bytes of other scripts.
fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80
}

/// Finds what its rules name.
pub struct Finder {
    rules: PrivacyRules,
    email: Regex,
    ipv4: Regex,
    countries: Countries,
    plans: NumberingPlans,
    secrets: Secrets,
}

impl std::fmt::Debug for Finder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Finder").field("rules", &self.rules).finish_non_exhaustive()
    }
}

impl Finder {
    /// For these rules.
    pub fn new(rules: &PrivacyRules) -> Finder {
        let compile = |pattern| Regex::new(pattern).expect("the pattern is a constant and compiles");
        Finder {
            rules: rules.clone(),
            email: compile(email::DATATROVE),
            ipv4: compile(ip::DATATROVE),
            countries: Countries::new(),
            plans: NumberingPlans::new(),
            secrets: Secrets::new(),
        }
    }

    /// What was found, in order, none overlapping another. Of two that overlap the one that begins first stays, of two that
    /// begin together the longer one, of two equal ones the first in [`Kind::ALL`].
    pub fn find(&self, text: &str) -> Vec<Span> {
        let mut spans = Vec::new();
        let mut push = |start, end, kind| spans.push(Span { start, end, kind });
        match self.rules.email {
            EmailRule::Off => {}
            EmailRule::Datatrove => {
                email::datatrove(&self.email, text, |start, end| push(start, end, Kind::Email));
            }
            EmailRule::Strict => email::datatrove(&self.email, text, |start, end| {
                if let Some(start) = email::mailbox(text, start, end) {
                    push(start, end, Kind::Email);
                }
            }),
            EmailRule::Dolma => email::dolma(text, |start, end| push(start, end, Kind::Email)),
        }
        if self.rules.secrets {
            self.secrets.find(text, &mut push);
        }
        self.numbers(text, &mut push);
        if spans.len() > 1 {
            spans.sort_unstable_by_key(|span| (span.start, std::cmp::Reverse(span.end), span.kind));
            let mut end = 0;
            spans.retain(|span| {
                let free = span.start >= end;
                end = if free { span.end } else { end };
                free
            });
        }
        spans
    }

    /// Everything that has a digit or a colon in it.
    fn numbers(&self, text: &str, push: &mut impl FnMut(usize, usize, Kind)) {
        let bytes = text.as_bytes();
        let rules = &self.rules;
        let phones = rules.phone != PhoneRule::Off
            && (rules.phone != PhoneRule::Dolma
                || memchr::memchr_iter(b'?', bytes).count() <= number::MOST_QUESTION_MARKS);
        if rules.ipv4 == Ipv4Rule::Off && !(phones || rules.ipv6 || rules.cards || rules.ibans) {
            return;
        }
        // Ends of the last phone number, of the run of digits and dots, and of the one with colons.
        let (mut phone_end, mut dotted_end, mut coloned_end) = (0, 0, 0);
        let mut at = 0;
        while let Some(skipped) = bytes[at..].iter().position(|&byte| CLASS[usize::from(byte)] != 0) {
            at += skipped;
            if bytes[at] == b':' {
                if rules.ipv6 && at >= coloned_end {
                    let (found, end) = ip::v6(text, at);
                    if let Some((start, end)) = found {
                        push(start, end, Kind::Ipv6);
                    }
                    coloned_end = end;
                }
                at += 1;
                continue;
            }
            let run = bytes[at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
            if rules.ipv4 != Ipv4Rule::Off && at >= dotted_end && bytes.get(at + run) == Some(&b'.') {
                dotted_end = self.dotted(text, at, push);
            }
            if rules.ibans
                && run >= 2
                && at >= 2
                && bytes[at - 1].is_ascii_uppercase()
                && let Some(end) = self.countries.iban(bytes, at - 2)
            {
                push(at - 2, end, Kind::Iban);
            }
            if rules.cards
                && let Some(end) = number::card(bytes, at, run)
            {
                push(at, end, Kind::Card);
            }
            if phones
                && at >= phone_end
                && let Some((start, end)) = self.phone(text, at, run)
            {
                push(start, end, Kind::Phone);
                phone_end = end;
            }
            at += run;
        }
    }

    /// IPv4 addresses in the run of digits and dots around `at`; returns its end.
    fn dotted(&self, text: &str, at: usize, push: &mut impl FnMut(usize, usize, Kind)) -> usize {
        let bytes = text.as_bytes();
        let is_part = |byte: &&u8| byte.is_ascii_digit() || **byte == b'.';
        // Dots before the first digit belong to no address.
        let end = at + bytes[at..].iter().take_while(is_part).count();
        if end - at >= 7 && memchr::memchr_iter(b'.', &bytes[at..end]).count() >= 3 {
            if self.rules.ipv4 == Ipv4Rule::Datatrove {
                ip::v4_datatrove(&self.ipv4, &text[at..end], at, |start, end| push(start, end, Kind::Ipv4));
            } else if let Some((start, end)) = ip::v4_strict(text, at, end) {
                push(start, end, Kind::Ipv4);
            }
        }
        end
    }

    fn phone(&self, text: &str, at: usize, run: usize) -> Option<(usize, usize)> {
        let found = match self.rules.phone {
            PhoneRule::Off => None,
            PhoneRule::Dolma => number::phone_us(text, at, run),
            PhoneRule::International => phone::international(&self.plans, text, at, run),
        };
        // A number with a country code is one whatever stands near.
        found.filter(|&(start, end)| {
            let bytes = text.as_bytes();
            (self.rules.phone == PhoneRule::International && bytes[start] == b'+')
                || !number::is_reference(bytes, start, end)
        })
    }
}
