//! Records of two words: what the steps of the search sort.

use super::error::Result;
use super::ranges::{Interval, merge};
use bessemer_external_sort::{Feed, RecordWidth, SortMemory, SortedRecords, Sorter};

/// A sorter for records whose first word is below `total`.
pub(super) fn sorter<'s>(memory: &'s SortMemory<'s>, total: u64) -> Sorter<'s, u64> {
    Sorter::partitioned(memory, RecordWidth::words::<2>(), total)
}

/// Adds a record.
pub(super) fn put(feed: &mut Feed<'_, '_, u64>, first: u64, second: u64) -> Result<()> {
    Ok(feed.push(&[first, second])?)
}

/// Adds a range to the stretch that grows, or hands that over and begins another.
pub(super) fn extend(
    stretch: &mut Option<Interval>,
    (start, end): Interval,
    feed: &mut Feed<'_, '_, u64>,
) -> Result<()> {
    match stretch {
        Some((_, until)) if start <= *until => *until = end,
        _ => {
            if let Some((start, end)) = stretch.replace((start, end)) {
                put(feed, start, end)?;
            }
        }
    }
    Ok(())
}

/// Sorted stretches, taken document by document.
pub(super) struct Clip<'s> {
    ordered: SortedRecords<'s, u64>,
    waiting: Option<Interval>,
}

impl<'s> Clip<'s> {
    pub(super) fn new(mut ordered: SortedRecords<'s, u64>) -> Result<Clip<'s>> {
        let waiting = Self::pull(&mut ordered)?;
        Ok(Clip { ordered, waiting })
    }

    fn pull(ordered: &mut SortedRecords<'s, u64>) -> Result<Option<Interval>> {
        Ok(ordered.next()?.and_then(|record| record.first_chunk()).map(|&[start, end]| (start, end)))
    }

    /// The parts that lie from `start` to `end`.
    pub(super) fn within(&mut self, start: u64, end: u64) -> Result<Vec<Interval>> {
        let mut parts = Vec::new();
        while let Some((low, high)) = self.waiting {
            if low >= end {
                break;
            }
            parts.push((low.max(start), high.min(end)));
            if high > end {
                // Touching stretches of two documents were joined: the rest is the next one's.
                self.waiting = Some((end, high));
                break;
            }
            self.waiting = Self::pull(&mut self.ordered)?;
        }
        merge(&mut parts);
        Ok(parts)
    }
}
