//! Typed access to the columns of a batch of documents.

use crate::edits::EditsColumn;
use crate::schema::COMPONENT;
use arrow_array::{Array, RecordBatch, StringArray, UInt8Array, UInt32Array, UInt64Array};
use bessemer_dataflow::{Result, column};

/// Typed view of the columns of a decoded batch.
pub struct Rows<'a> {
    /// Ordinal of the file in the listing.
    pub file: &'a UInt32Array,
    /// Ordinal of the document in the file.
    pub row: &'a UInt64Array,
    /// Unique name.
    pub id: &'a StringArray,
    /// Crate, top folder or file.
    pub source: &'a StringArray,
    /// Version of the source.
    pub version: &'a StringArray,
    /// Licence of the source.
    pub licence: &'a StringArray,
    /// Path below the source.
    pub path: &'a StringArray,
    /// Address of publication.
    pub url: &'a StringArray,
    /// When it was fetched.
    pub fetched: &'a StringArray,
    /// Bytes in the source.
    pub bytes: &'a UInt64Array,
    /// Code of the split.
    pub split: &'a UInt8Array,
    /// Reason of a dropped document.
    pub reason: &'a StringArray,
    /// Measured value and limit of a dropped document.
    pub detail: &'a StringArray,
    /// Edits.
    pub edits: EditsColumn<'a>,
    /// The text.
    pub text: &'a StringArray,
    /// Part of a mixture, where there are several sources.
    pub component: Option<&'a StringArray>,
}

/// A column that only some plans have.
fn optional_column<'a, T: Array + 'static>(
    stage: &str,
    batch: &'a RecordBatch,
    name: &str,
) -> Result<Option<&'a T>> {
    batch.column_by_name(name).map(|_| column(stage, batch, name)).transpose()
}

impl<'a> Rows<'a> {
    /// The columns of a batch of decoded rows; `stage` names who asks.
    ///
    /// # Errors
    /// A missing column.
    pub fn of(stage: &str, batch: &'a RecordBatch) -> Result<Self> {
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
            edits: EditsColumn::of(stage, batch)?,
            text: column(stage, batch, "text")?,
            component: optional_column(stage, batch, COMPONENT)?,
        })
    }
}
