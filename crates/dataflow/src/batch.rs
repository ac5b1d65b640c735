//! Typed access to the columns of a batch, and batches with other columns.

use crate::error::{Error, Result};
use arrow_array::{Array, ArrayRef, RecordBatch, StringArray, UInt32Array, UInt64Array};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use std::sync::Arc;

/// Typed access to a column by name. `stage` names who asks.
///
/// # Errors
/// [`Error::Plan`] when the column is missing or of another type.
pub fn column<'a, T: Array + 'static>(stage: &str, batch: &'a RecordBatch, name: &str) -> Result<&'a T> {
    let found = batch.column_by_name(name);
    found.and_then(|array| array.as_any().downcast_ref::<T>()).ok_or_else(|| {
        let problem = match found {
            Some(array) => {
                format!("column {name:?} has type {}, which the stage cannot read", array.data_type())
            }
            None => format!("column {name:?} is missing from {:?}", field_names(batch)),
        };
        Error::plan(stage, problem)
    })
}

fn field_names(batch: &RecordBatch) -> Vec<String> {
    batch.schema().fields().iter().map(|field| field.name().clone()).collect()
}

/// Value of a nullable string column.
pub fn optional(array: &StringArray, index: usize) -> Option<&str> {
    if array.is_null(index) { None } else { Some(array.value(index)) }
}

/// The batch with some columns replaced or appended.
///
/// # Errors
/// A new column has another number of rows, or nulls where its field allows none.
pub fn with_columns(batch: &RecordBatch, new: Vec<(Field, ArrayRef)>) -> Result<RecordBatch> {
    let schema = batch.schema();
    let mut fields: Vec<Field> = schema.fields().iter().map(|field| field.as_ref().clone()).collect();
    let mut columns = batch.columns().to_vec();
    for (field, array) in new {
        match fields.iter().position(|old| old.name() == field.name()) {
            Some(index) => {
                fields[index] = field;
                columns[index] = array;
            }
            None => {
                fields.push(field);
                columns.push(array);
            }
        }
    }
    Ok(RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)?)
}

/// Those of the columns `names` that the batch has, in the order of the names.
///
/// # Errors
/// Columns of a batch that do not fit each other.
pub fn select(batch: &RecordBatch, names: &[String]) -> Result<RecordBatch> {
    let schema = batch.schema();
    let indices: Vec<usize> = names.iter().filter_map(|name| schema.index_of(name).ok()).collect();
    Ok(batch.project(&indices)?)
}

/// Rows of a side plan's result: `file`, `row` and the columns that the side join `adds`.
///
/// # Errors
/// Columns of other types or lengths.
pub fn side_rows(
    ids: impl IntoIterator<Item = (u32, u64)>,
    adds: &SchemaRef,
    columns: impl IntoIterator<Item = ArrayRef>,
) -> Result<RecordBatch> {
    let (files, rows): (Vec<u32>, Vec<u64>) = ids.into_iter().unzip();
    let ids: [ArrayRef; 2] = [Arc::new(UInt32Array::from(files)), Arc::new(UInt64Array::from(rows))];
    let mut fields =
        vec![Field::new("file", DataType::UInt32, false), Field::new("row", DataType::UInt64, false)];
    fields.extend(adds.fields().iter().map(|field| field.as_ref().clone()));
    Ok(RecordBatch::try_new(Arc::new(Schema::new(fields)), ids.into_iter().chain(columns).collect())?)
}
