//! Rows of a batch from what a source reads.

use crate::edits::{Edits, LENGTHS, edits_column};
use crate::schema::{HEAD_BYTES, Split, source_schema};
use arrow_array::builder::{BinaryBuilder, StringBuilder, UInt8Builder, UInt32Builder, UInt64Builder};
use arrow_array::{ArrayRef, RecordBatch};
use std::sync::Arc;

/// What a source says about one document, beside its text.
#[derive(Debug, Clone, Copy, Default)]
pub struct Origin<'a> {
    /// Ordinal of the file in the listing.
    pub file: u32,
    /// Ordinal of the document in the file.
    pub row: u64,
    /// Unique name of the document.
    pub id: &'a str,
    /// Crate, top folder or file.
    pub source: &'a str,
    /// Version of the source, where it has one.
    pub version: Option<&'a str>,
    /// Licence of the source as an SPDX expression, where it is known.
    pub licence: Option<&'a str>,
    /// Path below the source.
    pub path: &'a str,
    /// Where it was published, where the source knows.
    pub url: Option<&'a str>,
    /// When it was fetched, as WARC writes it (ISO 8601), where the source knows.
    pub fetched: Option<&'a str>,
    /// Fields of the input that predicates read, as a JSON object.
    pub metadata: Option<&'a str>,
    /// Embedding of the text, as little-endian 32-bit floats, where the configuration names a field for it.
    pub embedding: Option<&'a [u8]>,
    /// Bytes in the source.
    pub bytes: u64,
    /// The split, where the source decides it.
    pub split: Option<Split>,
    /// Whether it is a WARC record whose header states a wrong length.
    pub wrong_length: bool,
}

/// Collects rows into a batch of [`source_schema`].
#[derive(Default)]
pub struct RowBuilder {
    file: UInt32Builder,
    row: UInt64Builder,
    id: StringBuilder,
    source: StringBuilder,
    version: StringBuilder,
    licence: StringBuilder,
    path: StringBuilder,
    url: StringBuilder,
    fetched: StringBuilder,
    metadata: StringBuilder,
    embedding: BinaryBuilder,
    bytes: UInt64Builder,
    split: UInt8Builder,
    edits: Vec<Edits>,
    reason: StringBuilder,
    detail: StringBuilder,
    text: BinaryBuilder,
}

impl RowBuilder {
    /// An empty batch with capacity for `text_bytes` of text.
    pub fn with_capacity(rows: usize, text_bytes: usize) -> Self {
        RowBuilder { text: BinaryBuilder::with_capacity(rows, text_bytes), ..RowBuilder::default() }
    }

    fn origin(&mut self, origin: &Origin<'_>) {
        self.file.append_value(origin.file);
        self.row.append_value(origin.row);
        self.id.append_value(origin.id);
        self.source.append_value(origin.source);
        self.version.append_option(origin.version);
        self.licence.append_option(origin.licence);
        self.path.append_value(origin.path);
        self.url.append_option(origin.url);
        self.fetched.append_option(origin.fetched);
        self.metadata.append_option(origin.metadata);
        self.embedding.append_option(origin.embedding);
        self.bytes.append_value(origin.bytes);
        self.split.append_option(origin.split.map(Split::code));
        let mut edits = Edits::default();
        edits.add(LENGTHS, u64::from(origin.wrong_length));
        self.edits.push(edits);
    }

    /// Adds a document.
    pub fn push(&mut self, origin: &Origin<'_>, text: &[u8]) {
        self.origin(origin);
        self.reason.append_null();
        self.detail.append_null();
        self.text.append_value(text);
    }

    /// Adds a document that the source refuses; `head` is the beginning of its text, if it could be read.
    pub fn refuse(&mut self, origin: &Origin<'_>, reason: &str, detail: &str, head: &[u8]) {
        self.origin(origin);
        self.reason.append_value(reason);
        self.detail.append_value(detail);
        self.text.append_value(&head[..head.len().min(HEAD_BYTES)]);
    }

    /// The batch.
    pub fn finish(mut self) -> bessemer_dataflow::Result<RecordBatch> {
        let edits = edits_column(&self.edits)?;
        let columns: Vec<ArrayRef> = vec![
            Arc::new(self.file.finish()),
            Arc::new(self.row.finish()),
            Arc::new(self.id.finish()),
            Arc::new(self.source.finish()),
            Arc::new(self.version.finish()),
            Arc::new(self.licence.finish()),
            Arc::new(self.path.finish()),
            Arc::new(self.url.finish()),
            Arc::new(self.fetched.finish()),
            Arc::new(self.metadata.finish()),
            Arc::new(self.embedding.finish()),
            Arc::new(self.bytes.finish()),
            Arc::new(self.split.finish()),
            Arc::new(self.reason.finish()),
            Arc::new(self.detail.finish()),
            edits,
            Arc::new(self.text.finish()),
        ];
        Ok(RecordBatch::try_new(source_schema(), columns)?)
    }
}
