//! Where documents come from, one kind a file.
//!
//! A source has a sequential part and a parallel part. [`Scan::next`] is called under a lock and does only what
//! must be done in order: naming the next files, cutting the next run of lines. The [`Morsel`] that it returns
//! does the rest on any thread: reading, parsing, building the batch.

pub(crate) mod cargo;
pub(crate) mod compressed;
pub(crate) mod embedded;
pub(crate) mod file;
pub(crate) mod folder;
pub(crate) mod jsonl;
pub(crate) mod parquet;
mod resolve;

pub(crate) use resolve::open;

use crate::error::Result;
use arrow_array::RecordBatch;
use serde::{Deserialize, Serialize};

/// Work that yields one batch, on any thread.
pub type Morsel = Box<dyn FnOnce() -> Result<RecordBatch> + Send>;

/// A sequence of morsels, in row order.
pub trait Scan: Send {
    /// The next morsel, or none at the end. Called from one thread at a time.
    fn next(&mut self) -> Result<Option<Morsel>>;
}

/// Bytes that a morsel aims at: large enough to hide the cost of handing over, small enough that a few per
/// thread fit any budget.
pub(crate) const MORSEL_BYTES: usize = 1 << 20;

/// Where documents come from.
pub trait Source: Send + Sync {
    /// The source in words, for plans and errors.
    fn describe(&self) -> String;
    /// What it consists of, known before any text is read.
    fn listing(&self) -> &Listing;
    /// Starts reading from the beginning.
    fn scan(&self) -> Result<Box<dyn Scan>>;
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
}
