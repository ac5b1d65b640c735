//! A source that reads a list of files in one format.

use super::folder::FileEntry;
use super::location::SourceLocation;
use super::{Listing, Source};
use arrow_array::RecordBatch;
use bessemer_dataflow::{Morsel, Result, Scan};
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

/// A format whose files are read one after the other, each by itself.
pub(super) trait ByFile: Clone + Send + Sync + 'static {
    /// What the files are called in the description of the source.
    const FILES: &'static str;

    /// An open file.
    type Reader: Send;
    /// Part of a file that a morsel makes rows of.
    type Chunk: Send + 'static;

    /// Opens a file. The error is a chunk that stands for what is wrong with it.
    fn open(&self, file: &FileEntry) -> std::result::Result<Self::Reader, Self::Chunk>;

    /// Reads on: the next chunk, if there is one, and whether the file ends with it.
    fn next(&self, file: &FileEntry, reader: &mut Self::Reader) -> (Option<Self::Chunk>, bool);

    /// The rows of a chunk of the `ordinal`-th file.
    fn rows(&self, file: &FileEntry, ordinal: usize, chunk: Self::Chunk) -> Result<RecordBatch>;
}

impl<F: ByFile> FileFormat for F {
    const FILES: &'static str = <F as ByFile>::FILES;

    fn scan(&self, files: Arc<Vec<FileEntry>>, run: Range<usize>) -> Box<dyn Scan> {
        Box::new(ByFileScan { format: self.clone(), files, run, open: None })
    }
}

struct ByFileScan<F: ByFile> {
    format: F,
    files: Arc<Vec<FileEntry>>,
    /// Files that are not opened yet.
    run: Range<usize>,
    open: Option<(usize, F::Reader)>,
}

impl<F: ByFile> Scan for ByFileScan<F> {
    fn next(&mut self) -> Result<Option<Morsel>> {
        loop {
            let (ordinal, chunk, has_ended) = if let Some((ordinal, reader)) = &mut self.open {
                let (chunk, has_ended) = self.format.next(&self.files[*ordinal], reader);
                (*ordinal, chunk, has_ended)
            } else {
                let Some(ordinal) = self.run.next() else { return Ok(None) };
                match self.format.open(&self.files[ordinal]) {
                    Ok(reader) => {
                        self.open = Some((ordinal, reader));
                        continue;
                    }
                    Err(fault) => (ordinal, Some(fault), true),
                }
            };
            if has_ended {
                self.open = None;
                self.files[ordinal].reached()?;
            }
            if let Some(chunk) = chunk {
                let (format, files) = (self.format.clone(), self.files.clone());
                return Ok(Some(Box::new(move || format.rows(&files[ordinal], ordinal, chunk))));
            }
        }
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
