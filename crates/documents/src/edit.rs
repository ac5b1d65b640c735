//! The one loop over the documents of a batch that edits and drops them.

use crate::edits::{EDITS, Edits, EditsColumn, edits_column, edits_field};
use crate::schema::{EXEMPT, HEAD_BYTES, head};
use arrow_array::builder::{Float64Builder, StringBuilder};
use arrow_array::cast::AsArray;
use arrow_array::types::Float64Type;
use arrow_array::{Array, ArrayRef, BinaryArray, RecordBatch, StringArray};
use arrow_schema::{DataType, Field};
use bessemer_dataflow::{Error, Result, column, optional, with_columns};
use std::borrow::Cow;
use std::sync::Arc;

/// Decision of a function about a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The document stays as it is now.
    Keep,
    /// The document is kept byte for byte: no later function of this plan looks at it.
    Exempt,
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

/// Value of a column that a function sets.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum Value {
    /// There is none.
    #[default]
    Null,
    /// A number.
    Number(f64),
    /// A name.
    Text(String),
}

/// One document of a batch, while functions look at it.
pub struct Document<'a> {
    batch: &'a RecordBatch,
    index: usize,
    /// The text column's value.
    bytes: &'a [u8],
    /// The text as it is now; none until the bytes are decoded.
    text: Option<Cow<'a, str>>,
    edits: Edits,
    /// The columns whose values functions set, and the values so far.
    fields: &'a [Field],
    values: Vec<Option<Value>>,
}

impl<'a> Document<'a> {
    /// A row of a batch of decoded texts, to be looked at.
    ///
    /// # Errors
    /// A missing column.
    pub fn of(stage: &str, batch: &'a RecordBatch, index: usize) -> Result<Document<'a>> {
        let edits = EditsColumn::of(stage, batch)?.get(index);
        Ok(TextColumn::of(stage, batch)?.document(batch, index, edits, &[]))
    }

    /// Row in the batch.
    pub fn index(&self) -> usize {
        self.index
    }

    /// The batch that the document is a row of, as it was before any function looked at it.
    pub fn batch(&self) -> &'a RecordBatch {
        self.batch
    }

    /// Value of a text column of the batch; none where it is null or missing.
    pub fn string(&self, name: &str) -> Option<&'a str> {
        let array = self.batch.column_by_name(name)?.as_string_opt::<i32>()?;
        optional(array, self.index)
    }

    /// Path below the source.
    pub fn path(&self) -> &'a str {
        self.string("path").unwrap_or_default()
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

    /// Edits so far.
    pub fn edits(&self) -> &Edits {
        &self.edits
    }

    /// Edits, to count more.
    pub fn edits_mut(&mut self) -> &mut Edits {
        &mut self.edits
    }

    /// The value that a function has set for a column.
    pub fn value(&self, name: &str) -> Option<&Value> {
        self.values.get(self.field(name)?)?.as_ref()
    }

    /// Sets the value of one of the columns that the function names.
    pub fn set(&mut self, name: &str, value: Value) {
        if let Some(field) = self.field(name) {
            self.values[field] = Some(value);
        }
    }

    fn field(&self, name: &str) -> Option<usize> {
        self.fields.iter().position(|field| field.name() == name)
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

    fn document(
        &self,
        batch: &'a RecordBatch,
        index: usize,
        edits: Edits,
        fields: &'a [Field],
    ) -> Document<'a> {
        let (bytes, text) = match self {
            TextColumn::Bytes(array) => (array.value(index), None),
            TextColumn::Text(array) => {
                (array.value(index).as_bytes(), Some(Cow::Borrowed(array.value(index))))
            }
        };
        Document { batch, index, bytes, text, edits, fields, values: vec![None; fields.len()] }
    }

    fn is_binary(&self) -> bool {
        matches!(self, TextColumn::Bytes(_))
    }
}

/// A column of values that functions set.
struct ValueColumn<'a> {
    field: &'a Field,
    /// Value of rows that no function sets.
    old: Option<&'a ArrayRef>,
    values: Values,
}

enum Values {
    Numbers(Float64Builder),
    Texts(StringBuilder),
}

impl<'a> ValueColumn<'a> {
    fn new(field: &'a Field, batch: &'a RecordBatch) -> ValueColumn<'a> {
        let values = match field.data_type() {
            DataType::Float64 => Values::Numbers(Float64Builder::new()),
            _ => Values::Texts(StringBuilder::new()),
        };
        ValueColumn { field, old: batch.column_by_name(field.name()), values }
    }

    fn push(&mut self, row: usize, value: Option<Value>) -> Result<()> {
        let old = self.old.filter(|array| array.is_valid(row));
        match (&mut self.values, value) {
            (Values::Numbers(numbers), Some(Value::Number(number))) => numbers.append_value(number),
            (Values::Texts(texts), Some(Value::Text(text))) => texts.append_value(text),
            (Values::Numbers(numbers), Some(Value::Null)) => numbers.append_null(),
            (Values::Texts(texts), Some(Value::Null)) => texts.append_null(),
            (Values::Numbers(numbers), None) => {
                let array = old.and_then(|array| array.as_primitive_opt::<Float64Type>());
                numbers.append_option(array.map(|array| array.value(row)));
            }
            (Values::Texts(texts), None) => {
                let array = old.and_then(|array| array.as_string_opt::<i32>());
                texts.append_option(array.map(|array| array.value(row)));
            }
            (_, Some(value)) => {
                let problem = format!("column {:?} cannot hold {value:?}", self.field.name());
                return Err(Error::plan("documents", problem));
            }
        }
        Ok(())
    }

    fn finish(self) -> (Field, ArrayRef) {
        let array: ArrayRef = match self.values {
            Values::Numbers(mut numbers) => Arc::new(numbers.finish()),
            Values::Texts(mut texts) => Arc::new(texts.finish()),
        };
        (self.field.clone(), array)
    }
}

/// Hands the documents that are kept so far to `visit`, one after the other, and returns the batch as it says: with the columns
/// `reason`, `detail`, `edits` and `text`, which is UTF-8 from then on. Of a dropped document the head is left where bytes become
/// text; later its text stays, so that nobody copies all others for it. Documents that are dropped already stay as they are.
///
/// # Errors
/// A missing column, or the error of `visit`.
pub fn edit(
    stage: &str,
    batch: &RecordBatch,
    visit: impl FnMut(&mut Document<'_>) -> Result<Verdict>,
) -> Result<RecordBatch> {
    edit_with(stage, batch, &[], Visited::Kept, visit)
}

/// [`edit`] that hands dropped documents to `visit` as well.
///
/// # Errors
/// The errors of [`edit`].
pub fn edit_all(
    stage: &str,
    batch: &RecordBatch,
    visit: impl FnMut(&mut Document<'_>) -> Result<Verdict>,
) -> Result<RecordBatch> {
    edit_with(stage, batch, &[], Visited::All, visit)
}

/// Selection of the documents that are visited.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Visited {
    Kept,
    All,
}

/// The loop. `fields` are the columns whose values `visit` may set.
pub(crate) fn edit_with(
    stage: &str,
    batch: &RecordBatch,
    fields: &[Field],
    visited: Visited,
    mut visit: impl FnMut(&mut Document<'_>) -> Result<Verdict>,
) -> Result<RecordBatch> {
    let column_of_texts = TextColumn::of(stage, batch)?;
    let old_reasons: &StringArray = column(stage, batch, "reason")?;
    let old_details: &StringArray = column(stage, batch, "detail")?;
    let old_edits = EditsColumn::of(stage, batch)?;
    let (mut reasons, mut details) = (StringBuilder::new(), StringBuilder::new());
    let mut texts: Vec<Cow<'_, str>> = Vec::with_capacity(batch.num_rows());
    let mut edits: Vec<Edits> = Vec::with_capacity(batch.num_rows());
    let mut columns: Vec<ValueColumn<'_>> =
        fields.iter().map(|field| ValueColumn::new(field, batch)).collect();
    let is_binary = column_of_texts.is_binary();
    let (mut is_changed, mut has_edits) = (is_binary, false);
    for index in 0..batch.num_rows() {
        let found = old_edits.get(index);
        let mut document = column_of_texts.document(batch, index, found.clone(), fields);
        let old_reason = optional(old_reasons, index);
        let verdict = match visited == Visited::All || old_reason.is_none() {
            true => visit(&mut document)?,
            false => Verdict::Keep,
        };
        is_changed |= document.is_changed();
        has_edits |= document.edits != found;
        edits.push(std::mem::take(&mut document.edits));
        for (column, value) in columns.iter_mut().zip(document.values.drain(..)) {
            column.push(index, value)?;
        }
        let (reason, detail) = match verdict {
            Verdict::Keep => (old_reason.map(Cow::Borrowed), optional(old_details, index).map(Cow::Borrowed)),
            Verdict::Exempt => (Some(Cow::Borrowed(EXEMPT)), None),
            Verdict::Drop { reason, detail } => (Some(reason), detail.map(Cow::Owned)),
        };
        let is_kept = reason.as_deref().is_none_or(|reason| reason == EXEMPT);
        reasons.append_option(reason);
        details.append_option(detail);
        texts.push(if is_kept || !is_binary { document.into_text() } else { document.into_head() });
    }
    let mut made: Vec<(Field, ArrayRef)> = vec![
        (Field::new("reason", DataType::Utf8, true), Arc::new(reasons.finish())),
        (Field::new("detail", DataType::Utf8, true), Arc::new(details.finish())),
    ];
    if has_edits && batch.column_by_name(EDITS).is_some() {
        made.push((edits_field(), edits_column(&edits)?));
    }
    made.extend(columns.into_iter().map(ValueColumn::finish));
    if is_changed {
        let bytes = texts.iter().map(|text| text.len()).sum();
        let mut column = StringBuilder::with_capacity(texts.len(), bytes);
        texts.iter().for_each(|text| column.append_value(text));
        made.push((Field::new("text", DataType::Utf8, false), Arc::new(column.finish())));
    }
    with_columns(batch, made)
}
