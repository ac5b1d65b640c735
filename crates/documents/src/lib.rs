//! The document as a value: its columns, its key, and the one loop that edits and drops documents.
//!
//! Documents flow through a plan of `bessemer-dataflow` as rows of Arrow batches. This crate says which columns a row has
//! ([`text_schema`]), collects what a source reads into rows ([`RowBuilder`]), and hands the rows of a batch to a function
//! one [`Document`] at a time ([`edit`]); a list of such functions is one map ([`DocumentPasses`]). Everything that drops documents or changes their text goes through that loop:
//! rules, privacy, deduplication, deletions.
//!
//! [`CheckedBatches`] guards readers of Parquet files from outside.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod edit;
mod edits;
mod key;
mod parquet_file;
mod pass;
mod row_builder;
mod rows;
mod schema;

pub use edit::{Document, Value, Verdict, edit, edit_all};
pub use edits::{EDIT_KINDS, EDITS, EMAILS, Edits, EditsColumn, IPS, LENGTHS, LINES, NUMBERS, SECRETS};
pub use key::{DocKey, DocKeys, doc_key_column};
pub use parquet_file::{CheckedBatches, JsonRows, MAX_PAGE_BYTES, json_value};
pub use pass::{DocumentPass, DocumentPasses, Scratch};
pub use row_builder::{Origin, RowBuilder};
pub use rows::Rows;
pub use schema::{
    COMPONENT, EMBEDDING, EXEMPT, HEAD_BYTES, METADATA, Split, TAGS, TRAIN, VALIDATION, head, source_schema,
    text_schema,
};
