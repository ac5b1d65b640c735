//! The one loop over the documents of a batch that edits and drops them.

use crate::schema::{HEAD_BYTES, head};
use arrow_array::builder::StringBuilder;
use arrow_array::{Array, ArrayRef, BinaryArray, RecordBatch, StringArray};
use arrow_schema::{DataType, Field};
use bessemer_dataflow::{Result, column, optional, with_columns};
use std::borrow::Cow;
use std::sync::Arc;

/// What a function says of a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The document stays as it is now.
    Keep,
    /// The document is dropped: its row stays, with the reason and the beginning of its text.
    Drop {
        /// A fixed word that statistics count by.
        reason: Cow<'static, str>,
        /// The measured value and the limit, where there is something to say.
        detail: Option<String>,
    },
}

impl Verdict {
    /// A drop with a detail.
    pub fn drop(reason: impl Into<Cow<'static, str>>, detail: String) -> Verdict {
        Verdict::Drop { reason: reason.into(), detail: Some(detail) }
    }
}

/// One document of a batch, while a function looks at it.
pub struct Document<'a> {
    batch: &'a RecordBatch,
    index: usize,
    /// The text column's value.
    bytes: &'a [u8],
    /// The text as it is now; none until the bytes are decoded.
    text: Option<Cow<'a, str>>,
}

impl<'a> Document<'a> {
    /// Row in the batch.
    pub fn index(&self) -> usize {
        self.index
    }

    /// The batch that the document is a row of.
    pub fn batch(&self) -> &'a RecordBatch {
        self.batch
    }

    /// Value of a text column; none where it is null or missing.
    pub fn string(&self, name: &str) -> Option<&'a str> {
        let array = self.batch.column_by_name(name)?.as_any().downcast_ref::<StringArray>()?;
        optional(array, self.index)
    }

    /// The bytes of the text column, before any function changed them.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The text as it is now; empty until it is decoded.
    pub fn text(&self) -> &str {
        self.text.as_deref().unwrap_or_default()
    }

    /// Replaces the text.
    pub fn set_text(&mut self, text: impl Into<Cow<'a, str>>) {
        self.text = Some(text.into());
    }

    /// Whether the text differs from the column's.
    fn is_changed(&self) -> bool {
        !matches!(&self.text, Some(Cow::Borrowed(text)) if text.len() == self.bytes.len())
    }

    /// The text as it is now.
    fn into_text(self) -> Cow<'a, str> {
        match self.text {
            Some(text) => text,
            None => self.into_head(),
        }
    }

    /// The text that a dropped document keeps for inspection.
    fn into_head(self) -> Cow<'a, str> {
        match self.text {
            Some(Cow::Borrowed(text)) => Cow::Borrowed(head(text)),
            Some(Cow::Owned(text)) => Cow::Owned(head(&text).to_string()),
            // What cannot be read as text is shown as far as it can.
            None => {
                let bytes = &self.bytes[..self.bytes.len().min(HEAD_BYTES)];
                Cow::Owned(head(&String::from_utf8_lossy(bytes)).replace('\0', "\u{fffd}"))
            }
        }
    }
}

/// The text column of a batch: bytes as a source gives them, or text.
enum TextColumn<'a> {
    Bytes(&'a BinaryArray),
    Text(&'a StringArray),
}

impl<'a> TextColumn<'a> {
    fn of(stage: &str, batch: &'a RecordBatch) -> Result<TextColumn<'a>> {
        let is_binary = |array: &ArrayRef| *array.data_type() == DataType::Binary;
        if batch.column_by_name("text").is_some_and(is_binary) {
            return Ok(TextColumn::Bytes(column(stage, batch, "text")?));
        }
        Ok(TextColumn::Text(column(stage, batch, "text")?))
    }

    fn document(&self, batch: &'a RecordBatch, index: usize) -> Document<'a> {
        let (bytes, text) = match self {
            TextColumn::Bytes(array) => (array.value(index), None),
            TextColumn::Text(array) => {
                (array.value(index).as_bytes(), Some(Cow::Borrowed(array.value(index))))
            }
        };
        Document { batch, index, bytes, text }
    }
}

/// Hands the documents that are kept so far to `visit`, one after the other, and returns the batch as it says: with the columns
/// `reason`, `detail` and `text`, which is UTF-8 from then on. Of a dropped document the head is left where bytes become text;
/// later its text stays, so that nobody copies all others for it. Documents that are dropped already stay as they are.
///
/// # Errors
/// A missing column, or the error of `visit`.
pub fn edit(
    stage: &str,
    batch: &RecordBatch,
    mut visit: impl FnMut(&mut Document<'_>) -> Result<Verdict>,
) -> Result<RecordBatch> {
    let reasons: &StringArray = column(stage, batch, "reason")?;
    edit_all(stage, batch, |document| match reasons.is_null(document.index) {
        true => visit(document),
        false => Ok(Verdict::Keep),
    })
}

/// [`edit`] that hands dropped documents to `visit` as well.
///
/// # Errors
/// Those of [`edit`].
pub fn edit_all(
    stage: &str,
    batch: &RecordBatch,
    mut visit: impl FnMut(&mut Document<'_>) -> Result<Verdict>,
) -> Result<RecordBatch> {
    let column_of_texts = TextColumn::of(stage, batch)?;
    let old_reasons: &StringArray = column(stage, batch, "reason")?;
    let old_details: &StringArray = column(stage, batch, "detail")?;
    let (mut reasons, mut details) = (StringBuilder::new(), StringBuilder::new());
    let mut texts: Vec<Cow<'_, str>> = Vec::with_capacity(batch.num_rows());
    let is_binary = matches!(column_of_texts, TextColumn::Bytes(_));
    let mut is_changed = is_binary;
    for index in 0..batch.num_rows() {
        let mut document = column_of_texts.document(batch, index);
        match visit(&mut document)? {
            Verdict::Keep => {
                reasons.append_option(optional(old_reasons, index));
                details.append_option(optional(old_details, index));
                is_changed |= document.is_changed();
                texts.push(document.into_text());
            }
            Verdict::Drop { reason, detail } => {
                reasons.append_value(reason);
                details.append_option(detail);
                is_changed |= document.is_changed();
                texts.push(if is_binary { document.into_head() } else { document.into_text() });
            }
        }
    }
    let mut columns: Vec<(Field, ArrayRef)> = vec![
        (Field::new("reason", DataType::Utf8, true), Arc::new(reasons.finish())),
        (Field::new("detail", DataType::Utf8, true), Arc::new(details.finish())),
    ];
    if is_changed {
        let bytes = texts.iter().map(|text| text.len()).sum();
        let mut column = StringBuilder::with_capacity(texts.len(), bytes);
        texts.iter().for_each(|text| column.append_value(text));
        columns.push((Field::new("text", DataType::Utf8, false), Arc::new(column.finish())));
    }
    with_columns(batch, columns)
}
