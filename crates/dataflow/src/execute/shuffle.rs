//! Sends rows to partitions by the hash of their key.

use super::Executor;
use super::key::Keys;
use super::spool::Spool;
use crate::error::Result;
use crate::source::Scan;
use arrow_array::{RecordBatch, UInt32Array};
use arrow_select::take::take_record_batch;
use xxhash_rust::xxh3::xxh3_64;

/// Splits a batch by the hash of the key columns.
fn scatter(batch: &RecordBatch, key: &[String], partitions: usize) -> Result<Vec<Vec<u32>>> {
    let keys = Keys::of("shuffle", batch, key)?;
    let mut rows = vec![Vec::new(); partitions];
    for row in 0..batch.num_rows() {
        let partition = xxh3_64(keys.get(row)) % partitions as u64;
        // A batch holds fewer than 2^31 rows, because Arrow's offsets are 32 bits wide.
        rows[partition as usize].push(row as u32);
    }
    Ok(rows)
}

impl Executor<'_> {
    pub(super) fn shuffle(
        &self,
        stream: Vec<Box<dyn Scan>>,
        key: &[String],
        partitions: usize,
    ) -> Result<Vec<Box<dyn Scan>>> {
        let partitions = if key.is_empty() { 1 } else { partitions.max(1) };
        let mut spools: Vec<Spool> = (0..partitions).map(|_| Spool::new(self)).collect();
        self.drive(stream, &mut |batch| {
            let mut over = false;
            if partitions == 1 {
                over |= !spools[0].hold(batch);
            } else {
                for (partition, rows) in scatter(&batch, key, partitions)?.into_iter().enumerate() {
                    if !rows.is_empty() {
                        let part = take_record_batch(&batch, &UInt32Array::from(rows))?;
                        over |= !spools[partition].hold(part);
                    }
                }
            }
            if over && let Some(largest) = spools.iter_mut().max_by_key(|spool| spool.memory_bytes()) {
                largest.spill()?;
            }
            Ok(())
        })?;
        spools.into_iter().map(Spool::scan).collect()
    }
}
