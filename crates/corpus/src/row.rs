//! The rows that flow through a plan: one document each, as Arrow columns.
//!
//! | column | type | meaning |
//! |---|---|---|
//! | `file`, `row` | u32, u64 | ordinals of the file in the listing and of the document in the file: the identity and the order of a row |
//! | `id` | utf8 | name of the document, unique in the corpus |
//! | `source`, `version`, `licence` | utf8 | the crate, top folder or file that it comes from |
//! | `path` | utf8 | path below the source |
//! | `url`, `fetched` | utf8, nullable | where it was published and when it was fetched, where the source says so |
//! | `metadata` | utf8, nullable | the fields of the input that predicates name `meta.…`, as a JSON object of the column names |
//! | `input_embedding` | binary, nullable | the vector that `dedup.semantic.column` names, as little-endian 32-bit floats |
//! | `bytes` | u64 | size in the source, known even where the text was not read |
//! | `split` | u8, nullable | 0 train, 1 validation, null not yet decided |
//! | `reason`, `detail` | utf8, nullable | why the document is dropped; null while it is kept |
//! | `emails`, `ips`, `lines` | u32 | edits: replaced addresses, removed lines |
//! | `text` | binary, utf8 once decoded | the text; of a dropped document only the head |
//!
//! Behind these, rows of several sources have `component` (utf8: what training weighs, a source or a slice of one) and, up to the
//! stage that cuts slices, `tags` (utf8: the tags of the source, as JSON).
//!
//! Stages that are asked for add columns behind these: `numbers`, `secrets` (u32, edits), `evaluation_sets` (utf8, nullable: places
//! by evaluation set, as JSON), `copies` (u64), the columns of `[corpus.scores]` (f64 or utf8, nullable).
//!
//! A source may refuse a document itself (unreadable, too large) by setting `reason`. No stage removes a row:
//! a dropped document stays, with its reason, until the sink writes it to the list of dropped documents.

use arrow_array::builder::{BinaryBuilder, StringBuilder, UInt8Builder, UInt32Builder, UInt64Builder};
use arrow_array::{
    Array, ArrayRef, BinaryArray, RecordBatch, StringArray, UInt8Array, UInt32Array, UInt64Array,
};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use bessemer_dataflow::column;
use std::sync::Arc;

/// Bytes of a dropped document that are kept for inspection.
pub const HEAD_BYTES: usize = 400;

/// Reason of documents that hold a part of an evaluation set.
pub(crate) const CONTAMINATED: &str = "contaminated";
/// Column of the evaluation sets that a document held parts of.
pub(crate) const EVALUATION_SETS: &str = "evaluation_sets";

/// Column of the part of a mixture that a document belongs to.
pub(crate) const COMPONENT: &str = "component";
/// Column of the tags of a document's source.
pub(crate) const TAGS: &str = "tags";

/// Column of the metadata of the input.
pub(crate) const METADATA: &str = "metadata";

/// Column of the embeddings of the input.
pub(crate) const EMBEDDING: &str = "input_embedding";

/// Train, in the column `split`.
pub(crate) const TRAIN: u8 = 0;
/// Validation, in the column `split`.
pub(crate) const VALIDATION: u8 = 1;

/// One side of the split.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Split {
    /// What the model learns from.
    Train,
    /// What it is judged on.
    Validation,
}

impl Split {
    /// Both sides, in the order in which they are written.
    pub const ALL: [Split; 2] = [Split::Train, Split::Validation];

    /// The side's name in file names and statistics.
    pub fn name(self) -> &'static str {
        match self {
            Split::Train => "train",
            Split::Validation => "validation",
        }
    }

    /// The value of the column `split`.
    pub fn code(self) -> u8 {
        match self {
            Split::Train => TRAIN,
            Split::Validation => VALIDATION,
        }
    }
}

/// Columns of a row whose text has type `text`.
fn schema(text: DataType) -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("file", DataType::UInt32, false),
        Field::new("row", DataType::UInt64, false),
        Field::new("id", DataType::Utf8, false),
        Field::new("source", DataType::Utf8, false),
        Field::new("version", DataType::Utf8, true),
        Field::new("licence", DataType::Utf8, true),
        Field::new("path", DataType::Utf8, false),
        Field::new("url", DataType::Utf8, true),
        Field::new("fetched", DataType::Utf8, true),
        Field::new(METADATA, DataType::Utf8, true),
        Field::new(EMBEDDING, DataType::Binary, true),
        Field::new("bytes", DataType::UInt64, false),
        Field::new("split", DataType::UInt8, true),
        Field::new("reason", DataType::Utf8, true),
        Field::new("detail", DataType::Utf8, true),
        Field::new("emails", DataType::UInt32, false),
        Field::new("ips", DataType::UInt32, false),
        Field::new("lines", DataType::UInt32, false),
        Field::new("text", text, false),
    ]))
}

/// Rows as a source gives them: text as bytes.
pub fn source_schema() -> SchemaRef {
    schema(DataType::Binary)
}

/// Rows after decoding: text as UTF-8.
pub fn text_schema() -> SchemaRef {
    schema(DataType::Utf8)
}

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
    reason: StringBuilder,
    detail: StringBuilder,
    edits: UInt32Builder,
    text: BinaryBuilder,
}

impl RowBuilder {
    /// An empty batch with room for `text_bytes` of text.
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
        self.edits.append_value(0);
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
        let edits: ArrayRef = Arc::new(self.edits.finish());
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
            edits.clone(),
            edits.clone(),
            edits,
            Arc::new(self.text.finish()),
        ];
        Ok(RecordBatch::try_new(source_schema(), columns)?)
    }
}

/// Typed view of the columns of a decoded batch.
pub(crate) struct Rows<'a> {
    pub(crate) file: &'a UInt32Array,
    pub(crate) row: &'a UInt64Array,
    pub(crate) id: &'a StringArray,
    pub(crate) source: &'a StringArray,
    pub(crate) version: &'a StringArray,
    pub(crate) licence: &'a StringArray,
    pub(crate) path: &'a StringArray,
    pub(crate) url: &'a StringArray,
    pub(crate) fetched: &'a StringArray,
    pub(crate) bytes: &'a UInt64Array,
    pub(crate) split: &'a UInt8Array,
    pub(crate) reason: &'a StringArray,
    pub(crate) detail: &'a StringArray,
    pub(crate) emails: &'a UInt32Array,
    pub(crate) ips: &'a UInt32Array,
    pub(crate) lines: &'a UInt32Array,
    pub(crate) text: &'a StringArray,
    /// Numbers replaced, where they are looked for.
    pub(crate) numbers: Option<&'a UInt32Array>,
    /// Keys and tokens replaced, where they are looked for.
    pub(crate) secrets: Option<&'a UInt32Array>,
    /// Places by evaluation set, where there are such sets.
    pub(crate) evaluation_sets: Option<&'a StringArray>,
    /// Part of a mixture, where there are several sources.
    pub(crate) component: Option<&'a StringArray>,
}

/// A column that only some plans have.
fn perhaps<'a, T: Array + 'static>(
    stage: &str,
    batch: &'a RecordBatch,
    name: &str,
) -> bessemer_dataflow::Result<Option<&'a T>> {
    batch.column_by_name(name).map(|_| column(stage, batch, name)).transpose()
}

impl<'a> Rows<'a> {
    pub(crate) fn of(stage: &str, batch: &'a RecordBatch) -> bessemer_dataflow::Result<Self> {
        Ok(Rows {
            file: column(stage, batch, "file")?,
            row: column(stage, batch, "row")?,
            id: column(stage, batch, "id")?,
            source: column(stage, batch, "source")?,
            version: column(stage, batch, "version")?,
            licence: column(stage, batch, "licence")?,
            path: column(stage, batch, "path")?,
            url: column(stage, batch, "url")?,
            fetched: column(stage, batch, "fetched")?,
            bytes: column(stage, batch, "bytes")?,
            split: column(stage, batch, "split")?,
            reason: column(stage, batch, "reason")?,
            detail: column(stage, batch, "detail")?,
            emails: column(stage, batch, "emails")?,
            ips: column(stage, batch, "ips")?,
            lines: column(stage, batch, "lines")?,
            text: column(stage, batch, "text")?,
            numbers: perhaps(stage, batch, "numbers")?,
            secrets: perhaps(stage, batch, "secrets")?,
            evaluation_sets: perhaps(stage, batch, EVALUATION_SETS)?,
            component: perhaps(stage, batch, COMPONENT)?,
        })
    }
}

/// Raw text of a batch that is not yet decoded.
pub(crate) fn raw_text<'a>(
    stage: &str,
    batch: &'a RecordBatch,
) -> bessemer_dataflow::Result<&'a BinaryArray> {
    column(stage, batch, "text")
}

/// The first [`HEAD_BYTES`] of a text, cut at a character boundary.
pub(crate) fn head(text: &str) -> &str {
    &text[..text.floor_char_boundary(HEAD_BYTES)]
}
