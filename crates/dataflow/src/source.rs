//! Sources of the rows of a plan.
//!
//! A source has a sequential part and a parallel part. [`Scan::next`] is called under a lock and does only what
//! must be done in order: naming the next files, cutting the next run of lines. The [`Morsel`] that it returns
//! does the rest on any thread: reading, parsing, building the batch.

use crate::error::Result;
use arrow_array::RecordBatch;
use std::sync::Arc;

/// Work that yields one batch, on any thread.
pub type Morsel = Box<dyn FnOnce() -> Result<RecordBatch> + Send>;

/// A sequence of morsels, in row order.
pub trait Scan: Send {
    /// The next morsel, or none at the end. Called from one thread at a time.
    fn next(&mut self) -> Result<Option<Morsel>>;

    /// A point behind the last morsel from which the source can go on without reading what lies before, in words of its own; none
    /// where it cannot.
    fn resume_point(&self) -> Option<String> {
        None
    }
}

/// A source of rows.
pub trait Source: Send + Sync {
    /// The source in words, for plans and errors.
    fn describe(&self) -> String;
    /// Starts reading from the beginning.
    fn scan(&self) -> Result<Box<dyn Scan>>;
    /// The rows, where reading them again costs less than keeping them; none where it does not.
    fn kept(&self) -> Option<Arc<dyn KeptRows>> {
        None
    }
}

/// Rows that are kept where they can be read several times.
pub trait KeptRows: Send + Sync {
    /// Starts reading from the beginning: of `columns` those that the rows have, all by default. Every scan cuts the rows into the same
    /// batches.
    fn scan(&self, columns: Option<&[String]>) -> Result<Box<dyn Scan>>;
}

/// A batch that is there already, as a morsel.
pub fn morsel(batch: RecordBatch) -> Morsel {
    Box::new(move || Ok(batch))
}

/// Batches held in memory as a source: for tests, and for plans over what another plan has made.
pub struct Batches {
    name: String,
    batches: Arc<[RecordBatch]>,
}

impl Batches {
    /// The batches, in order, under a name.
    pub fn new(name: &str, batches: impl Into<Arc<[RecordBatch]>>) -> Batches {
        Batches { name: name.to_string(), batches: batches.into() }
    }
}

impl Source for Batches {
    fn describe(&self) -> String {
        format!("{} ({} batches)", self.name, self.batches.len())
    }

    fn scan(&self) -> Result<Box<dyn Scan>> {
        Ok(Box::new(BatchScan { batches: self.batches.clone(), next: 0 }))
    }
}

struct BatchScan {
    batches: Arc<[RecordBatch]>,
    next: usize,
}

impl Scan for BatchScan {
    fn next(&mut self) -> Result<Option<Morsel>> {
        let batch = self.batches.get(self.next).cloned();
        self.next += 1;
        Ok(batch.map(morsel))
    }
}
