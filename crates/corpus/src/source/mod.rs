//! Sources of documents, one kind a file.
//!
//! What a scan does under a lock and what on any thread: `bessemer_dataflow::Scan`.

pub(crate) mod cargo;
pub(crate) mod chain;
pub(crate) mod compressed;
pub(crate) mod embedded;
pub(crate) mod file;
mod files;
pub(crate) mod folder;
mod json_line;
pub(crate) mod jsonl;
mod location;
mod metadata;
mod paper_inputs;
pub(crate) mod papers;
pub(crate) mod parquet;
pub(crate) mod python;
mod repair;
mod resolve;
mod row_lines;
pub(crate) mod stack_exchange;
pub(crate) mod warc;
pub(crate) mod wikipedia;

pub use compressed::open_compressed;
pub use folder::begins_as_text;
pub use location::Access;
pub(crate) use location::is_address;
pub(crate) use metadata::MetadataColumns;
pub use repair::repair_json;
pub(crate) use resolve::open;
pub use resolve::{check_inputs, source_kind_of};
pub use row_lines::open_json_lines;

use crate::chats::ChatRows;
use bessemer_corpus_config::DialogueConfig;
use bessemer_dataflow::Scan;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Range;

/// Bytes that a morsel aims at: large enough to hide the cost of handing over, small enough that a few per
/// thread fit any budget.
pub(crate) const MORSEL_BYTES: usize = 1 << 20;

/// Largest web page that is read where a document's text may have `max_bytes`: 16 times that, because most of a page is markup.
pub(crate) fn max_page_bytes(max_bytes: u64) -> u64 {
    max_bytes.saturating_mul(16).clamp(1 << 20, 64 << 20)
}

/// Names of the fields of a document in JSON lines, and of the columns in Parquet.
#[derive(Debug, Clone)]
pub(crate) struct FieldNames {
    /// The text.
    pub(crate) text: String,
    /// Address of publication; empty for none.
    pub(crate) url: String,
    /// When it was fetched; empty for none.
    pub(crate) date: String,
    /// Columns of metadata that predicates read.
    pub(crate) metadata: MetadataColumns,
    /// Embedding of the text, a list of numbers; empty for none.
    pub(crate) embedding: String,
    /// How the turns of a chat become text.
    pub(crate) dialogue: DialogueConfig,
    /// Rows are chats to train on; none: they are texts.
    pub(crate) chats: Option<ChatRows>,
}

/// Where documents come from: a source of rows that says what it consists of.
pub trait Source: bessemer_dataflow::Source {
    /// What it consists of, known before any text is read.
    fn listing(&self) -> &Listing;
    /// Stored bytes of each file of the listing, in row order, where files can be read apart from each other by
    /// [`Source::scan_files`]; empty where they cannot.
    fn file_bytes(&self) -> Vec<u64> {
        Vec::new()
    }
    /// Reads a run of files. Runs that follow each other give together the rows of the whole scan.
    fn scan_files(&self, _files: Range<usize>) -> bessemer_dataflow::Result<Box<dyn Scan>> {
        self.scan()
    }
    /// Reads the rest of a run of files, from a [`Scan::resume_point`] of a scan of the same files; none where that is not possible.
    fn scan_files_from(
        &self,
        _files: Range<usize>,
        _point: &str,
    ) -> bessemer_dataflow::Result<Option<Box<dyn Scan>>> {
        Ok(None)
    }
    /// Whether the text must reach the output byte for byte, in one piece per split.
    fn verbatim(&self) -> bool {
        false
    }
}

/// A named part of a source, the unit of splitting and attribution: a crate, a top folder, a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceInfo {
    /// Its name. Several versions of a crate share it.
    pub name: String,
    /// Its version, where it has one.
    pub version: Option<String>,
    /// Its licence as an SPDX expression, where it is known.
    pub licence: Option<String>,
}

/// Listing of a source.
#[derive(Debug, Clone, Default)]
pub struct Listing {
    /// The kind of source, as in the configuration.
    pub kind: &'static str,
    /// Parts, in row order, each once.
    pub sources: Vec<SourceInfo>,
    /// Identity of the input: one line per file with its name and whatever tells a change (size, time of change).
    pub entries: Vec<String>,
    /// Files to read.
    pub files: u64,
    /// Their bytes as stored.
    pub bytes: u64,
    /// Bytes as stored of each source of `sources`; empty where they are not known before reading.
    pub source_bytes: Vec<u64>,
    /// Files left out, by kind.
    pub skipped: Skipped,
    /// The stand-in for the source that the configuration asks for, with the reason; `None` without one.
    pub fallback: Option<String>,
    /// Remarks for the user.
    pub remarks: Vec<String>,
    /// Names of the sources that are chained, in row order; empty for a source by itself. The names in `sources` begin with
    /// one of these and a slash.
    pub chained: Vec<String>,
    /// The chained sources whose text must reach the output byte for byte.
    pub verbatim: Vec<String>,
}

impl Listing {
    /// Adds a file to the last source.
    pub(crate) fn add(&mut self, bytes: u64) {
        self.files += 1;
        self.bytes += bytes;
        self.source_bytes.resize(self.sources.len(), 0);
        if let Some(of_source) = self.source_bytes.last_mut() {
            *of_source += bytes;
        }
    }
}

/// Files that were left out for the same reason.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkippedFiles {
    /// How many.
    pub files: u64,
    /// Bytes as stored; 0 for what was not looked at.
    pub bytes: u64,
    /// Paths of the first of them, relative to the root.
    pub examples: Vec<String>,
}

/// Files that a source left out, by kind: an extension with its dot, or a phrase such as "no extension".
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Skipped(pub BTreeMap<String, SkippedFiles>);

/// Kind of the entries whose names begin with a dot.
pub(crate) const HIDDEN: &str = "hidden";
/// Kind of what the key `exclude` names.
pub(crate) const EXCLUDED: &str = "excluded";
/// Kind of folders that runs of this program work in, below the root.
pub(crate) const RUN: &str = "run directory";
/// Kind of links that lead out of the root.
pub(crate) const LINK_OUT: &str = "link out of the root";
/// Kind of links to a folder that is read already.
pub(crate) const LINK_AGAIN: &str = "folder read already";
/// Kind of links to nothing.
pub(crate) const LINK_BROKEN: &str = "broken link";
/// Kind of what is neither a file nor a folder.
pub(crate) const SPECIAL: &str = "pipe, device or socket";
/// Kind of files whose names have no extension.
pub(crate) const NO_EXTENSION: &str = "no extension";
/// Kind of files without an extension that are no text.
pub(crate) const NO_TEXT: &str = "no extension and no text";
/// Kind of PDF files.
const PDF_KIND: &str = ".pdf";
/// Paths that are kept of each kind.
const EXAMPLES: usize = 3;
/// Characters of an extension beyond which it is taken to be part of the name.
const EXTENSION_CHARS: usize = 12;

impl Skipped {
    /// Counts an entry.
    pub(crate) fn add(&mut self, kind: &str, path: &str, bytes: u64) {
        let found = self.0.entry(kind.to_string()).or_default();
        found.files += 1;
        found.bytes += bytes;
        if found.examples.len() < EXAMPLES {
            found.examples.push(path.to_string());
        }
    }

    /// Counts a file whose extension is not read.
    pub(crate) fn add_file(&mut self, path: &str, bytes: u64) {
        let name = path.rsplit('/').next().unwrap_or(path);
        match name.rsplit_once('.') {
            Some((stem, extension))
                if !stem.is_empty() && (1..=EXTENSION_CHARS).contains(&extension.chars().count()) =>
            {
                self.add(&format!(".{}", extension.to_lowercase()), path, bytes);
            }
            _ => self.add(NO_EXTENSION, path, bytes),
        }
    }

    /// Adds what another listing left out.
    pub(crate) fn merge(&mut self, other: &Skipped) {
        for (kind, more) in &other.0 {
            let found = self.0.entry(kind.clone()).or_default();
            found.files += more.files;
            found.bytes += more.bytes;
            let room = EXAMPLES.saturating_sub(found.examples.len());
            found.examples.extend(more.examples.iter().take(room).cloned());
        }
    }

    /// All entries left out.
    pub fn files(&self) -> u64 {
        self.0.values().map(|kind| kind.files).sum()
    }

    /// The kinds that a user may have expected to be read, most files first, each with its number and an example; nothing
    /// where only hidden and excluded entries were left out.
    pub fn in_words(&self) -> Option<String> {
        const KINDS: usize = 8;
        let unasked = |(kind, _): &(&String, &SkippedFiles)| *kind != HIDDEN && *kind != EXCLUDED;
        let mut kinds: Vec<(&String, &SkippedFiles)> = self.0.iter().filter(unasked).collect();
        kinds.sort_by_key(|(kind, found)| (std::cmp::Reverse(found.files), kind.as_str()));
        let words: Vec<String> = kinds
            .iter()
            .take(KINDS)
            .map(|(kind, found)| {
                let example = found.examples.first().map_or(String::new(), |path| format!(" ({path})"));
                format!("{kind} {}{example}", found.files)
            })
            .collect();
        let others: u64 = kinds.iter().skip(KINDS).map(|(_, found)| found.files).sum();
        let more = if others > 0 { format!(", other kinds {others}") } else { String::new() };
        let files: u64 = kinds.iter().map(|(_, found)| found.files).sum();
        let plural = if files == 1 { "file was" } else { "files were" };
        // A user who collected papers should not have to guess what became of them.
        let pdf = if self.0.contains_key(PDF_KIND) {
            "; PDF is not read: convert it to text or HTML first"
        } else {
            ""
        };
        let has_rows = [".json", ".csv", ".tsv"].iter().any(|kind| self.0.contains_key(*kind));
        let rows = if has_rows {
            "; rows of .csv, .tsv and .json files are read with corpus.source = \"jsonl\" and the file as corpus.path"
        } else {
            ""
        };
        (!words.is_empty())
            .then(|| format!("{files} {plural} not read: {}{more}{pdf}{rows}", words.join(", ")))
    }
}
