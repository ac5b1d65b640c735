//! Reading of sorted records.

use crate::error::Result;
use crate::merge::{Merge, SortedRun};
use crate::record::{AddRecord, RecordUnit};
use crate::sorter::Sorter;
use crate::spill::RecordReader;

impl<U: RecordUnit> SortedRun for RecordReader<U> {
    type Unit = U;
    type Error = crate::Error;

    fn key(&self) -> Option<&[U]> {
        self.current()
    }

    fn advance(&mut self) -> Result<()> {
        self.pass()
    }
}

/// Records of one bucket, in order.
pub(crate) struct BucketRecords<U: RecordUnit> {
    merge: Merge<RecordReader<U>>,
    add: Option<AddRecord<U>>,
    /// The record that was given out, if records of equal key are summed.
    sum: Vec<U>,
    /// Whether the smallest record was given out.
    taken: bool,
    /// Bytes that the sorter counts for this bucket.
    pub(crate) held: usize,
}

impl<U: RecordUnit> BucketRecords<U> {
    /// Records of readers that have reached their first ones.
    pub(crate) fn new(readers: Vec<RecordReader<U>>, add: Option<AddRecord<U>>, held: usize) -> Self {
        BucketRecords { merge: Merge::new(readers), add, sum: Vec::new(), taken: false, held }
    }

    /// All records, if they are one sorted run in memory.
    pub(crate) fn in_memory(&self) -> Option<&[U]> {
        let one_run = self.merge.runs() == 1 && self.add.is_none();
        self.merge.smallest().filter(|_| one_run).and_then(|run| self.merge.run(run).whole())
    }

    fn smallest(&self) -> Option<&[U]> {
        self.merge.run(self.merge.smallest()?).current()
    }

    pub(crate) fn next(&mut self) -> Result<Option<&[U]>> {
        if let Some(add) = self.add {
            self.next_sum(add)?;
        } else if std::mem::replace(&mut self.taken, true) {
            self.merge.advance()?;
        }
        Ok(self.given())
    }

    /// The record that [`BucketRecords::next`] gave out last.
    fn given(&self) -> Option<&[U]> {
        if self.add.is_some() { (!self.sum.is_empty()).then_some(&self.sum) } else { self.smallest() }
    }

    fn next_sum(&mut self, add: AddRecord<U>) -> Result<()> {
        self.sum.clear();
        while let Some(record) = self.merge.smallest().and_then(|run| self.merge.run(run).current()) {
            if self.sum.is_empty() {
                self.sum.extend_from_slice(record);
            } else if !add(&mut self.sum, record) {
                break;
            }
            self.merge.advance()?;
        }
        Ok(())
    }
}

/// All records of a sorter, in order.
pub struct SortedRecords<'s, U: RecordUnit> {
    sorter: Sorter<'s, U>,
    next_bucket: usize,
    bucket: Option<BucketRecords<U>>,
}

impl<'s, U: RecordUnit> SortedRecords<'s, U> {
    pub(crate) fn new(sorter: Sorter<'s, U>) -> Self {
        SortedRecords { sorter, next_bucket: 0, bucket: None }
    }

    /// The next record.
    ///
    /// # Errors
    /// The disk's, or [`Error::Stopped`](crate::Error::Stopped).
    #[allow(clippy::should_implement_trait, reason = "the record is borrowed from the merge")]
    pub fn next(&mut self) -> Result<Option<&[U]>> {
        loop {
            if let Some(bucket) = &mut self.bucket {
                if bucket.next()?.is_some() {
                    break;
                }
                self.sorter.held.release(bucket.held);
                self.bucket = None;
            }
            if self.next_bucket == self.sorter.buckets() {
                return Ok(None);
            }
            self.bucket = Some(self.sorter.read(self.next_bucket, self.sorter.memory.merge_bytes())?);
            self.next_bucket += 1;
        }
        Ok(self.bucket.as_ref().and_then(BucketRecords::given))
    }
}
