//! The documents' bytes, one after another, in memory or in a file.

use super::error::Result;
use bessemer_durable::ConfinedDir;
use bessemer_external_sort::SpillFile;

/// Bytes of the file that a reader holds beyond what it is asked for.
const AHEAD: usize = 256 << 10;

/// Bytes and where documents end.
pub(super) struct Store {
    held: Vec<u8>,
    file: Option<SpillFile>,
    /// Bytes in the file; what is held comes after them.
    written: u64,
    limit: usize,
    folder: ConfinedDir,
    ends: Vec<u64>,
}

impl Store {
    /// Holds at most `limit` bytes in memory; the rest goes to a file in `folder`.
    pub(super) fn new(limit: usize, folder: ConfinedDir) -> Store {
        Store { held: Vec::new(), file: None, written: 0, limit, folder, ends: Vec::new() }
    }

    /// Adds a document.
    pub(super) fn push(&mut self, document: &[u8]) -> Result<()> {
        if self.held.len() + document.len() > self.limit {
            self.flush()?;
        }
        if document.len() > self.limit {
            self.write(document)?;
        } else {
            self.held.extend_from_slice(document);
        }
        self.ends.push(self.len());
        Ok(())
    }

    /// All bytes are in memory, or all in the file.
    pub(super) fn finish(&mut self) -> Result<()> {
        if self.file.is_some() { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<()> {
        let held = std::mem::take(&mut self.held);
        self.write(&held)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(SpillFile::create(&self.folder)?),
        };
        file.write_at(bytes, self.written)?;
        self.written += bytes.len() as u64;
        Ok(())
    }

    pub(super) fn len(&self) -> u64 {
        self.written + self.held.len() as u64
    }

    /// Bytes written to disk.
    pub(super) fn spilled(&self) -> u64 {
        self.written
    }

    /// One past the last byte of each document.
    pub(super) fn ends(&self) -> &[u64] {
        &self.ends
    }

    pub(super) fn reader(&self) -> Reader<'_> {
        Reader { store: self, start: 0, block: Vec::new() }
    }
}

/// Reads ranges; holds one block of the file.
pub(super) struct Reader<'a> {
    store: &'a Store,
    start: u64,
    block: Vec<u8>,
}

impl Reader<'_> {
    /// The bytes from `start` on, `length` of them.
    pub(super) fn get(&mut self, start: u64, length: usize) -> Result<&[u8]> {
        let Some(file) = &self.store.file else {
            let start = start as usize;
            return Ok(&self.store.held[start..start + length]);
        };
        let end = start + length as u64;
        if start < self.start || end > self.start + self.block.len() as u64 {
            let want = (length + AHEAD).min((self.store.len() - start) as usize);
            self.block.resize(want, 0);
            self.start = start;
            file.read_at(&mut self.block, start)?;
        }
        let first = (start - self.start) as usize;
        Ok(&self.block[first..first + length])
    }
}
