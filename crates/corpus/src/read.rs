//! Reads a finished corpus.

use crate::error::{Error, Result};
use crate::output::documents::is_of_series;
use crate::output::durable::existing;
use crate::output::summary::{CorpusSummary, DROPPED_FILE, FORMAT_VERSION};
use crate::row::{Split, head};
use arrow_array::{RecordBatch, StringArray, UInt64Array};
use arrow_schema::SchemaRef;
use bessemer_dataflow::{column, optional};
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder,
};
use std::collections::VecDeque;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::Xxh3Default;

/// Rows decoded at once.
const BATCH_ROWS: usize = 64;

/// A finished corpus.
#[derive(Debug, Clone)]
pub struct CorpusReader {
    folder: PathBuf,
    summary: CorpusSummary,
}

/// One document of a finished corpus.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CorpusDocument {
    /// Unique name.
    pub id: String,
    /// Crate, top folder or file.
    pub source: String,
    /// Version of the source, where it has one.
    pub version: Option<String>,
    /// Licence of the source, where it is known.
    pub licence: Option<String>,
    /// Path below the source.
    pub path: String,
    /// The text.
    pub text: String,
}

/// Which rows `inspect` shows. An unset field shows all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InspectFilter {
    /// Documents dropped for this reason.
    pub reason: Option<String>,
    /// Documents of this source.
    pub source: Option<String>,
    /// Documents whose id contains this.
    pub id_contains: Option<String>,
    /// Kept documents instead of dropped ones.
    pub kept: bool,
}

/// A row that `inspect` shows.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Inspected {
    /// Unique name.
    pub id: String,
    /// Crate, top folder or file.
    pub source: String,
    /// Path below the source.
    pub path: String,
    /// Side of a kept document.
    pub split: Option<Split>,
    /// Why it was dropped.
    pub reason: Option<String>,
    /// The measured value and the limit.
    pub detail: Option<String>,
    /// Bytes: of the text if kept, in the source if dropped.
    pub bytes: u64,
    /// The beginning of the text.
    pub head: String,
}

impl CorpusReader {
    /// Opens the corpus in `folder`; checks that it is complete by its summary and the sizes of its files.
    pub fn open(folder: &Path) -> Result<CorpusReader> {
        let Some(text) = existing(folder)? else {
            return Err(Error::NotACorpus {
                path: folder.to_path_buf(),
                problem: "it is missing or empty; build the corpus first".into(),
            });
        };
        let summary: CorpusSummary = serde_json::from_str(&text).map_err(|cause| Error::NotACorpus {
            path: folder.to_path_buf(),
            problem: format!("its summary is not understood: {cause}"),
        })?;
        if summary.format_version != FORMAT_VERSION {
            return Err(Error::NotACorpus {
                path: folder.to_path_buf(),
                problem: format!(
                    "it has format {}, this program reads {FORMAT_VERSION}",
                    summary.format_version
                ),
            });
        }
        for file in &summary.files {
            let path = folder.join(&file.name);
            let found = std::fs::metadata(&path).map_err(Error::io("read", &path))?.len();
            if found != file.bytes {
                return Err(Error::Damaged {
                    path,
                    problem: format!("{} bytes expected, {found} found", file.bytes),
                });
            }
        }
        Ok(CorpusReader { folder: folder.to_path_buf(), summary })
    }

    /// What the corpus holds.
    pub fn summary(&self) -> &CorpusSummary {
        &self.summary
    }

    /// The corpus's directory.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Reads every file and compares its hash with the summary.
    pub fn verify(&self) -> Result<()> {
        for file in &self.summary.files {
            let path = self.folder.join(&file.name);
            let mut reader = File::open(&path).map_err(Error::io("open", &path))?;
            let mut hash = Xxh3Default::new();
            let mut buffer = vec![0; 1 << 20];
            loop {
                let read = reader.read(&mut buffer).map_err(Error::io("read", &path))?;
                if read == 0 {
                    break;
                }
                hash.update(&buffer[..read]);
            }
            let found = format!("{:032x}", hash.digest128());
            if found != file.xxh3_128 {
                let problem = format!("its hash is {found}, the summary says {}", file.xxh3_128);
                return Err(Error::Damaged { path, problem });
            }
        }
        Ok(())
    }

    /// Columns of the files of documents.
    pub(crate) fn document_schema(&self) -> Result<Option<SchemaRef>> {
        let file = self.summary.files.iter().find(|file| file.name.starts_with("documents-"));
        let schema = |file: &crate::FileSummary| {
            let opened = OpenFile::open(self.folder.join(&file.name))?;
            Ok(opened.metadata.schema().clone())
        };
        file.map(schema).transpose()
    }

    /// Batches of a split's documents, in order, a few rows at a time; component after component, where there are some.
    pub(crate) fn split_batches(&self, split: Split) -> Batches {
        self.batches(&format!("documents-{}-", split.name()))
    }

    /// Batches of a component's documents in a split, or of the whole split of a corpus without components.
    pub(crate) fn series_batches(&self, split: Split, component: Option<&str>) -> Batches {
        let names = self.summary.files.iter().map(|file| &file.name);
        let files = names
            .filter(|name| is_of_series(name, split, component))
            .map(|name| self.folder.join(name))
            .collect();
        Batches { files, file: None, group: None }
    }

    /// Batches of the files whose names begin with `prefix`, in order, a few rows at a time.
    pub(crate) fn batches(&self, prefix: &str) -> Batches {
        let names = self.summary.files.iter().map(|file| &file.name);
        let files =
            names.filter(|name| name.starts_with(prefix)).map(|name| self.folder.join(name)).collect();
        Batches { files, file: None, group: None }
    }

    /// The documents of a split, in order, component after component. Holds one row group's worth of compressed pages and 64 documents.
    pub fn documents(&self, split: Split) -> impl Iterator<Item = Result<CorpusDocument>> + use<> {
        let batches = self.split_batches(split);
        flatten(batches.map(|batch| batch.and_then(|batch| documents(&batch))))
    }

    /// Dropped or kept documents that a filter lets through, in order.
    pub fn inspect(&self, filter: InspectFilter) -> impl Iterator<Item = Result<Inspected>> + use<> {
        let parts: Vec<(Batches, Option<Split>)> = if filter.kept {
            let of = |split: Split| (self.split_batches(split), Some(split));
            Split::ALL.map(of).into()
        } else {
            vec![(self.batches(DROPPED_FILE), None)]
        };
        let rows = parts.into_iter().flat_map(|(batches, split)| {
            flatten(batches.map(move |batch| batch.and_then(|batch| inspected(&batch, split))))
        });
        rows.filter(move |row| row.as_ref().map_or(true, |row| filter.lets_through(row)))
    }
}

impl InspectFilter {
    fn lets_through(&self, row: &Inspected) -> bool {
        let same = |wanted: &Option<String>, found: Option<&str>| {
            wanted.as_deref().is_none_or(|wanted| found == Some(wanted))
        };
        same(&self.reason, row.reason.as_deref())
            && same(&self.source, Some(&row.source))
            && self.id_contains.as_ref().is_none_or(|part| row.id.contains(part.as_str()))
    }
}

/// Rows of batches, one by one; an error is one row.
fn flatten<T>(batches: impl Iterator<Item = Result<Vec<T>>>) -> impl Iterator<Item = Result<T>> {
    batches.flat_map(|batch| match batch {
        Ok(rows) => rows.into_iter().map(Ok).collect::<Vec<Result<T>>>(),
        Err(error) => vec![Err(error)],
    })
}

fn owned(array: &StringArray, index: usize) -> Option<String> {
    optional(array, index).map(str::to_string)
}

fn documents(batch: &RecordBatch) -> Result<Vec<CorpusDocument>> {
    let text = |name: &str| column::<StringArray>("read", batch, name);
    let (ids, sources, versions) = (text("id")?, text("source")?, text("version")?);
    let (licences, paths, texts) = (text("licence")?, text("path")?, text("text")?);
    Ok((0..batch.num_rows())
        .map(|index| CorpusDocument {
            id: ids.value(index).into(),
            source: sources.value(index).into(),
            version: owned(versions, index),
            licence: owned(licences, index),
            path: paths.value(index).into(),
            text: texts.value(index).into(),
        })
        .collect())
}

fn inspected(batch: &RecordBatch, split: Option<Split>) -> Result<Vec<Inspected>> {
    let text = |name: &str| column::<StringArray>("inspect", batch, name);
    let (ids, sources, paths) = (text("id")?, text("source")?, text("path")?);
    let bytes: &UInt64Array = column("inspect", batch, "bytes")?;
    let texts = text(if split.is_some() { "text" } else { "head" })?;
    let why = if split.is_some() { None } else { Some((text("reason")?, text("detail")?)) };
    Ok((0..batch.num_rows())
        .map(|index| Inspected {
            id: ids.value(index).into(),
            source: sources.value(index).into(),
            path: paths.value(index).into(),
            split,
            reason: why.and_then(|(reasons, _)| owned(reasons, index)),
            detail: why.and_then(|(_, details)| owned(details, index)),
            bytes: bytes.value(index),
            head: head(texts.value(index)).into(),
        })
        .collect())
}

/// Batches of a list of Parquet files, row group by row group: a batch never spans two, so it holds no more than
/// a row group does.
pub(crate) struct Batches {
    files: VecDeque<PathBuf>,
    file: Option<OpenFile>,
    group: Option<ParquetRecordBatchReader>,
}

/// A file whose footer is read.
struct OpenFile {
    path: PathBuf,
    file: File,
    metadata: ArrowReaderMetadata,
    groups: Range<usize>,
}

impl OpenFile {
    fn open(path: PathBuf) -> Result<OpenFile> {
        let file = File::open(&path).map_err(Error::io("open", &path))?;
        let metadata =
            ArrowReaderMetadata::load(&file, ArrowReaderOptions::new()).map_err(Error::parquet(&path))?;
        let groups = 0..metadata.metadata().num_row_groups();
        Ok(OpenFile { path, file, metadata, groups })
    }

    fn next_group(&mut self) -> Result<Option<ParquetRecordBatchReader>> {
        let Some(group) = self.groups.next() else { return Ok(None) };
        let file = self.file.try_clone().map_err(Error::io("read", &self.path))?;
        ParquetRecordBatchReaderBuilder::new_with_metadata(file, self.metadata.clone())
            .with_row_groups(vec![group])
            .with_batch_size(BATCH_ROWS)
            .build()
            .map(Some)
            .map_err(Error::parquet(&self.path))
    }
}

impl Batches {
    fn advance(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            if let Some(batch) = self.group.as_mut().and_then(Iterator::next) {
                let path = self.file.as_ref().map(|file| file.path.clone()).unwrap_or_default();
                return batch.map(Some).map_err(|cause| Error::Damaged { path, problem: cause.to_string() });
            }
            self.group = match &mut self.file {
                Some(file) => file.next_group()?,
                None => None,
            };
            if self.group.is_none() {
                let Some(path) = self.files.pop_front() else { return Ok(None) };
                self.file = Some(OpenFile::open(path)?);
            }
        }
    }
}

impl Iterator for Batches {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.advance();
        if next.is_err() {
            // What follows a damaged place is not trusted.
            (self.files, self.file, self.group) = (VecDeque::new(), None, None);
        }
        next.transpose()
    }
}
