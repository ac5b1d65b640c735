//! A remote file as `Read + Seek`.

use crate::{Object, RemoteError, RemoteOptions, Stores};
use std::io::{self, Read, Seek, SeekFrom};
use std::sync::Arc;

/// A file in a store. Memory: one block.
#[derive(Debug)]
pub struct RemoteFile {
    stores: Arc<Stores>,
    object: Object,
    block: Vec<u8>,
    block_start: u64,
    at: u64,
}

impl RemoteFile {
    /// Opens the file at an address.
    ///
    /// # Errors
    /// As [`Stores::stat`].
    pub fn open(url: &str, options: RemoteOptions) -> Result<RemoteFile, RemoteError> {
        let stores = Arc::new(Stores::open(url, options)?);
        let object = stores.stat(url)?;
        Ok(Self::new(stores, object))
    }

    /// Opens an object that was found. Nothing is asked of the store yet.
    pub fn new(stores: Arc<Stores>, object: Object) -> RemoteFile {
        RemoteFile { stores, object, block: Vec::new(), block_start: 0, at: 0 }
    }

    /// Bytes of the file.
    pub fn length(&self) -> u64 {
        self.object.bytes
    }
}

impl Read for RemoteFile {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.at >= self.length() || out.is_empty() {
            return Ok(0);
        }
        let end = self.block_start + self.block.len() as u64;
        if !(self.block_start..end).contains(&self.at) {
            // The old block goes first: two would be held otherwise.
            self.block = Vec::new();
            let end = (self.at + self.stores.options().block_bytes as u64).min(self.length());
            self.block = self.stores.read(&self.object, self.at..end)?;
            self.block_start = self.at;
        }
        let have = &self.block[(self.at - self.block_start) as usize..];
        let count = have.len().min(out.len());
        out[..count].copy_from_slice(&have[..count]);
        self.at += count as u64;
        Ok(count)
    }
}

impl Seek for RemoteFile {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let target = match to {
            SeekFrom::Start(n) => Some(n),
            SeekFrom::End(n) => self.length().checked_add_signed(n),
            SeekFrom::Current(n) => self.at.checked_add_signed(n),
        };
        self.at =
            target.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "before the file's start"))?;
        Ok(self.at)
    }
}
