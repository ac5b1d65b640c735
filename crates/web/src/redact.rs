//! Credentials taken out of addresses before these are written to a file or shown.
//!
//! What is replaced, wherever it stands in a text: `user:password@` of a URL; the values of query parameters whose names say
//! that they authorise (presigned URLs of S3, Google Cloud Storage and Azure, access tokens, API keys); identifiers of AWS
//! access keys; and values assigned to the names under which object stores take their secrets. The rest of the address
//! stays, so that a message still says which file it is about.

use std::borrow::Cow;

/// Text in the place of a credential.
pub const REDACTED: &str = "REDACTED";

/// Parts of names of query parameters whose values authorise, in lower case.
const SECRET_PARTS: &[&str] = &[
    "signature",
    "credential",
    "token",
    "secret",
    "password",
    "passwd",
    "apikey",
    "api_key",
    "api-key",
    "accesskey",
    "access_key",
    "access-key",
];
/// Whole names of such parameters, in lower case.
const SECRET_NAMES: &[&str] = &["sig", "key", "auth", "authorization", "pwd", "pass", "code", "jwt"];
/// Ends of names whose assigned values are secrets of an object store, in lower case.
const SETTINGS: &[&str] =
    &["secret_access_key", "session_token", "account_key", "accountkey", "sharedaccesssignature"];
/// Beginnings of identifiers of AWS keys; sixteen characters of A-Z and 0-9 follow.
const AWS_KEYS: &[&str] = &["AKIA", "ASIA", "ABIA", "ACCA"];

/// Whether a byte ends an address in prose, TOML, JSON or HTML.
fn ends_address(byte: u8) -> bool {
    byte.is_ascii_whitespace() || byte.is_ascii_control() || b"\"'`<>\\".contains(&byte)
}

/// `text` with every credential replaced by [`REDACTED`]; borrowed where there is none.
pub fn redact(text: &str) -> Cow<'_, str> {
    let mut secrets = Vec::new();
    user_infos(text, &mut secrets);
    parameters(text, &mut secrets);
    settings(text, &mut secrets);
    aws_keys(text, &mut secrets);
    secrets.retain(|secret| !secret.is_empty() && &text[secret.clone()] != REDACTED);
    if secrets.is_empty() {
        return Cow::Borrowed(text);
    }
    secrets.sort_unstable_by_key(|secret| (secret.start, secret.end));
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    for secret in secrets {
        if secret.start >= at {
            out.push_str(&text[at..secret.start]);
            out.push_str(REDACTED);
        }
        at = at.max(secret.end);
    }
    out.push_str(&text[at..]);
    Cow::Owned(out)
}

type Secrets = Vec<std::ops::Range<usize>>;

/// `user:password` between `://` and `@`.
fn user_infos(text: &str, secrets: &mut Secrets) {
    for (at, mark) in text.match_indices("://") {
        let start = at + mark.len();
        let authority = text.as_bytes()[start..].iter();
        let length = authority.take_while(|&&byte| !ends_address(byte) && !b"/?#".contains(&byte)).count();
        if let Some(end) = text[start..start + length].rfind('@') {
            secrets.push(start..start + end);
        }
    }
}

/// Values of parameters behind `?`, `&` or `;`.
fn parameters(text: &str, secrets: &mut Secrets) {
    let bytes = text.as_bytes();
    for (at, _) in text.match_indices('=') {
        let name = bytes[..at].iter().rev().take_while(|&&byte| is_name(byte)).count();
        let before = (at - name).checked_sub(1).map(|before| bytes[before]);
        if name == 0 || !before.is_some_and(|before| b"?&;".contains(&before)) {
            continue;
        }
        let name = text[at - name..at].to_ascii_lowercase().replace("%2d", "-").replace("%5f", "_");
        let secret =
            SECRET_NAMES.contains(&name.as_str()) || SECRET_PARTS.iter().any(|part| name.contains(part));
        if secret {
            let value = bytes[at + 1..].iter();
            let length = value.take_while(|&&byte| !ends_address(byte) && !b"&#;".contains(&byte)).count();
            secrets.push(at + 1..at + 1 + length);
        }
    }
}

fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_%.".contains(&byte)
}

/// Values assigned by `=` or `:` to names such as `AWS_SECRET_ACCESS_KEY`.
fn settings(text: &str, secrets: &mut Secrets) {
    let bytes = text.as_bytes();
    for (at, _) in text.match_indices(['=', ':']) {
        let between = |byte: &&u8| b" \t\"'".contains(byte);
        let space = bytes[..at].iter().rev().take_while(between).count();
        let name = bytes[..at - space].iter().rev().take_while(|&&byte| is_name(byte)).count();
        let name = text[at - space - name..at - space].to_ascii_lowercase();
        if SETTINGS.iter().any(|end| name.ends_with(end)) {
            let start = at + 1 + bytes[at + 1..].iter().take_while(between).count();
            let value = bytes[start..].iter();
            let length = value.take_while(|&&byte| !ends_address(byte) && !b"&,;".contains(&byte)).count();
            secrets.push(start..start + length);
        }
    }
}

fn aws_keys(text: &str, secrets: &mut Secrets) {
    let bytes = text.as_bytes();
    for prefix in AWS_KEYS {
        for (at, _) in text.match_indices(prefix) {
            let length = bytes[at..].iter().take_while(|byte| byte.is_ascii_alphanumeric()).count();
            let alone = at == 0 || !bytes[at - 1].is_ascii_alphanumeric();
            let upper = bytes[at..at + length].iter().all(|byte| !byte.is_ascii_lowercase());
            if alone && upper && length == 20 {
                secrets.push(at..at + length);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_go_and_the_address_stays() {
        for (text, shown) in [
            ("https://user:pa@ss@host/a?b=c", "https://REDACTED@host/a?b=c"),
            ("s3://KEY:SECRET@bucket/x", "s3://REDACTED@bucket/x"),
            ("path = \"https://t0k3n@host\"", "path = \"https://REDACTED@host\""),
            (
                "https://b.s3.amazonaws.com/k.jsonl?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F2026&X-Amz-Date=2026&X-Amz-Signature=ab12 could not be read",
                "https://b.s3.amazonaws.com/k.jsonl?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=REDACTED&X-Amz-Date=2026&X-Amz-Signature=REDACTED could not be read",
            ),
            (
                "https://a.blob.core.windows.net/c/x?sv=2&sig=a%2Fb&se=3",
                "https://a.blob.core.windows.net/c/x?sv=2&sig=REDACTED&se=3",
            ),
            (
                "https://h/x?X%2DAmz%2DSecurity%2DToken=zz#a",
                "https://h/x?X%2DAmz%2DSecurity%2DToken=REDACTED#a",
            ),
            (
                "https://h/x?access_token=zz https://h/y?TOKEN=q\\n",
                "https://h/x?access_token=REDACTED https://h/y?TOKEN=REDACTED\\n",
            ),
            (
                "AWS_SECRET_ACCESS_KEY=wJalr/x aws_session_token: \"q\"",
                "AWS_SECRET_ACCESS_KEY=REDACTED aws_session_token: \"REDACTED\"",
            ),
            ("key AKIAIOSFODNN7EXAMPLE.", "key REDACTED."),
        ] {
            let once = redact(text);
            assert_eq!(once, shown);
            assert_eq!(redact(&once), once, "a second time changes nothing");
        }
    }

    #[test]
    fn what_is_no_credential_stays() {
        for text in [
            "",
            "https://host/a@b?page=2&tokens_per_page",
            "mail me@example.org, see http://example.org",
            "end_of_text_token = \"<|end|>\"\nbatch_tokens = 4096\nkey = 3",
            "AKIA and AKIAsomethinglowercase1",
            "漢://é?é=漢",
        ] {
            assert!(matches!(redact(text), Cow::Borrowed(_)), "{text}: {}", redact(text));
        }
    }
}
