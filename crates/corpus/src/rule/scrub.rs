//! Personal data and secrets, found and replaced by the `privacy` room.
//!
//! Up to three passes, each over the text that the one before leaves: e-mail addresses, then IPv4 addresses (both by
//! datatrove's patterns, in the order of its PII formatter), then everything else that is asked for.

use super::{Document, Edits, Rule, Verdict};
use crate::config::PrivacyConfig;
use bessemer_privacy::{Counts, EmailRule, Ipv4Rule, Kind, PrivacyRules, Scrubbed, Scrubber};

/// Reason of documents with more finds than allowed.
const REASON: &str = "personal-data";

/// One pass.
pub(super) struct Scrub {
    name: &'static str,
    scrubber: Scrubber,
    drop_above: u32,
}

/// The passes that have anything to look for, in order.
pub(super) fn passes(config: &PrivacyConfig) -> impl Iterator<Item = Scrub> {
    let emails = PrivacyRules {
        email: EmailRule::Datatrove,
        email_replacements: config.email_replacements.clone(),
        ..PrivacyRules::none()
    };
    let ips = PrivacyRules {
        ipv4: Ipv4Rule::Datatrove,
        ipv4_replacements: config.ip_replacements.clone(),
        ..PrivacyRules::none()
    };
    let passes = [
        ("emails", config.emails, emails),
        ("public-ips", config.ips, ips),
        ("personal-data", config.finds(), config.rules()),
    ];
    passes.into_iter().filter(|(_, wanted, _)| *wanted).map(|(name, _, rules)| Scrub {
        name,
        scrubber: Scrubber::new(&rules),
        drop_above: rules.drop_above,
    })
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
        self.name
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

    /// The only pass of this configuration.
    fn only(config: &PrivacyConfig) -> Scrub {
        let mut passes: Vec<Scrub> = passes(config).collect();
        assert_eq!(passes.len(), 1);
        passes.remove(0)
    }

    fn off() -> PrivacyConfig {
        PrivacyConfig { emails: false, ips: false, ..PrivacyConfig::default() }
    }

    fn chained(config: &PrivacyConfig, text: &str) -> (String, Edits) {
        let (mut text, mut edits) = (text.to_string(), Edits::default());
        for pass in passes(config) {
            if let Verdict::Edit(edited, made) = pass.judge(&document("a", &text)) {
                text = edited;
                edits += made;
            }
        }
        (text, edits)
    }

    #[test]
    fn only_addresses_are_looked_for_by_default_and_each_kind_is_counted() {
        let names: Vec<&str> = passes(&PrivacyConfig::default()).map(|pass| pass.name).collect();
        assert_eq!(names, ["emails", "public-ips"]);
        let text = "call +49 30 901820 or pay 4111 1111 1111 1111; AKIAIOSFODNN7EXAMPLQ at 2600:1f18::1";
        let mut config = PrivacyConfig { ipv6: true, cards: true, secrets: true, ..off() };
        config.phones = bessemer_privacy::PhoneRule::International;
        let expected = Edits { ips: 1, numbers: 2, secrets: 1, ..Edits::default() };
        let edited = "call [PHONE] or pay [CARD]; [SECRET] at 2001:db8::1".to_string();
        assert_eq!(only(&config).judge(&document("a", text)), Verdict::Edit(edited, expected));

        config.drop_above = 3;
        let Verdict::Drop { reason, detail } = only(&config).judge(&document("a", text)) else {
            panic!("kept")
        };
        assert_eq!(reason, REASON);
        assert!(detail.starts_with("4 finds (") && detail.ends_with("allowed 3"), "{detail}");
    }

    #[test]
    fn replacements_take_turns_and_only_a_replacement_advances_the_turn() {
        let config = PrivacyConfig {
            email_replacements: vec!["A".into(), "B".into()],
            ip_replacements: vec!["1".into(), "2".into()],
            ..PrivacyConfig::default()
        };
        let edits = |emails, ips| Edits { emails, ips, ..Edits::default() };
        assert_eq!(chained(&config, "a@b.c d@e.f g@h.i"), ("A B A".into(), edits(3, 0)));
        let (text, made) = chained(&config, "8.8.8.8 10.0.0.1 1.1.1.1 v1.2.3");
        assert_eq!((text.as_str(), made), ("1 10.0.0.1 2 v1.2.3", edits(0, 2)));
    }

    /// An e-mail address is replaced before the IPv4 address that overlaps it and begins before it.
    #[test]
    fn each_pass_sees_what_the_one_before_leaves() {
        let config = PrivacyConfig::default();
        let edits = Edits { emails: 1, ..Edits::default() };
        assert_eq!(chained(&config, "é8.8.8.8@x.y"), ("é8.email@example.com".into(), edits));
    }
}
