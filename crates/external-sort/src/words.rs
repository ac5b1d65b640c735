//! Sorting of records that are a few words.

use crate::error::Result;
use crate::memory::SortMemory;
use crate::sorter::{RecordWidth, SortedRecords, Sorter};

/// Sorts records of `N` words, compared word by word.
pub struct WordSorter<'s, const N: usize> {
    sorter: Sorter<'s>,
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
        self.sorter.push(record.map(u64::to_be_bytes).as_flattened())
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
    records: SortedRecords<'s>,
}

impl<const N: usize> SortedWords<'_, N> {
    /// The next record, repeats included.
    ///
    /// # Errors
    /// The disk's, or [`Error::Stopped`](crate::Error::Stopped).
    #[allow(clippy::should_implement_trait, reason = "reading can fail")]
    pub fn next(&mut self) -> Result<Option<[u64; N]>> {
        let record = self.records.next()?;
        Ok(record.map(|record| {
            let words = record.as_chunks().0;
            std::array::from_fn(|at| u64::from_be_bytes(words[at]))
        }))
    }
}
