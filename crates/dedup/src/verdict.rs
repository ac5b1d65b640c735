//! What a method decides: rows (file, row) that name the document they repeat, or count their copies; and the map
//! that drops rows accordingly.
//!
//! | column | type | meaning |
//! |---|---|---|
//! | `first_file`, `first_row` | u32, u64 | the document that is kept instead; null where this one is |
//! | `similarity` | f32 | to that document, where it was measured |
//! | `gained` | u64 | copies that this document newly stands for |
//! | `copies` | u64 | documents that a kept row stands for, itself included: the cluster's size, for rehydration |

use arrow_array::{Array, ArrayRef, Float32Array, RecordBatch, StringArray, UInt32Array, UInt64Array};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use bessemer_dataflow::{BatchMap, Result, column, optional, side_rows, with_columns};
use bessemer_documents::DocKey;
use std::borrow::Cow;
use std::sync::Arc;

/// Rows of a result batch.
const RESULT_ROWS: usize = 4096;

/// The columns that a side plan adds.
pub(crate) fn adds() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("first_file", DataType::UInt32, true),
        Field::new("first_row", DataType::UInt64, true),
        Field::new("similarity", DataType::Float32, true),
        Field::new("gained", DataType::UInt64, true),
    ]))
}

/// One row of the result.
struct Decision {
    place: DocKey,
    first: Option<DocKey>,
    similarity: Option<f32>,
    gained: Option<u64>,
}

/// Verdicts on groups of documents, one group after the other: each document repeats one that is kept, or is kept itself.
#[derive(Default)]
pub(crate) struct Verdicts {
    made: Vec<Decision>,
    /// Documents of the group that are kept, and the copies that each stands for beside itself.
    kept: Vec<(DocKey, u64)>,
}

impl Verdicts {
    /// Number of documents of the group that are kept so far.
    pub(crate) fn kept(&self) -> usize {
        self.kept.len()
    }

    /// Keeps a document, which the next ones of its group may repeat.
    pub(crate) fn keep(&mut self, place: DocKey) {
        self.kept.push((place, 0));
    }

    /// Drops a document that stands for `copies` and repeats the `index`-th kept one.
    pub(crate) fn drop(&mut self, place: DocKey, copies: u64, index: usize, similarity: Option<f32>) {
        let (first, gained) = &mut self.kept[index];
        *gained += copies;
        self.made.push(Decision { place, first: Some(*first), similarity, gained: None });
    }

    /// Ends a group.
    pub(crate) fn end_group(&mut self) {
        let counted = self.kept.drain(..).filter(|(_, gained)| *gained > 0);
        self.made.extend(counted.map(|(place, gained)| Decision {
            place,
            first: None,
            similarity: None,
            gained: Some(gained),
        }));
    }

    /// A batch when there are enough rows for one.
    pub(crate) fn full(&mut self) -> Result<Option<RecordBatch>> {
        if self.made.len() >= RESULT_ROWS { self.flush() } else { Ok(None) }
    }

    /// Ends the last group; a batch of the rest, if there is any.
    pub(crate) fn finish(&mut self) -> Result<Option<RecordBatch>> {
        self.end_group();
        if self.made.is_empty() { Ok(None) } else { self.flush() }
    }

    fn flush(&mut self) -> Result<Option<RecordBatch>> {
        let rows = std::mem::take(&mut self.made);
        let columns: [ArrayRef; 4] = [
            Arc::new(rows.iter().map(|row| row.first.map(|first| first.file)).collect::<UInt32Array>()),
            Arc::new(rows.iter().map(|row| row.first.map(|first| first.row)).collect::<UInt64Array>()),
            Arc::new(rows.iter().map(|row| row.similarity).collect::<Float32Array>()),
            Arc::new(rows.iter().map(|row| row.gained).collect::<UInt64Array>()),
        ];
        side_rows(rows.iter().map(|row| (row.place.file, row.place.row)), &adds(), columns).map(Some)
    }
}

/// Documents that a row stands for: its `copies`, or 1.
pub(crate) fn weight(stage: &str, batch: &RecordBatch, row: usize) -> Result<u64> {
    match batch.column_by_name("copies") {
        None => Ok(1),
        Some(_) => {
            let copies: &UInt64Array = column(stage, batch, "copies")?;
            Ok(if copies.is_null(row) { 1 } else { copies.value(row) })
        }
    }
}

/// Drops the rows that a side plan named, and adds the copies that it counted.
pub(crate) struct DropDuplicates {
    /// The reason of dropped rows.
    pub(crate) reason: &'static str,
    /// What is shared, for the detail: "same text as", "jaccard 0.91 with".
    pub(crate) says: &'static str,
    /// Column of the keys, which nobody needs from here on.
    pub(crate) key: &'static str,
}

impl BatchMap for DropDuplicates {
    fn name(&self) -> &str {
        "drop-duplicates"
    }

    fn reads(&self) -> Option<&[&str]> {
        Some(&["reason", "detail", "copies", "first_file", "first_row", "similarity", "gained"])
    }

    fn apply(&self, batch: RecordBatch) -> Result<RecordBatch> {
        let stage = self.name();
        let first_file: &UInt32Array = column(stage, &batch, "first_file")?;
        let first_row: &UInt64Array = column(stage, &batch, "first_row")?;
        let similarity: &Float32Array = column(stage, &batch, "similarity")?;
        let gained: &UInt64Array = column(stage, &batch, "gained")?;
        let old_reasons: &StringArray = column(stage, &batch, "reason")?;
        let old_details: &StringArray = column(stage, &batch, "detail")?;
        let rows = batch.num_rows();
        let mut copies = Vec::with_capacity(rows);
        for row in 0..rows {
            let more = if gained.is_null(row) { 0 } else { gained.value(row) };
            copies.push(weight(stage, &batch, row)? + more);
        }
        let mut made: Vec<(Field, ArrayRef)> =
            vec![(Field::new("copies", DataType::UInt64, true), Arc::new(UInt64Array::from(copies)))];
        if first_file.null_count() < rows {
            let is_first = |row: &usize| first_file.is_null(*row);
            let reasons = (0..rows).map(|row| match is_first(&row) {
                true => optional(old_reasons, row),
                false => Some(self.reason),
            });
            let details = (0..rows).map(|row| {
                if is_first(&row) {
                    return optional(old_details, row).map(Cow::Borrowed);
                }
                let (file, row_of_first) = (first_file.value(row), first_row.value(row));
                let mut detail = format!("{} file {file} row {row_of_first}", self.says);
                if !similarity.is_null(row) {
                    detail += &format!(" at {:.4}", similarity.value(row));
                }
                Some(Cow::Owned(detail))
            });
            let field = |name| Field::new(name, DataType::Utf8, true);
            made.push((field("reason"), Arc::new(reasons.collect::<StringArray>())));
            made.push((field("detail"), Arc::new(details.collect::<StringArray>())));
        }
        let done = ["first_file", "first_row", "similarity", "gained", "group", self.key];
        without(&with_columns(&batch, made)?, &done)
    }
}

/// The batch without these columns, where it has them.
pub(crate) fn without(batch: &RecordBatch, names: &[&str]) -> Result<RecordBatch> {
    let schema = batch.schema();
    let kept: Vec<usize> = (0..batch.num_columns())
        .filter(|&index| !names.contains(&schema.field(index).name().as_str()))
        .collect();
    Ok(batch.project(&kept)?)
}
