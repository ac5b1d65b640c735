//! Where documents come from, one kind a file.
//!
//! What a scan does under a lock and what on any thread: `bessemer_dataflow::Scan`.

pub(crate) mod cargo;
pub(crate) mod chain;
pub(crate) mod compressed;
pub(crate) mod embedded;
pub(crate) mod file;
pub(crate) mod folder;
pub(crate) mod jsonl;
pub(crate) mod parquet;
mod place;
mod resolve;
pub(crate) mod warc;

pub use compressed::open_compressed;
pub use place::Access;
pub(crate) use place::is_address;
pub(crate) use resolve::open;

use bessemer_dataflow::Scan;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Bytes that a morsel aims at: large enough to hide the cost of handing over, small enough that a few per
/// thread fit any budget.
pub(crate) const MORSEL_BYTES: usize = 1 << 20;

/// Names of the fields of a document in JSON lines, and of the columns in Parquet.
#[derive(Debug, Clone)]
pub(crate) struct FieldNames {
    /// The text.
    pub(crate) text: String,
    /// Where it was published; empty for none.
    pub(crate) url: String,
    /// When it was fetched; empty for none.
    pub(crate) date: String,
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

/// What a source consists of.
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
    /// Files left out by extension, by being hidden, or by the exclude list.
    pub skipped_files: u64,
    /// Remarks for the user, such as why a fallback was taken.
    pub remarks: Vec<String>,
    /// Names of the sources that are chained, in row order; empty for a source by itself. The names in `sources` begin with
    /// one of these and a slash.
    pub chained: Vec<String>,
    /// Those of them whose text must reach the output byte for byte.
    pub verbatim: Vec<String>,
}
