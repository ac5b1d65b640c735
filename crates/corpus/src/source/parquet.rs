//! Parquet files: one column is the text, or rows are chats (`[corpus.chats]`).
//!
//! Read are that column and, where they exist, those of URL, date and the metadata that predicates name. Strings, large strings and
//! binary are understood, plain or dictionary-encoded; nulls become dropped rows. A file that is not Parquet or is damaged in the
//! middle gives one dropped row that names it, and reading continues with the next file.

use super::files::{ByFile, FileSource};
use super::folder::FileEntry;
use super::location::SourceLocation;
use super::{FieldNames, MetadataColumns};
use crate::chats::ChatRows;
use crate::error::{Error, Result};
use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, Float64Type};
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_schema::{DataType, Fields};
use bessemer_documents::{CheckedBatches, RowBuilder, json_value};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::ArrowReaderMetadata;
use parquet::errors::ParquetError;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Text bytes that a batch aims at, by the mean of the file.
const BATCH_BYTES: u64 = 4 << 20;
/// Most rows of a batch.
const BATCH_ROWS: u64 = 1024;

#[derive(Clone)]
pub(super) struct Parquet {
    columns: Arc<FieldNames>,
}

/// Whether a file name is that of a Parquet file.
pub(crate) fn is_parquet(name: &str) -> bool {
    name.to_ascii_lowercase().ends_with(".parquet")
}

pub(super) type Reader = CheckedBatches;

/// Runs the Parquet library on a file that may be damaged; a panic there is an error of the file.
fn shielded<T>(work: impl FnOnce() -> std::result::Result<T, String>) -> std::result::Result<T, String> {
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|_| Err("the file is damaged: the Parquet reader failed on it".into()))
}

enum Opened {
    Reader(Box<Reader>),
    /// Names and types of the columns, when the text column is not among them.
    Without(String),
}

fn start(file: &FileEntry, columns: &FieldNames) -> std::result::Result<Opened, String> {
    let file = file.open().map_err(|cause| cause.to_string())?;
    shielded(|| {
        let opened = CheckedBatches::open(file, |metadata| choose(metadata, columns));
        match opened {
            Ok(reader) => Ok(Opened::Reader(Box::new(reader))),
            Err(Refused::Without(found)) => Ok(Opened::Without(found)),
            Err(Refused::Parquet(cause)) => Err(cause.to_string()),
        }
    })
}

/// Root and type of the column of this name, or of the field inside a structure that a path of names leads to.
fn data_type_of<'s>(fields: &'s Fields, name: &str) -> Option<(usize, &'s DataType)> {
    if let Some((index, field)) = fields.find(name) {
        return Some((index, field.data_type()));
    }
    let (root, rest) = name.split_once('.')?;
    let (index, field) = fields.find(root)?;
    let DataType::Struct(inner) = field.data_type() else { return None };
    Some((index, data_type_of(inner, rest)?.1))
}

/// The column of this name, or of the field inside a structure that a path of names leads to.
fn column_of<'b>(batch: &'b RecordBatch, name: &str) -> Option<&'b ArrayRef> {
    if let Some(column) = batch.column_by_name(name) {
        return Some(column);
    }
    let (root, mut rest) = name.split_once('.')?;
    let mut inside = batch.column_by_name(root)?.as_struct_opt()?;
    loop {
        if let Some(column) = inside.column_by_name(rest) {
            return Some(column);
        }
        let (root, below) = rest.split_once('.')?;
        inside = inside.column_by_name(root)?.as_struct_opt()?;
        rest = below;
    }
}

/// Why a file is not read.
enum Refused {
    /// Names and types of its columns, none of which is that of the text.
    Without(String),
    Parquet(ParquetError),
}

impl From<ParquetError> for Refused {
    fn from(cause: ParquetError) -> Refused {
        Refused::Parquet(cause)
    }
}

/// The columns that are read, and the rows of a batch.
fn choose(
    metadata: &ArrowReaderMetadata,
    columns: &FieldNames,
) -> std::result::Result<(ProjectionMask, usize), Refused> {
    let schema = metadata.schema().clone();
    let names_and_types = || {
        let fields = schema.fields().iter().map(|field| format!("{} ({})", field.name(), field.data_type()));
        Refused::Without(fields.collect::<Vec<String>>().join(", "))
    };
    let root = |name: &&str| schema.index_of(name).ok();
    if let Some(chats) = columns.chats {
        let [one, others] = chats.columns();
        if one.iter().find_map(root).is_none() {
            return Err(names_and_types());
        }
        let roots: Vec<usize> = one.iter().chain(others).filter_map(root).collect();
        let read = |name: &str| roots.iter().any(|root| schema.field(*root).name() == name);
        let mask = ProjectionMask::roots(metadata.parquet_schema(), roots.clone());
        return Ok((mask, batch_rows(metadata, &|path| path.first().is_some_and(|name| read(name)))));
    }
    let usable = |column: &str| {
        let (root, data_type) = data_type_of(schema.fields(), column)?;
        let is_text = matches!(
            data_type,
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Binary | DataType::LargeBinary
        );
        is_text.then_some(root)
    };
    let Some(index) = usable(&columns.text) else { return Err(names_and_types()) };
    let is_read = |index: &usize| columns.metadata.reads(schema.field(*index).name());
    let read = (0..schema.fields().len()).filter(is_read);
    let embedding = schema.index_of(&columns.embedding).ok().filter(|_| !columns.embedding.is_empty());
    let mask = ProjectionMask::roots(
        metadata.parquet_schema(),
        [index]
            .into_iter()
            .chain(usable(&columns.url))
            .chain(usable(&columns.date))
            .chain(read)
            .chain(embedding),
    );
    Ok((mask, batch_rows(metadata, &|path| path.join(".") == columns.text)))
}

/// Rows of a batch, by the mean bytes of the columns whose paths hold text.
fn batch_rows(metadata: &ArrowReaderMetadata, holds_text: &dyn Fn(&[String]) -> bool) -> usize {
    let (mut bytes, mut rows) = (0u64, 0u64);
    for group in metadata.metadata().row_groups() {
        let columns = group.columns().iter().filter(|chunk| holds_text(chunk.column_path().parts()));
        bytes += columns.map(|chunk| chunk.uncompressed_size().max(0) as u64).sum::<u64>();
        rows += group.num_rows().max(0) as u64;
    }
    (BATCH_BYTES / (bytes / rows.max(1)).max(1)).clamp(1, BATCH_ROWS) as usize
}

/// Opens the files and checks that each has the column; in an object store that the first has it.
pub(super) fn open(place: &SourceLocation<'_>, columns: FieldNames) -> Result<FileSource<Parquet>> {
    let (files, mut listing) = place.find("parquet", is_parquet)?;
    let wanted = match columns.chats {
        Some(chats) => chats.columns()[0].join(", "),
        None => columns.text.clone(),
    };
    listing.entries.push(format!("column {wanted}"));
    for file in files.iter().take(place.checked()) {
        let started = start(file, &columns);
        file.reached()?;
        if let Ok(Opened::Without(found)) = started {
            let place = file.path.display();
            if columns.chats.is_some() {
                return Err(Error::Config(format!(
                    "[corpus.chats] {place}: wanted a column of chats ({wanted}), found {found}"
                )));
            }
            return Err(Error::NoTextColumn { place: place.to_string(), what: "column", wanted, found });
        }
    }
    Ok(FileSource::new(place, files, listing, Parquet { columns: Arc::new(columns) }))
}

/// A batch of a file behind its first `row` rows, or what is wrong with the file there.
pub(super) struct Found {
    row: u64,
    batch: std::result::Result<RecordBatch, String>,
}

impl ByFile for Parquet {
    const FILES: &'static str = "Parquet files";
    /// The file and its rows that were read so far.
    type Reader = (Box<Reader>, u64);
    type Chunk = Found;

    fn open(&self, file: &FileEntry) -> std::result::Result<Self::Reader, Found> {
        let opened = start(file, &self.columns).and_then(|opened| match opened {
            Opened::Reader(reader) => Ok((reader, 0)),
            Opened::Without(found) => Err(format!("the column is missing in this file; it has: {found}")),
        });
        opened.map_err(|problem| Found { row: 0, batch: Err(problem) })
    }

    fn next(&self, _: &FileEntry, (reader, row): &mut Self::Reader) -> (Option<Found>, bool) {
        let first = *row;
        let batch = shielded(|| reader.next().transpose().map_err(|cause| cause.to_string())).transpose();
        let has_ended = !matches!(batch, Some(Ok(_)));
        if let Some(Ok(batch)) = &batch {
            *row += batch.num_rows() as u64;
        }
        (batch.map(|batch| Found { row: first, batch }), has_ended)
    }

    fn rows(
        &self,
        file: &FileEntry,
        ordinal: usize,
        Found { row, batch }: Found,
    ) -> bessemer_dataflow::Result<RecordBatch> {
        let problem = match batch {
            Ok(batch) => return rows(file, ordinal, row, &batch, &self.columns),
            Err(problem) => problem,
        };
        let (name, row) = (&file.relative, row + 1);
        let mut rows = RowBuilder::default();
        let id = format!("{name}#{row}");
        let reason = if row == 1 { "unreadable" } else { "truncated-input" };
        let detail = format!("{name} row {row}: {problem}; the rows before it are kept");
        rows.refuse(&file.origin(ordinal, row, &id), reason, &detail, &[]);
        rows.finish()
    }
}

/// The value of a column of strings, where it is one.
fn string(column: Option<&ArrayRef>, index: usize) -> Option<&str> {
    let column = column.filter(|column| column.is_valid(index))?;
    let bytes = match column.data_type() {
        DataType::Utf8 => return Some(column.as_string::<i32>().value(index)),
        DataType::LargeUtf8 => return Some(column.as_string::<i64>().value(index)),
        DataType::Binary => column.as_binary::<i32>().value(index),
        DataType::LargeBinary => column.as_binary::<i64>().value(index),
        _ => return None,
    };
    std::str::from_utf8(bytes).ok()
}

/// A list of floats as little-endian 32-bit floats; none for a null and for anything else.
fn floats(column: &ArrayRef, index: usize) -> Option<Vec<u8>> {
    if column.is_null(index) {
        return None;
    }
    let values = match column.data_type() {
        DataType::List(_) => column.as_list::<i32>().value(index),
        DataType::LargeList(_) => column.as_list::<i64>().value(index),
        DataType::FixedSizeList(..) => column.as_fixed_size_list().value(index),
        _ => return None,
    };
    if values.null_count() > 0 {
        return None;
    }
    if let Some(values) = values.as_primitive_opt::<Float32Type>() {
        return Some(values.values().iter().flat_map(|value| value.to_le_bytes()).collect());
    }
    let values = values.as_primitive_opt::<Float64Type>()?;
    Some(values.values().iter().flat_map(|value| (*value as f32).to_le_bytes()).collect())
}

/// The metadata of a row that predicates read.
fn metadata_of(batch: &RecordBatch, index: usize, columns: &MetadataColumns) -> Option<String> {
    if columns.is_empty() {
        return None;
    }
    let schema = batch.schema_ref();
    let read = schema.fields().iter().zip(batch.columns()).filter(|(field, _)| columns.reads(field.name()));
    columns
        .of_fields(&read.map(|(field, column)| (field.name().clone(), json_value(column, index))).collect())
}

fn rows(
    file: &FileEntry,
    ordinal: usize,
    first: u64,
    batch: &RecordBatch,
    columns: &FieldNames,
) -> bessemer_dataflow::Result<RecordBatch> {
    if let Some(rows) = columns.chats {
        return chats(rows, file, ordinal, first, batch);
    }
    let missing =
        || bessemer_dataflow::Error::plan("parquet", "the text column is not in the batch".to_string());
    let column = column_of(batch, &columns.text).ok_or_else(missing)?;
    let (urls, dates) = (column_of(batch, &columns.url), column_of(batch, &columns.date));
    let embeddings = batch.column_by_name(&columns.embedding);
    let name = &file.relative;
    let mut rows = RowBuilder::with_capacity(batch.num_rows(), column.get_array_memory_size());
    for index in 0..batch.num_rows() {
        // Rows count from 1, as the lines of a text file do.
        let row = first + index as u64 + 1;
        let id = format!("{name}#{row}");
        let mut origin = file.origin(ordinal, row, &id);
        if column.is_null(index) {
            rows.refuse(&origin, "no-text-field", &format!("{name} row {row}: null"), &[]);
            continue;
        }
        (origin.url, origin.fetched) = (string(urls, index), string(dates, index));
        let embedding = embeddings.and_then(|column| floats(column, index));
        origin.embedding = embedding.as_deref();
        let metadata = metadata_of(batch, index, &columns.metadata);
        origin.metadata = metadata.as_deref();
        let text: &[u8] = match column.data_type() {
            DataType::Utf8 => column.as_string::<i32>().value(index).as_bytes(),
            DataType::LargeUtf8 => column.as_string::<i64>().value(index).as_bytes(),
            DataType::Binary => column.as_binary::<i32>().value(index),
            DataType::LargeBinary => column.as_binary::<i64>().value(index),
            other => {
                let problem = format!("text column of type {other} passed the check and cannot be read");
                return Err(bessemer_dataflow::Error::plan("parquet", problem));
            }
        };
        origin.bytes = text.len() as u64;
        rows.push(&origin, text);
    }
    rows.finish()
}

/// Rows of a batch that are chats, as those of JSON lines.
fn chats(
    form: ChatRows,
    file: &FileEntry,
    ordinal: usize,
    first: u64,
    batch: &RecordBatch,
) -> bessemer_dataflow::Result<RecordBatch> {
    let name = &file.relative;
    let mut rows = RowBuilder::with_capacity(batch.num_rows(), batch.get_array_memory_size());
    for index in 0..batch.num_rows() {
        let row = first + index as u64 + 1;
        let id = format!("{name}#{row}");
        let mut origin = file.origin(ordinal, row, &id);
        let schema = batch.schema_ref();
        let fields = schema.fields().iter().zip(batch.columns());
        let object =
            fields.map(|(field, column)| (field.name().clone(), json_value(column, index))).collect();
        match form.text_of_object(&object) {
            Ok(text) => {
                origin.bytes = text.len() as u64;
                rows.push(&origin, text.as_bytes());
            }
            Err(problem) => {
                let line = serde_json::Value::Object(object).to_string();
                rows.refuse(&origin, "bad-chat", &format!("{name} row {row}: {problem}"), line.as_bytes());
            }
        }
    }
    rows.finish()
}
