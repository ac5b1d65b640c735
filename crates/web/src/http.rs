//! The HTTP message inside a response record, and its body as the page's author wrote it.
//!
//! Lenient where archives differ: crawlers store bodies as they came over the wire or already decoded, and both keep
//! the header. A coding is therefore undone only where the body is really in it.

use crate::fields::Fields;
use std::borrow::Cow;
use std::io::Read;

/// A response, its body as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response<'a> {
    /// Status code; 0 if the first line holds none.
    pub status: u16,
    /// Header fields.
    pub fields: Fields,
    /// The body as it lies in the record.
    pub body: &'a [u8],
}

/// Why there is no response, or no body.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HttpError {
    /// The first line is not that of a response.
    #[error("wanted an HTTP response, found {0:?}")]
    NoResponse(String),
    /// The header does not end.
    #[error("the header of the HTTP response has no end in {0} bytes")]
    NoEnd(usize),
    /// The body is in a content coding that is not known.
    #[error(
        "the body is in the content coding {0:?}; known are gzip, x-gzip, deflate, br, zstd and identity"
    )]
    Coding(String),
    /// The compressed body is damaged from its start on.
    #[error("the {coding} body is damaged: {message}")]
    Damaged {
        /// The content coding.
        coding: String,
        /// Error of the decompressor.
        message: String,
    },
    /// The body is larger than the limit once decompressed.
    #[error("the {coding} body of {compressed} bytes gives more than {limit}")]
    TooLarge {
        /// The content coding.
        coding: String,
        /// Bytes of the compressed body.
        compressed: usize,
        /// The limit.
        limit: usize,
    },
}

/// Bytes that brotli streams are read in.
const BROTLI_BUFFER: usize = 16 << 10;
/// Largest window of a zstd body: 2^23 = 8 MiB (RFC 9659).
const ZSTD_WINDOW_LOG: u32 = 23;
/// Longest header that is read.
const MAX_HEADER: usize = 1 << 20;

/// Whether a block begins like a response: with the status line of HTTP, or with `ICY`.
pub(crate) fn is_response(block: &[u8]) -> bool {
    let begins = |name: &[u8]| block.get(..name.len()).is_some_and(|head| head.eq_ignore_ascii_case(name));
    begins(b"HTTP/") || begins(b"ICY ")
}

/// Parses the block of a response record.
///
/// # Errors
/// The block begins neither with `HTTP/` nor, as SHOUTcast and some servers of its time answer, with `ICY`; or its header does not
/// end.
pub fn parse(block: &[u8]) -> Result<Response<'_>, HttpError> {
    let shown = |b: &[u8]| String::from_utf8_lossy(&b[..b.len().min(40)]).into_owned();
    if !is_response(block) {
        return Err(HttpError::NoResponse(shown(block)));
    }
    let mut fields = Fields::new();
    let mut status = None;
    let mut at = 0;
    while at < block.len().min(MAX_HEADER) {
        let end = memchr::memchr(b'\n', &block[at..]).map_or(block.len(), |n| at + n);
        let line = &block[at..end];
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        at = (end + 1).min(block.len());
        if status.is_none() {
            let code = line.split(|b| *b == b' ').filter(|w| !w.is_empty()).nth(1).unwrap_or_default();
            status = Some(std::str::from_utf8(code).ok().and_then(|c| c.parse().ok()).unwrap_or(0));
        } else if line.is_empty() {
            return Ok(Response { status: status.unwrap_or(0), fields, body: &block[at..] });
        } else {
            fields.add_line(line);
        }
    }
    if at >= block.len() {
        // A header alone, as of a redirection whose end was cut.
        return Ok(Response { status: status.unwrap_or(0), fields, body: &[] });
    }
    Err(HttpError::NoEnd(MAX_HEADER))
}

/// A body with its codings undone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Body<'a> {
    /// The bytes; those of the record where there was no coding to undo.
    pub bytes: Cow<'a, [u8]>,
    /// Whether it ends before its own end: the last chunk or the end of the compressed stream is missing.
    pub truncated: bool,
}

impl<'a> Response<'a> {
    /// `Content-Type`.
    pub fn content_type(&self) -> Option<&str> {
        self.fields.get("Content-Type")
    }

    /// The body without its transfer and content codings, at most `limit` bytes.
    ///
    /// # Errors
    /// A coding that is not known, a body damaged from its start, or one above the limit.
    pub fn decoded(&self, limit: usize) -> Result<Body<'a>, HttpError> {
        let mut body = Body { bytes: Cow::Borrowed(self.body), truncated: false };
        let chunked = self
            .fields
            .all("Transfer-Encoding")
            .flat_map(|v| v.split(','))
            .any(|v| v.trim().eq_ignore_ascii_case("chunked"));
        if let Some((bytes, whole)) = chunked.then(|| unchunk(self.body)).flatten() {
            body = Body { bytes: Cow::Owned(bytes), truncated: !whole };
        }
        let codings: Vec<String> = self
            .fields
            .all("Content-Encoding")
            .flat_map(|v| v.split(','))
            .map(|v| v.trim().to_ascii_lowercase())
            .filter(|v| !v.is_empty())
            .collect();
        // The last coding was applied last. More than a few are an attack.
        for coding in codings.iter().rev().take(4) {
            if let Some((bytes, whole)) = undo(coding, &body.bytes, limit)? {
                body = Body { bytes: Cow::Owned(bytes), truncated: body.truncated | !whole };
            }
        }
        if body.bytes.len() > limit {
            let compressed = self.body.len();
            return Err(HttpError::TooLarge { coding: "identity".into(), compressed, limit });
        }
        Ok(body)
    }
}

/// Joins chunks (RFC 9112, section 7.1). None if the body does not begin with a chunk; false if the last is missing.
fn unchunk(body: &[u8]) -> Option<(Vec<u8>, bool)> {
    let mut out = Vec::with_capacity(body.len());
    let mut rest = body;
    loop {
        let end = memchr::memchr(b'\n', &rest[..rest.len().min(4096)]);
        let size = end.and_then(|end| {
            let line = rest[..end].split(|b| *b == b';').next().unwrap_or_default().trim_ascii();
            let digits = std::str::from_utf8(line).ok().filter(|d| !d.is_empty() && !d.starts_with('+'))?;
            usize::from_str_radix(digits, 16).ok()
        });
        let (Some(end), Some(size)) = (end, size) else {
            return (!out.is_empty()).then_some((out, false));
        };
        rest = &rest[end + 1..];
        if size == 0 {
            return Some((out, true));
        }
        let Some(chunk) = rest.get(..size) else {
            // A body that only looks chunked: its first "chunk" is longer than all of it.
            if out.is_empty() && size > rest.len().saturating_mul(4) {
                return None;
            }
            out.extend_from_slice(rest);
            return Some((out, false));
        };
        out.extend_from_slice(chunk);
        rest = &rest[size..];
        rest = rest.strip_prefix(b"\r\n").or_else(|| rest.strip_prefix(b"\n")).unwrap_or(rest);
    }
}

/// Undoes a content coding; returns the bytes and whether they are whole, or nothing where the body is not in that coding.
fn undo(coding: &str, body: &[u8], limit: usize) -> Result<Option<(Vec<u8>, bool)>, HttpError> {
    match coding {
        "identity" | "none" | "utf-8" => Ok(None),
        "gzip" | "x-gzip" if body.starts_with(&[0x1f, 0x8b]) => {
            inflate(coding, flate2::read::MultiGzDecoder::new(body), body.len(), limit)
        }
        // RFC 1950 streams begin with a method of 8 and a check that is a multiple of 31; some servers send RFC 1951.
        "deflate" => {
            let zlib = body.len() > 1
                && body[0] & 15 == 8
                && (u16::from(body[0]) * 256 + u16::from(body[1])) % 31 == 0;
            if zlib {
                inflate(coding, flate2::read::ZlibDecoder::new(body), body.len(), limit)
            } else {
                inflate(coding, flate2::read::DeflateDecoder::new(body), body.len(), limit)
                    .or_else(|e| if looks_like_text(body) { Ok(None) } else { Err(e) })
            }
        }
        "zstd" if body.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) => {
            let damaged =
                |e: std::io::Error| HttpError::Damaged { coding: coding.to_string(), message: e.to_string() };
            let mut decoder = zstd::stream::read::Decoder::new(body).map_err(damaged)?;
            decoder.window_log_max(ZSTD_WINDOW_LOG).map_err(damaged)?;
            inflate(coding, decoder, body.len(), limit)
        }
        // Brotli streams have no mark at their beginning, but are hardly ever text.
        "br" if !body.is_empty() && !looks_like_text(body) => {
            inflate(coding, brotli_decompressor::Decompressor::new(body, BROTLI_BUFFER), body.len(), limit)
        }
        // The crawler decoded the body and kept the header.
        _ if body.is_empty() || looks_like_text(body) => Ok(None),
        _ => Err(HttpError::Coding(coding.to_string())),
    }
}

/// Markup or text, no compressed stream.
fn looks_like_text(body: &[u8]) -> bool {
    let head = &body[..body.len().min(512)];
    !head.iter().any(|b| *b < 9 || (*b > 13 && *b < 32 && *b != 27))
        && head.iter().filter(|b| **b >= 0x80).count() * 10 <= head.len() * 8
}

fn inflate(
    coding: &str,
    decoder: impl Read,
    compressed: usize,
    limit: usize,
) -> Result<Option<(Vec<u8>, bool)>, HttpError> {
    let mut out = Vec::new();
    let result = decoder.take(limit as u64 + 1).read_to_end(&mut out);
    if out.len() > limit {
        return Err(HttpError::TooLarge { coding: coding.to_string(), compressed, limit });
    }
    match result {
        Ok(_) => Ok(Some((out, true))),
        // What came before the damage is text all the same.
        Err(_) if !out.is_empty() => Ok(Some((out, false))),
        Err(e) => Err(HttpError::Damaged { coding: coding.to_string(), message: e.to_string() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Write;

    /// `brotli.compress(b"<html>hello hello hello</html>")` of Python's Brotli 1.2.
    const BROTLI: [u8; 34] = [
        0x8b, 0x0e, 0x80, 0x3c, 0x68, 0x74, 0x6d, 0x6c, 0x3e, 0x68, 0x65, 0x6c, 0x6c, 0x6f, 0x20, 0x68, 0x65,
        0x6c, 0x6c, 0x6f, 0x20, 0x68, 0x65, 0x6c, 0x6c, 0x6f, 0x3c, 0x2f, 0x68, 0x74, 0x6d, 0x6c, 0x3e, 0x03,
    ];

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut e = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        e.write_all(bytes).unwrap();
        e.finish().unwrap()
    }

    fn response(header: &str, body: &[u8]) -> Vec<u8> {
        [format!("HTTP/1.1 200 OK\r\n{header}\r\n").as_bytes(), body].concat()
    }

    #[test]
    fn status_fields_and_body() {
        let block = b"HTTP/1.1  404 Not Found\nContent-Type: text/html;\n charset=latin1\n\nbody";
        let r = parse(block).unwrap();
        assert_eq!(
            (r.status, r.content_type(), r.body),
            (404, Some("text/html; charset=latin1"), &b"body"[..])
        );
        assert_eq!(parse(b"HTTP/1.0 301\r\nLocation: x").unwrap().status, 301);
        let icy = parse(b"ICY 200 OK\r\nContent-Type:text/html\r\n\r\nbody").unwrap();
        assert_eq!((icy.status, icy.content_type(), icy.body), (200, Some("text/html"), &b"body"[..]));
        for other in [&b"<html>"[..], b"ICYX 200 OK\r\n\r\n"] {
            assert!(matches!(parse(other), Err(HttpError::NoResponse(_))));
        }
        assert!(matches!(parse(b"HTTP/1.1 200 OK\r\n".repeat(100_000).as_slice()), Err(HttpError::NoEnd(_))));
    }

    #[test]
    fn codings_are_undone_only_where_they_are() {
        let text = b"<html>hello hello hello</html>";
        let zipped = gzip(text);
        let mut zlib = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
        zlib.write_all(text).unwrap();
        let mut raw = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::fast());
        raw.write_all(text).unwrap();
        let (zlib, raw) = (zlib.finish().unwrap(), raw.finish().unwrap());
        let zstd = zstd::encode_all(&text[..], 3).unwrap();
        let chunked =
            [b"5;x=y\r\n<html\r\n".as_slice(), b"19\r\n>hello hello hello</html>\r\n0\r\n\r\n"].concat();
        for (header, body) in [
            ("", &text[..]),
            ("Content-Encoding: gzip\r\n", &zipped),
            ("Content-Encoding: gzip\r\n", text),
            ("Content-Encoding: br\r\n", text),
            ("Content-Encoding: br\r\n", &BROTLI),
            ("Content-Encoding: zstd\r\n", &zstd),
            ("Content-Encoding: zstd\r\n", text),
            ("Content-Encoding: deflate\r\n", &zlib),
            ("Content-Encoding: deflate\r\n", &raw),
            ("Content-Encoding: deflate\r\n", text),
            ("Transfer-Encoding: chunked\r\n", &chunked),
            ("Transfer-Encoding: chunked\r\n", text),
        ] {
            let block = response(header, body);
            let decoded = parse(&block).unwrap().decoded(1000).unwrap();
            assert_eq!((&decoded.bytes[..], decoded.truncated), (&text[..], false), "{header}");
        }
        let block = response("Transfer-Encoding: chunked\r\n", &chunked[..chunked.len() - 15]);
        let decoded = parse(&block).unwrap().decoded(1000).unwrap();
        assert!(decoded.truncated && decoded.bytes.starts_with(b"<html>hello"));
        let block = response("Content-Encoding: compress\r\n", &[0, 1, 2, 3, 0xff]);
        assert_eq!(parse(&block).unwrap().decoded(9), Err(HttpError::Coding("compress".into())));
        let block = response("Content-Encoding: br\r\n", &[0xff, 1, 2, 3, 0xff]);
        assert!(matches!(parse(&block).unwrap().decoded(9), Err(HttpError::Damaged { .. })));
        let block = response("Content-Encoding: br\r\n", &BROTLI[..30]);
        let decoded = parse(&block).unwrap().decoded(1000).unwrap();
        assert!(decoded.truncated && text.starts_with(&decoded.bytes[..]), "{decoded:?}");
        let block = response("Content-Encoding: br\r\n", &BROTLI);
        assert!(matches!(parse(&block).unwrap().decoded(9), Err(HttpError::TooLarge { .. })));
    }

    #[test]
    fn a_bomb_is_refused() {
        let block = response("Content-Encoding: gzip, gzip\r\n", &gzip(&gzip(&vec![0; 10 << 20])));
        assert!(matches!(parse(&block).unwrap().decoded(1 << 20), Err(HttpError::TooLarge { .. })));
        let block = response("Content-Encoding: gzip\r\n", &gzip(b"hello")[..12]);
        assert!(
            parse(&block).unwrap().decoded(100).is_err()
                || parse(&block).unwrap().decoded(100).unwrap().truncated
        );
    }

    proptest! {
        #[test]
        fn fuzz_http_arbitrary_bytes(
            bytes in prop::collection::vec(any::<u8>(), 0..600),
            coding in prop::sample::select(vec!["gzip", "deflate", "br", "zstd", "gzip, deflate, br", "identity"]),
        ) {
            let _ = parse(&bytes);
            let header = format!("Transfer-Encoding: chunked\r\nContent-Encoding: {coding}\r\n");
            let block = response(&header, &bytes);
            if let Ok(body) = parse(&block).unwrap().decoded(10_000) {
                prop_assert!(body.bytes.len() <= 10_000);
            }
        }
    }
}
