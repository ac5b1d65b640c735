//! Shuffle blocks: rows of one partition, encoded as Arrow IPC, as they travel between executors.
//!
//! | column | type | meaning |
//! |---|---|---|
//! | `partition` | u32 | partition of the plan that the rows go to |
//! | `from` | u64 | unit that they come from: a part of the source, or a partition of the previous step |
//! | `seq` | u64 | ordinal of the block among those of that unit |
//! | `rows` | binary | a record batch as an Arrow IPC stream |
//!
//! A cluster delivers in any order. Blocks sorted by (`partition`, `from`, `seq`) hold the rows in the order of the local
//! executor, whatever their columns are. All steps share this schema, so the scheduler needs no other.

use arrow_array::builder::{BinaryBuilder, UInt32Builder, UInt64Builder};
use arrow_array::{BinaryArray, RecordBatch, UInt32Array, UInt64Array};
use arrow_ipc::reader::StreamReader;
use arrow_ipc::writer::StreamWriter;
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use bessemer_dataflow::{Error, Result, column};
use std::io::Cursor;
use std::sync::Arc;

/// Bytes of rows after which a block ends: far below the 16 MiB that a message may have.
pub(crate) const BLOCK_BYTES: usize = 1 << 20;

/// Name in errors.
const STAGE: &str = "shuffle block";

/// Returns the columns of a batch of blocks.
pub(crate) fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("partition", DataType::UInt32, false),
        Field::new("from", DataType::UInt64, false),
        Field::new("seq", DataType::UInt64, false),
        Field::new("rows", DataType::Binary, false),
    ]))
}

/// Returns a batch of one block that holds `rows`.
pub(crate) fn encode(partition: u32, from: u64, seq: u64, rows: &RecordBatch) -> Result<RecordBatch> {
    let mut writer = StreamWriter::try_new(Vec::new(), &rows.schema())?;
    writer.write(rows)?;
    writer.finish()?;
    encode_payload(partition, from, seq, &writer.into_inner()?)
}

/// Returns a batch of one block that holds any bytes.
pub(crate) fn encode_payload(partition: u32, from: u64, seq: u64, bytes: &[u8]) -> Result<RecordBatch> {
    let (mut p, mut f, mut s) = (UInt32Builder::new(), UInt64Builder::new(), UInt64Builder::new());
    let mut rows = BinaryBuilder::with_capacity(1, bytes.len());
    p.append_value(partition);
    f.append_value(from);
    s.append_value(seq);
    rows.append_value(bytes);
    Ok(RecordBatch::try_new(
        schema(),
        vec![Arc::new(p.finish()), Arc::new(f.finish()), Arc::new(s.finish()), Arc::new(rows.finish())],
    )?)
}

/// A block in a batch of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ShuffleBlock<'a> {
    /// Partition of the plan that the rows go to.
    pub(crate) partition: u32,
    /// Unit that they come from.
    pub(crate) from: u64,
    /// Ordinal among the blocks of that unit.
    pub(crate) seq: u64,
    /// Rows as an Arrow IPC stream, or other bytes.
    pub(crate) payload: &'a [u8],
}

impl ShuffleBlock<'_> {
    /// Returns the block in row `row`.
    pub(crate) fn at(batch: &RecordBatch, row: usize) -> Result<ShuffleBlock<'_>> {
        let partition: &UInt32Array = column(STAGE, batch, "partition")?;
        let from: &UInt64Array = column(STAGE, batch, "from")?;
        let seq: &UInt64Array = column(STAGE, batch, "seq")?;
        let rows: &BinaryArray = column(STAGE, batch, "rows")?;
        Ok(ShuffleBlock {
            partition: partition.value(row),
            from: from.value(row),
            seq: seq.value(row),
            payload: rows.value(row),
        })
    }
}

/// Returns the rows of a block's payload.
pub(crate) fn decode(bytes: &[u8]) -> Result<RecordBatch> {
    let mut reader = StreamReader::try_new(Cursor::new(bytes), None)?;
    let batch = reader.next().transpose()?;
    batch.ok_or_else(|| Error::Plan {
        stage: STAGE.into(),
        problem: "holds no batch of rows; wanted exactly one".into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::{ArrayRef, StringArray};

    #[test]
    fn rows_come_out_as_they_went_in_and_damage_is_an_error() {
        let texts = StringArray::from(vec![Some("a"), None, Some("ü")]);
        let rows = RecordBatch::try_from_iter([("text", Arc::new(texts) as ArrayRef)]).unwrap();
        let encoded = encode(3, 7, 9, &rows).unwrap();
        let ShuffleBlock { partition, from, seq, payload: bytes } = ShuffleBlock::at(&encoded, 0).unwrap();
        assert_eq!((partition, from, seq), (3, 7, 9));
        assert_eq!(decode(bytes).unwrap(), rows);
        assert!(decode(&bytes[..bytes.len() / 2]).is_err());
        assert!(decode(b"").is_err());
    }
}
