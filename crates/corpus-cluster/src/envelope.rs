//! What travels between executors: a few rows of one partition, sealed as Arrow IPC.
//!
//! | column | type | meaning |
//! |---|---|---|
//! | `partition` | u32 | partition of the plan that the rows go to |
//! | `from` | u64 | unit that they come from: a part of the source, or a partition of the step before |
//! | `seq` | u64 | their place among what that unit sent |
//! | `rows` | binary | a record batch as an Arrow IPC stream |
//!
//! A cluster delivers in any order. Envelopes sorted by (`partition`, `from`, `seq`) are the rows in the order in which the
//! embedded executor has them, whatever their columns are. One schema for every step also means that the scheduler needs to know
//! nothing of ours.

use arrow_array::builder::{BinaryBuilder, UInt32Builder, UInt64Builder};
use arrow_array::{BinaryArray, RecordBatch, UInt32Array, UInt64Array};
use arrow_ipc::reader::StreamReader;
use arrow_ipc::writer::StreamWriter;
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use bessemer_dataflow::{Error, Result, column};
use std::io::Cursor;
use std::sync::Arc;

/// Bytes of rows that are sealed together: far below the 16 MiB that a message may have.
pub(crate) const ENVELOPE_BYTES: usize = 1 << 20;

/// Columns of an envelope.
pub(crate) fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("partition", DataType::UInt32, false),
        Field::new("from", DataType::UInt64, false),
        Field::new("seq", DataType::UInt64, false),
        Field::new("rows", DataType::Binary, false),
    ]))
}

/// One envelope as a batch.
pub(crate) fn seal(partition: u32, from: u64, seq: u64, rows: &RecordBatch) -> Result<RecordBatch> {
    let mut writer = StreamWriter::try_new(Vec::new(), &rows.schema())?;
    writer.write(rows)?;
    writer.finish()?;
    stamp(partition, from, seq, &writer.into_inner()?)
}

/// An envelope around bytes that are no rows.
pub(crate) fn stamp(partition: u32, from: u64, seq: u64, bytes: &[u8]) -> Result<RecordBatch> {
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

/// What stands in row `row` of a batch of envelopes: partition, unit, place, contents.
pub(crate) fn read(batch: &RecordBatch, row: usize) -> Result<(u32, u64, u64, &[u8])> {
    let partition: &UInt32Array = column("envelope", batch, "partition")?;
    let from: &UInt64Array = column("envelope", batch, "from")?;
    let seq: &UInt64Array = column("envelope", batch, "seq")?;
    let rows: &BinaryArray = column("envelope", batch, "rows")?;
    Ok((partition.value(row), from.value(row), seq.value(row), rows.value(row)))
}

/// The rows in an envelope.
pub(crate) fn open(bytes: &[u8]) -> Result<RecordBatch> {
    let mut reader = StreamReader::try_new(Cursor::new(bytes), None)?;
    let batch = reader.next().transpose()?;
    batch.ok_or_else(|| Error::Plan {
        stage: "envelope".into(),
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
        let sealed = seal(3, 7, 9, &rows).unwrap();
        let (partition, from, seq, bytes) = read(&sealed, 0).unwrap();
        assert_eq!((partition, from, seq), (3, 7, 9));
        assert_eq!(open(bytes).unwrap(), rows);
        assert!(open(&bytes[..bytes.len() / 2]).is_err());
        assert!(open(b"").is_err());
    }
}
