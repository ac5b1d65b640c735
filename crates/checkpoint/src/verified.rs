//! A file of a checkpoint whose bytes are held against their checksums before anybody gets them.

use crate::chunks;
use crate::error::{At, CheckpointError, Result};
use crate::fs::ReadFile;
use crate::manifest::FileRecord;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes read at a time while a whole file is verified.
const READ: usize = 1 << 20;

/// What the files of one checkpoint share: the chunk read last, so that one is in memory and not one of each file, and the bytes
/// that were asked of the file system.
#[derive(Debug, Default)]
pub(crate) struct ChunkCache {
    /// File, chunk and its bytes.
    last: Mutex<(usize, u64, Vec<u8>)>,
    read: AtomicU64,
}

impl ChunkCache {
    pub(crate) fn bytes_read(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }

    fn count(&self, bytes: usize) {
        self.read.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// An open file and which of its chunks are known to be intact.
pub(crate) struct VerifiedFile {
    file: Box<dyn ReadFile>,
    path: PathBuf,
    record: FileRecord,
    number: usize,
    intact: Mutex<Vec<bool>>,
    cache: Arc<ChunkCache>,
}

/// The lock's content; no code that holds one of these locks can panic half-way.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl VerifiedFile {
    /// `number` distinguishes the files of one cache. Errors if the file has another length than its record.
    pub(crate) fn new(
        file: Box<dyn ReadFile>,
        path: &Path,
        record: &FileRecord,
        number: usize,
        cache: Arc<ChunkCache>,
    ) -> Result<VerifiedFile> {
        let found = file.size().at("read the size of", path)?;
        if found != record.bytes {
            return Err(CheckpointError::Size { file: path.into(), expected: record.bytes, found });
        }
        let chunks = record.chunks.len().max(1);
        let intact = Mutex::new(vec![false; chunks]);
        Ok(VerifiedFile { file, path: path.into(), record: record.clone(), number, intact, cache })
    }

    /// Holds all bytes against the file's checksum; `advance` gets the bytes of each piece read.
    pub(crate) fn verify(&self, advance: &mut dyn FnMut(u64)) -> Result<()> {
        let found = checksum(self.file.as_ref(), self.record.bytes, &mut |n| {
            self.cache.count(n as usize);
            advance(n);
        });
        let found = found.at("read", &self.path)?;
        if found != self.record.blake3 {
            return Err(self.damaged(&self.record.blake3, found));
        }
        locked(&self.intact).fill(true);
        Ok(())
    }

    fn damaged(&self, expected: &str, found: String) -> CheckpointError {
        CheckpointError::Checksum { file: self.path.clone(), expected: expected.into(), found }
    }

    /// Reads a chunk and holds it against its checksum.
    fn chunk(&self, index: u64, bytes: &mut Vec<u8>) -> io::Result<()> {
        let start = index * self.record.chunk_bytes;
        let length = self.record.chunk_bytes.min(self.record.bytes - start);
        bytes.resize(length as usize, 0);
        self.file.read_exact_at(bytes, start)?;
        self.cache.count(bytes.len());
        let (expected, found) = match self.record.chunks.get(index as usize) {
            Some(expected) => (expected, blake3::Hash::from_bytes(chunks::chunk_checksum(bytes, start))),
            None => (&self.record.blake3, blake3::hash(bytes)),
        };
        let found = found.to_hex();
        if found.as_str() != expected {
            return Err(io::Error::other(self.damaged(expected, found.to_string())));
        }
        Ok(())
    }
}

impl ReadFile for VerifiedFile {
    fn size(&self) -> io::Result<u64> {
        Ok(self.record.bytes)
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let end = offset.checked_add(buffer.len() as u64).filter(|end| *end <= self.record.bytes);
        let Some(end) = end else { return Err(io::ErrorKind::UnexpectedEof.into()) };
        if self.record.chunk_bytes == 0 && !locked(&self.intact)[0] {
            // A file of format version 1, whose only checksum is that of all its bytes.
            self.verify(&mut |_| {}).map_err(io::Error::other)?;
        }
        let size = match self.record.chunk_bytes {
            0 => self.record.bytes.max(1),
            size => size,
        };
        let mut at = offset;
        while at < end {
            let index = at / size;
            let to = ((index + 1) * size).min(end);
            let here = &mut buffer[(at - offset) as usize..(to - offset) as usize];
            let within = (at - index * size) as usize;
            let mut last = locked(&self.cache.last);
            if (last.0, last.1) == (self.number, index) && !last.2.is_empty() {
                here.copy_from_slice(&last.2[within..within + here.len()]);
            } else if locked(&self.intact)[index as usize] {
                drop(last);
                self.file.read_exact_at(here, at)?;
                self.cache.count(here.len());
            } else {
                // What the buffer held is gone, whatever comes of the read.
                let mut bytes = std::mem::take(&mut last.2);
                self.chunk(index, &mut bytes)?;
                here.copy_from_slice(&bytes[within..within + here.len()]);
                *last = (self.number, index, bytes);
                locked(&self.intact)[index as usize] = true;
            }
            at = to;
        }
        Ok(())
    }
}

/// BLAKE3 of the first `bytes` bytes of a file, hexadecimal; `advance` gets the bytes of each piece read.
pub(crate) fn checksum(file: &dyn ReadFile, bytes: u64, advance: &mut dyn FnMut(u64)) -> io::Result<String> {
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; READ.min(bytes as usize)];
    let mut at = 0;
    while at < bytes {
        let n = (bytes - at).min(READ as u64) as usize;
        file.read_exact_at(&mut buffer[..n], at)?;
        hasher.update(&buffer[..n]);
        at += n as u64;
        advance(n as u64);
    }
    Ok(hasher.finalize().to_hex().to_string())
}
