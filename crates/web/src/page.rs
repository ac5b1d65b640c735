//! From a record or a file to the text of a page: HTTP, encoding and extraction in their order, with one verdict.
//!
//! Builds of a corpus, `corpus extract`, `corpus explain` and the fuzz targets all call [`page_of_record`] and [`page_of_html`].

use crate::encoding::{EncodingSource, decode, repair_mojibake};
use crate::extract::Extractor;
use crate::fields::Fields;
use crate::html::HtmlLimits;
use crate::http::{self, HttpError, is_response};
use crate::url::{host, top_label};
use crate::warc::{Position, Record, RecordType};

/// Bytes of UTF-8 that one byte of a legacy encoding gives at most (`€` in windows-1252, U+FFFD for an invalid byte).
const MAX_UTF8_PER_BYTE: usize = 3;

/// How pages are read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageOptions {
    /// Largest body in bytes, its codings undone. A larger one is refused.
    pub max_body: usize,
    /// Limits of the tree; its bytes are those of the body as UTF-8.
    pub html: HtmlLimits,
    /// Whether text that was UTF-8, read as windows-1252, is repaired.
    pub repair_mojibake: bool,
}

impl Default for PageOptions {
    fn default() -> Self {
        PageOptions::with_max_body(HtmlLimits::default().max_bytes)
    }
}

impl PageOptions {
    /// The default options with a limit of `max_body` bytes, which does not depend on the encoding of the page.
    pub fn with_max_body(max_body: usize) -> PageOptions {
        let max_bytes = max_body.saturating_mul(MAX_UTF8_PER_BYTE);
        PageOptions {
            max_body,
            html: HtmlLimits { max_bytes, ..HtmlLimits::default() },
            repair_mojibake: false,
        }
    }
}

/// Outcome of reading a page.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PageVerdict {
    /// The page has text.
    Ok,
    /// No text was found on it.
    #[default]
    Empty,
    /// The status of the response is neither 200 nor 203: what it carries is not the whole page.
    Status,
    /// The page is neither HTML nor plain text.
    Type,
    /// The page is a PDF file, which is not read.
    Pdf,
    /// The record holds no HTTP response.
    Http,
    /// The body's content coding is unknown or damaged.
    Coding,
    /// The body or the page exceeds a limit of size.
    TooLarge,
    /// Elements are nested too deep.
    TooDeep,
    /// Extraction took too long.
    Timeout,
}

impl PageVerdict {
    /// Name in reports.
    pub fn name(self) -> &'static str {
        match self {
            PageVerdict::Ok => "ok",
            PageVerdict::Empty => "extract-empty",
            PageVerdict::Status => "http-status",
            PageVerdict::Type => "http-type",
            PageVerdict::Pdf => "pdf",
            PageVerdict::Http => "http-broken",
            PageVerdict::Coding => "http-coding",
            PageVerdict::TooLarge => "extract-too-large",
            PageVerdict::TooDeep => "extract-too-deep",
            PageVerdict::Timeout => "extract-timeout",
        }
    }
}

/// A page as a document.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Page {
    /// Where the record lies; None for a page that is a file.
    pub position: Option<Position>,
    /// The address.
    pub url: Option<String>,
    /// When it was fetched, as the archive says.
    pub date: Option<String>,
    /// The header fields of the HTTP response; empty where there was none.
    pub http: Fields,
    /// The media type, without parameters, in small letters.
    pub media_type: Option<String>,
    /// The encoding, and how it was found.
    pub charset: Option<(&'static str, EncodingSource)>,
    /// Invalid sequences that were replaced.
    pub replaced: usize,
    /// The page's title.
    pub title: Option<String>,
    /// The language that the page says it is in.
    pub language: Option<String>,
    /// Whether it has text, or why not.
    pub verdict: PageVerdict,
    /// The value behind the verdict, for people.
    pub detail: Option<String>,
    /// The text; empty unless the verdict is [`PageVerdict::Ok`].
    pub text: String,
}

impl Page {
    /// A field of the page by its name: `title`, `language`, `charset` or `media_type`, else a header field of the HTTP response.
    pub fn field(&self, name: &str) -> Option<String> {
        match name {
            "title" => self.title.clone(),
            "language" => self.language.clone(),
            "charset" => self.charset.map(|(name, _)| name.to_string()),
            "media_type" => self.media_type.clone(),
            _ => self.http.get(name).map(String::from),
        }
    }

    fn refuse(mut self, verdict: PageVerdict, detail: impl ToString) -> Page {
        self.verdict = verdict;
        self.detail = Some(detail.to_string());
        self
    }

    /// Decodes a body and extracts its text. `identified` is the type that the crawler found in it.
    fn read(
        mut self,
        body: &[u8],
        content_type: Option<&str>,
        identified: Option<&str>,
        extractor: &dyn Extractor,
        options: &PageOptions,
    ) -> Page {
        let kind = content_type
            .and_then(named_type)
            .or_else(|| identified.and_then(named_type))
            .unwrap_or_else(|| sniff(body).to_string());
        let html = matches!(kind.as_str(), "text/html" | "application/xhtml+xml");
        let plain = kind == "text/plain";
        self.media_type = Some(kind.clone());
        if body.starts_with(PDF_BEGINNING) || matches!(kind.as_str(), "application/pdf" | "application/x-pdf")
        {
            let detail =
                format!("{} bytes; PDF is not supported: convert it to text or HTML first", body.len());
            return self.refuse(PageVerdict::Pdf, detail);
        }
        if !html && !plain {
            return self.refuse(PageVerdict::Type, kind);
        }
        if body.len() > options.max_body {
            let detail = format!("{} bytes; at most {} are read", body.len(), options.max_body);
            return self.refuse(PageVerdict::TooLarge, detail);
        }
        let host = self.url.as_deref().and_then(host);
        let decoded = decode(body, content_type, host.as_deref().and_then(top_label));
        self.charset = Some((decoded.encoding, decoded.source));
        self.replaced = decoded.replaced;
        let mut text = decoded.text;
        if options.repair_mojibake
            && let Some(repaired) = repair_mojibake(&text)
        {
            text = repaired;
        }
        if html {
            match extractor.extract(&text, &options.html) {
                Ok(e) => (self.text, self.title, self.language) = (e.text, e.title, e.language),
                Err(e) => {
                    let verdict = match e.verdict() {
                        "extract-too-deep" => PageVerdict::TooDeep,
                        "extract-timeout" => PageVerdict::Timeout,
                        _ => PageVerdict::TooLarge,
                    };
                    return self.refuse(verdict, e);
                }
            }
        } else {
            self.text = text;
        }
        if self.text.trim().is_empty() {
            self.text.clear();
            let detail = format!("no text was found in {} bytes", body.len());
            return self.refuse(PageVerdict::Empty, detail);
        }
        self.verdict = PageVerdict::Ok;
        self
    }
}

/// `text/html` of `Text/HTML; charset=x`.
fn media_type(content_type: &str) -> String {
    content_type.split([';', ',']).next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// The media type that a header names, unless it is one of those that servers send when they know none (MIME Sniffing standard,
/// section 7).
fn named_type(content_type: &str) -> Option<String> {
    let unknown = ["unknown/unknown", "application/unknown", "*/*"];
    Some(media_type(content_type)).filter(|kind| kind.contains('/') && !unknown.contains(&kind.as_str()))
}

/// First bytes of a PDF file.
pub const PDF_BEGINNING: &[u8] = b"%PDF-";
/// Bytes of a body that are looked at for its type.
const SNIFFED: usize = 512;
/// Beginnings of HTML, each followed by a blank or `>` (MIME Sniffing standard, section 7.1).
const HTML_BEGINNINGS: &[&str] = &[
    "<!doctype html",
    "<html",
    "<head",
    "<script",
    "<iframe",
    "<h1",
    "<div",
    "<font",
    "<table",
    "<a",
    "<style",
    "<title",
    "<b",
    "<body",
    "<br",
    "<p",
];

/// The type of a body whose header names none, by its first bytes.
fn sniff(body: &[u8]) -> &'static str {
    let head = &body[..body.len().min(SNIFFED)];
    let wide = head.starts_with(&[0xff, 0xfe]) || head.starts_with(&[0xfe, 0xff]);
    // In UTF-16 the ASCII characters of markup are apart by zero bytes.
    let text: Vec<u8> = head.iter().filter(|byte| !wide || **byte != 0).map(u8::to_ascii_lowercase).collect();
    let begin = text.iter().position(|byte| byte.is_ascii_graphic()).unwrap_or(text.len());
    let markup = &text[begin..];
    let begins = |with: &&str| {
        let rest = markup.strip_prefix(with.as_bytes());
        rest.is_some_and(|rest| rest.first().is_none_or(|byte| byte.is_ascii_whitespace() || *byte == b'>'))
    };
    // XHTML begins with an XML declaration or a public identifier.
    let inside = |with: &[u8]| markup.starts_with(b"<") && memchr::memmem::find(markup, with).is_some();
    if HTML_BEGINNINGS.iter().any(begins) || markup.starts_with(b"<!--") || inside(b"<html") {
        "text/html"
    } else if text.iter().any(|byte| matches!(byte, 0..=8 | 11 | 14..=26 | 28..=31)) {
        "application/octet-stream"
    } else {
        "text/plain"
    }
}

/// Whether a record is of a kind that holds a page. Requests, metadata, revisits, the file's own header, name look-ups and messages
/// of other protocols than HTTP hold none.
pub fn holds_page(record: &Record) -> bool {
    match record.kind {
        RecordType::Conversion | RecordType::Resource => true,
        RecordType::Response => {
            let is_http = record.content_type().is_none_or(|kind| media_type(kind) == "application/http")
                || is_response(&record.block);
            is_http && !record.target_uri().is_some_and(|uri| uri.starts_with("dns:"))
        }
        _ => false,
    }
}

/// The page that a record holds; none unless [`holds_page`].
pub fn page_of_record(record: &Record, extractor: &dyn Extractor, options: &PageOptions) -> Option<Page> {
    if !holds_page(record) {
        return None;
    }
    let page = Page {
        position: Some(record.position),
        url: record.target_uri().map(String::from),
        date: record.date().map(String::from),
        ..Page::default()
    };
    let identified = record.fields.get("WARC-Identified-Payload-Type");
    Some(match record.kind {
        RecordType::Response => response(page, record, identified, extractor, options),
        // Conversions of a crawl (WET) are text.
        RecordType::Conversion => {
            let kind = record.content_type().or(Some("text/plain"));
            page.read(&record.block, kind, None, extractor, options)
        }
        _ => page.read(&record.block, record.content_type(), identified, extractor, options),
    })
}

/// Reads the page of a response record. The statuses are those whose content is the page itself: 200, and 203 from a proxy that
/// transforms pages. Other 2xx carry a report, a part of a page or nothing (RFC 9110, section 15.3).
fn response(
    mut page: Page,
    record: &Record,
    identified: Option<&str>,
    extractor: &dyn Extractor,
    options: &PageOptions,
) -> Page {
    let response = match http::parse(&record.block) {
        Ok(response) => response,
        Err(e) => return page.refuse(PageVerdict::Http, e),
    };
    if !matches!(response.status, 200 | 203) {
        return page.refuse(PageVerdict::Status, response.status);
    }
    let body = response.decoded(options.max_body);
    page.http = response.fields;
    let body = match body {
        Ok(body) => body,
        Err(e @ HttpError::TooLarge { .. }) => return page.refuse(PageVerdict::TooLarge, e),
        Err(e) => return page.refuse(PageVerdict::Coding, e),
    };
    let content_type = page.http.get("Content-Type").map(String::from);
    page.read(&body.bytes, content_type.as_deref(), identified, extractor, options)
}

/// The page that an HTML file holds.
pub fn page_of_html(bytes: &[u8], extractor: &dyn Extractor, options: &PageOptions) -> Page {
    Page::default().read(bytes, Some("text/html"), None, extractor, options)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extract::{Main, Plain};
    use crate::fields::Fields;

    fn record(kind: RecordType, content_type: &str, block: &[u8]) -> Record {
        let fields: Fields =
            [("WARC-Target-URI", "http://example.jp/"), ("Content-Type", content_type)].into_iter().collect();
        Record {
            position: Position { offset: 7, index: 0 },
            version: "1.0".into(),
            kind,
            fields,
            block: block.to_vec(),
            wrong_length: false,
        }
    }

    fn verdict(http: &[u8]) -> (&'static str, Option<String>) {
        let options = PageOptions { max_body: 100_000, ..PageOptions::default() };
        let page =
            page_of_record(&record(RecordType::Response, "application/http", http), &Main, &options).unwrap();
        (page.verdict.name(), page.detail)
    }

    #[test]
    fn each_way_to_fail_has_its_verdict() {
        let ok = |header: &str, body: &[u8]| {
            verdict(&[b"HTTP/1.1 200 OK\r\n", header.as_bytes(), b"\r\n", body].concat()).0
        };
        assert_eq!(ok("Content-Type: text/html\r\n", b"<p>text"), "ok");
        assert_eq!(ok("", b" <!DOCTYPE html><p>text"), "ok");
        assert_eq!(ok("Content-Type: text/html\r\n", b"<script>x</script>"), "extract-empty");
        assert_eq!(ok("Content-Type: image/png\r\n", b"text"), "http-type");
        assert_eq!(ok("", b"\0\x01"), "http-type");
        assert_eq!(ok("Content-Type: application/pdf\r\n", b"%PDF-1.7"), "pdf");
        assert_eq!(ok("Content-Type: text/html\r\n", b"%PDF-1.7 named HTML by its server"), "pdf");
        assert_eq!(ok("Content-Type: text/html\r\nContent-Encoding: br\r\n", b"\0\x01"), "http-coding");
        assert_eq!(ok("Content-Type: text/html\r\n", &[b'x'; 100_001]), "extract-too-large");
        assert_eq!(ok("Content-Type: text/html\r\n", "<b>".repeat(20_000).as_bytes()), "extract-too-deep");
        assert_eq!(verdict(b"HTTP/1.1 404 No\r\n\r\nx"), ("http-status", Some("404".into())));
        assert_eq!(verdict(b"garbage").0, "http-broken");
    }

    #[test]
    fn records_of_every_kind() {
        let o = PageOptions::default();
        let page = |kind, t: &str, block: &[u8]| page_of_record(&record(kind, t, block), &Plain, &o);
        let wet = page(RecordType::Conversion, "text/plain", "日本\n".as_bytes()).unwrap();
        assert_eq!((wet.text.as_str(), wet.url.as_deref()), ("日本\n", Some("http://example.jp/")));
        let (sjis, _, _) = encoding_rs::SHIFT_JIS.encode("<p>これは日本語の文章です。短いです。</p>");
        let resource = page(RecordType::Resource, "text/html", &sjis).unwrap();
        assert_eq!(resource.charset, Some(("Shift_JIS", EncodingSource::Guess)));
        assert!(resource.text.starts_with("これは"));
        assert_eq!(page(RecordType::Request, "application/http", b"GET / HTTP/1.1\r\n\r\n"), None);
        assert_eq!(page(RecordType::Warcinfo, "application/warc-fields", b"a: b"), None);
        let repaired = PageOptions { repair_mojibake: true, ..PageOptions::default() };
        assert_eq!(page_of_html("<p>cafÃ©".as_bytes(), &Plain, &repaired).text, "café");
        assert_eq!(page_of_html("<p>cafÃ©".as_bytes(), &Plain, &o).text, "cafÃ©");
    }

    /// The verdicts on which builds and `corpus extract` differed while each had a pipeline of its own.
    #[test]
    fn statuses_types_and_kinds_of_records() {
        let options = PageOptions::default();
        let page = |record: &Record| page_of_record(record, &Main, &options);
        let text = "<p>The converter blew for twenty minutes.";
        let response = |status: &str, kind: &str, body: &str| {
            let block = format!("HTTP/1.1 {status}\r\n{kind}\r\n{body}");
            page(&record(RecordType::Response, "application/http", block.as_bytes())).unwrap()
        };
        for (status, wanted) in [
            ("200 OK", "ok"),
            ("203 Non-Authoritative", "ok"),
            ("201 Created", "http-status"),
            ("204 No Content", "http-status"),
            ("206 Partial Content", "http-status"),
            ("301 Moved", "http-status"),
            ("none", "http-status"),
        ] {
            assert_eq!(
                response(status, "Content-Type: text/html\r\n", text).verdict.name(),
                wanted,
                "{status}"
            );
        }
        for (kind, body, wanted) in [
            ("", text, ("text/html", "ok")),
            ("", "\n <DIV >text", ("text/html", "ok")),
            ("", "<bold> is no element of HTML", ("text/plain", "ok")),
            ("", "<?xml version=\"1.0\"?><html xmlns=\"x\">text", ("text/html", "ok")),
            ("", "text of no markup", ("text/plain", "ok")),
            ("Content-Type: unknown/unknown\r\n", text, ("text/html", "ok")),
            ("Content-Type: html\r\n", text, ("text/html", "ok")),
            ("Content-Type: application/xhtml+xml;charset=utf-8\r\n", text, ("application/xhtml+xml", "ok")),
            ("Content-Type: text/plain-old\r\n", text, ("text/plain-old", "http-type")),
            ("Content-Type: application/xml\r\n", text, ("application/xml", "http-type")),
            ("Content-Type: text/plain\r\n", " kept as it is\n", ("text/plain", "ok")),
            ("Content-Type: text/plain\r\n", " \n", ("text/plain", "extract-empty")),
        ] {
            let page = response("200 OK", kind, body);
            assert_eq!((page.media_type.as_deref().unwrap(), page.verdict.name()), wanted, "{kind}{body}");
            assert!(wanted.0 != "text/plain" || page.text == body || page.text.is_empty());
        }
        let mut identified = record(RecordType::Response, "application/http", b"HTTP/1.1 200 OK\r\n\r\nHome");
        identified.fields.push("WARC-Identified-Payload-Type", "text/html");
        assert_eq!(page(&identified).unwrap().media_type.as_deref(), Some("text/html"));
        let lookup =
            Fields::from_iter([("WARC-Target-URI", "dns:example.com"), ("Content-Type", "text/dns")]);
        let lookup = Record { fields: lookup, ..record(RecordType::Response, "", b"20240101 1.2.3.4") };
        assert_eq!(page(&lookup), None);
        let ftp =
            record(RecordType::Response, "application/octet-stream", b"a file that came by another protocol");
        assert_eq!(page(&ftp), None);
        let conversion = page(&record(RecordType::Conversion, "application/json", b"{}")).unwrap();
        assert_eq!(conversion.verdict, PageVerdict::Type);
    }

    #[test]
    fn the_last_label_of_a_host_helps_the_guess_whatever_surrounds_it() {
        let options = PageOptions::default();
        // Bytes that mean different letters in different countries.
        let body = b"<p>\xc6\xfc\xcb\xdc\xb8\xec</p>";
        let mut found = Vec::new();
        for uri in ["http://example.jp/", "http://user:word@EXAMPLE.JP.:80?a=b.com/c", "http://example.jp#x"]
        {
            let fields = Fields::from_iter([("WARC-Target-URI", uri), ("Content-Type", "text/html")]);
            let record = Record { fields, ..record(RecordType::Resource, "", body) };
            found.push(page_of_record(&record, &Plain, &options).unwrap().text);
        }
        assert_eq!(found, ["日本語"; 3]);
    }
}
