//! What kinds of personal data and secrets there are.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A kind of personal data or secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A PEM block with a private key.
    PrivateKey,
    /// A JSON web token.
    Jwt,
    /// The id of an AWS access key.
    AwsKey,
    /// A GitHub token.
    GithubToken,
    /// A Slack token or webhook.
    SlackToken,
    /// A Google API key or OAuth token.
    GoogleKey,
    /// A secret or restricted Stripe key.
    StripeKey,
    /// A token of another service with a prefix of its own.
    ServiceToken,
    /// A random-looking value assigned to a name such as `api_key`.
    AssignedSecret,
    /// An e-mail address.
    Email,
    /// A payment card number.
    Card,
    /// An international bank account number.
    Iban,
    /// A publicly routed IPv4 address.
    Ipv4,
    /// A publicly routed IPv6 address.
    Ipv6,
    /// A phone number.
    Phone,
}

impl Kind {
    /// Every kind; of two that claim the same bytes the earlier one wins.
    pub const ALL: [Kind; 15] = [
        Kind::PrivateKey,
        Kind::Jwt,
        Kind::AwsKey,
        Kind::GithubToken,
        Kind::SlackToken,
        Kind::GoogleKey,
        Kind::StripeKey,
        Kind::ServiceToken,
        Kind::AssignedSecret,
        Kind::Email,
        Kind::Card,
        Kind::Iban,
        Kind::Ipv4,
        Kind::Ipv6,
        Kind::Phone,
    ];

    /// Name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::PrivateKey => "private-key",
            Kind::Jwt => "jwt",
            Kind::AwsKey => "aws-key",
            Kind::GithubToken => "github-token",
            Kind::SlackToken => "slack-token",
            Kind::GoogleKey => "google-key",
            Kind::StripeKey => "stripe-key",
            Kind::ServiceToken => "service-token",
            Kind::AssignedSecret => "assigned-secret",
            Kind::Email => "email",
            Kind::Card => "card",
            Kind::Iban => "iban",
            Kind::Ipv4 => "ipv4",
            Kind::Ipv6 => "ipv6",
            Kind::Phone => "phone",
        }
    }

    /// Keys and tokens, which share one list of replacements.
    pub const fn is_secret(self) -> bool {
        (self as usize) < Kind::Email as usize
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Bytes of a text and what they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Span {
    /// First byte.
    pub start: usize,
    /// One past the last byte.
    pub end: usize,
    /// Kind of data.
    pub kind: Kind,
}

/// How many of each kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts([u32; Kind::ALL.len()]);

impl Counts {
    /// Counts one more.
    pub fn add(&mut self, kind: Kind) {
        self.0[kind as usize] += 1;
    }

    /// How many of a kind.
    pub fn of(&self, kind: Kind) -> u32 {
        self.0[kind as usize]
    }

    /// How many of all kinds.
    pub fn total(&self) -> u32 {
        self.0.iter().sum()
    }

    /// Kinds that occur, with their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (Kind, u32)> + '_ {
        Kind::ALL.into_iter().map(|kind| (kind, self.of(kind))).filter(|(_, count)| *count > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_numbered_as_listed_and_named_as_serialised() {
        for (index, kind) in Kind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, index);
            assert_eq!(serde_json::to_string(&kind).ok(), Some(format!("\"{kind}\"")));
            assert_eq!(kind.is_secret(), index < 9);
        }
    }
}
