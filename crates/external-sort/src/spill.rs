//! Files of records that vanish with their owner.

use crate::error::{Error, Result};
use crate::record::RecordUnit;
use bessemer_durable::ConfinedDir;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

/// Bytes that are written to or read from a [`RecordFile`] at once.
const BLOCK: usize = 64 << 10;

/// A file that loses its name as soon as it is open: the operating system frees it when the process ends, however it ends.
#[derive(Debug)]
pub struct SpillFile {
    file: File,
    path: PathBuf,
}

impl SpillFile {
    /// A new file in `folder`.
    ///
    /// # Errors
    /// The file cannot be created.
    pub fn create(folder: &ConfinedDir) -> Result<SpillFile> {
        let mut attempt = 0_u64;
        loop {
            let name = format!(".bessemer-spill-{}-{attempt}", std::process::id());
            match folder.create_new(&name) {
                Ok(file) => {
                    // Where the system keeps the name of an open file, the owner of the folder removes it.
                    let _ = folder.remove_file(&name);
                    return Ok(SpillFile { file, path: folder.path().join(name) });
                }
                // Another thread is between creating and unlinking its file.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => attempt += 1,
                Err(error) => return Err(Error::System(error)),
            }
        }
    }

    /// Writes `bytes` at `offset`.
    ///
    /// # Errors
    /// The disk's.
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.file.write_all_at(bytes, offset).map_err(Error::io("write spill file", &self.path))
    }

    /// Fills `bytes` from `offset` on.
    ///
    /// # Errors
    /// The disk's, or a file that ends before.
    pub fn read_at(&self, bytes: &mut [u8], offset: u64) -> Result<()> {
        self.file.read_exact_at(bytes, offset).map_err(Error::io("read spill file", &self.path))
    }
}

/// Records of one width, written one after the other and read as often as needed.
#[derive(Debug)]
pub struct RecordFile {
    width: usize,
    file: Arc<SpillFile>,
    records: u64,
}

impl RecordFile {
    /// Number of records.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Reads from the first record on.
    pub fn read(&self) -> RecordReader<u8> {
        RecordReader::of_file(self.file.clone(), 0, self.records * self.width as u64, self.width, BLOCK)
    }
}

/// Writes a [`RecordFile`].
#[derive(Debug)]
pub struct RecordWriter {
    width: usize,
    file: SpillFile,
    buffer: Vec<u8>,
    written: u64,
}

impl RecordWriter {
    /// A new file in `folder` for records of `width` bytes.
    ///
    /// # Errors
    /// The file cannot be created.
    pub fn create(folder: &ConfinedDir, width: usize) -> Result<RecordWriter> {
        let buffer = Vec::with_capacity(BLOCK + width);
        Ok(RecordWriter { width, file: SpillFile::create(folder)?, buffer, written: 0 })
    }

    /// Adds a record.
    ///
    /// # Errors
    /// The disk's.
    pub fn push(&mut self, record: &[u8]) -> Result<()> {
        debug_assert_eq!(record.len(), self.width);
        self.buffer.extend_from_slice(record);
        if self.buffer.len() < BLOCK { Ok(()) } else { self.flush() }
    }

    fn flush(&mut self) -> Result<()> {
        self.file.write_at(&self.buffer, self.written)?;
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    /// Completes the file.
    ///
    /// # Errors
    /// The disk's.
    pub fn finish(mut self) -> Result<RecordFile> {
        self.flush()?;
        let records = self.written / self.width as u64;
        Ok(RecordFile { width: self.width, file: Arc::new(self.file), records })
    }
}

/// Reads records of one width from memory or from a range of a file, one block at a time.
#[derive(Debug)]
pub struct RecordReader<U> {
    /// Units of a record.
    width: usize,
    /// Whole records. Several readers of records in memory share one buffer.
    block: Arc<Vec<U>>,
    /// Range of `block` that was not read yet.
    at: usize,
    end: usize,
    /// Rest of the run behind the block: file, offset, bytes.
    file: Option<Arc<SpillFile>>,
    offset: u64,
    left: u64,
    /// Units of a block.
    block_units: usize,
    /// Whether the record at `at` was given out by [`RecordReader::next`].
    taken: bool,
}

impl<U: RecordUnit> RecordReader<U> {
    pub(crate) fn of_memory(block: Arc<Vec<U>>, at: usize, end: usize, width: usize) -> Self {
        RecordReader { width, block, at, end, file: None, offset: 0, left: 0, block_units: 0, taken: false }
    }

    pub(crate) fn of_file(
        file: Arc<SpillFile>,
        offset: u64,
        left: u64,
        width: usize,
        block_bytes: usize,
    ) -> Self {
        let block_units = (block_bytes / (width * size_of::<U>())).max(1) * width;
        let block = Arc::new(Vec::new());
        RecordReader {
            width,
            block,
            at: 0,
            end: 0,
            file: Some(file),
            offset,
            left,
            block_units,
            taken: false,
        }
    }

    /// The record that was reached, if one is in memory.
    pub(crate) fn current(&self) -> Option<&[U]> {
        (self.at < self.end).then(|| &self.block[self.at..self.at + self.width])
    }

    /// What was not read yet, if all of it is in memory.
    pub(crate) fn whole(&self) -> Option<&[U]> {
        (self.left == 0).then(|| &self.block[self.at..self.end])
    }

    /// Reads the next block if the last one is used up.
    pub(crate) fn refill(&mut self) -> Result<()> {
        let Some(file) = self.file.as_ref().filter(|_| self.at == self.end && self.left > 0) else {
            return Ok(());
        };
        let count = (self.left / size_of::<U>() as u64).min(self.block_units as u64) as usize;
        // A block of a file has one owner, so nothing is copied.
        let block = Arc::make_mut(&mut self.block);
        if block.capacity() < count {
            *block = Vec::with_capacity(count);
        }
        block.resize(count, U::zeroed());
        file.read_at(bytemuck::cast_slice_mut(block), self.offset)?;
        (self.at, self.end) = (0, count);
        let bytes = (count * size_of::<U>()) as u64;
        self.offset += bytes;
        self.left -= bytes;
        Ok(())
    }

    /// Passes the record that was reached.
    pub(crate) fn pass(&mut self) -> Result<()> {
        self.at += self.width;
        self.refill()
    }

    /// The next record.
    ///
    /// # Errors
    /// The disk's.
    #[allow(clippy::should_implement_trait, reason = "the record is borrowed from the reader")]
    pub fn next(&mut self) -> Result<Option<&[U]>> {
        if self.taken && self.at < self.end {
            self.at += self.width;
        }
        self.taken = true;
        self.refill()?;
        Ok(self.current())
    }
}
