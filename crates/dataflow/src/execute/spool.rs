//! A queue of batches that goes to disk when the budget is spent.
//!
//! States: all in memory; a file that holds a prefix and memory that holds the rest; being read. Batches come
//! back in the order in which they went in: once, from a [`SpoolReader`] that frees what was read, or as [`KeptRows`] as often as wanted. A
//! file that is being written has a writer, whose buffers are as large as a batch; [`Spool::close`] gives these back.

use super::Executor;
use super::budget::Budget;
use crate::batch::select;
use crate::batch_file::scan_files;
use crate::error::{Error, Result};
use crate::source::{KeptRows, Morsel, Scan, morsel};
use arrow_array::{Array, RecordBatch};
use arrow_data::ArrayData;
use arrow_ipc::writer::StreamWriter;
use bessemer_durable::ConfinedDir;
use std::collections::VecDeque;
use std::fs::File;
use std::io::BufWriter;
use std::path::PathBuf;
use std::sync::Arc;

/// Bytes that a batch keeps from being freed. Columns that were read from a file together share one buffer, which
/// counts once.
pub fn held_bytes(batch: &RecordBatch) -> usize {
    fn visit(data: &ArrayData, seen: &mut Vec<*const u8>, bytes: &mut usize) {
        let buffers = data.buffers().iter().chain(data.nulls().map(|nulls| nulls.buffer()));
        for buffer in buffers {
            let start: *const u8 = buffer.data_ptr().as_ptr();
            if !seen.contains(&start) {
                seen.push(start);
                *bytes += buffer.capacity();
            }
        }
        for child in data.child_data() {
            visit(child, seen, bytes);
        }
    }
    let (mut seen, mut bytes) = (Vec::new(), 0);
    for column in batch.columns() {
        visit(&column.to_data(), &mut seen, &mut bytes);
    }
    bytes
}

/// A file that vanishes with its owner.
struct SpillFile {
    folder: ConfinedDir,
    name: String,
}

impl SpillFile {
    fn scan(&self, columns: Option<&[String]>) -> Box<dyn Scan> {
        scan_files(&self.folder, [PathBuf::from(&self.name)], columns)
    }
}

impl Drop for SpillFile {
    fn drop(&mut self) {
        // A file that cannot be removed lies in the partial directory, which the next build clears.
        let _ = self.folder.remove_file(&self.name);
    }
}

/// A queue of batches.
pub(super) struct Spool {
    memory: Vec<RecordBatch>,
    memory_bytes: usize,
    /// Bytes of the largest batch that was added.
    largest: usize,
    file: Option<Arc<SpillFile>>,
    /// Writer of `file` until it is complete.
    writer: Option<StreamWriter<BufWriter<File>>>,
    budget: Arc<Budget>,
    folder: ConfinedDir,
}

impl Spool {
    pub(super) fn new(executor: &Executor<'_>) -> Self {
        Self::with(executor.budget.clone(), executor.spill.clone())
    }

    pub(super) fn with(budget: Arc<Budget>, folder: ConfinedDir) -> Self {
        Spool { memory: Vec::new(), memory_bytes: 0, largest: 0, file: None, writer: None, budget, folder }
    }

    /// Adds a batch, and writes all that is held to disk when the budget is spent.
    pub(super) fn push(&mut self, batch: RecordBatch) -> Result<()> {
        if !self.hold(batch) { self.spill() } else { Ok(()) }
    }

    /// Adds a batch; false when the budget is spent and someone should spill.
    pub(super) fn hold(&mut self, batch: RecordBatch) -> bool {
        let bytes = held_bytes(&batch);
        self.memory.push(batch);
        self.memory_bytes += bytes;
        self.largest = self.largest.max(bytes);
        self.budget.hold(bytes)
    }

    /// Bytes of the largest batch that was added.
    pub(super) fn largest_batch(&self) -> usize {
        self.largest
    }

    /// Bytes held in memory.
    pub(super) fn memory_bytes(&self) -> usize {
        self.memory_bytes
    }

    /// Writes what is held to disk.
    pub(super) fn spill(&mut self) -> Result<()> {
        let Some(first) = self.memory.first() else { return Ok(()) };
        if self.file.is_none() {
            let name = format!("spill-{}.arrow", self.budget.file_number());
            let file = self.folder.create_new(&name).map_err(Error::System)?;
            self.file = Some(Arc::new(SpillFile { folder: self.folder.clone(), name }));
            self.writer = Some(StreamWriter::try_new(BufWriter::new(file), &first.schema())?);
        }
        let Some(writer) = &mut self.writer else {
            return Err(Error::plan("spool", "a batch was added after the spool was closed"));
        };
        for batch in self.memory.drain(..) {
            writer.write(&batch)?;
        }
        self.budget.count_spill(self.memory_bytes as u64);
        self.budget.release(std::mem::take(&mut self.memory_bytes));
        Ok(())
    }

    /// The batches, in order.
    pub(super) fn scan(mut self) -> Result<Box<dyn Scan>> {
        Ok(Box::new(self.reader()?))
    }

    /// The batches, to be read several times.
    pub(super) fn keep(mut self) -> Result<Arc<dyn KeptRows>> {
        self.close()?;
        Ok(Arc::new(self))
    }

    /// Completes the file, if there is one: no batch is added from now on.
    pub(super) fn close(&mut self) -> Result<()> {
        if let (Some(mut writer), Some(file)) = (self.writer.take(), &self.file) {
            writer.finish()?;
            writer.into_inner()?.into_inner().map_err(|error| Error::Io {
                action: "write spill file",
                path: file.folder.path().join(&file.name),
                cause: error.into_error(),
            })?;
        }
        Ok(())
    }

    /// The batches, in order, one at a time.
    pub(super) fn reader(&mut self) -> Result<SpoolReader> {
        self.close()?;
        let file = self.file.take().map(|file| (file.scan(None), file));
        self.memory_bytes = 0;
        let memory = std::mem::take(&mut self.memory).into();
        Ok(SpoolReader { file, memory, budget: Some(self.budget.clone()) })
    }
}

impl KeptRows for Spool {
    fn scan(&self, columns: Option<&[String]>) -> Result<Box<dyn Scan>> {
        let memory = self.memory.iter().map(|batch| match columns {
            Some(columns) => select(batch, columns),
            None => Ok(batch.clone()),
        });
        let memory = memory.collect::<Result<_>>()?;
        let file = self.file.clone().map(|file| (file.scan(columns), file));
        Ok(Box::new(SpoolReader { file, memory, budget: None }))
    }
}

impl Drop for Spool {
    fn drop(&mut self) {
        self.budget.release(self.memory_bytes);
    }
}

/// Reads a spool from its beginning, freeing what was read.
pub(super) struct SpoolReader {
    file: Option<(Box<dyn Scan>, Arc<SpillFile>)>,
    memory: VecDeque<RecordBatch>,
    /// The budget that counts these batches; none where it counts them for the spool.
    budget: Option<Arc<Budget>>,
}

impl SpoolReader {
    /// The next batch.
    pub(super) fn next_batch(&mut self) -> Result<Option<RecordBatch>> {
        self.next()?.map(|morsel| morsel()).transpose()
    }

    fn release(&self, batch: &RecordBatch) {
        self.budget.iter().for_each(|budget| budget.release(held_bytes(batch)));
    }
}

impl Drop for SpoolReader {
    fn drop(&mut self) {
        self.memory.iter().for_each(|batch| self.release(batch));
    }
}

impl Scan for SpoolReader {
    fn next(&mut self) -> Result<Option<Morsel>> {
        if let Some((file, _)) = &mut self.file {
            match file.next()? {
                None => self.file = None,
                batch => return Ok(batch),
            }
        }
        let batch = self.memory.pop_front();
        batch.iter().for_each(|batch| self.release(batch));
        Ok(batch.map(morsel))
    }
}
