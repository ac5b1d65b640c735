//! Kept documents as a series of Parquet files.
//!
//! Row groups end after a number of text bytes or rows, never where a batch ends, so the files do not depend on threads or memory.

use super::extra::Extra;
use super::parquet_file::{Encoders, ParquetFile};
use super::summary::FileSummary;
use crate::error::Result;
use arrow_array::builder::{StringBuilder, UInt32Builder, UInt64Builder};
use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use bessemer_dataflow::optional;
use bessemer_documents::{Rows, Split};
use bessemer_durable::ConfinedDir;
use std::sync::Arc;

/// Text bytes of a row group: what a reader holds at once.
const GROUP_BYTES: usize = 8 << 20;
/// Share of a row group by which its buffer is larger, for the last document. Grown by doubling instead, the buffer would
/// pass through 8 and 16 MiB at once, and leave holes of these sizes in the allocator.
const GROUP_RESERVE: usize = 8;
/// Rows of a row group.
pub(super) const GROUP_ROWS: usize = 8192;
/// Text bytes of a file.
const FILE_BYTES: u64 = 256 << 20;

/// Components up to which row groups have their full size: every component has rows that wait.
const FULL_GROUPS: usize = 4;

/// The series that holds the documents of a split, or of one of its components.
fn series_name(split: Split, component: Option<&str>) -> String {
    match component {
        Some(component) => format!("documents-{}-{component}", split.name()),
        None => format!("documents-{}", split.name()),
    }
}

/// Whether a file belongs to that series.
pub(crate) fn is_of_series(file: &str, split: Split, component: Option<&str>) -> bool {
    let series = file.strip_suffix(".parquet").and_then(|name| name.rsplit_once('-'));
    series.is_some_and(|(series, _)| series == series_name(split, component))
}

/// Columns that every file of documents has.
pub(crate) fn own_fields() -> Vec<Field> {
    vec![
        Field::new("id", DataType::Utf8, false),
        Field::new("source", DataType::Utf8, false),
        Field::new("version", DataType::Utf8, true),
        Field::new("licence", DataType::Utf8, true),
        Field::new("path", DataType::Utf8, false),
        Field::new("text", DataType::Utf8, false),
        Field::new("bytes", DataType::UInt64, false),
        Field::new("source_bytes", DataType::UInt64, false),
        Field::new("file", DataType::UInt32, false),
        Field::new("row", DataType::UInt64, false),
    ]
}

/// Rows that wait for their row group.
#[derive(Default)]
struct Pending {
    strings: [StringBuilder; 6],
    bytes: UInt64Builder,
    source_bytes: UInt64Builder,
    file: UInt32Builder,
    row: UInt64Builder,
    rows: usize,
    text_bytes: usize,
}

/// The series of files of one split.
pub(super) struct Series {
    folder: ConfinedDir,
    split: Split,
    schema: SchemaRef,
    pending: Pending,
    /// Columns behind those that every file has.
    extras: Vec<Extra>,
    output: Option<ParquetFile>,
    encoders: Encoders,
    /// Text bytes in the open file.
    written: u64,
    number: u32,
    done: Vec<FileSummary>,
    /// The component that all documents belong to.
    component: Option<String>,
    group_bytes: usize,
}

impl Series {
    pub(super) fn new(
        folder: &ConfinedDir,
        split: Split,
        component: Option<&str>,
        components: usize,
        extras: &[Field],
        encoders: &Encoders,
    ) -> Result<Series> {
        let fields: Vec<Field> = own_fields().into_iter().chain(extras.iter().cloned()).collect();
        Ok(Series {
            component: component.map(str::to_string),
            group_bytes: GROUP_BYTES * FULL_GROUPS / components.max(FULL_GROUPS),
            folder: folder.clone(),
            split,
            schema: Arc::new(Schema::new(fields)),
            pending: Pending::default(),
            extras: extras.iter().map(Extra::new).collect::<Result<_>>()?,
            output: None,
            encoders: encoders.clone(),
            written: 0,
            number: 0,
            done: Vec::new(),
        })
    }

    pub(super) fn push(&mut self, batch: &RecordBatch, rows: &Rows<'_>, index: usize) -> Result<()> {
        let text = rows.text.value(index);
        let pending = &mut self.pending;
        if pending.rows == 0 {
            pending.strings[5] =
                StringBuilder::with_capacity(0, self.group_bytes + self.group_bytes / GROUP_RESERVE);
        }
        pending.strings[0].append_value(rows.id.value(index));
        pending.strings[1].append_value(rows.source.value(index));
        pending.strings[2].append_option(optional(rows.version, index));
        pending.strings[3].append_option(optional(rows.licence, index));
        pending.strings[4].append_value(rows.path.value(index));
        pending.strings[5].append_value(text);
        pending.bytes.append_value(text.len() as u64);
        pending.source_bytes.append_value(rows.bytes.value(index));
        pending.file.append_value(rows.file.value(index));
        pending.row.append_value(rows.row.value(index));
        for extra in &mut self.extras {
            extra.push(batch, index)?;
        }
        pending.rows += 1;
        pending.text_bytes += text.len();
        if pending.text_bytes >= self.group_bytes || pending.rows >= GROUP_ROWS {
            self.flush()
        } else {
            Ok(())
        }
    }

    /// Writes what is pending as a row group.
    fn flush(&mut self) -> Result<()> {
        let mut pending = std::mem::take(&mut self.pending);
        let mut columns: Vec<ArrayRef> =
            pending.strings.iter_mut().map(|column| Arc::new(column.finish()) as ArrayRef).collect();
        columns.push(Arc::new(pending.bytes.finish()));
        columns.push(Arc::new(pending.source_bytes.finish()));
        columns.push(Arc::new(pending.file.finish()));
        columns.push(Arc::new(pending.row.finish()));
        columns.extend(self.extras.iter_mut().map(Extra::finish));
        let batch = RecordBatch::try_new(self.schema.clone(), columns)?;
        let output = match &mut self.output {
            Some(output) => output,
            None => {
                let name = series_name(self.split, self.component.as_deref());
                let name = format!("{name}-{:05}.parquet", self.number);
                let schema = self.schema.clone();
                self.output.insert(ParquetFile::create(&self.folder, &name, schema, &self.encoders)?)
            }
        };
        output.write(batch)?;
        self.written += pending.text_bytes as u64;
        if self.written >= FILE_BYTES {
            self.close()?;
        }
        Ok(())
    }

    fn close(&mut self) -> Result<()> {
        if let Some(output) = self.output.take() {
            self.done.push(output.finish()?);
            self.number += 1;
            self.written = 0;
        }
        Ok(())
    }

    /// The files. One without documents gets an empty file, unless it is that of a component.
    pub(super) fn finish(mut self) -> Result<Vec<FileSummary>> {
        let empty = self.done.is_empty() && self.output.is_none() && self.component.is_none();
        if self.pending.rows > 0 || empty {
            self.flush()?;
        }
        self.close()?;
        Ok(self.done)
    }
}
