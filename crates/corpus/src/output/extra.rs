//! Columns of the documents' files that only some corpora have: copies, URLs, scores.

use crate::error::{Error, Result};
use arrow_array::builder::{Float64Builder, StringBuilder, UInt64Builder};
use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, UInt64Type};
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_schema::{DataType, Field};
use std::sync::Arc;

/// Number of documents that one stands for, itself included; 1 where nothing counts them.
pub(crate) const COPIES: &str = "copies";

/// The column `copies`.
pub(crate) fn copies() -> Field {
    Field::new(COPIES, DataType::UInt64, false)
}

/// Values that wait for their row group.
enum Values {
    Count(UInt64Builder),
    Number(Float64Builder),
    Text(StringBuilder),
}

/// One such column.
pub(crate) struct Extra {
    name: String,
    values: Values,
}

fn wrong(name: &str, problem: String) -> Error {
    Error::plan("documents", format!("column {name:?} {problem}"))
}

impl Extra {
    /// An empty column of this name and type.
    pub(crate) fn new(field: &Field) -> Result<Extra> {
        let values = match field.data_type() {
            DataType::UInt64 => Values::Count(UInt64Builder::new()),
            DataType::Float64 => Values::Number(Float64Builder::new()),
            DataType::Utf8 => Values::Text(StringBuilder::new()),
            other => return Err(wrong(field.name(), format!("has type {other}, which no document carries"))),
        };
        Ok(Extra { name: field.name().clone(), values })
    }

    /// Takes the value of a row.
    pub(crate) fn push(&mut self, batch: &RecordBatch, index: usize) -> Result<()> {
        let found = batch.column_by_name(&self.name);
        if found.is_none() && self.name != COPIES {
            return Err(wrong(&self.name, "is missing".into()));
        }
        let array = found.filter(|array| array.is_valid(index));
        let of = |array: &ArrayRef| wrong(&self.name, format!("has type {}", array.data_type()));
        match (&mut self.values, array) {
            (Values::Count(counts), None) => counts.append_value(1),
            (Values::Number(numbers), None) => numbers.append_null(),
            (Values::Text(texts), None) => texts.append_null(),
            (Values::Count(counts), Some(array)) => {
                let values = array.as_primitive_opt::<UInt64Type>().ok_or_else(|| of(array))?;
                counts.append_value(values.value(index));
            }
            (Values::Number(numbers), Some(array)) => {
                let values = array.as_primitive_opt::<Float64Type>().ok_or_else(|| of(array))?;
                numbers.append_value(values.value(index));
            }
            (Values::Text(texts), Some(array)) => {
                let values = array.as_string_opt::<i32>().ok_or_else(|| of(array))?;
                texts.append_value(values.value(index));
            }
        }
        Ok(())
    }

    /// The values so far, as a column; begins anew.
    pub(crate) fn finish(&mut self) -> ArrayRef {
        match &mut self.values {
            Values::Count(counts) => Arc::new(counts.finish()),
            Values::Number(numbers) => Arc::new(numbers.finish()),
            Values::Text(texts) => Arc::new(texts.finish()),
        }
    }
}
