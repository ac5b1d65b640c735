//! URLs: the host in one, its registered domain, and filters by lists of domains, URLs and words.

mod filter;
mod lists;

pub use filter::{UrlFilter, UrlVerdict};
pub use lists::{ListError, StringSet, read_list};

/// The host of a URL, in small letters, without user, port and final dot. None if there is none.
///
/// A URL without a scheme is taken for one that begins with its host, as tldextract does.
pub fn host(url: &str) -> Option<String> {
    let url = url.trim();
    let scheme = url.find("://").filter(|at| {
        let s = &url[..*at];
        !s.is_empty() && s.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.'))
    });
    let rest = match scheme {
        Some(at) => &url[at + 3..],
        None => url.strip_prefix("//").unwrap_or(url),
    };
    let authority = rest.split(['/', '?', '#', '\\']).next().unwrap_or_default();
    let host = authority.rsplit('@').next().unwrap_or_default();
    let host = match host.strip_prefix('[') {
        // An IPv6 address keeps its colons.
        Some(v6) => v6.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    // The dots of other scripts separate labels too (UTS 46).
    let host: String = host
        .chars()
        .map(|c| if matches!(c, '\u{3002}' | '\u{ff0e}' | '\u{ff61}') { '.' } else { c })
        .collect();
    let host = host.trim_matches('.').to_lowercase();
    (!host.is_empty() && !host.contains(char::is_whitespace)).then_some(host)
}

/// Whether a host is an address, not a name.
pub fn is_address(host: &str) -> bool {
    host.parse::<std::net::IpAddr>().is_ok()
}

/// The registered domain of a host in small letters: the public suffix and one label (`example.co.uk` of
/// `www.example.co.uk`). Only the list's ICANN part counts, as in tldextract: that of `me.blogspot.com` is
/// `blogspot.com`. None for addresses, for suffixes themselves, and for hosts under no known suffix.
pub fn registered_domain(host: &str) -> Option<&str> {
    if is_address(host) {
        return None;
    }
    let mut rest = host;
    let suffix = loop {
        let suffix = psl::suffix(rest.as_bytes())?;
        let length = suffix.as_bytes().len();
        match suffix.typ() {
            Some(psl::Type::Icann) => break length,
            // A private suffix such as `blogspot.com` lies below one of the ICANN part.
            Some(psl::Type::Private) => {
                let text = &rest[rest.len() - length..];
                rest = text.split_once('.')?.1;
            }
            None => return None,
        }
    };
    let before = host.len().checked_sub(suffix + 1)?;
    let label = host[..before].rfind('.').map_or(0, |at| at + 1);
    (label < before).then(|| &host[label..])
}

/// The last label of a host that is a name: `jp`, `de`, `com`.
pub fn top_label(host: &str) -> Option<&str> {
    if is_address(host) {
        return None;
    }
    host.rsplit('.').next().filter(|l| !l.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn hosts() {
        for (url, wanted) in [
            ("https://WWW.Example.com:8080/a?b#c", Some("www.example.com")),
            ("http://user:pass@host.de./", Some("host.de")),
            ("//cdn.example.org/x", Some("cdn.example.org")),
            ("example.org/x", Some("example.org")),
            ("http://[2001:db8::1]:80/", Some("2001:db8::1")),
            ("http://例え。jp/", Some("例え.jp")),
            ("http:\\\\evil", Some("http")),
            ("http://a.com\\@b.com", Some("a.com")),
            ("", None),
            ("https:///path", None),
            ("http://a b/", None),
        ] {
            assert_eq!(host(url).as_deref(), wanted, "{url}");
        }
    }

    #[test]
    fn domains() {
        for (host, wanted) in [
            ("www.example.co.uk", Some("example.co.uk")),
            ("example.com", Some("example.com")),
            ("me.blogspot.com", Some("blogspot.com")),
            ("a.b.user.github.io", Some("github.io")),
            ("co.uk", None),
            ("com", None),
            ("localhost", None),
            ("192.168.0.1", None),
            ("2001:db8::1", None),
            ("x.unknownsuffix", None),
            ("www.city.kawasaki.jp", Some("city.kawasaki.jp")),
        ] {
            assert_eq!(registered_domain(host), wanted, "{host}");
        }
    }

    proptest! {
        #[test]
        fn fuzz_url_arbitrary_text(url in "\\PC{0,80}", dots in "[a-z.@:/\\[\\]%。-]{0,40}") {
            for text in [&url, &dots] {
                if let Some(h) = host(text) {
                    if let Some(d) = registered_domain(&h) {
                        prop_assert!(h.ends_with(d) && d.contains('.'));
                    }
                    top_label(&h);
                }
            }
        }
    }
}
