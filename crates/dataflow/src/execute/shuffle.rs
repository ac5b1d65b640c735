//! Sends rows to partitions by the hash of their key.

use super::key::Keys;
use super::spool::Spool;
use super::{Executor, Stream};
use crate::error::Result;
use crate::source::Scan;
use arrow_array::{RecordBatch, UInt32Array};
use arrow_select::take::take_record_batch;
use xxhash_rust::xxh3::xxh3_64;

/// The partition of each row of `batch`: `xxh3(key) mod partitions`, 0 for an empty key.
///
/// # Errors
/// A key column that is missing or of a type that cannot be a key.
pub fn partitions_of(batch: &RecordBatch, key: &[String], partitions: usize) -> Result<Vec<u32>> {
    if key.is_empty() {
        return Ok(vec![0; batch.num_rows()]);
    }
    let keys = Keys::of("shuffle", batch, key)?;
    // At most `partitions`, which fits.
    Ok((0..batch.num_rows()).map(|row| (xxh3_64(keys.get(row)) % partitions.max(1) as u64) as u32).collect())
}

/// Splits a batch by the hash of the key columns: (partition, its rows), in order, for partitions that get any.
fn scatter(batch: RecordBatch, key: &[String], partitions: usize) -> Result<Vec<(usize, RecordBatch)>> {
    if partitions == 1 {
        return Ok(vec![(0, batch)]);
    }
    let mut rows = vec![Vec::new(); partitions];
    for (row, partition) in partitions_of(&batch, key, partitions)?.into_iter().enumerate() {
        // A batch holds fewer than 2^31 rows, because Arrow's offsets are 32 bits wide.
        rows[partition as usize].push(row as u32);
    }
    let some = rows.into_iter().enumerate().filter(|(_, rows)| !rows.is_empty());
    some.map(|(partition, rows)| Ok((partition, take_record_batch(&batch, &UInt32Array::from(rows))?)))
        .collect()
}

impl<'a> Executor<'a> {
    pub(super) fn shuffle(
        &self,
        stream: Stream<'a>,
        key: &[String],
        partitions: usize,
    ) -> Result<Stream<'a>> {
        let partitions = if key.is_empty() { 1 } else { partitions.max(1) };
        let mut spools: Vec<Spool> = (0..partitions).map(|_| Spool::new(self)).collect();
        self.drive(stream, &|batch| scatter(batch, key, partitions), &mut |parts| {
            let mut over = false;
            for (partition, rows) in parts {
                over |= !spools[partition].hold(rows);
            }
            if over && let Some(largest) = spools.iter_mut().max_by_key(|spool| spool.memory_bytes()) {
                largest.spill()?;
            }
            Ok(())
        })?;
        spools.into_iter().map(|spool| spool.scan().map(|scan| scan as Box<dyn Scan + 'a>)).collect()
    }
}
