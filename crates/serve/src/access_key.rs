//! The key that clients send, if the server wants one.

use bessemer_http::header::HeaderValue;

/// A key, kept as its hash: the time of a comparison does not depend on the keys.
#[derive(Debug, Clone)]
pub struct AccessKey(blake3::Hash);

impl AccessKey {
    /// A key of printable ASCII without blanks, at least one character.
    ///
    /// # Errors
    /// A sentence that does not repeat the key.
    pub fn new(key: &str) -> Result<AccessKey, String> {
        match !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_graphic()) {
            true => Ok(AccessKey(blake3::hash(key.as_bytes()))),
            false => Err("wanted a key of printable ASCII characters without blanks".into()),
        }
    }

    /// Whether an `Authorization` header carries the key.
    pub(crate) fn is_in(&self, authorization: Option<&HeaderValue>) -> bool {
        let Some((scheme, key)) =
            authorization.and_then(|value| value.to_str().ok()).and_then(|value| value.split_once(' '))
        else {
            return false;
        };
        // Equality of hashes takes constant time, says their type.
        scheme.eq_ignore_ascii_case("bearer") && blake3::hash(key.trim().as_bytes()) == self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_key_itself_opens() {
        let key = AccessKey::new("sk-abc").unwrap();
        let opens = |value: &str| key.is_in(Some(&HeaderValue::from_str(value).unwrap()));
        assert!(opens("Bearer sk-abc") && opens("bearer  sk-abc "));
        for other in
            ["sk-abc", "Bearer sk-ab", "Bearer sk-abcd", "Bearer ", "Basic sk-abc", "Bearer sk-abc x"]
        {
            assert!(!opens(other), "{other}");
        }
        assert!(!key.is_in(None));
        assert!(AccessKey::new("").is_err() && AccessKey::new("a b").is_err());
        assert!(!format!("{key:?}").contains("sk-abc"));
    }
}
