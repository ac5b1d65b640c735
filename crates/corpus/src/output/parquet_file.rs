//! A Parquet file whose row groups are encoded beside the thread that fills them.
//!
//! A row group is encoded (dictionaries, pages, compression) by an encoder thread while one is free, otherwise by the thread that
//! fills it. Encoded groups are appended in the order in which they were given, so the bytes do not depend on threads.

use super::durable::HashingFile;
use super::summary::FileSummary;
use crate::error::{Error, Result};
use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use bessemer_durable::{ConfinedDir, thread_error};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_writer::{
    ArrowColumnChunk, ArrowColumnWriter, ArrowRowGroupWriterFactory, compute_leaves,
};
use parquet::basic::{Compression, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

/// The threads that encode row groups of all files of a corpus.
#[derive(Clone)]
pub(crate) struct Encoders(Arc<AtomicUsize>);

impl Encoders {
    /// One encoder for two worker threads: encoding takes a fraction of what rows cost before, and each encoder holds a row group.
    /// A single thread encodes itself.
    pub(crate) fn new(threads: usize) -> Encoders {
        Encoders(Arc::new(AtomicUsize::new(threads / 2)))
    }

    /// Takes an encoder if one is free.
    fn take(&self) -> Option<Encoder> {
        let less = |free: usize| free.checked_sub(1);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).ok()?;
        Some(Encoder(self.clone()))
    }
}

/// A taken encoder, free again when it is dropped.
struct Encoder(Encoders);

impl Drop for Encoder {
    fn drop(&mut self) {
        self.0.0.fetch_add(1, Ordering::Relaxed);
    }
}

type Encoded = std::result::Result<Vec<ArrowColumnChunk>, ParquetError>;

/// A row group on its way into the file.
enum RowGroup {
    Encoded(Encoded),
    OnThread(JoinHandle<Encoded>),
}

fn encode(columns: Vec<ArrowColumnWriter>, batch: RecordBatch) -> Encoded {
    let (schema, arrays, _) = batch.into_parts();
    // No column is nested, so each has one writer. Each column is freed when it is encoded.
    let columns = columns.into_iter().zip(schema.fields()).zip(arrays);
    columns
        .map(|((mut writer, field), column)| {
            for leaf in compute_leaves(field, &column)? {
                writer.write(&leaf)?;
            }
            drop(column);
            writer.close()
        })
        .collect()
}

/// One open Parquet file.
pub(super) struct ParquetFile {
    writer: SerializedFileWriter<HashingFile>,
    factory: ArrowRowGroupWriterFactory,
    encoders: Encoders,
    /// Row groups that are not in the file yet, in order.
    waiting: VecDeque<RowGroup>,
    /// Row groups given so far.
    groups: usize,
    path: PathBuf,
}

impl ParquetFile {
    pub(super) fn create(
        folder: &ConfinedDir,
        name: &str,
        schema: SchemaRef,
        encoders: &Encoders,
    ) -> Result<ParquetFile> {
        let path = folder.path().join(name);
        let properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(ZstdLevel::default()))
            .set_created_by("bessemer".into())
            .build();
        let file = HashingFile::create(folder, name)?;
        let writer = ArrowWriter::try_new(file, schema, Some(properties));
        let (writer, factory) =
            writer.and_then(ArrowWriter::into_serialized_writer).map_err(Error::parquet(&path))?;
        let encoders = encoders.clone();
        Ok(ParquetFile { writer, factory, encoders, waiting: VecDeque::new(), groups: 0, path })
    }

    /// Writes a row group.
    pub(super) fn write(&mut self, batch: RecordBatch) -> Result<()> {
        if batch.num_rows() == 0 {
            return Ok(());
        }
        let columns = self.factory.create_column_writers(self.groups).map_err(Error::parquet(&self.path))?;
        self.groups += 1;
        self.waiting.push_back(match self.encoders.take() {
            Some(encoder) => {
                let work = move || {
                    let _encoder = encoder;
                    encode(columns, batch)
                };
                let thread = std::thread::Builder::new().spawn(work);
                RowGroup::OnThread(thread.map_err(|cause| Error::System(thread_error(cause)))?)
            }
            None => RowGroup::Encoded(encode(columns, batch)),
        });
        self.append(|group| !matches!(group, RowGroup::OnThread(thread) if !thread.is_finished()))
    }

    /// Appends the leading row groups for which `ready` holds.
    fn append(&mut self, ready: impl Fn(&RowGroup) -> bool) -> Result<()> {
        while let Some(group) = self.waiting.pop_front_if(|group| ready(group)) {
            let encoded = match group {
                RowGroup::Encoded(encoded) => encoded,
                RowGroup::OnThread(thread) => thread.join().map_err(|_| {
                    let message = "an encoder of row groups ended".into();
                    bessemer_dataflow::Error::Panicked { stage: "documents", message }
                })?,
            };
            let appended = encoded.and_then(|chunks| {
                let mut row_group = self.writer.next_row_group()?;
                for chunk in chunks {
                    chunk.append_to_row_group(&mut row_group)?;
                }
                row_group.close()
            });
            appended.map_err(Error::parquet(&self.path))?;
        }
        Ok(())
    }

    /// Completes the file.
    pub(super) fn finish(mut self) -> Result<FileSummary> {
        self.append(|_| true)?;
        self.writer.into_inner().map_err(Error::parquet(&self.path))?.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::{ArrayRef, StringArray, UInt64Array};

    #[test]
    fn the_bytes_are_those_of_the_plain_writer_whatever_the_threads() {
        // The first groups are the largest: on threads the last are encoded first.
        let group = |number: u64| {
            let rows = 0..(8 - number) * 2000;
            let texts = rows.clone().map(|row| (row % 5 > 0).then(|| format!("text {}", row * row * number)));
            RecordBatch::try_from_iter_with_nullable([
                ("row", Arc::new(UInt64Array::from_iter_values(rows)) as ArrayRef, false),
                ("text", Arc::new(StringArray::from_iter(texts)) as ArrayRef, true),
            ])
            .unwrap()
        };
        let folder = tempfile::tempdir().unwrap();
        let mut files = Vec::new();
        for threads in [1, 2, 12] {
            let (name, encoders) = (format!("{threads}.parquet"), Encoders::new(threads));
            let mut file = ParquetFile::create(
                &ConfinedDir::open(folder.path()).unwrap(),
                &name,
                group(0).schema(),
                &encoders,
            )
            .unwrap();
            (0..8).for_each(|number| file.write(group(number)).unwrap());
            assert_eq!(file.finish().unwrap().name, name);
            assert_eq!(encoders.0.load(Ordering::Relaxed), threads / 2, "all encoders are free again");
            files.push(std::fs::read(folder.path().join(name)).unwrap());
        }
        let properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(ZstdLevel::default()))
            .set_created_by("bessemer".into());
        let mut plain =
            ArrowWriter::try_new(Vec::new(), group(0).schema(), Some(properties.build())).unwrap();
        for number in 0..8 {
            plain.write(&group(number)).unwrap();
            plain.flush().unwrap();
        }
        let plain = plain.into_inner().unwrap();
        assert!(files.iter().all(|file| *file == plain));
    }
}
