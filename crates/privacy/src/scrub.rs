//! Replaces what was found.

use crate::find::Finder;
use crate::kind::{Counts, Kind, Span};
use bessemer_corpus_config::privacy::PrivacyRules;

/// Finds and replaces.
#[derive(Debug)]
pub struct Scrubber {
    rules: PrivacyRules,
    finder: Finder,
}

/// Outcome for a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scrubbed {
    /// No personal data was found.
    Clean,
    /// The text with everything replaced, and how much that was.
    Edited(String, Counts),
    /// More was found than [`PrivacyRules::drop_above`] allows.
    Dropped(Counts),
}

impl Scrubber {
    /// For these rules, which [`PrivacyRules::check`] has let through.
    pub fn new(rules: &PrivacyRules) -> Scrubber {
        Scrubber { rules: rules.clone(), finder: Finder::new(rules) }
    }

    /// Replaces everything found, each kind's replacements in turn from the first: the result depends on this text alone.
    pub fn scrub(&self, text: &str) -> Scrubbed {
        let spans = self.finder.find(text);
        if spans.is_empty() {
            return Scrubbed::Clean;
        }
        let mut counts = Counts::default();
        spans.iter().for_each(|span| counts.add(span.kind));
        if self.rules.drop_above > 0 && counts.total() > self.rules.drop_above {
            return Scrubbed::Dropped(counts);
        }
        Scrubbed::Edited(self.replace(text, &spans), counts)
    }

    fn replace(&self, text: &str, spans: &[Span]) -> String {
        let mut result = String::with_capacity(text.len());
        let mut turns = [0usize; Kind::ALL.len()];
        let mut done = 0;
        for span in spans {
            result.push_str(&text[done..span.start]);
            let list = replacements(&self.rules, span.kind);
            // Keys and tokens share a list and its turn.
            let turn = &mut turns[if span.kind.is_secret() { 0 } else { span.kind as usize }];
            if !list.is_empty() {
                result.push_str(&list[*turn % list.len()]);
                *turn += 1;
            }
            done = span.end;
        }
        result.push_str(&text[done..]);
        result
    }
}

/// Replacements of a kind.
fn replacements(rules: &PrivacyRules, kind: Kind) -> &[String] {
    match kind {
        Kind::Email => &rules.email_replacements,
        Kind::Ipv4 => &rules.ipv4_replacements,
        Kind::Ipv6 => &rules.ipv6_replacements,
        Kind::Phone => &rules.phone_replacements,
        Kind::Card => &rules.card_replacements,
        Kind::Iban => &rules.iban_replacements,
        _ => &rules.secret_replacements,
    }
}
