//! Sorting of more records than memory holds.
//!
//! [`Sorter`] sorts records of one width within a [`SortMemory`]: records are collected in memory, sorted runs go to a
//! [`SpillFile`], and a [`Merge`] reads the runs back. [`Merge`] and [`merge_in_groups`] also serve owners of other kinds of
//! runs, whose keys may have any length: the sort of Arrow batches in `bessemer-dataflow` is one.
//!
//! A record is its own key: bytes or words, compared one after the other, so equal records cannot be distinguished and the result
//! depends neither on the memory nor on the number of threads.
//!
//! | resource | bound |
//! |---|---|
//! | memory | the limit, and an eighth of it for each sorter beyond the first (64 KiB at least) |
//! | open files | one for each sorter that has spilled |
//! | disk | the records once, and once more for each level of merges |
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod error;
mod memory;
mod merge;
mod record;
mod sorted;
mod sorter;
mod spill;
mod threads;
mod words;

pub use error::{Error, Result};
pub use memory::SortMemory;
pub use merge::{Merge, SortedRun, merge_in_groups};
pub use record::{RecordUnit, RecordWidth};
pub use sorted::SortedRecords;
pub use sorter::{BUCKETS, Feed, Sorter};
pub use spill::{RecordFile, RecordReader, RecordWriter, SpillFile};
pub use threads::for_each_on_threads;
pub use words::{SortedWords, WordSorter};
