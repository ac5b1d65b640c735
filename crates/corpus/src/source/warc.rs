//! WARC and WET files: the records of a crawl, of which each page is a document.
//!
//! A response with HTML gives the page's main text, one with plain text that text, a conversion (WET) its block;
//! other records (requests, metadata, pictures) are none of ours and leave no row. What is a page and cannot be used
//! becomes a dropped row that says why: a status other than 200, an unreadable message, a page beyond the limits of the
//! parser, no text found. A damaged member or record is one dropped row, and reading goes on behind it.
//!
//! The sequential part finds and decompresses records; messages, encodings and pages are worked on in the morsels.
//! Row numbers count records, usable or not, so they do not depend on what is chosen.

use super::folder::FileEntry;
use super::place::{Opened, Place};
use super::{Listing, MORSEL_BYTES, Source};
use crate::error::Result;
use crate::row::{HEAD_BYTES, Origin, RowBuilder};
use arrow_array::RecordBatch;
use bessemer_dataflow::{Morsel, Scan};
use bessemer_web::encoding;
use bessemer_web::extract::{Extractor, Main};
use bessemer_web::html::HtmlLimits;
use bessemer_web::http;
use bessemer_web::url::UrlFilter;
use bessemer_web::warc::{FaultKind, Record, RecordType, WarcError, WarcLimits, WarcReader};
use std::ops::Range;
use std::sync::Arc;

/// Endings of the files that are read from a folder.
pub(crate) const ENDINGS: &[&str] =
    &[".warc", ".warc.gz", ".warc.zst", ".wet", ".wet.gz", ".wet.zst", ".warc.wet.gz"];

/// Pages of more bytes than this are refused: the tree of one takes several times its bytes.
const MAX_PAGE: usize = 16 << 20;
/// Records of one batch at most.
const MORSEL_RECORDS: usize = 512;

/// Whether a file name is that of an archive of the web.
pub(crate) fn is_warc(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    ENDINGS.iter().any(|ending| lower.ends_with(ending))
}

pub(crate) struct Warc {
    root: String,
    files: Arc<Vec<FileEntry>>,
    listing: Listing,
    limits: WarcLimits,
    /// Pages that are not to be read.
    unwanted: Option<Arc<UrlFilter>>,
}

/// Opens the files. A page may have 16 times the bytes of a document, because most of it is not text.
/// Pages that `unwanted` names are dropped under its verdict without being read.
pub(crate) fn open(place: &Place<'_>, max_bytes: u64, unwanted: Option<Arc<UrlFilter>>) -> Result<Warc> {
    let (files, listing) = place.find("warc", is_warc)?;
    let max_block = max_bytes.saturating_mul(16).clamp(1 << 20, 64 << 20);
    let limits = WarcLimits { max_block, ..WarcLimits::default() };
    Ok(Warc { root: place.path.display().to_string(), files: Arc::new(files), listing, limits, unwanted })
}

impl bessemer_dataflow::Source for Warc {
    fn describe(&self) -> String {
        format!("{} WARC files in {}", self.files.len(), self.root)
    }

    fn scan(&self) -> bessemer_dataflow::Result<Box<dyn Scan>> {
        self.scan_files(0..self.files.len())
    }
}

impl Source for Warc {
    fn listing(&self) -> &Listing {
        &self.listing
    }

    fn file_bytes(&self) -> Vec<u64> {
        self.files.iter().map(|file| file.bytes).collect()
    }

    fn scan_files(&self, files: Range<usize>) -> bessemer_dataflow::Result<Box<dyn Scan>> {
        Ok(Box::new(WarcScan {
            files: self.files.clone(),
            limits: self.limits,
            unwanted: self.unwanted.clone(),
            file: files.start,
            end: files.end,
            reader: None,
            row: 0,
        }))
    }
}

struct WarcScan {
    files: Arc<Vec<FileEntry>>,
    limits: WarcLimits,
    unwanted: Option<Arc<UrlFilter>>,
    /// Ordinal of the file being read.
    file: usize,
    /// Where the run of files ends.
    end: usize,
    reader: Option<WarcReader<Opened>>,
    /// Records of the file so far.
    row: u64,
}

fn open_file(file: &FileEntry, limits: WarcLimits) -> std::result::Result<WarcReader<Opened>, WarcError> {
    let opened = file.open().map_err(|cause| WarcError::io(0, cause))?;
    WarcReader::named(opened, &file.relative, limits)
}

/// A record, or what stands in its place.
enum Item {
    Page(Record),
    Fault(WarcError),
}

impl WarcScan {
    /// The next item of the current file with its number; none at the file's end.
    fn item(&mut self) -> Option<(u64, Item)> {
        loop {
            let reader = match &mut self.reader {
                Some(reader) => reader,
                None => match open_file(&self.files[self.file], self.limits) {
                    Ok(reader) => self.reader.insert(reader),
                    Err(error) => {
                        // Nothing can be read: the file is passed over after this row.
                        self.next_file();
                        return Some((1, Item::Fault(error)));
                    }
                },
            };
            let item = reader.next();
            // Records count from 1, as the lines of a text file do.
            self.row += 1;
            let row = self.row;
            match item {
                Ok(None) => return None,
                Ok(Some(record)) => {
                    if is_page(&record) {
                        return Some((row, Item::Page(record)));
                    }
                }
                Err(error) => {
                    if !error.is_skippable() {
                        self.next_file();
                    }
                    return Some((row, Item::Fault(error)));
                }
            }
        }
    }

    fn next_file(&mut self) {
        (self.file, self.reader, self.row) = (self.file + 1, None, 0);
    }
}

/// Whether a record may hold a page.
fn is_page(record: &Record) -> bool {
    let text = |kind: Option<&str>| {
        kind.is_some_and(|kind| {
            let kind = kind.trim().to_ascii_lowercase();
            kind.starts_with("text/html") || kind.starts_with("text/plain") || is_xhtml(&kind)
        })
    };
    match &record.kind {
        RecordType::Conversion | RecordType::Resource => text(record.content_type()),
        RecordType::Response => match http::parse(&record.block) {
            // A response without a type may be a page; one that is no message is told as such.
            Ok(response) => response.content_type().is_none_or(|kind| text(Some(kind))),
            Err(_) => true,
        },
        _ => false,
    }
}

fn is_xhtml(kind: &str) -> bool {
    kind.starts_with("application/xhtml")
}

impl Scan for WarcScan {
    fn next(&mut self) -> bessemer_dataflow::Result<Option<Morsel>> {
        while self.file < self.end {
            let ordinal = self.file;
            let (mut items, mut bytes) = (Vec::new(), 0);
            while bytes < MORSEL_BYTES && items.len() < MORSEL_RECORDS && self.file == ordinal {
                let Some((row, item)) = self.item() else {
                    self.next_file();
                    break;
                };
                match &item {
                    Item::Page(record) => bytes += record.block.len(),
                    Item::Fault(_) => self.files[ordinal].reached()?,
                }
                items.push((row, item));
            }
            if !items.is_empty() {
                let (files, unwanted) = (self.files.clone(), self.unwanted.clone());
                let rows = move || rows(&files[ordinal], ordinal as u32, &items, unwanted.as_deref());
                return Ok(Some(Box::new(rows)));
            }
        }
        Ok(None)
    }
}

/// The text of a page, or the reason why there is none.
fn page(record: &Record) -> std::result::Result<String, (&'static str, String)> {
    let host = record.target_uri().and_then(|uri| {
        let host = uri.split_once("://")?.1.split(['/', ':', '?']).next()?;
        Some(host.rsplit_once('.')?.1.to_string())
    });
    let body;
    let (bytes, kind) = match &record.kind {
        RecordType::Response => {
            let bad = |error: http::HttpError| ("bad-http", error.to_string());
            let response = http::parse(&record.block).map_err(bad)?;
            if response.status != 200 {
                return Err(("http-status", format!("status {}, wanted 200", response.status)));
            }
            body = response.decoded(MAX_PAGE).map_err(bad)?;
            (body.bytes.as_slice(), response.content_type().map(str::to_string))
        }
        _ => (record.block.as_slice(), record.content_type().map(str::to_string)),
    };
    text_of(bytes, kind.as_deref(), host.as_deref())
}

/// The text of a page of this type, from a host under this top-level domain; or the reason why there is none.
pub(super) fn text_of(
    bytes: &[u8],
    kind: Option<&str>,
    top_level: Option<&str>,
) -> std::result::Result<String, (&'static str, String)> {
    let plain = kind.is_some_and(|kind| kind.trim().to_ascii_lowercase().starts_with("text/plain"));
    let decoded = encoding::decode(bytes, kind, top_level);
    let text = if plain {
        decoded.text
    } else {
        let limits = HtmlLimits { max_bytes: 2 * MAX_PAGE, ..HtmlLimits::default() };
        Main.extract(&decoded.text, &limits).map_err(|error| ("html-limit", error.to_string()))?.text
    };
    if text.trim().is_empty() {
        return Err(("no-text", format!("no text was found in {} bytes", bytes.len())));
    }
    Ok(text)
}

fn rows(
    file: &FileEntry,
    ordinal: u32,
    items: &[(u64, Item)],
    unwanted: Option<&UrlFilter>,
) -> bessemer_dataflow::Result<RecordBatch> {
    let name = &file.relative;
    let mut rows = RowBuilder::with_capacity(items.len(), MORSEL_BYTES / 4);
    for (row, item) in items {
        let id = format!("{name}#{row}");
        let mut origin =
            Origin { file: ordinal, row: *row, id: &id, source: name, path: name, ..Origin::default() };
        match item {
            Item::Fault(error) => {
                let reason = match error.kind {
                    FaultKind::Io | FaultKind::Lost => "unreadable",
                    FaultKind::Truncated => "truncated-input",
                    FaultKind::TooLarge => "too-large",
                    _ => "broken-record",
                };
                rows.refuse(&origin, reason, &format!("{name}: {error}"), &[]);
            }
            Item::Page(record) => {
                (origin.url, origin.fetched) = (record.target_uri(), record.date());
                origin.path = record.target_uri().unwrap_or(name);
                origin.bytes = record.block.len() as u64;
                let head = &record.block[..record.block.len().min(HEAD_BYTES)];
                if let Some((url, verdict)) =
                    unwanted.and_then(|lists| Some((origin.url?, lists.judge(origin.url?)?)))
                {
                    rows.refuse(&origin, verdict.name(), url, head);
                    continue;
                }
                match page(record) {
                    Ok(text) => rows.push(&origin, text.as_bytes()),
                    Err((reason, detail)) => rows.refuse(&origin, reason, &detail, head),
                }
            }
        }
    }
    rows.finish()
}
