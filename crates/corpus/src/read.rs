//! Reads a finished corpus.

use crate::error::{Error, Result};
use crate::output::series::is_of_series;
use crate::output::summary::{CorpusSummary, FileSummary};
use crate::verify::{Verified, open_corpus};
use arrow_array::{RecordBatch, StringArray};
use arrow_schema::{ArrowError, SchemaRef};
use bessemer_dataflow::{column, optional};
use bessemer_documents::Split;
use bessemer_durable::{ConfinedDir, is_of_the_process};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder,
};
use std::collections::VecDeque;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Rows decoded at once.
const BATCH_ROWS: usize = 64;

/// A finished corpus.
#[derive(Debug, Clone)]
pub struct CorpusReader {
    dir: ConfinedDir,
    summary: CorpusSummary,
    verified: Verified,
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

impl CorpusReader {
    /// Opens the corpus in `folder`; checks that it is complete by its summary and the sizes of its files. What is read of
    /// them later is compared with the hashes that the summary holds.
    pub fn open(folder: &Path) -> Result<CorpusReader> {
        let (dir, summary) = open_corpus(folder)?;
        let reader = CorpusReader { dir, summary, verified: Verified::default() };
        for file in &reader.summary.files {
            let path = folder.join(&file.name);
            let opened = reader.dir.open_file(&file.name).map_err(Error::System)?;
            let found = opened.metadata().map_err(Error::io("read", &path))?.len();
            if found != file.bytes {
                return Err(Error::Damaged {
                    path,
                    problem: format!("{} bytes expected, {found} found", file.bytes),
                });
            }
        }
        Ok(reader)
    }

    /// A reader of files that this process has just written into `dir`; their summary is not written yet.
    pub(crate) fn just_written(dir: &ConfinedDir, summary: &CorpusSummary) -> CorpusReader {
        let verified = Verified::just_written(summary);
        CorpusReader { dir: dir.clone(), summary: summary.clone(), verified }
    }

    /// Summary of the corpus.
    pub fn summary(&self) -> &CorpusSummary {
        &self.summary
    }

    /// The corpus's directory.
    pub fn folder(&self) -> &Path {
        self.dir.path()
    }

    /// Reads every file and compares its hash with the summary.
    pub fn verify(&self) -> Result<()> {
        self.summary.files.iter().try_for_each(|file| self.verified.open(&self.dir, file).map(drop))
    }

    /// The whole of a text file of the corpus; none if it has no file of that name.
    pub(crate) fn text_file(&self, name: &str) -> Result<Option<String>> {
        let Some(file) = self.summary.files.iter().find(|file| file.name == name) else { return Ok(None) };
        let path = self.folder().join(name);
        let mut text = String::new();
        let mut opened = self.verified.open(&self.dir, file)?;
        opened.read_to_string(&mut text).map_err(Error::io("read", &path))?;
        Ok(Some(text))
    }

    /// Columns of the files of documents.
    pub(crate) fn document_schema(&self) -> Result<Option<SchemaRef>> {
        let file = self.summary.files.iter().find(|file| file.name.starts_with("documents-"));
        let schema = |file: &FileSummary| {
            let opened = OpenFile::open(&self.dir, file, &self.verified)?;
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
        self.batches_of(|name| is_of_series(name, split, component))
    }

    /// Batches of the files whose names begin with `prefix`, in order, a few rows at a time.
    pub(crate) fn batches(&self, prefix: &str) -> Batches {
        self.batches_of(|name| name.starts_with(prefix))
    }

    fn batches_of(&self, wanted: impl Fn(&str) -> bool) -> Batches {
        let files = self.summary.files.iter().filter(|file| wanted(&file.name)).cloned().collect();
        Batches {
            dir: self.dir.clone(),
            verified: self.verified.clone(),
            files,
            columns: None,
            file: None,
            group: None,
        }
    }

    /// The documents of a split, in order, component after component. Holds one row group's worth of compressed pages and 64 documents.
    pub fn documents(&self, split: Split) -> impl Iterator<Item = Result<CorpusDocument>> + use<> {
        let batches = self.split_batches(split);
        flatten(batches.map(|batch| batch.and_then(|batch| documents(&batch))))
    }
}

/// Rows of batches, one by one; an error is one row.
pub(crate) fn flatten<T>(batches: impl Iterator<Item = Result<Vec<T>>>) -> impl Iterator<Item = Result<T>> {
    batches.flat_map(|batch| match batch {
        Ok(rows) => rows.into_iter().map(Ok).collect::<Vec<Result<T>>>(),
        Err(error) => vec![Err(error)],
    })
}

pub(crate) fn owned(array: &StringArray, index: usize) -> Option<String> {
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

/// Batches of a list of Parquet files, row group by row group: a batch never spans two, so it holds no more than
/// a row group does. Each file is verified before its first batch.
pub(crate) struct Batches {
    dir: ConfinedDir,
    verified: Verified,
    files: VecDeque<FileSummary>,
    /// Columns that are read; all by default.
    columns: Option<&'static [&'static str]>,
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
    fn open(dir: &ConfinedDir, summary: &FileSummary, verified: &Verified) -> Result<OpenFile> {
        let path = dir.path().join(&summary.name);
        let file = verified.open(dir, summary)?;
        let metadata =
            ArrowReaderMetadata::load(&file, ArrowReaderOptions::new()).map_err(Error::parquet(&path))?;
        let groups = 0..metadata.metadata().num_row_groups();
        Ok(OpenFile { path, file, metadata, groups })
    }

    fn next_group(&mut self, columns: Option<&[&str]>) -> Result<Option<ParquetRecordBatchReader>> {
        let Some(group) = self.groups.next() else { return Ok(None) };
        let file = self.file.try_clone().map_err(Error::io("read", &self.path))?;
        let mut builder = ParquetRecordBatchReaderBuilder::new_with_metadata(file, self.metadata.clone());
        if let Some(columns) = columns {
            let mask = ProjectionMask::columns(builder.parquet_schema(), columns.iter().copied());
            builder = builder.with_projection(mask);
        }
        let builder = builder.with_row_groups(vec![group]).with_batch_size(BATCH_ROWS);
        builder.build().map(Some).map_err(Error::parquet(&self.path))
    }
}

impl Batches {
    /// Reads these columns alone, where the files have them.
    pub(crate) fn only(self, columns: &'static [&'static str]) -> Batches {
        Batches { columns: Some(columns), ..self }
    }

    fn advance(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            if let Some(batch) = self.group.as_mut().and_then(Iterator::next) {
                let path = self.file.as_ref().map(|file| file.path.clone()).unwrap_or_default();
                return batch.map(Some).map_err(|cause| match cause {
                    // Of a file whose hash was right.
                    ArrowError::IoError(_, cause) if is_of_the_process(&cause) => {
                        Error::io("read", &path)(cause)
                    }
                    cause => Error::Damaged { path, problem: cause.to_string() },
                });
            }
            self.group = match &mut self.file {
                Some(file) => file.next_group(self.columns)?,
                None => None,
            };
            if self.group.is_none() {
                let Some(file) = self.files.pop_front() else { return Ok(None) };
                self.file = Some(OpenFile::open(&self.dir, &file, &self.verified)?);
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
