//! Key columns as bytes whose order is the order of the values.
//!
//! Unsigned integers are written big-endian, fixed-size bytes as they are, strings with 0 escaped as (0, 255)
//! and ended by (0, 0). A null sorts first (tag 0), a value after it (tag 1).

use crate::error::{Error, Result};
use arrow_array::cast::AsArray;
use arrow_array::types::{UInt8Type, UInt32Type, UInt64Type};
use arrow_array::{Array, RecordBatch};
use arrow_schema::DataType;

/// The keys of all rows of a batch, one after the other.
pub(super) struct Keys {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Keys {
    /// Encodes the named columns.
    pub(super) fn of(stage: &str, batch: &RecordBatch, columns: &[String]) -> Result<Keys> {
        let mut arrays = Vec::with_capacity(columns.len());
        for name in columns {
            let array = batch.column_by_name(name).ok_or_else(|| {
                Error::plan(stage, format!("key column {name:?} is missing from {:?}", batch.schema()))
            })?;
            arrays.push(array);
        }
        let mut keys = Keys { bytes: Vec::new(), ends: Vec::with_capacity(batch.num_rows()) };
        for row in 0..batch.num_rows() {
            for array in &arrays {
                push_value(stage, array, row, &mut keys.bytes)?;
            }
            keys.ends.push(keys.bytes.len());
        }
        Ok(keys)
    }

    /// The key of a row.
    pub(super) fn get(&self, row: usize) -> &[u8] {
        let start = if row == 0 { 0 } else { self.ends[row - 1] };
        &self.bytes[start..self.ends[row]]
    }
}

fn push_value(stage: &str, array: &dyn Array, row: usize, out: &mut Vec<u8>) -> Result<()> {
    if array.is_null(row) {
        out.push(0);
        return Ok(());
    }
    out.push(1);
    match array.data_type() {
        DataType::UInt8 => out.push(array.as_primitive::<UInt8Type>().value(row)),
        DataType::UInt32 => out.extend(array.as_primitive::<UInt32Type>().value(row).to_be_bytes()),
        DataType::UInt64 => out.extend(array.as_primitive::<UInt64Type>().value(row).to_be_bytes()),
        DataType::FixedSizeBinary(_) => out.extend(array.as_fixed_size_binary().value(row)),
        DataType::Utf8 => {
            for &byte in array.as_string::<i32>().value(row).as_bytes() {
                out.push(byte);
                if byte == 0 {
                    out.push(255);
                }
            }
            out.extend([0, 0]);
        }
        other => {
            return Err(Error::plan(stage, format!("columns of type {other} cannot be keys")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::{ArrayRef, StringArray, UInt32Array};
    use std::sync::Arc;

    #[test]
    fn byte_order_is_value_order() {
        let names = [Some("b"), None, Some("a"), Some("a\0"), Some("a\0b"), Some("ab"), Some("")];
        let numbers = [3, 300, 70_000, 1, 0, 9, 2];
        let batch = RecordBatch::try_from_iter([
            ("name", Arc::new(StringArray::from(names.to_vec())) as ArrayRef),
            ("number", Arc::new(UInt32Array::from(numbers.to_vec())) as ArrayRef),
        ])
        .unwrap();
        for columns in [vec!["name"], vec!["number"], vec!["number", "name"]] {
            let owned: Vec<String> = columns.iter().map(|name| name.to_string()).collect();
            let keys = Keys::of("test", &batch, &owned).unwrap();
            let mut by_key: Vec<usize> = (0..names.len()).collect();
            let mut by_value = by_key.clone();
            by_key.sort_by(|&a, &b| keys.get(a).cmp(keys.get(b)));
            by_value.sort_by_key(
                |&row| {
                    if columns[0] == "name" { (names[row], 0) } else { (None, numbers[row]) }
                },
            );
            assert_eq!(by_key, by_value, "{columns:?}");
        }
    }
}
