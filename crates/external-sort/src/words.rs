//! Sorting of records that are a few words.

use crate::error::Result;
use crate::memory::SortMemory;
use crate::record::RecordWidth;
use crate::sorted::SortedRecords;
use crate::sorter::Sorter;

/// Sorts records of `N` words, compared word by word.
pub struct WordSorter<'s, const N: usize> {
    sorter: Sorter<'s, u64>,
    pushed: u64,
}

impl<'s, const N: usize> WordSorter<'s, N> {
    /// A sorter within `memory`.
    pub fn new(memory: &'s SortMemory<'s>) -> Self {
        WordSorter { sorter: Sorter::new(memory, RecordWidth::words::<N>()), pushed: 0 }
    }

    /// Adds a record.
    ///
    /// # Errors
    /// The disk's, or [`Error::Stopped`](crate::Error::Stopped).
    pub fn push(&mut self, record: [u64; N]) -> Result<()> {
        self.pushed += 1;
        self.sorter.push(&record)
    }

    /// Records so far, repeats included.
    pub fn pushed(&self) -> u64 {
        self.pushed
    }

    /// The records in order.
    pub fn finish(self) -> SortedWords<'s, N> {
        SortedWords { records: self.sorter.finish() }
    }
}

/// Records of `N` words in order.
pub struct SortedWords<'s, const N: usize> {
    records: SortedRecords<'s, u64>,
}

impl<const N: usize> SortedWords<'_, N> {
    /// The next record, repeats included.
    ///
    /// # Errors
    /// The disk's, or [`Error::Stopped`](crate::Error::Stopped).
    #[allow(clippy::should_implement_trait, reason = "reading can fail")]
    pub fn next(&mut self) -> Result<Option<[u64; N]>> {
        Ok(self.records.next()?.and_then(|record| record.first_chunk().copied()))
    }
}
