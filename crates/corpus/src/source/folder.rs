//! Files of a folder, each a document; also the lister that other sources use.
//!
//! Order: depth first, entries of a folder by name as bytes, so the listing does not depend on the file system.
//! Hidden entries (a leading dot) are skipped. Links are followed where they stay below the root, and elsewhere only if
//! that is asked for; each real folder is entered once, so a loop ends. Only regular files are read: a pipe or device is
//! never opened. Run directories of this program below the root are not entered. What is left out is counted by kind.
//!
//! A document is the text of its file: unpacked where its name says that it is compressed, the main text where it is a
//! web page, decoded where it is in a legacy encoding.

use super::compressed::{self, inner_name};
use super::{
    EXCLUDED, HIDDEN, LINK_AGAIN, LINK_BROKEN, LINK_OUT, Listing, MORSEL_BYTES, MetadataColumns, NO_TEXT,
    RUN, SPECIAL, Skipped, Source, SourceInfo, max_page_bytes,
};
use crate::error::{Error, Result};
use crate::rule::{Kind, is_binary};
use bessemer_dataflow::{Morsel, Scan};
use bessemer_documents::{HEAD_BYTES, Origin, RowBuilder};
use bessemer_durable::{is_limit, read_dir};
use bessemer_web::encoding;
use bessemer_web::extract::Main;
use bessemer_web::page::{PDF_BEGINNING, PageOptions, PageVerdict, page_of_html};
use std::borrow::Cow;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Extensions read from a folder when the configuration names none, beside those of
/// [`Kind::CODE`](crate::rule::Kind::CODE).
pub(crate) const PROSE: &[&str] = &[
    "txt", "text", "md", "markdown", "rst", "adoc", "org", "tex", "html", "htm", "xml", "toml", "yaml", "yml",
];

/// Files that a run directory has from its first moment on.
const RUN_FILES: [&str; 2] = [".lock", "metrics.jsonl"];

/// One file of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileEntry {
    /// Path of the file.
    pub(crate) path: PathBuf,
    /// Path below the root, with `/` between the parts.
    pub(crate) relative: String,
    /// Bytes as stored.
    pub(crate) bytes: u64,
    /// Nanoseconds since 1970 of the last change.
    pub(crate) changed: i128,
    /// Why it cannot be read, if that is known already.
    pub(crate) fault: Option<String>,
    /// The object that it is, where it lies in an object store.
    pub(crate) object: Option<super::location::Object>,
}

/// Nanoseconds since 1970 of the last change of a file.
pub(super) fn changed(metadata: &fs::Metadata) -> i128 {
    i128::from(metadata.mtime()) * 1_000_000_000 + i128::from(metadata.mtime_nsec())
}

/// Selection of the files to list.
pub(crate) struct Filter {
    /// Extensions without dot, lower case, or `*`.
    pub(crate) extensions: HashSet<String>,
    /// Relative paths to leave out.
    pub(crate) exclude: Vec<String>,
    /// Folders, by canonical path, to leave out.
    pub(crate) exclude_folders: HashSet<PathBuf>,
    /// Follow links that lead out of the root.
    pub(crate) follow_links: bool,
    /// Look for the extension before the ending of a compressed file too.
    pub(crate) compressed: bool,
    /// Keep files without an extension whose first bytes are text: `README`, `NEWS.gz`, `changelog.Debian.gz`.
    pub(crate) by_content: bool,
}

impl Filter {
    /// A filter by extension.
    pub(crate) fn new(extensions: &[String], default: &[&[&str]], exclude: &[String]) -> Self {
        let extensions = if extensions.is_empty() {
            default.iter().copied().flatten().map(|extension| extension.to_string()).collect()
        } else {
            extensions.iter().map(|extension| extension.to_ascii_lowercase()).collect()
        };
        let exclude = exclude.iter().map(|path| path.trim_end_matches('/').to_string()).collect();
        Filter {
            extensions,
            exclude,
            exclude_folders: HashSet::new(),
            follow_links: false,
            compressed: false,
            by_content: false,
        }
    }

    /// A filter that keeps every file.
    pub(crate) fn all(exclude: &[String], follow_links: bool) -> Self {
        Filter { follow_links, ..Filter::new(&["*".to_string()], &[], exclude) }
    }

    fn keeps(&self, name: &str) -> bool {
        let name = if self.compressed { inner_name(name) } else { name };
        let extension = name.rsplit_once('.').map_or("", |(_, extension)| extension).to_ascii_lowercase();
        self.extensions.contains("*") || self.extensions.contains(&extension)
    }
}

/// Lists the files below `root`, in order, and what was left out.
pub(crate) fn list(root: &Path, filter: &Filter) -> Result<(Vec<FileEntry>, Skipped)> {
    let real_root = fs::canonicalize(root).map_err(Error::io("read folder", root))?;
    let mut lister =
        Lister { filter, real_root, files: Vec::new(), skipped: Skipped::default(), visited: HashSet::new() };
    let metadata = fs::metadata(root).map_err(Error::io("read folder", root))?;
    lister.visited.insert((metadata.dev(), metadata.ino()));
    let entries = read_dir(root).map_err(Error::System)?;
    lister.folder(entries, root, "")?;
    Ok((lister.files, lister.skipped))
}

struct Lister<'a> {
    filter: &'a Filter,
    /// The root without links.
    real_root: PathBuf,
    files: Vec<FileEntry>,
    skipped: Skipped,
    /// (device, inode) of the folders entered.
    visited: HashSet<(u64, u64)>,
}

impl Lister<'_> {
    fn fault(&mut self, path: PathBuf, relative: String, cause: &std::io::Error) {
        let fault = Some(cause.to_string());
        self.files.push(FileEntry { path, relative, bytes: 0, changed: 0, fault, object: None });
    }

    /// Whether a link leads out of the root. Folders on the way to it do not: they were entered only if they lie below.
    fn leads_out(&self, path: &Path) -> bool {
        let is_link = fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_symlink());
        is_link && fs::canonicalize(path).is_ok_and(|real| !real.starts_with(&self.real_root))
    }

    fn folder(&mut self, entries: fs::ReadDir, path: &Path, prefix: &str) -> Result<()> {
        let mut names = Vec::new();
        for entry in entries {
            names.push(entry.map_err(Error::io("read folder", path))?.file_name());
        }
        names.sort_unstable();
        // What a run writes is no text of its own corpus, which would be another one with each run.
        let holds =
            |wanted: &str| names.binary_search_by(|name| name.as_os_str().cmp(OsStr::new(wanted))).is_ok();
        if !prefix.is_empty() && RUN_FILES.iter().all(|file| holds(file)) {
            self.skipped.add(RUN, prefix, 0);
            return Ok(());
        }
        for name in names {
            let shown = name.to_string_lossy();
            let relative = if prefix.is_empty() { shown.to_string() } else { format!("{prefix}/{shown}") };
            if shown.starts_with('.') {
                self.skipped.add(HIDDEN, &relative, 0);
            } else if self.filter.exclude.contains(&relative) {
                self.skipped.add(EXCLUDED, &relative, 0);
            } else {
                self.entry(path.join(&name), &shown, relative)?;
            }
        }
        Ok(())
    }

    fn entry(&mut self, path: PathBuf, name: &str, relative: String) -> Result<()> {
        if !self.filter.follow_links && self.leads_out(&path) {
            self.skipped.add(LINK_OUT, &relative, 0);
            return Ok(());
        }
        let metadata = match fs::metadata(&path) {
            Ok(metadata) => metadata,
            // A link to nowhere, or a loop of links: worth a row only if its name would be read.
            Err(cause) if self.filter.keeps(name) => {
                self.fault(path, relative, &cause);
                return Ok(());
            }
            Err(_) => {
                self.skipped.add(LINK_BROKEN, &relative, 0);
                return Ok(());
            }
        };
        if metadata.is_dir() {
            if !self.visited.insert((metadata.dev(), metadata.ino())) {
                self.skipped.add(LINK_AGAIN, &relative, 0);
                return Ok(());
            }
            if !self.filter.exclude_folders.is_empty()
                && fs::canonicalize(&path).is_ok_and(|real| self.filter.exclude_folders.contains(&real))
            {
                self.skipped.add(EXCLUDED, &relative, 0);
                return Ok(());
            }
            match read_dir(&path) {
                Ok(entries) => self.folder(entries, &path, &relative)?,
                Err(cause) if is_limit(&cause) => return Err(Error::System(cause)),
                Err(cause) => self.fault(path, relative, &cause),
            }
        } else if !metadata.is_file() {
            self.skipped.add(SPECIAL, &relative, 0);
        } else {
            let (bytes, changed) = (metadata.len(), changed(&metadata));
            let file = FileEntry { path, relative, bytes, changed, fault: None, object: None };
            if self.filter.keeps(name) {
                self.files.push(file);
            } else if !self.filter.by_content || has_extension(inner_name(name)) {
                self.skipped.add_file(&file.relative, bytes);
            } else if holds_text(&file) {
                self.files.push(file);
            } else {
                self.skipped.add(NO_TEXT, &file.relative, bytes);
            }
        }
        Ok(())
    }
}

/// Whether a name ends in an extension, by its looks: letters and digits of one case, a letter first. `changelog.Debian` and
/// `NEWS.1` have none.
fn has_extension(name: &str) -> bool {
    let Some((stem, ending)) = name.rsplit_once('.') else { return false };
    let is_mixed =
        ending.bytes().any(|b| b.is_ascii_lowercase()) && ending.bytes().any(|b| b.is_ascii_uppercase());
    let is_word = ending.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_~+".contains(&byte));
    !stem.is_empty() && is_word && !is_mixed && ending.bytes().any(|byte| byte.is_ascii_alphabetic())
}

/// Bytes at the beginning of a file that tell whether it is text.
const TEXT_PROBE: u64 = 64 << 10;

/// Whether a file begins with text, unpacked where its name says that it is compressed. One that cannot be read is kept: its
/// row says why.
fn holds_text(file: &FileEntry) -> bool {
    let mut head = Vec::new();
    let read = compressed::open_io(file).and_then(|opened| opened.take(TEXT_PROBE).read_to_end(&mut head));
    read.is_err() || begins_as_text(&head)
}

/// Whether the first bytes of a file are text: UTF-8, UTF-16 with a byte order mark, or a legacy encoding that is recognised; without
/// control characters that no text has.
pub fn begins_as_text(head: &[u8]) -> bool {
    if head.starts_with(&[0xff, 0xfe]) || head.starts_with(&[0xfe, 0xff]) {
        return true;
    }
    if head.iter().any(|byte| matches!(byte, 0..=6 | 14..=26 | 28..=31)) {
        return false;
    }
    match std::str::from_utf8(head) {
        Ok(_) => true,
        // The end of the head may fall into a character.
        Err(error) if error.error_len().is_none() => true,
        Err(_) => matches!(decoded(head), Cow::Owned(_)),
    }
}

/// A file with what its rows say about where they come from.
#[derive(Debug, Clone)]
pub(crate) struct Member {
    /// The file; its `relative` becomes the column `path`.
    pub(crate) file: FileEntry,
    /// Unique name of the document.
    pub(crate) id: String,
    /// Index of the source in the listing.
    pub(crate) source: usize,
}

/// Which files are pages of the web, whose main text is the document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pages {
    None,
    /// Files whose names end like a page's.
    Named,
    All,
}

/// How files become documents.
#[derive(Debug, Clone)]
pub(crate) struct Reading {
    /// Files of more bytes are not read beyond their head.
    pub(crate) max_bytes: u64,
    /// The same for code.
    pub(crate) max_code_bytes: u64,
    /// The same for pages of the web.
    pub(crate) max_page_bytes: u64,
    pub(crate) pages: Pages,
    /// Whether text in a legacy encoding is decoded.
    pub(crate) detect_encoding: bool,
    /// Columns of metadata that predicates read of pages.
    pub(crate) metadata: MetadataColumns,
}

impl Reading {
    /// The reading of files of text and code as they are.
    pub(crate) fn plain(max_bytes: u64) -> Reading {
        Reading {
            max_bytes,
            max_code_bytes: max_bytes,
            max_page_bytes: max_page_bytes(max_bytes),
            pages: Pages::None,
            detect_encoding: false,
            metadata: MetadataColumns::default(),
        }
    }

    fn is_page(&self, name: &str) -> bool {
        match self.pages {
            Pages::None => false,
            Pages::Named => is_page(inner_name(name)),
            Pages::All => true,
        }
    }

    /// Bytes up to which a file is read.
    fn limit(&self, name: &str) -> u64 {
        match Kind::of_path(inner_name(name)) {
            _ if self.is_page(name) => self.max_page_bytes,
            Kind::Code => self.max_code_bytes,
            Kind::Prose => self.max_bytes,
        }
    }
}

/// Files, each a document, of any number of sources.
pub(crate) struct Files {
    pub(crate) description: String,
    pub(crate) listing: Listing,
    pub(crate) members: Arc<Vec<Member>>,
    pub(crate) reading: Reading,
}

impl bessemer_dataflow::Source for Files {
    fn describe(&self) -> String {
        self.description.clone()
    }

    fn scan(&self) -> bessemer_dataflow::Result<Box<dyn Scan>> {
        self.scan_files(0..self.members.len())
    }
}

impl Source for Files {
    fn listing(&self) -> &Listing {
        &self.listing
    }

    fn file_bytes(&self) -> Vec<u64> {
        self.members.iter().map(|member| member.file.bytes).collect()
    }

    fn scan_files(&self, files: Range<usize>) -> bessemer_dataflow::Result<Box<dyn Scan>> {
        Ok(Box::new(FilesScan {
            members: self.members.clone(),
            sources: Arc::new(self.listing.sources.clone()),
            reading: self.reading.clone(),
            next: files.start,
            end: files.end,
        }))
    }
}

/// Every file of a folder; the first component of its path is its source.
pub(crate) fn open(root: &Path, filter: &Filter, reading: Reading) -> Result<Files> {
    let (files, skipped) = list(root, filter)?;
    let mut listing = Listing { kind: "folder", skipped, ..Listing::default() };
    let mut members = Vec::with_capacity(files.len());
    for file in files {
        // Depth-first order visits all files of a top folder together.
        let name = file.relative.split('/').next().unwrap_or("").to_string();
        if listing.sources.last().is_none_or(|source| source.name != name) {
            listing.sources.push(SourceInfo { name, version: None, licence: None });
        }
        listing.add(file.bytes);
        listing.entries.push(format!("{} {} {}", file.relative, file.bytes, file.changed));
        members.push(Member { id: file.relative.clone(), file, source: listing.sources.len() - 1 });
    }
    let description = format!("folder {}", root.display());
    Ok(Files { description, listing, members: Arc::new(members), reading })
}

/// Endings of saved pages.
pub(crate) const PAGES: &[&str] = &["html", "htm", "xhtml"];

fn is_page(name: &str) -> bool {
    let extension = name.rsplit_once('.').map_or("", |(_, extension)| extension);
    PAGES.iter().any(|page| extension.eq_ignore_ascii_case(page))
}

/// The saved pages below a folder, or one.
pub(crate) fn open_pages(
    root: &Path,
    exclude: &[String],
    follow_links: bool,
    reading: Reading,
) -> Result<Files> {
    let mut files = if root.is_dir() {
        let filter = Filter { follow_links, compressed: true, ..Filter::new(&[], &[PAGES], exclude) };
        open(root, &filter, reading)?
    } else {
        let (found, listing) =
            super::location::SourceLocation::on_disk(root, exclude).find("html", is_page)?;
        let member = |file: FileEntry| Member { id: file.relative.clone(), file, source: 0 };
        let members = Arc::new(found.into_iter().map(member).collect());
        Files { description: root.display().to_string(), listing, members, reading }
    };
    files.listing.kind = "html";
    Ok(files)
}

struct FilesScan {
    members: Arc<Vec<Member>>,
    sources: Arc<Vec<SourceInfo>>,
    reading: Reading,
    next: usize,
    end: usize,
}

/// Files of one batch at most: tiny files cost more in calls than in bytes.
const MORSEL_FILES: usize = 512;

impl Scan for FilesScan {
    fn next(&mut self) -> bessemer_dataflow::Result<Option<Morsel>> {
        let start = self.next;
        let mut bytes = 0;
        while self.next < self.end
            && self.next - start < MORSEL_FILES
            && (bytes < MORSEL_BYTES as u64 || self.next == start)
        {
            let file = &self.members[self.next].file;
            bytes +=
                if file.bytes > self.reading.limit(&file.relative) { HEAD_BYTES as u64 } else { file.bytes };
            self.next += 1;
        }
        if self.next == start {
            return Ok(None);
        }
        let (members, sources) = (self.members.clone(), self.sources.clone());
        let (range, reading) = (start..self.next, self.reading.clone());
        Ok(Some(Box::new(move || {
            let mut rows = RowBuilder::with_capacity(range.len(), bytes as usize);
            let mut buffer = Vec::new();
            for ordinal in range {
                let member = &members[ordinal];
                let source = &sources[member.source];
                let origin = Origin {
                    file: ordinal as u32,
                    row: 0,
                    id: &member.id,
                    source: &source.name,
                    version: source.version.as_deref(),
                    licence: source.licence.as_deref(),
                    path: &member.file.relative,
                    bytes: member.file.bytes,
                    ..Origin::default()
                };
                let mut limited = None;
                document(&member.file, origin, &reading, &mut buffer, &mut rows, &mut limited);
                if let Some(cause) = limited {
                    return Err(Error::io("read", &member.file.path)(cause).into());
                }
            }
            rows.finish()
        })))
    }
}

/// Adds the row of a file. `limited` becomes the error of a limit of this process, beyond which the file could be read.
fn document(
    file: &FileEntry,
    mut origin: Origin<'_>,
    reading: &Reading,
    buffer: &mut Vec<u8>,
    rows: &mut RowBuilder,
    limited: &mut Option<std::io::Error>,
) {
    if let Some(fault) = &file.fault {
        return rows.refuse(&origin, "unreadable", fault, &[]);
    }
    let limit = reading.limit(&file.relative);
    match read(file, limit, buffer) {
        Ok(true) => {}
        Ok(false) => {
            origin.bytes = origin.bytes.max(buffer.len() as u64);
            let detail = format!("{} bytes, at most {limit}", origin.bytes);
            return rows.refuse(&origin, "too-large", &detail, buffer);
        }
        Err(cause) if compressed::is_bomb(&cause) => {
            return rows.refuse(&origin, "decompression-bomb", &cause.to_string(), &[]);
        }
        Err(cause) if is_limit(&cause) => {
            *limited = Some(cause);
            return;
        }
        Err(cause) => return rows.refuse(&origin, "unreadable", &cause.to_string(), &[]),
    }
    origin.bytes = buffer.len() as u64;
    if buffer.starts_with(PDF_BEGINNING) {
        let detail =
            format!("{} bytes; PDF is not supported: convert it to text or HTML first", buffer.len());
        return rows.refuse(&origin, PageVerdict::Pdf.name(), &detail, &[]);
    }
    if reading.is_page(&file.relative) {
        let page = page_of_html(buffer, &Main, &PageOptions::with_max_body(limit as usize));
        let metadata = reading.metadata.of_names(|name| page.field(name));
        let origin = Origin { metadata: metadata.as_deref(), ..origin };
        match page.verdict {
            PageVerdict::Ok => rows.push(&origin, page.text.as_bytes()),
            verdict => {
                rows.refuse(&origin, verdict.name(), page.detail.as_deref().unwrap_or_default(), buffer)
            }
        }
    } else if reading.detect_encoding {
        rows.push(&origin, &decoded(buffer));
    } else {
        rows.push(&origin, buffer);
    }
}

/// Bytes of text in a legacy encoding as UTF-8; other bytes as they are. Text that is nearly UTF-8, and text that the
/// encoding does not explain to the last byte, is left to the rules for broken text.
fn decoded(bytes: &[u8]) -> Cow<'_, [u8]> {
    let marked = bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]);
    // ISO-2022-JP writes Japanese in ASCII bytes behind an escape.
    let escaped = bytes.windows(2).any(|pair| pair == b"\x1b$");
    if (std::str::from_utf8(bytes).is_ok() && !escaped) || (is_binary(bytes).is_some() && !marked) {
        return Cow::Borrowed(bytes);
    }
    let found = encoding::decode(bytes, None, None);
    let clean = found.replaced == 0 && !found.text.contains(|c: char| ('\u{80}'..='\u{9f}').contains(&c));
    if clean && found.encoding != "UTF-8" {
        Cow::Owned(found.text.into_bytes())
    } else {
        Cow::Borrowed(bytes)
    }
}

/// Reads a file, unpacked, or the head of one that is larger than allowed; says whether it was read whole. The limit
/// holds for files that grew since they were listed, too.
fn read(file: &FileEntry, max_bytes: u64, buffer: &mut Vec<u8>) -> std::io::Result<bool> {
    buffer.clear();
    if inner_name(&file.relative) != file.relative {
        let mut unpacked = compressed::open_io(file)?;
        unpacked.by_ref().take(max_bytes + 1).read_to_end(buffer)?;
        return Ok(buffer.len() as u64 <= max_bytes);
    }
    let mut opened = bessemer_durable::open_regular(&file.path)?;
    let size = opened.metadata()?.len();
    if size > max_bytes {
        opened.take(HEAD_BYTES as u64).read_to_end(buffer)?;
        return Ok(false);
    }
    // Some files under /proc report no size; they too are read up to the limit.
    opened.by_ref().take(max_bytes + 1).read_to_end(buffer)?;
    Ok(buffer.len() as u64 <= max_bytes)
}
