//! Files of a folder, each a document; also the lister that other sources use.
//!
//! Order: depth first, entries of a folder by name as bytes, so the listing does not depend on the file system.
//! Hidden entries (a leading dot) are skipped. Links are followed; each real folder is entered once, so a loop
//! ends. Only regular files are read: a pipe or device is never opened.

use super::warc::text_of;
use super::{Listing, MORSEL_BYTES, Source, SourceInfo};
use crate::error::{Error, Result};
use crate::row::{HEAD_BYTES, Origin, RowBuilder};
use bessemer_dataflow::{Morsel, Scan};
use std::collections::HashSet;
use std::fs::{self, File};
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

/// One file of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileEntry {
    /// Where it is.
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
    pub(crate) object: Option<super::place::Object>,
}

/// Which files to list.
pub(crate) struct Filter {
    /// Extensions without dot, lower case, or `*`.
    pub(crate) extensions: HashSet<String>,
    /// Relative paths to leave out.
    pub(crate) exclude: Vec<String>,
    /// Folders, by canonical path, to leave out.
    pub(crate) exclude_folders: HashSet<PathBuf>,
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
        Filter { extensions, exclude, exclude_folders: HashSet::new() }
    }

    fn keeps(&self, name: &str) -> bool {
        let extension = name.rsplit_once('.').map_or("", |(_, extension)| extension).to_ascii_lowercase();
        self.extensions.contains("*") || self.extensions.contains(&extension)
    }
}

/// Lists the files below `root`. Returns them in order, with the number of files left out.
pub(crate) fn list(root: &Path, filter: &Filter) -> Result<(Vec<FileEntry>, u64)> {
    let mut lister = Lister { filter, files: Vec::new(), skipped: 0, visited: HashSet::new() };
    let metadata = fs::metadata(root).map_err(Error::io("read folder", root))?;
    lister.visited.insert((metadata.dev(), metadata.ino()));
    let entries = fs::read_dir(root).map_err(Error::io("read folder", root))?;
    lister.folder(entries, root, "")?;
    Ok((lister.files, lister.skipped))
}

struct Lister<'a> {
    filter: &'a Filter,
    files: Vec<FileEntry>,
    skipped: u64,
    /// (device, inode) of the folders entered.
    visited: HashSet<(u64, u64)>,
}

impl Lister<'_> {
    fn fault(&mut self, path: PathBuf, relative: String, cause: &std::io::Error) {
        let fault = Some(cause.to_string());
        self.files.push(FileEntry { path, relative, bytes: 0, changed: 0, fault, object: None });
    }

    fn folder(&mut self, entries: fs::ReadDir, path: &Path, prefix: &str) -> Result<()> {
        let mut names = Vec::new();
        for entry in entries {
            names.push(entry.map_err(Error::io("read folder", path))?.file_name());
        }
        names.sort_unstable();
        for name in names {
            let shown = name.to_string_lossy();
            let relative = if prefix.is_empty() { shown.to_string() } else { format!("{prefix}/{shown}") };
            let path = path.join(&name);
            if shown.starts_with('.') || self.filter.exclude.contains(&relative) {
                self.skipped += 1;
                continue;
            }
            let metadata = match fs::metadata(&path) {
                Ok(metadata) => metadata,
                // A link to nowhere, or a loop of links: worth a row only if its name would be read.
                Err(cause) if self.filter.keeps(&shown) => {
                    self.fault(path, relative, &cause);
                    continue;
                }
                Err(_) => {
                    self.skipped += 1;
                    continue;
                }
            };
            if metadata.is_dir() {
                let fresh = self.visited.insert((metadata.dev(), metadata.ino()));
                let excluded = !self.filter.exclude_folders.is_empty()
                    && fs::canonicalize(&path).is_ok_and(|real| self.filter.exclude_folders.contains(&real));
                if !fresh || excluded {
                    self.skipped += 1;
                    continue;
                }
                match fs::read_dir(&path) {
                    Ok(entries) => self.folder(entries, &path, &relative)?,
                    Err(cause) => self.fault(path, relative, &cause),
                }
            } else if metadata.is_file() && self.filter.keeps(&shown) {
                let changed =
                    i128::from(metadata.mtime()) * 1_000_000_000 + i128::from(metadata.mtime_nsec());
                self.files.push(FileEntry {
                    path,
                    relative,
                    bytes: metadata.len(),
                    changed,
                    fault: None,
                    object: None,
                });
            } else {
                self.skipped += 1;
            }
        }
        Ok(())
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

/// Files, each a document, of any number of sources.
pub(crate) struct Files {
    pub(crate) description: String,
    pub(crate) listing: Listing,
    pub(crate) members: Arc<Vec<Member>>,
    /// Files of more bytes are not read beyond their head.
    pub(crate) max_bytes: u64,
    /// Whether the files are pages, whose main text is the document.
    pub(crate) pages: bool,
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
            max_bytes: self.max_bytes,
            pages: self.pages,
            next: files.start,
            end: files.end,
        }))
    }
}

/// Every file of a folder; the first component of its path is its source.
pub(crate) fn open(root: &Path, filter: &Filter, max_bytes: u64) -> Result<Files> {
    let (files, skipped_files) = list(root, filter)?;
    let mut listing = Listing { kind: "folder", skipped_files, ..Listing::default() };
    let mut members = Vec::with_capacity(files.len());
    for file in files {
        // Depth-first order visits all files of a top folder together.
        let name = file.relative.split('/').next().unwrap_or("").to_string();
        if listing.sources.last().is_none_or(|source| source.name != name) {
            listing.sources.push(SourceInfo { name, version: None, licence: None });
        }
        listing.files += 1;
        listing.bytes += file.bytes;
        listing.entries.push(format!("{} {} {}", file.relative, file.bytes, file.changed));
        members.push(Member { id: file.relative.clone(), file, source: listing.sources.len() - 1 });
    }
    let description = format!("folder {}", root.display());
    Ok(Files { description, listing, members: Arc::new(members), max_bytes, pages: false })
}

/// Endings of saved pages.
const PAGES: &[&str] = &["html", "htm", "xhtml"];

/// The saved pages below a folder, or one. A page may have 16 times the bytes of a document, because most of it is not text.
pub(crate) fn open_pages(root: &Path, exclude: &[String], max_bytes: u64) -> Result<Files> {
    let max_bytes = max_bytes.saturating_mul(16).clamp(1 << 20, 64 << 20);
    let is_page = |name: &str| {
        let extension = name.rsplit_once('.').map_or("", |(_, extension)| extension);
        PAGES.iter().any(|page| extension.eq_ignore_ascii_case(page))
    };
    let mut files = if root.is_dir() {
        open(root, &Filter::new(&[], &[PAGES], exclude), max_bytes)?
    } else {
        let (found, listing) = super::place::Place::on_disk(root, exclude).find("html", is_page)?;
        let member = |file: FileEntry| Member { id: file.relative.clone(), file, source: 0 };
        let members = Arc::new(found.into_iter().map(member).collect());
        Files { description: root.display().to_string(), listing, members, max_bytes, pages: true }
    };
    files.listing.kind = "html";
    files.pages = true;
    Ok(files)
}

struct FilesScan {
    members: Arc<Vec<Member>>,
    sources: Arc<Vec<SourceInfo>>,
    max_bytes: u64,
    pages: bool,
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
            let size = self.members[self.next].file.bytes;
            bytes += if size > self.max_bytes { HEAD_BYTES as u64 } else { size };
            self.next += 1;
        }
        if self.next == start {
            return Ok(None);
        }
        let (members, sources) = (self.members.clone(), self.sources.clone());
        let (range, max_bytes, pages) = (start..self.next, self.max_bytes, self.pages);
        Ok(Some(Box::new(move || {
            let mut rows = RowBuilder::with_capacity(range.len(), bytes as usize);
            let mut buffer = Vec::new();
            for ordinal in range {
                let member = &members[ordinal];
                let source = &sources[member.source];
                let mut origin = Origin {
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
                if let Some(fault) = &member.file.fault {
                    rows.refuse(&origin, "unreadable", fault, &[]);
                    continue;
                }
                match read(&member.file.path, max_bytes, &mut buffer) {
                    Ok(whole) => {
                        origin.bytes = origin.bytes.max(buffer.len() as u64);
                        if whole {
                            origin.bytes = buffer.len() as u64;
                            if pages {
                                match text_of(&buffer, Some("text/html"), None) {
                                    Ok(text) => rows.push(&origin, text.as_bytes()),
                                    Err((reason, detail)) => rows.refuse(&origin, reason, &detail, &buffer),
                                }
                            } else {
                                rows.push(&origin, &buffer);
                            }
                        } else {
                            let detail = format!("{} bytes, at most {max_bytes}", origin.bytes);
                            rows.refuse(&origin, "too-large", &detail, &buffer);
                        }
                    }
                    Err(cause) => rows.refuse(&origin, "unreadable", &cause.to_string(), &[]),
                }
            }
            rows.finish()
        })))
    }
}

/// Reads a file, or the head of one that is larger than allowed; says whether it was read whole. The limit holds
/// for files that grew since they were listed, too.
fn read(path: &Path, max_bytes: u64, buffer: &mut Vec<u8>) -> std::io::Result<bool> {
    buffer.clear();
    let mut file = File::open(path)?;
    let size = file.metadata()?.len();
    if size > max_bytes {
        file.take(HEAD_BYTES as u64).read_to_end(buffer)?;
        return Ok(false);
    }
    // Some files under /proc report no size; they too are read up to the limit.
    file.by_ref().take(max_bytes + 1).read_to_end(buffer)?;
    Ok(buffer.len() as u64 <= max_bytes)
}
