//! Personal data and secrets, found and replaced by the `privacy` crate.
//!
//! Up to three passes, each over the text that the one before leaves: e-mail addresses, then IPv4 addresses (in the order of
//! datatrove's PII formatter), then everything else that is asked for.

use bessemer_corpus_config::privacy::{AddressPatterns, EmailRule, Ipv4Rule, PrivacyConfig, PrivacyRules};
use bessemer_dataflow::Result;
use bessemer_documents::{Document, DocumentPass, EMAILS, IPS, NUMBERS, SECRETS, Scratch, Verdict};
use bessemer_privacy::{Kind, Scrubbed, Scrubber};

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
    let (email, ipv4) = match config.patterns {
        AddressPatterns::Strict => (EmailRule::Strict, Ipv4Rule::Strict),
        AddressPatterns::Datatrove => (EmailRule::Datatrove, Ipv4Rule::Datatrove),
    };
    let emails =
        PrivacyRules { email, email_replacements: config.email_replacements.clone(), ..PrivacyRules::none() };
    let ips =
        PrivacyRules { ipv4, ipv4_replacements: config.ip_replacements.clone(), ..PrivacyRules::none() };
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

/// The kind of edit that a find becomes.
fn edit_kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Ipv4 | Kind::Ipv6 => IPS,
        Kind::Email => EMAILS,
        Kind::Phone | Kind::Card | Kind::Iban => NUMBERS,
        _ => SECRETS,
    }
}

impl DocumentPass for Scrub {
    fn name(&self) -> &str {
        self.name
    }

    fn visit(&self, document: &mut Document<'_>, _: &mut Scratch) -> Result<Verdict> {
        match self.scrubber.scrub(document.text()) {
            Scrubbed::Clean => {}
            Scrubbed::Edited(text, counts) => {
                document.set_text(text);
                for (kind, count) in counts.iter() {
                    document.edits_mut().add(edit_kind(kind), u64::from(count));
                }
            }
            Scrubbed::Dropped(counts) => {
                let kinds: Vec<String> =
                    counts.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
                let detail =
                    format!("{} finds ({}), allowed {}", counts.total(), kinds.join(", "), self.drop_above);
                return Ok(Verdict::drop(REASON, detail));
            }
        }
        Ok(Verdict::Keep)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::Decode;
    use crate::rule::tests::{Visited, visit};

    fn off() -> PrivacyConfig {
        PrivacyConfig { emails: false, ips: false, ..PrivacyConfig::default() }
    }

    fn chained(config: &PrivacyConfig, text: &str) -> Visited {
        let decode: Box<dyn DocumentPass> =
            Box::new(Decode::of(bessemer_corpus_config::InvalidUtf8::Drop, Default::default(), false));
        let passes = passes(config).map(|pass| Box::new(pass) as Box<dyn DocumentPass>);
        visit([decode].into_iter().chain(passes).collect(), "a", text.as_bytes())
    }

    /// Edits of the kinds emails, ips, numbers, secrets.
    fn counts(visited: &Visited) -> [u64; 4] {
        [EMAILS, IPS, NUMBERS, SECRETS].map(|kind| visited.edits.get(kind))
    }

    #[test]
    fn only_addresses_are_looked_for_by_default_and_each_kind_is_counted() {
        let names: Vec<&str> = passes(&PrivacyConfig::default()).map(|pass| pass.name).collect();
        assert_eq!(names, ["emails", "public-ips"]);
        let text = "call +49 30 901820 or pay 4111 1111 1111 1111; AKIAIOSFODNN7EXAMPLQ at 2600:1f18::1";
        let mut config = PrivacyConfig { ipv6: true, cards: true, secrets: true, ..off() };
        config.phones = bessemer_corpus_config::privacy::PhoneRule::International;
        let edited = chained(&config, text);
        assert_eq!(edited.text, "call [PHONE] or pay [CARD]; [SECRET] at 2001:db8::1");
        assert_eq!(counts(&edited), [0, 1, 2, 1]);

        config.drop_above = 3;
        let (reason, detail) = chained(&config, text).dropped.unwrap();
        assert_eq!(reason, REASON);
        assert!(detail.starts_with("4 finds (") && detail.ends_with("allowed 3"), "{detail}");
    }

    #[test]
    fn replacements_take_turns_and_only_a_replacement_advances_the_turn() {
        let config = PrivacyConfig {
            patterns: AddressPatterns::Datatrove,
            email_replacements: vec!["A".into(), "B".into()],
            ip_replacements: vec!["1".into(), "2".into()],
            ..PrivacyConfig::default()
        };
        let emails = chained(&config, "a@b.c d@e.f g@h.i");
        assert_eq!((emails.text.as_str(), counts(&emails)), ("A B A", [3, 0, 0, 0]));
        let ips = chained(&config, "8.8.8.8 10.0.0.1 1.1.1.1 v1.2.3");
        assert_eq!((ips.text.as_str(), counts(&ips)), ("1 10.0.0.1 2 v1.2.3", [0, 2, 0, 0]));
    }

    #[test]
    fn versions_sections_and_logins_stay_unless_datatroves_patterns_are_asked_for() {
        let text = "version 1.2.3.4, git@host.org:a/b; jane.doe@mail.org from 66.249.66.1";
        let strict = chained(&PrivacyConfig::default(), text);
        assert_eq!(strict.text, "version 1.2.3.4, git@host.org:a/b; email@example.com from 192.0.2.1");
        let config = PrivacyConfig { patterns: AddressPatterns::Datatrove, ..PrivacyConfig::default() };
        assert_eq!(counts(&chained(&config, text)), [2, 2, 0, 0]);
    }

    /// An e-mail address is replaced before the IPv4 address that overlaps it and begins before it.
    #[test]
    fn each_pass_sees_what_the_one_before_leaves() {
        let config = PrivacyConfig { patterns: AddressPatterns::Datatrove, ..PrivacyConfig::default() };
        let visited = chained(&config, "é8.8.8.8@x.y");
        assert_eq!((visited.text.as_str(), counts(&visited)), ("é8.email@example.com", [1, 0, 0, 0]));
    }
}
