//! Kind of site that a document comes from, derived from its URL.

use crate::error::{Result, ScoreError};
use std::collections::HashMap;

/// The built-in list, in the format of [`DomainTags::with_lines`].
const BUILT_IN: &str = include_str!("domains.txt");

/// The tag of hosts that no list knows.
pub const OTHER: &str = "other";

/// The host of a URL in lower case, without user, port and a leading `www.`; `None` where there is none.
pub fn host_of(url: &str) -> Option<String> {
    let rest = match url.split_once("://") {
        Some((_, rest)) => rest,
        None => url.strip_prefix("//").unwrap_or(url),
    };
    let authority = rest.split(['/', '?', '#', '\\']).next().unwrap_or_default();
    let host = authority.rsplit('@').next().unwrap_or_default();
    let host = if host.starts_with('[') {
        host.split_inclusive(']').next().unwrap_or_default()
    } else {
        host.split(':').next().unwrap_or_default()
    };
    let host = host.trim_end_matches('.').to_lowercase();
    let host = host.strip_prefix("www.").unwrap_or(&host);
    let plausible = host.contains('.') || host.starts_with('[');
    (plausible && !host.contains(char::is_whitespace)).then(|| host.to_owned())
}

/// Tags of hosts.
#[derive(Debug, Clone)]
pub struct DomainTags {
    tags: HashMap<String, String>,
}

impl DomainTags {
    /// The built-in list with the lines `domain tag` of `text` on top; lines that begin with `#` are comments.
    ///
    /// # Errors
    /// Where a line is something else; `name` is for errors.
    pub fn with_lines(text: &str, name: &str) -> Result<DomainTags> {
        let mut tags = HashMap::new();
        let numbered = |text| str::lines(text).zip(1..);
        for (line, number) in numbered(BUILT_IN).chain(numbered(text)) {
            let mut fields = line.split_whitespace();
            match (fields.next(), fields.next(), fields.next()) {
                (None, ..) => {}
                (Some(first), ..) if first.starts_with('#') => {}
                (Some(domain), Some(tag), None) => {
                    tags.insert(domain.to_lowercase(), tag.to_owned());
                }
                _ => {
                    let what = format!("wanted \"domain tag\", found {line:?}");
                    return Err(ScoreError::Line { name: name.to_owned(), line: number, what });
                }
            }
        }
        Ok(DomainTags { tags })
    }

    /// The tag of a URL: that of its host or the nearest parent in the list; `academic`, `government` and `military` by
    /// the rules of names (.edu, .ac.uk, .gov, .gov.fr, .mil); else [`OTHER`].
    pub fn tag(&self, url: &str) -> &str {
        let Some(host) = host_of(url) else { return OTHER };
        let mut parent = host.as_str();
        loop {
            if let Some(tag) = self.tags.get(parent) {
                return tag;
            }
            match parent.split_once('.') {
                Some((_, rest)) => parent = rest,
                None => break,
            }
        }
        let labels: Vec<&str> = host.rsplit('.').collect();
        // example.edu, example.ac.uk, example.gov.fr
        let country = labels.first().is_some_and(|top| top.len() == 2) && labels.len() > 2;
        match (labels.first().copied(), labels.get(1).copied().filter(|_| country)) {
            (Some("edu"), _) | (_, Some("edu" | "ac")) => "academic",
            (Some("gov"), _) | (_, Some("gov" | "gob" | "gouv" | "go")) => "government",
            (Some("mil"), _) | (_, Some("mil")) => "military",
            _ => OTHER,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_of_urls() {
        for (url, host) in [
            ("https://user:pw@WWW.Example.com:8080/a?b#c", Some("example.com")),
            ("//cdn.example.org/x", Some("cdn.example.org")),
            ("http://[2001:db8::1]:80/", Some("[2001:db8::1]")),
            ("example.net./path", Some("example.net")),
            ("mailto", None),
            ("", None),
        ] {
            assert_eq!(host_of(url).as_deref(), host, "{url}");
        }
    }

    #[test]
    fn tags_follow_lists_and_names() {
        let tags = DomainTags::with_lines("# mine\nexample.com  cooking\nde.wikipedia.org german\n", "t")
            .expect("parses");
        for (url, tag) in [
            ("https://en.wikipedia.org/wiki/Steel", "encyclopedia"),
            ("https://de.wikipedia.org/wiki/Stahl", "german"),
            ("http://a.b.example.com/", "cooking"),
            ("https://notexample.com/", OTHER),
            ("https://cs.stanford.edu/x", "academic"),
            ("https://www.ox.ac.uk", "academic"),
            ("https://data.gouv.fr", "government"),
            ("no url", OTHER),
        ] {
            assert_eq!(tags.tag(url), tag, "{url}");
        }
        assert!(DomainTags::with_lines("one two three", "t").is_err());
    }
}
