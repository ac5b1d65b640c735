//! What is looked for and what it is replaced by.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Patterns of e-mail addresses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum EmailRule {
    /// No search.
    Off,
    /// datatrove's pattern (FineWeb).
    Datatrove,
    /// Dolma's pattern: anything with an @ between white space whose domain has a dot.
    Dolma,
    /// datatrove's pattern below a top-level domain under which people have mailboxes; no login at a host (`git@host:path`), no user
    /// of a URL, no identifier of a message.
    #[default]
    Strict,
}

/// Which IPv4 addresses are found; only those that the public internet routes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Ipv4Rule {
    /// No search.
    Off,
    /// datatrove's pattern (FineWeb), which also finds addresses within longer numbers.
    Datatrove,
    /// Addresses that stand by themselves: no version, no number of a section, no object identifier, no part of a name.
    #[default]
    Strict,
}

/// Patterns of phone numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PhoneRule {
    /// No search.
    #[default]
    Off,
    /// Dolma's pattern for the United States: ten digits behind white space, unless isbn, doi or # stands near.
    Dolma,
    /// Numbers with + by the numbering plans of their countries, and written North American numbers that can be somebody's.
    International,
}

/// Personal data and secrets in the text: what is found is replaced.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PrivacyRules {
    /// E-mail addresses: off, datatrove, dolma or strict.
    pub email: EmailRule,
    /// IPv4 addresses: off, datatrove or strict.
    pub ipv4: Ipv4Rule,
    /// IPv6 addresses that the public internet routes.
    pub ipv6: bool,
    /// Phone numbers: off, dolma or international.
    pub phone: PhoneRule,
    /// Keys and tokens: those of known form (AWS, GitHub, Slack, Google, Stripe and others), private keys, JSON web tokens,
    /// and random-looking values assigned to names such as api_key.
    pub secrets: bool,
    /// Payment card numbers: an issuer's range, its length, and Luhn's check.
    pub cards: bool,
    /// International bank account numbers: a country's length, and the check modulo 97.
    pub ibans: bool,
    /// Documents with more finds than this are dropped instead of edited; 0 keeps all.
    pub drop_above: u32,
    /// What stands in the place of an e-mail address, in turn within a document.
    pub email_replacements: Vec<String>,
    /// What stands in the place of an IPv4 address, in turn.
    pub ipv4_replacements: Vec<String>,
    /// What stands in the place of an IPv6 address, in turn.
    pub ipv6_replacements: Vec<String>,
    /// What stands in the place of a phone number, in turn.
    pub phone_replacements: Vec<String>,
    /// What stands in the place of a key or token, in turn.
    pub secret_replacements: Vec<String>,
    /// What stands in the place of a card number, in turn.
    pub card_replacements: Vec<String>,
    /// What stands in the place of a bank account number, in turn.
    pub iban_replacements: Vec<String>,
}

impl Default for PrivacyRules {
    fn default() -> Self {
        let list = |items: &[&str]| items.iter().map(|item| item.to_string()).collect();
        // Names and addresses that RFC 2606, 5737 and 3849 reserve for documentation: they read like the real thing,
        // reach nobody, and are not themselves replaced when a text is cleaned twice.
        PrivacyRules {
            email: EmailRule::Strict,
            ipv4: Ipv4Rule::Strict,
            ipv6: true,
            phone: PhoneRule::Off,
            secrets: true,
            cards: true,
            ibans: true,
            drop_above: 0,
            email_replacements: list(&["email@example.com", "firstname.lastname@example.org"]),
            ipv4_replacements: list(&["192.0.2.1", "198.51.100.1", "203.0.113.1"]),
            ipv6_replacements: list(&["2001:db8::1", "2001:db8::2"]),
            phone_replacements: list(&["[PHONE]"]),
            secret_replacements: list(&["[SECRET]"]),
            card_replacements: list(&["[CARD]"]),
            iban_replacements: list(&["[IBAN]"]),
        }
    }
}

impl PrivacyRules {
    /// Rules that find nothing, to switch single ones on.
    pub fn none() -> PrivacyRules {
        PrivacyRules {
            email: EmailRule::Off,
            ipv4: Ipv4Rule::Off,
            ipv6: false,
            secrets: false,
            cards: false,
            ibans: false,
            ..PrivacyRules::default()
        }
    }

    /// datatrove's PII formatter (FineWeb): e-mail and IPv4 addresses with its replacements.
    pub fn datatrove() -> PrivacyRules {
        let addresses = [
            "22.214.171.124",
            "126.96.36.199",
            "188.8.131.52",
            "184.108.40.206",
            "220.127.116.11",
            "18.104.22.168",
        ];
        PrivacyRules {
            email: EmailRule::Datatrove,
            ipv4: Ipv4Rule::Datatrove,
            ipv4_replacements: addresses.map(String::from).into(),
            ..PrivacyRules::none()
        }
    }

    /// Dolma's tagger: its e-mail and phone patterns and IPv4 addresses, masked by its marks.
    pub fn dolma() -> PrivacyRules {
        PrivacyRules {
            email: EmailRule::Dolma,
            ipv4: Ipv4Rule::Datatrove,
            phone: PhoneRule::Dolma,
            email_replacements: vec!["|||EMAIL_ADDRESS|||".into()],
            phone_replacements: vec!["|||PHONE_NUMBER|||".into()],
            ipv4_replacements: vec!["|||IP_ADDRESS|||".into()],
            ..PrivacyRules::none()
        }
    }

    /// Checks that there is something to replace with. The message begins with `key`, the name of this table.
    pub fn check(&self, key: &str) -> Result<(), String> {
        for (on, list, name) in [
            (self.email != EmailRule::Off, &self.email_replacements, "email"),
            (self.ipv4 != Ipv4Rule::Off, &self.ipv4_replacements, "ipv4"),
            (self.ipv6, &self.ipv6_replacements, "ipv6"),
            (self.phone != PhoneRule::Off, &self.phone_replacements, "phone"),
            (self.secrets, &self.secret_replacements, "secret"),
            (self.cards, &self.card_replacements, "card"),
            (self.ibans, &self.iban_replacements, "iban"),
        ] {
            if on && list.is_empty() {
                return Err(format!("{key}.{name}_replacements = []: expected at least one replacement"));
            }
        }
        Ok(())
    }
}
