//! WARC and WET files: the records of a crawl, of which each page is a document.
//!
//! What a record gives is decided by [`bessemer_web::page`]: a response with HTML gives the page's main text, one with plain text
//! that text, a conversion (WET) its block. A response without usable text becomes a dropped row with the page's verdict as its
//! reason. Requests, metadata, revisits and name look-ups leave no row. A damaged member or record is one dropped row, and
//! reading continues after it.
//!
//! The sequential part finds and decompresses records; messages, encodings and pages are worked on in the morsels.
//! Row numbers count records, usable or not, so they do not depend on what is chosen.

use super::files::{FileFormat, FileSource};
use super::folder::FileEntry;
use super::location::{Opened, SourceLocation};
use super::{MORSEL_BYTES, MetadataColumns, max_page_bytes};
use crate::error::Result;
use arrow_array::RecordBatch;
use bessemer_dataflow::{Morsel, Scan};
use bessemer_documents::{HEAD_BYTES, RowBuilder};
use bessemer_web::extract::Main;
use bessemer_web::page::{PageOptions, PageVerdict, holds_page, page_of_record};
use bessemer_web::url::UrlFilter;
use bessemer_web::warc::{FaultKind, Position, Record, WarcError, WarcLimits, WarcReader};
use std::ops::Range;
use std::sync::Arc;

/// Endings of the files that are read from a folder.
pub(crate) const ENDINGS: &[&str] =
    &[".warc", ".warc.gz", ".warc.zst", ".wet", ".wet.gz", ".wet.zst", ".warc.wet.gz"];

/// Records of one batch at most.
const MORSEL_RECORDS: usize = 512;

/// Whether a file name is that of an archive of the web.
pub(crate) fn is_warc(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    ENDINGS.iter().any(|ending| lower.ends_with(ending))
}

pub(super) struct Warc {
    limits: WarcLimits,
    reading: Arc<Reading>,
}

/// How records become rows.
struct Reading {
    options: PageOptions,
    /// Pages whose URL this filter names are dropped without being read.
    unwanted: Option<Arc<UrlFilter>>,
    /// Columns of metadata that predicates read.
    metadata: MetadataColumns,
}

/// Opens the files. Pages that `unwanted` names are dropped under its verdict without being read.
pub(super) fn open(
    place: &SourceLocation<'_>,
    max_bytes: u64,
    unwanted: Option<Arc<UrlFilter>>,
    metadata: &MetadataColumns,
) -> Result<FileSource<Warc>> {
    let (files, listing) = place.find("warc", is_warc)?;
    let max_page = max_page_bytes(max_bytes);
    let limits = WarcLimits { max_block: max_page, ..WarcLimits::default() };
    let options = PageOptions::with_max_body(max_page as usize);
    let reading = Arc::new(Reading { options, unwanted, metadata: metadata.clone() });
    Ok(FileSource::new(place, files, listing, Warc { limits, reading }))
}

impl FileFormat for Warc {
    const FILES: &'static str = "WARC files";

    fn scan(&self, files: Arc<Vec<FileEntry>>, run: Range<usize>) -> Box<dyn Scan> {
        Box::new(self.scan_from(files, run.start, run.end, 0))
    }

    fn resume(&self, files: Arc<Vec<FileEntry>>, run: Range<usize>, point: &str) -> Option<Box<dyn Scan>> {
        let point: ResumePoint =
            serde_json::from_str(point).ok().filter(|p: &ResumePoint| run.contains(&p.file))?;
        let mut scan = self.scan_from(files, point.file, run.end, point.row);
        if let Some((offset, index)) = point.record {
            // What cannot be read now is read from the beginning, where its faults are counted.
            let mut reader = open_file(&scan.files[point.file], scan.limits).ok()?;
            if reader.seek(Position { offset, index }).is_err() || !matches!(reader.next(), Ok(Some(_))) {
                return None;
            }
            scan.reader = Some(reader);
        }
        Some(Box::new(scan))
    }
}

impl Warc {
    /// A scan of the files from `file` to before `end`; `row` records of the first were read before.
    fn scan_from(&self, files: Arc<Vec<FileEntry>>, file: usize, end: usize, row: u64) -> WarcScan {
        let (limits, reading) = (self.limits, self.reading.clone());
        WarcScan { files, limits, reading, file, end, reader: None, row, last: None }
    }
}

/// Position where reading continues.
#[derive(serde::Serialize, serde::Deserialize)]
struct ResumePoint {
    /// Ordinal of the file.
    file: usize,
    /// Records of it that were read.
    row: u64,
    /// Offset and index of the last of them; none at the beginning of the file.
    record: Option<(u64, u64)>,
}

struct WarcScan {
    files: Arc<Vec<FileEntry>>,
    limits: WarcLimits,
    reading: Arc<Reading>,
    /// Ordinal of the file being read.
    file: usize,
    /// End of the run of files.
    end: usize,
    reader: Option<WarcReader<Opened>>,
    /// Records of the file so far.
    row: u64,
    /// Position of the last item, if it is a record.
    last: Option<Position>,
}

fn open_file(file: &FileEntry, limits: WarcLimits) -> std::result::Result<WarcReader<Opened>, WarcError> {
    let opened = file.open().map_err(|cause| WarcError::io(0, cause))?;
    WarcReader::named(opened, &file.relative, limits)
}

/// A record, or what stands in its place.
enum Item {
    Record(Record),
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
                Ok(Some(record)) if holds_page(&record) => {
                    self.last = Some(record.position);
                    return Some((row, Item::Record(record)));
                }
                Ok(Some(_)) => {}
                Err(error) => {
                    self.last = None;
                    if !error.is_skippable() {
                        self.next_file();
                    }
                    return Some((row, Item::Fault(error)));
                }
            }
        }
    }

    fn next_file(&mut self) {
        (self.file, self.reader, self.row, self.last) = (self.file + 1, None, 0, None);
    }
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
                    Item::Record(record) => bytes += record.block.len(),
                    Item::Fault(_) => self.files[ordinal].reached()?,
                }
                items.push((row, item));
            }
            if !items.is_empty() {
                let (files, reading) = (self.files.clone(), self.reading.clone());
                let rows = move || rows(&files[ordinal], ordinal, &items, &reading);
                return Ok(Some(Box::new(rows)));
            }
        }
        Ok(None)
    }

    fn resume_point(&self) -> Option<String> {
        let record = self.last.map(|position| (position.offset, position.index));
        // Behind a fault nobody knows where the reader would find its way again.
        let known = record.is_some() || self.reader.is_none();
        let point = ResumePoint { file: self.file, row: self.row, record };
        known.then(|| serde_json::to_string(&point).ok()).flatten()
    }
}

fn rows(
    file: &FileEntry,
    ordinal: usize,
    items: &[(u64, Item)],
    reading: &Reading,
) -> bessemer_dataflow::Result<RecordBatch> {
    let name = &file.relative;
    let mut rows = RowBuilder::with_capacity(items.len(), MORSEL_BYTES / 4);
    for (row, item) in items {
        let id = format!("{name}#{row}");
        let mut origin = file.origin(ordinal, *row, &id);
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
            Item::Record(record) => {
                (origin.url, origin.fetched) = (record.target_uri(), record.date());
                origin.path = record.target_uri().unwrap_or(name);
                origin.bytes = record.block.len() as u64;
                origin.wrong_length = record.wrong_length;
                let head = &record.block[..record.block.len().min(HEAD_BYTES)];
                if let Some((url, verdict)) = reading
                    .unwanted
                    .as_ref()
                    .and_then(|lists| Some((origin.url?, lists.verdict(origin.url?)?)))
                {
                    rows.refuse(&origin, verdict.name(), url, head);
                    continue;
                }
                let Some(page) = page_of_record(record, &Main, &reading.options) else { continue };
                let field =
                    |name: &str| record.fields.get(name).map(String::from).or_else(|| page.field(name));
                let metadata = reading.metadata.of_names(field);
                origin.metadata = metadata.as_deref();
                match page.verdict {
                    PageVerdict::Ok => rows.push(&origin, page.text.as_bytes()),
                    verdict => {
                        let detail = page.detail.as_deref().unwrap_or_default();
                        rows.refuse(&origin, verdict.name(), detail, head);
                    }
                }
            }
        }
    }
    rows.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Source;
    use bessemer_web::warc::{Compression, WarcWriter};

    fn batches(scan: &mut dyn Scan) -> Vec<RecordBatch> {
        let mut batches = Vec::new();
        while let Some(morsel) = scan.next().unwrap() {
            batches.push(morsel().unwrap());
        }
        batches
    }

    #[test]
    fn a_scan_goes_on_at_every_resume_point_without_reading_what_lies_before() {
        let folder = tempfile::tempdir().unwrap();
        for (name, compression) in [
            ("a.warc", Compression::Plain),
            ("b.warc.gz", Compression::Gzip),
            ("c.warc.zst", Compression::Zstd),
        ] {
            let mut writer = WarcWriter::new(Vec::new(), compression);
            for number in 0..40 {
                let body = format!("Page {number}. ").repeat(20_000);
                let block = format!("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n{body}");
                writer.response(&format!("http://example.com/{number}"), block.as_bytes()).unwrap();
            }
            std::fs::write(folder.path().join(name), writer.into_inner()).unwrap();
        }
        let place = SourceLocation::on_disk(folder.path(), &[]);
        let source = open(&place, 1 << 20, None, &MetadataColumns::default()).unwrap();
        let all = batches(source.scan_files(0..3).unwrap().as_mut());
        assert!(all.len() > 12, "{} batches", all.len());
        let mut scan = source.scan_files(0..3).unwrap();
        for done in 0..all.len() {
            let point = scan.resume_point().unwrap();
            let mut rest = source.scan_files_from(0..3, &point).unwrap().unwrap();
            assert_eq!(batches(rest.as_mut()), all[done..], "{point}");
            // What lies before the point is not read: a damaged beginning does no harm.
            let parsed: ResumePoint = serde_json::from_str(&point).unwrap();
            if let Some((offset, _)) = parsed.record {
                let path = &source.files[parsed.file].path;
                let whole = std::fs::read(path).unwrap();
                let mut damaged = whole.clone();
                // The magic number stays, by which the compression is recognised.
                damaged[16..offset as usize].fill(0);
                std::fs::write(path, damaged).unwrap();
                let mut rest = source.scan_files_from(0..3, &point).unwrap().unwrap();
                assert_eq!(batches(rest.as_mut()), all[done..], "{point}");
                std::fs::write(path, whole).unwrap();
            }
            scan.next().unwrap();
        }
        assert!(source.scan_files_from(0..3, "no point").unwrap().is_none());
        assert!(source.scan_files_from(1..3, "{\"file\":0,\"row\":0,\"record\":null}").unwrap().is_none());
    }
}
