//! Personal data and secrets beyond e-mail and IPv4 addresses, found and replaced by the `privacy` room: IPv6 addresses,
//! phone, card and account numbers, keys and tokens.

use super::{Document, Edits, Rule, Verdict};
use crate::config::PrivacyConfig;
use bessemer_privacy::{Counts, Kind, Scrubbed, Scrubber};

/// Reason of documents with more finds than allowed.
const REASON: &str = "personal-data";

/// The rule.
pub(super) struct Scrub {
    scrubber: Scrubber,
    drop_above: u32,
}

impl Scrub {
    /// The rule, where there is anything to look for.
    pub(super) fn new(config: &PrivacyConfig) -> Option<Scrub> {
        let rule = || Scrub { scrubber: Scrubber::new(&config.rules()), drop_above: config.drop_above };
        config.finds().then(rule)
    }
}

fn edits(counts: &Counts) -> Edits {
    let mut edits = Edits::default();
    for (kind, count) in counts.iter() {
        match kind {
            Kind::Ipv4 | Kind::Ipv6 => edits.ips += count,
            Kind::Email => edits.emails += count,
            Kind::Phone | Kind::Card | Kind::Iban => edits.numbers += count,
            _ => edits.secrets += count,
        }
    }
    edits
}

impl Rule for Scrub {
    fn name(&self) -> &'static str {
        "personal-data"
    }

    fn judge(&self, document: &Document<'_>) -> Verdict {
        match self.scrubber.scrub(&document.text) {
            Scrubbed::Clean => Verdict::Keep,
            Scrubbed::Edited(text, counts) => Verdict::Edit(text, edits(&counts)),
            Scrubbed::Dropped(counts) => {
                let kinds: Vec<String> =
                    counts.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
                let detail =
                    format!("{} finds ({}), allowed {}", counts.total(), kinds.join(", "), self.drop_above);
                Verdict::Drop { reason: REASON, detail }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::document;

    #[test]
    fn nothing_is_looked_for_by_default_and_each_kind_is_counted() {
        assert!(Scrub::new(&PrivacyConfig::default()).is_none());
        let text = "call +49 30 901820 or pay 4111 1111 1111 1111; AKIAIOSFODNN7EXAMPLQ at 2600:1f18::1";
        let mut config = PrivacyConfig { ipv6: true, cards: true, secrets: true, ..PrivacyConfig::default() };
        config.phones = bessemer_privacy::PhoneRule::International;
        let rule = Scrub::new(&config).expect("there is something to look for");
        let expected = Edits { ips: 1, numbers: 2, secrets: 1, ..Edits::default() };
        let edited = "call [PHONE] or pay [CARD]; [SECRET] at 2001:db8::1".to_string();
        assert_eq!(rule.judge(&document("a", text)), Verdict::Edit(edited, expected));

        config.drop_above = 3;
        let rule = Scrub::new(&config).expect("there is something to look for");
        let Verdict::Drop { reason, detail } = rule.judge(&document("a", text)) else { panic!("kept") };
        assert_eq!(reason, REASON);
        assert!(detail.starts_with("4 finds (") && detail.ends_with("allowed 3"), "{detail}");
    }
}
