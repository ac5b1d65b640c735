//! Keys of documents: columns that maps make of texts, and that side plans compare.

use crate::verdict::without;
use arrow_array::builder::{BinaryBuilder, FixedSizeBinaryBuilder};
use arrow_array::{Array, ArrayRef, BooleanArray, FixedSizeBinaryArray, RecordBatch, StringArray};
use arrow_schema::{DataType, Field};
use arrow_select::filter::filter_record_batch;
use bessemer_dataflow::{Error, FlatMap, Result, column, with_columns};
use bessemer_documents::DocKeys;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Partitions of the shuffles.
pub(crate) const PARTITIONS: usize = 16;

/// Names as columns.
pub(crate) fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_string()).collect()
}

/// The words of bytes.
pub(crate) fn words(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word))
}

pub(crate) fn check(stop: &AtomicBool) -> Result<()> {
    if stop.load(Ordering::Relaxed) { Err(Error::Stopped) } else { Ok(()) }
}

/// The batch with a column of keys, each of `width` bytes or of any number. `key` gets the row, the text of a document that is kept so
/// far and an empty buffer for its key, and says whether it has one; the column is null for all others.
pub(crate) fn with_keys(
    stage: &str,
    batch: &RecordBatch,
    name: &str,
    width: Option<i32>,
    mut key: impl FnMut(usize, &str, &mut Vec<u8>) -> bool,
) -> Result<RecordBatch> {
    let texts: &StringArray = column(stage, batch, "text")?;
    let reasons: &StringArray = column(stage, batch, "reason")?;
    let (mut keys, mut bytes) = (BinaryBuilder::new(), Vec::new());
    for row in 0..batch.num_rows() {
        bytes.clear();
        let has_key = reasons.is_null(row) && key(row, texts.value(row), &mut bytes);
        keys.append_option(has_key.then_some(&bytes));
    }
    let keys = keys.finish();
    let (kind, keys): (DataType, ArrayRef) = match width {
        Some(width) => {
            let keys = FixedSizeBinaryArray::try_from_sparse_iter_with_size(keys.iter(), width)?;
            (DataType::FixedSizeBinary(width), Arc::new(keys))
        }
        None => (DataType::Binary, Arc::new(keys)),
    };
    with_columns(batch, vec![(Field::new(name, kind, true), keys)])
}

/// The first stage of a side plan: keeps the rows of documents that are kept so far and have a key, with their place as the column
/// `order` instead of `split` and `reason`.
pub(crate) struct KeptRows {
    /// Column of the key; none where a document may have none.
    pub(crate) key: Option<&'static str>,
}

impl FlatMap for KeptRows {
    fn name(&self) -> &str {
        "kept-rows"
    }

    fn apply(&self, batch: RecordBatch) -> Result<RecordBatch> {
        let reasons: &StringArray = column(self.name(), &batch, "reason")?;
        let keys = self.key.and_then(|key| batch.column_by_name(key));
        let is_kept = |row| reasons.is_null(row) && keys.is_none_or(|keys| keys.is_valid(row));
        let kept: BooleanArray = (0..batch.num_rows()).map(|row| Some(is_kept(row))).collect();
        let batch = filter_record_batch(&batch, &kept)?;
        let places = DocKeys::of(self.name(), &batch)?;
        let mut order = FixedSizeBinaryBuilder::with_capacity(batch.num_rows(), 16);
        (0..batch.num_rows()).try_for_each(|row| order.append_value(places.get(row).bytes()))?;
        let field = Field::new("order", DataType::FixedSizeBinary(16), false);
        without(&with_columns(&batch, vec![(field, Arc::new(order.finish()))])?, &["split", "reason"])
    }
}
