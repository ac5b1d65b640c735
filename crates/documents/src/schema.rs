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
//! | `edits` | map of utf8 to u64, nullable | edits by kind: what was replaced or removed, places of evaluation sets; null where there are none |
//! | `text` | binary, utf8 once decoded | the text; of a document dropped before it was decoded or by then only the head |
//!
//! Behind these, rows of several sources have `component` (utf8: what training weighs, a source or a slice of one) and, up to the
//! stage that cuts slices, `tags` (utf8: the tags of the source, as JSON).
//!
//! Stages that are asked for add columns behind these: `copies` (u64), the columns of `[corpus.scores]` (f64 or utf8, nullable).
//!
//! A source may refuse a document itself (unreadable, too large) by setting `reason`. No stage removes a row:
//! a dropped document stays, with its reason, until the sink writes it to the list of dropped documents.

use crate::edits::edits_field;
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use std::sync::Arc;

/// Bytes of a dropped document that are kept for inspection.
pub const HEAD_BYTES: usize = 400;

/// Column of the part of a mixture that a document belongs to.
pub const COMPONENT: &str = "component";
/// Column of the tags of a document's source.
pub const TAGS: &str = "tags";

/// Column of the metadata of the input.
pub const METADATA: &str = "metadata";

/// Column of the embeddings of the input.
pub const EMBEDDING: &str = "input_embedding";

/// Reason of documents that are kept byte for byte, while they pass stages that look at kept documents only.
pub const EXEMPT: &str = "kept byte for byte";

/// Train, in the column `split`.
pub const TRAIN: u8 = 0;
/// Validation, in the column `split`.
pub const VALIDATION: u8 = 1;

/// One side of the split.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Split {
    /// Text that the model is trained on.
    Train,
    /// Text that the model is evaluated on.
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
        edits_field(),
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

/// The first [`HEAD_BYTES`] of a text, cut at a character boundary.
pub fn head(text: &str) -> &str {
    &text[..text.floor_char_boundary(HEAD_BYTES)]
}
