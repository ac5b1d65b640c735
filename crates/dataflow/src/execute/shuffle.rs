//! Sends rows to partitions by the hash of their key.

use super::key::Keys;
use super::spool::Spool;
use super::{Executor, Stream};
use crate::error::Result;
use crate::source::Scan;
use arrow_array::{RecordBatch, UInt32Array};
use arrow_select::take::take_record_batch;
use std::collections::BTreeMap;
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

/// The rows of a batch that go to each partition, in order, for partitions that get any. `partitions` has that of each row.
///
/// # Errors
/// A partition for a row that does not exist.
pub fn scatter(batch: &RecordBatch, partitions: &[u32]) -> Result<Vec<(u32, RecordBatch)>> {
    let mut rows: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    // A batch holds fewer than 2^31 rows, because Arrow's offsets are 32 bits wide.
    for (row, partition) in (0..).zip(partitions) {
        rows.entry(*partition).or_default().push(row);
    }
    let taken = rows.into_iter();
    taken.map(|(to, rows)| Ok((to, take_record_batch(batch, &UInt32Array::from(rows))?))).collect()
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
        let prepare = |batch: RecordBatch| match partitions {
            1 => Ok(vec![(0, batch)]),
            _ => scatter(&batch, &partitions_of(&batch, key, partitions)?),
        };
        self.drive(stream, &prepare, &mut |parts| {
            let mut over = false;
            for (partition, rows) in parts {
                over |= !spools[partition as usize].hold(rows);
            }
            if over && let Some(largest) = spools.iter_mut().max_by_key(|spool| spool.memory_bytes()) {
                largest.spill()?;
            }
            Ok(())
        })?;
        spools.into_iter().map(|spool| spool.scan().map(|scan| scan as Box<dyn Scan + 'a>)).collect()
    }
}
