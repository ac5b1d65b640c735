//! A source that reads a list of files in one format.

use super::folder::FileEntry;
use super::location::SourceLocation;
use super::{Listing, Source};
use bessemer_dataflow::{Result, Scan};
use bessemer_documents::Origin;
use std::ops::Range;
use std::sync::Arc;

/// Format of the files of a [`FileSource`].
pub(super) trait FileFormat: Send + Sync + 'static {
    /// What the files are called in the description of the source.
    const FILES: &'static str;

    /// Reads a run of the files.
    fn scan(&self, files: Arc<Vec<FileEntry>>, run: Range<usize>) -> Box<dyn Scan>;

    /// Reads the rest of a run from a [`Scan::resume_point`]; none where that is not possible.
    fn resume(&self, _files: Arc<Vec<FileEntry>>, _run: Range<usize>, _point: &str) -> Option<Box<dyn Scan>> {
        None
    }
}

/// Files in one format, and their listing.
pub(super) struct FileSource<F> {
    root: String,
    pub(super) files: Arc<Vec<FileEntry>>,
    listing: Listing,
    pub(super) format: F,
}

impl<F: FileFormat> FileSource<F> {
    /// The files that [`SourceLocation::find`] found at `place`.
    pub(super) fn new(
        place: &SourceLocation<'_>,
        files: Vec<FileEntry>,
        listing: Listing,
        format: F,
    ) -> FileSource<F> {
        FileSource { root: place.path.display().to_string(), files: Arc::new(files), listing, format }
    }
}

impl<F: FileFormat> bessemer_dataflow::Source for FileSource<F> {
    fn describe(&self) -> String {
        format!("{} {} in {}", self.files.len(), F::FILES, self.root)
    }

    fn scan(&self) -> Result<Box<dyn Scan>> {
        self.scan_files(0..self.files.len())
    }
}

impl<F: FileFormat> Source for FileSource<F> {
    fn listing(&self) -> &Listing {
        &self.listing
    }

    fn file_bytes(&self) -> Vec<u64> {
        self.files.iter().map(|file| file.bytes).collect()
    }

    fn scan_files(&self, files: Range<usize>) -> Result<Box<dyn Scan>> {
        Ok(self.format.scan(self.files.clone(), files))
    }

    fn scan_files_from(&self, files: Range<usize>, point: &str) -> Result<Option<Box<dyn Scan>>> {
        Ok(self.format.resume(self.files.clone(), files, point))
    }
}

impl FileEntry {
    /// Origin of a document of this file, which is its source and its path.
    pub(super) fn origin<'a>(&'a self, ordinal: usize, row: u64, id: &'a str) -> Origin<'a> {
        let (source, path) = (&self.relative, &self.relative);
        Origin { file: ordinal as u32, row, id, source, path, ..Origin::default() }
    }
}
