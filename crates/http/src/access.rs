//! Which requests a server takes: for its own hosts, and writes from its own pages only.
//!
//! A page of any site can make its visitor's browser send requests to an address of this machine. Three checks of the head,
//! before anything of the body is read, keep such pages out:
//!
//! - On a loopback listener `Host` must name this machine or an allowed host, so that a foreign name that resolves to 127.0.0.1 (DNS rebinding) gets
//!   status 421.
//! - `Origin` of a request that may change something must be the server itself or an allowed origin; others get 403.
//! - Its body must be `application/json` (else 415), which browsers send to another origin only after a preflight that the server grants.

use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method, StatusCode};
use std::net::{IpAddr, Ipv6Addr};

/// Longest part of a header that an error repeats, characters.
const SHOWN: usize = 80;
/// Time for which a browser may keep the answer to a preflight, seconds.
const PREFLIGHT_SECONDS: &str = "600";

/// Hosts and origins beyond a server's own.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Access {
    /// Host names without a port under which a loopback listener is reached, such as that of a proxy before it. On other
    /// listeners every host is taken if there are none, else only these and this machine's.
    pub hosts: Vec<String>,
    /// Origins (`https://example.org`) whose pages may send requests and read the answers (CORS); `*` stands for all.
    pub origins: Vec<String>,
}

/// Refusal of a head.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) status: StatusCode,
    pub(crate) what: String,
}

fn refused(status: StatusCode, what: String) -> Result<(), Refused> {
    Err(Refused { status, what })
}

fn shown(value: &str) -> String {
    format!("{:?}", value.chars().take(SHOWN).collect::<String>())
}

/// Host and port of an authority (`[::1]:8080`), in lower case.
fn host_and_port(authority: &str) -> (String, Option<u16>) {
    let after_brackets = authority.rfind(']').map_or(0, |at| at + 1);
    let (host, port) = match authority[after_brackets..].rfind(':') {
        Some(colon) => {
            (&authority[..after_brackets + colon], authority[after_brackets + colon + 1..].parse().ok())
        }
        None => (authority, None),
    };
    (host.trim_end_matches('.').to_ascii_lowercase(), port)
}

/// Whether a host is a name of this machine that no foreign name server gives.
fn is_local(host: &str) -> bool {
    let address = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    host == "localhost" || address.parse().is_ok_and(|address: IpAddr| is_loopback(address))
}

/// Whether only this machine reaches an address.
pub(crate) fn is_loopback(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_loopback(),
        IpAddr::V6(address) => {
            address == Ipv6Addr::LOCALHOST || address.to_ipv4_mapped().is_some_and(|v4| v4.is_loopback())
        }
    }
}

fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, Refused> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => value.to_str().map(Some).map_err(|_| Refused {
            status: StatusCode::BAD_REQUEST,
            what: format!("wanted {name} in ASCII"),
        }),
        (Some(_), Some(_)) => {
            Err(Refused { status: StatusCode::BAD_REQUEST, what: format!("wanted {name} once") })
        }
    }
}

/// Whether requests of a method leave everything as it is.
fn only_reads(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
}

impl Access {
    /// Checks a head. `loopback`: whether the server listens on this machine only; `has_body`: whether a body follows.
    pub(crate) fn check(&self, head: &Parts, loopback: bool, has_body: bool) -> Result<(), Refused> {
        let host = only(&head.headers, &header::HOST)?;
        // A target with an authority outranks `Host` (RFC 9112, 3.2.2).
        let authority = head.uri.authority().map(|authority| authority.as_str()).or(host);
        match authority {
            None if head.version >= hyper::Version::HTTP_11 => {
                return refused(StatusCode::BAD_REQUEST, "wanted a Host".into());
            }
            None => {}
            Some(authority) => self.check_host(authority, loopback)?,
        }
        if only_reads(&head.method) {
            return Ok(());
        }
        if let Some(origin) = only(&head.headers, &header::ORIGIN)?
            && !self.allows(origin)
            && !is_same(origin, authority)
        {
            let what = format!(
                "wanted a request from this server's own page or an allowed origin, found the origin {}",
                shown(origin)
            );
            return refused(StatusCode::FORBIDDEN, what);
        }
        let kind = only(&head.headers, &header::CONTENT_TYPE)?.unwrap_or("none");
        let media_type = kind.split(';').next().unwrap_or_default().trim();
        match media_type.eq_ignore_ascii_case("application/json") {
            false if has_body => refused(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                format!("wanted a body with Content-Type: application/json, found {}", shown(kind)),
            ),
            _ => Ok(()),
        }
    }

    fn check_host(&self, authority: &str, loopback: bool) -> Result<(), Refused> {
        let (host, _) = host_and_port(authority);
        let open = !loopback && self.hosts.is_empty();
        if open || is_local(&host) || self.hosts.iter().any(|one| host_and_port(one).0 == host) {
            return Ok(());
        }
        let what = format!(
            "wanted a host of this machine (localhost, 127.0.0.1, [::1]) or an allowed one, found {}",
            shown(authority)
        );
        refused(StatusCode::MISDIRECTED_REQUEST, what)
    }

    fn allows(&self, origin: &str) -> bool {
        self.origins.iter().any(|one| one == "*" || one.trim_end_matches('/').eq_ignore_ascii_case(origin))
    }

    /// Headers of answers to a request of an allowed origin, with which its page may read them.
    pub(crate) fn cors(&self, head: &Parts) -> Option<Vec<(HeaderName, HeaderValue)>> {
        let origin = head.headers.get(header::ORIGIN)?;
        if !self.allows(origin.to_str().ok()?) {
            return None;
        }
        Some(vec![
            (header::ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone()),
            (header::VARY, HeaderValue::from_static("Origin")),
        ])
    }

    /// Headers that grant a preflight of an allowed origin, if the request is one.
    pub(crate) fn preflight(&self, head: &Parts) -> Option<Vec<(HeaderName, HeaderValue)>> {
        if head.method != Method::OPTIONS || !head.headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
        {
            return None;
        }
        let mut headers = self.cors(head)?;
        let fixed = [
            (header::ACCESS_CONTROL_ALLOW_METHODS, "GET, HEAD, POST"),
            (header::ACCESS_CONTROL_MAX_AGE, PREFLIGHT_SECONDS),
        ];
        headers.extend(fixed.map(|(name, value)| (name, HeaderValue::from_static(value))));
        // Clients send headers of their own, such as OpenAI's `x-stainless-*`; none has a meaning here that needs protection.
        if let Some(wanted) = head.headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS) {
            headers.push((header::ACCESS_CONTROL_ALLOW_HEADERS, wanted.clone()));
        }
        Some(headers)
    }
}

/// Whether an origin is that of the host that was asked for. The scheme does not count: a proxy may take `https`.
fn is_same(origin: &str, authority: Option<&str>) -> bool {
    let Some((scheme, of_origin)) = origin.split_once("://") else { return false };
    let usual = match scheme {
        "https" => 443,
        "http" => 80,
        _ => return false,
    };
    let with_port = |authority: &str| {
        let (host, port) = host_and_port(authority);
        (host, port.unwrap_or(usual))
    };
    authority.is_some_and(|authority| with_port(authority) == with_port(of_origin))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::Request;

    fn head(method: &str, target: &str, headers: &[(&str, &str)]) -> Parts {
        let mut request = Request::builder().method(method).uri(target);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    fn status(access: &Access, loopback: bool, head: &Parts) -> u16 {
        match access.check(head, loopback, head.method == Method::POST) {
            Ok(()) => 200,
            Err(refused) => refused.status.as_u16(),
        }
    }

    #[test]
    fn a_loopback_listener_takes_local_and_allowed_hosts_only() {
        let access = Access { hosts: vec!["Models.example".into()], origins: vec![] };
        for (host, wanted) in [
            ("localhost", 200),
            ("LocalHost:8080", 200),
            ("localhost.:1", 200),
            ("127.0.0.1", 200),
            ("127.8.9.10:99", 200),
            ("[::1]", 200),
            ("[::1]:8080", 200),
            ("[::ffff:127.0.0.1]", 200),
            ("models.example:443", 200),
            ("evil.example", 421),
            ("evil.example:8080", 421),
            ("localhost.evil.example", 421),
            ("127.0.0.1.evil.example", 421),
            ("128.0.0.1", 421),
            ("0.0.0.0", 421),
            ("[::2]", 421),
            ("[::]", 421),
            ("", 421),
        ] {
            let head = head("GET", "/", &[("host", host)]);
            assert_eq!(status(&access, true, &head), wanted, "{host}");
            // A listener that others reach: any host where none is named.
            assert_eq!(status(&access, false, &head), wanted, "{host}");
            assert_eq!(status(&Access::default(), false, &head), 200, "{host}");
        }
        assert_eq!(status(&access, true, &head("GET", "/", &[])), 400);
        assert_eq!(status(&access, true, &head("GET", "/", &[("host", "localhost"), ("host", "evil")])), 400);
        // A target with an authority outranks the header.
        let absolute = head("GET", "http://evil.example/", &[("host", "localhost")]);
        assert_eq!(status(&access, true, &absolute), 421);
    }

    #[test]
    fn writes_come_from_the_own_page_or_an_allowed_origin_as_json() {
        let access =
            Access { hosts: vec!["models.example".into()], origins: vec!["https://app.example".into()] };
        let local = "localhost:8080";
        for (host, origin, kind, wanted) in [
            (local, None, "application/json", 200),
            (local, Some("http://localhost:8080"), "Application/JSON; charset=utf-8", 200),
            (local, Some("http://localhost:8081"), "application/json", 403),
            (local, Some("http://127.0.0.1:8080"), "application/json", 403),
            (local, Some("null"), "application/json", 403),
            (local, Some("file://"), "application/json", 403),
            (local, Some("https://evil.example"), "application/json", 403),
            (local, Some("https://app.example"), "application/json", 200),
            (local, Some("https://app.example.evil"), "application/json", 403),
            // A proxy with TLS.
            ("models.example", Some("https://models.example"), "application/json", 200),
            ("localhost", Some("http://localhost:80"), "application/json", 200),
            (local, None, "text/plain", 415),
            (local, None, "application/x-www-form-urlencoded", 415),
            (local, None, "application/jsonp", 415),
        ] {
            let mut headers = vec![("host", host), ("content-type", kind)];
            headers.extend(origin.map(|origin| ("origin", origin)));
            let head = head("POST", "/v1/completions", &headers);
            assert_eq!(status(&access, true, &head), wanted, "{host} {origin:?} {kind}");
        }
        assert_eq!(status(&access, true, &head("POST", "/", &[("host", local)])), 415);
        // Reads have no effect, and without a CORS header no other page sees their answers.
        let read = head("GET", "/", &[("host", local), ("origin", "https://evil.example")]);
        assert_eq!(status(&access, true, &read), 200);
        assert_eq!(access.cors(&read), None);
        let all = Access { origins: vec!["*".into()], ..Access::default() };
        assert_eq!(all.cors(&read).unwrap()[0].1, "https://evil.example");
    }
}
