//! Exact duplicates: equal XXH3-128 of the normalised text.
//!
//! Normalisation: line ends become `\n`, white space at line ends goes, blank lines go. Case and indentation
//! stay: they are part of code. Of each group of equal texts the train document with the lowest (file, row) is
//! kept, or the lowest validation document where no train document has that text. So no validation text is
//! also trained on.
//!
//! As a plan: fingerprints travel, texts do not: shuffle by fingerprint, sort by (fingerprint, split, file, row),
//! name all but the first of each group. Cost: 40 bytes per document. With 128 bits, the probability that
//! among n documents two different ones agree is below n²/2^129: 10^-21 for a billion.

use crate::row::head;
use arrow_array::builder::{FixedSizeBinaryBuilder, StringBuilder};
use arrow_array::{Array, RecordBatch, StringArray, UInt32Array, UInt64Array};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use bessemer_dataflow::{BatchMap, Fold, Reducer, Result, Stage, column, optional, with_columns};
use std::ops::Range;
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_128;

/// Partitions of the shuffle.
const PARTITIONS: usize = 16;

/// The text that is compared.
fn normalise(text: &str, out: &mut String) {
    out.clear();
    for line in text.lines() {
        let line = line.trim_end();
        if !line.is_empty() {
            out.push_str(line);
            out.push('\n');
        }
    }
}

/// The stages: fingerprints, the side plan, the verdicts.
pub(crate) fn stages() -> Vec<Stage> {
    let key = |names: &[&str]| names.iter().map(|name| name.to_string()).collect::<Vec<String>>();
    vec![
        Stage::Map(Arc::new(Fingerprint)),
        Stage::Annotate {
            name: "exact-duplicates".into(),
            project: key(&["file", "row", "split", "fingerprint"]),
            side: vec![
                Stage::Shuffle { key: key(&["fingerprint"]), partitions: PARTITIONS },
                Stage::Sort { by: key(&["fingerprint", "split", "file", "row"]) },
                Stage::Reduce { key: key(&["fingerprint"]), reducer: Arc::new(KeepFirst) },
            ],
            adds: Arc::new(Schema::new(vec![
                Field::new("first_file", DataType::UInt32, true),
                Field::new("first_row", DataType::UInt64, true),
            ])),
        },
        Stage::Map(Arc::new(DropDuplicates)),
    ]
}

/// Adds the column `fingerprint`, null for documents that are dropped already.
struct Fingerprint;

impl BatchMap for Fingerprint {
    fn name(&self) -> &str {
        "fingerprint"
    }

    fn apply(&self, batch: RecordBatch) -> Result<RecordBatch> {
        let texts: &StringArray = column(self.name(), &batch, "text")?;
        let reasons: &StringArray = column(self.name(), &batch, "reason")?;
        let mut prints = FixedSizeBinaryBuilder::with_capacity(batch.num_rows(), 16);
        let mut normal = String::new();
        for index in 0..batch.num_rows() {
            if reasons.is_null(index) {
                normalise(texts.value(index), &mut normal);
                prints.append_value(xxh3_128(normal.as_bytes()).to_be_bytes())?;
            } else {
                prints.append_null();
            }
        }
        let field = Field::new("fingerprint", DataType::FixedSizeBinary(16), true);
        with_columns(&batch, vec![(field, Arc::new(prints.finish()))])
    }
}

/// Names every row of a group but the first, with the first's place.
struct KeepFirst;

impl Reducer for KeepFirst {
    fn name(&self) -> &str {
        "keep-first"
    }

    fn fold(&self) -> Box<dyn Fold> {
        let schema = Arc::new(Schema::new(vec![
            Field::new("file", DataType::UInt32, false),
            Field::new("row", DataType::UInt64, false),
            Field::new("first_file", DataType::UInt32, true),
            Field::new("first_row", DataType::UInt64, true),
        ]));
        Box::new(KeepFirstFold { first: (0, 0), found: Vec::new(), schema })
    }
}

struct KeepFirstFold {
    first: (u32, u64),
    /// (file, row, file of the first, row of the first)
    found: Vec<(u32, u64, u32, u64)>,
    schema: SchemaRef,
}

/// Rows of a result batch.
const RESULT_ROWS: usize = 4096;

impl KeepFirstFold {
    fn flush(&mut self) -> Result<Option<RecordBatch>> {
        if self.found.is_empty() {
            return Ok(None);
        }
        let found = std::mem::take(&mut self.found);
        let batch = RecordBatch::try_new(
            self.schema.clone(),
            vec![
                Arc::new(found.iter().map(|row| row.0).collect::<UInt32Array>()),
                Arc::new(found.iter().map(|row| row.1).collect::<UInt64Array>()),
                Arc::new(found.iter().map(|row| row.2).collect::<UInt32Array>()),
                Arc::new(found.iter().map(|row| row.3).collect::<UInt64Array>()),
            ],
        )?;
        Ok(Some(batch))
    }
}

impl Fold for KeepFirstFold {
    fn take(&mut self, batch: &RecordBatch, rows: Range<usize>, first: bool) -> Result<Option<RecordBatch>> {
        let print = batch.column_by_name("fingerprint");
        if print.is_some_and(|print| print.is_null(rows.start)) {
            return Ok(None);
        }
        let files: &UInt32Array = column("keep-first", batch, "file")?;
        let ids: &UInt64Array = column("keep-first", batch, "row")?;
        let mut rows = rows;
        if first {
            self.first = (files.value(rows.start), ids.value(rows.start));
            rows.start += 1;
        }
        let (first_file, first_row) = self.first;
        self.found.extend(rows.map(|row| (files.value(row), ids.value(row), first_file, first_row)));
        if self.found.len() >= RESULT_ROWS { self.flush() } else { Ok(None) }
    }

    fn finish(&mut self) -> Result<Option<RecordBatch>> {
        self.flush()
    }
}

/// Drops the rows that the side plan named.
struct DropDuplicates;

impl BatchMap for DropDuplicates {
    fn name(&self) -> &str {
        "drop-duplicates"
    }

    fn apply(&self, batch: RecordBatch) -> Result<RecordBatch> {
        let texts: &StringArray = column(self.name(), &batch, "text")?;
        let old_reasons: &StringArray = column(self.name(), &batch, "reason")?;
        let old_details: &StringArray = column(self.name(), &batch, "detail")?;
        let first_file: &UInt32Array = column(self.name(), &batch, "first_file")?;
        let first_row: &UInt64Array = column(self.name(), &batch, "first_row")?;
        if first_file.null_count() == batch.num_rows() {
            return Ok(batch);
        }
        let mut kept = StringBuilder::with_capacity(batch.num_rows(), texts.value_data().len());
        let (mut reasons, mut details) = (StringBuilder::new(), StringBuilder::new());
        for index in 0..batch.num_rows() {
            if first_file.is_null(index) {
                reasons.append_option(optional(old_reasons, index));
                details.append_option(optional(old_details, index));
                kept.append_value(texts.value(index));
            } else {
                reasons.append_value("duplicate");
                details.append_value(format!(
                    "same text as file {} row {}",
                    first_file.value(index),
                    first_row.value(index)
                ));
                kept.append_value(head(texts.value(index)));
            }
        }
        with_columns(
            &batch,
            vec![
                (Field::new("reason", DataType::Utf8, true), Arc::new(reasons.finish())),
                (Field::new("detail", DataType::Utf8, true), Arc::new(details.finish())),
                (Field::new("text", DataType::Utf8, false), Arc::new(kept.finish())),
            ],
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_ends_and_blank_lines_do_not_count_and_indentation_does() {
        let normal = |text: &str| {
            let mut out = String::new();
            normalise(text, &mut out);
            out
        };
        assert_eq!(normal("a \r\n\r\n\tb\n"), normal("a\n\tb"));
        assert_ne!(normal("a\n\tb"), normal("a\nb"));
        assert_ne!(normal("A"), normal("a"));
        assert_ne!(normal("ab"), normal("a\nb"));
    }
}
