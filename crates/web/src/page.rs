//! From a record or a file to a document: HTTP, encoding and extraction in their order, with one verdict.

use crate::encoding::{EncodingSource, decode, repair_mojibake};
use crate::extract::Extractor;
use crate::html::HtmlLimits;
use crate::http::{self, HttpError};
use crate::url::{host, top_label};
use crate::warc::{Position, Record, RecordType};

/// How pages are read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageOptions {
    /// Bytes of a body with its codings undone.
    pub max_body: usize,
    /// Limits of the tree.
    pub html: HtmlLimits,
    /// Whether text that was UTF-8, read as windows-1252, is repaired.
    pub repair_mojibake: bool,
}

impl Default for PageOptions {
    fn default() -> Self {
        let html = HtmlLimits::default();
        PageOptions { max_body: html.max_bytes, html, repair_mojibake: false }
    }
}

/// What became of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PageVerdict {
    /// It has text.
    Ok,
    /// No text was found on it.
    Empty,
    /// The status of the response is not 2xx.
    Status,
    /// It is no HTML and no plain text.
    Type,
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
            PageVerdict::Http => "http-broken",
            PageVerdict::Coding => "http-coding",
            PageVerdict::TooLarge => "extract-too-large",
            PageVerdict::TooDeep => "extract-too-deep",
            PageVerdict::Timeout => "extract-timeout",
        }
    }
}

/// A page as a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// Where the record lies; None for a page that is a file.
    pub position: Option<Position>,
    /// The address.
    pub url: Option<String>,
    /// When it was fetched, as the archive says.
    pub date: Option<String>,
    /// The media type, without parameters, in small letters.
    pub media_type: Option<String>,
    /// The encoding, and what told it.
    pub charset: Option<(&'static str, EncodingSource)>,
    /// Invalid sequences that were replaced.
    pub replaced: usize,
    /// The page's title.
    pub title: Option<String>,
    /// The language that the page says it is in.
    pub language: Option<String>,
    /// What became of it.
    pub verdict: PageVerdict,
    /// The value behind the verdict, for people.
    pub detail: Option<String>,
    /// The text; empty unless the verdict is [`PageVerdict::Ok`].
    pub text: String,
}

impl Page {
    fn new(url: Option<&str>) -> Page {
        Page {
            position: None,
            url: url.map(String::from),
            date: None,
            media_type: None,
            charset: None,
            replaced: 0,
            title: None,
            language: None,
            verdict: PageVerdict::Empty,
            detail: None,
            text: String::new(),
        }
    }

    fn refuse(mut self, verdict: PageVerdict, detail: impl ToString) -> Page {
        self.verdict = verdict;
        self.detail = Some(detail.to_string());
        self
    }

    /// Decodes and extracts a body.
    fn read(
        mut self,
        body: &[u8],
        content_type: Option<&str>,
        extractor: &dyn Extractor,
        options: &PageOptions,
    ) -> Page {
        let named = content_type.map(media_type).filter(|t| t.contains('/'));
        let kind = named.unwrap_or_else(|| sniff(body).to_string());
        let html = matches!(kind.as_str(), "text/html" | "application/xhtml+xml");
        let plain = kind == "text/plain";
        self.media_type = Some(kind.clone());
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
            self.text = text.trim().to_string();
        }
        if !self.text.is_empty() {
            self.verdict = PageVerdict::Ok;
        }
        self
    }
}

/// `text/html` of `Text/HTML; charset=x`.
fn media_type(content_type: &str) -> String {
    content_type.split([';', ',']).next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// The type of a body whose header names none: HTML if it begins like it, text if nothing speaks against it.
fn sniff(body: &[u8]) -> &'static str {
    let head = body[..body.len().min(512)].trim_ascii_start();
    let head = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head).trim_ascii_start();
    let lower = head.to_ascii_lowercase();
    let begins =
        [&b"<!doctype html"[..], b"<html", b"<head", b"<body", b"<!--"].iter().any(|s| lower.starts_with(s));
    if begins || lower.windows(5).any(|w| w == b"<html") {
        "text/html"
    } else if head.contains(&0) {
        "application/octet-stream"
    } else {
        "text/plain"
    }
}

/// The document of a record. None for records that hold none: requests, metadata, revisits, the file's own header.
pub fn page_of_record(record: &Record, extractor: &dyn Extractor, options: &PageOptions) -> Option<Page> {
    let mut page = Page::new(record.target_uri());
    page.position = Some(record.position);
    page.date = record.date().map(String::from);
    match record.kind {
        RecordType::Conversion => {
            Some(page.read(&record.block, Some("text/plain; charset=utf-8"), extractor, options))
        }
        RecordType::Resource => Some(page.read(&record.block, record.content_type(), extractor, options)),
        RecordType::Response => {
            let http = record.content_type().is_none_or(|t| media_type(t) == "application/http")
                && !record.target_uri().is_some_and(|u| u.starts_with("dns:"));
            http.then(|| response(page, record, extractor, options))
        }
        _ => None,
    }
}

fn response(page: Page, record: &Record, extractor: &dyn Extractor, options: &PageOptions) -> Page {
    let response = match http::parse(&record.block) {
        Ok(response) => response,
        Err(e) => return page.refuse(PageVerdict::Http, e),
    };
    if !(200..300).contains(&response.status) {
        return page.refuse(PageVerdict::Status, response.status);
    }
    match response.decoded(options.max_body) {
        Ok(body) => page.read(&body.bytes, response.content_type(), extractor, options),
        Err(e @ HttpError::TooLarge { .. }) => page.refuse(PageVerdict::TooLarge, e),
        Err(e) => page.refuse(PageVerdict::Coding, e),
    }
}

/// The document of an HTML file.
pub fn page_of_html(bytes: &[u8], extractor: &dyn Extractor, options: &PageOptions) -> Page {
    Page::new(None).read(bytes, Some("text/html"), extractor, options)
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
        assert_eq!((wet.text.as_str(), wet.url.as_deref()), ("日本", Some("http://example.jp/")));
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
}
