//! The keys of `[corpus.privacy]`, and the rules of a search that they choose from.

mod rules;

pub use rules::{EmailRule, Ipv4Rule, PhoneRule, PrivacyRules};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Patterns of e-mail and IPv4 addresses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum AddressPatterns {
    /// Addresses as people write them: no versions, sections, object identifiers, logins or parts of URLs.
    #[default]
    Strict,
    /// datatrove's (FineWeb).
    Datatrove,
}

/// `[corpus.privacy]`: personal data. Does not touch a single `file` source.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PrivacyConfig {
    /// Patterns of e-mail and IPv4 addresses: strict, which passes over versions, section numbers, object identifiers and logins such as
    /// git@host:path, or datatrove.
    pub patterns: AddressPatterns,
    /// Replace e-mail addresses.
    pub emails: bool,
    /// Replacements for e-mail addresses, used in turn within a document.
    pub email_replacements: Vec<String>,
    /// Replace IPv4 addresses that are reachable from the public internet.
    pub ips: bool,
    /// Replacements for IPv4 addresses, used in turn within a document.
    pub ip_replacements: Vec<String>,
    /// Remove lines that name authors and copyright holders, and licence headers of code files. The attribution
    /// file keeps each source's licence.
    pub attribution_lines: bool,
    /// Replace IPv6 addresses that are reachable from the public internet.
    pub ipv6: bool,
    /// Phone numbers to replace: off, dolma or international.
    pub phones: PhoneRule,
    /// Replace payment card numbers: an issuer's range, its length, and Luhn's check.
    pub cards: bool,
    /// Replace international bank account numbers: a country's length, and the check modulo 97.
    pub ibans: bool,
    /// Replace keys and tokens: those of known form, private keys, JSON web tokens, and random-looking values assigned to names such
    /// as api_key.
    pub secrets: bool,
    /// Documents with more finds of `ipv6`, `phones`, `cards`, `ibans` and `secrets` together than this are dropped
    /// (`personal-data`); 0 keeps all.
    pub drop_above: u32,
    /// Replacements for IPv6 addresses, used in turn within a document.
    pub ipv6_replacements: Vec<String>,
    /// Replacements for phone numbers.
    pub phone_replacements: Vec<String>,
    /// Replacements for card numbers.
    pub card_replacements: Vec<String>,
    /// Replacements for bank account numbers.
    pub iban_replacements: Vec<String>,
    /// Replacements for keys and tokens.
    pub secret_replacements: Vec<String>,
}

impl Default for PrivacyConfig {
    fn default() -> Self {
        // Addresses that RFC 2606 and RFC 5737 reserve for documentation: they read like the real thing, reach
        // nobody, and are not themselves replaced when a text is cleaned twice.
        let rules = PrivacyRules::default();
        PrivacyConfig {
            patterns: AddressPatterns::Strict,
            emails: true,
            email_replacements: vec!["email@example.com".into(), "firstname.lastname@example.org".into()],
            ips: true,
            ip_replacements: vec!["192.0.2.1".into(), "198.51.100.1".into(), "203.0.113.1".into()],
            attribution_lines: true,
            ipv6: false,
            phones: PhoneRule::Off,
            cards: false,
            ibans: false,
            secrets: false,
            drop_above: 0,
            ipv6_replacements: rules.ipv6_replacements,
            phone_replacements: rules.phone_replacements,
            card_replacements: rules.card_replacements,
            iban_replacements: rules.iban_replacements,
            secret_replacements: rules.secret_replacements,
        }
    }
}

impl PrivacyConfig {
    /// Whether more is looked for than e-mail and IPv4 addresses.
    pub fn finds(&self) -> bool {
        self.ipv6 || self.phones != PhoneRule::Off || self.cards || self.ibans || self.secrets
    }

    /// What is looked for beside e-mail and IPv4 addresses.
    pub fn rules(&self) -> PrivacyRules {
        PrivacyRules {
            ipv6: self.ipv6,
            phone: self.phones,
            cards: self.cards,
            ibans: self.ibans,
            secrets: self.secrets,
            drop_above: self.drop_above,
            ipv6_replacements: self.ipv6_replacements.clone(),
            phone_replacements: self.phone_replacements.clone(),
            card_replacements: self.card_replacements.clone(),
            iban_replacements: self.iban_replacements.clone(),
            secret_replacements: self.secret_replacements.clone(),
            ..PrivacyRules::none()
        }
    }

    /// Checks that there is something to replace with.
    pub fn check(&self) -> Result<(), String> {
        for (on, list, key) in [
            (self.emails, &self.email_replacements, "corpus.privacy.email_replacements"),
            (self.ips, &self.ip_replacements, "corpus.privacy.ip_replacements"),
        ] {
            if on && list.is_empty() {
                return Err(format!("{key} = []: expected at least one replacement"));
            }
        }
        self.rules().check("corpus.privacy")
    }
}
