//! A shard file read at positions. Files are not mapped: one that is cut or damaged by another program while it is open
//! gives an error, where a map would end the process with SIGBUS.

use crate::ShardError;
use bessemer_durable::{ConfinedDir, open_regular};
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use xxhash_rust::xxh3::Xxh3;

/// Bytes read at a time where a stretch is longer; on the stack, because reading in a training step allocates nothing.
const CHUNK: usize = 16 << 10;

/// An open shard file.
#[derive(Debug)]
pub(crate) struct ShardFile {
    file: File,
    path: PathBuf,
    /// Length when it was opened.
    bytes: u64,
    /// Bytes that were read of it.
    read: AtomicU64,
}

impl ShardFile {
    /// Opens a regular file; anything else is refused and never waited for.
    pub(crate) fn open(path: &Path) -> Result<ShardFile, ShardError> {
        ShardFile::of(path.to_owned(), open_regular(path))
    }

    /// Opens the file `name` of `dir`.
    pub(crate) fn open_in(dir: &ConfinedDir, name: &str) -> Result<ShardFile, ShardError> {
        ShardFile::of(dir.path().join(name), dir.open_file(name))
    }

    fn of(path: PathBuf, opened: std::io::Result<File>) -> Result<ShardFile, ShardError> {
        let file = opened.map_err(|e| match e.kind() {
            ErrorKind::InvalidInput => ShardError::not_a_file(&path),
            _ => ShardError::io(&path, "open", e),
        })?;
        let bytes = file.metadata().map_err(|e| ShardError::io(&path, "read the size of", e))?.len();
        Ok(ShardFile { file, path, bytes, read: AtomicU64::new(0) })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Length when it was opened.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes that were read so far.
    pub(crate) fn bytes_read(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }

    /// Fills all of `buffer` from byte `at`.
    pub(crate) fn read_at(&self, at: usize, buffer: &mut [u8]) -> Result<(), ShardError> {
        self.read.fetch_add(buffer.len() as u64, Ordering::Relaxed);
        self.file.read_exact_at(buffer, at as u64).map_err(|e| match (e.kind(), self.file.metadata()) {
            (ErrorKind::UnexpectedEof, Ok(now)) => {
                ShardError::Truncated { path: self.path.clone(), wanted: self.bytes, found: now.len() }
            }
            _ => ShardError::io(&self.path, "read", e),
        })
    }

    /// The little-endian number at byte `at`.
    pub(crate) fn u64_at(&self, at: usize) -> Result<u64, ShardError> {
        let mut bytes = [0; 8];
        self.read_at(at, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Hands the bytes `start..end` to `visit`, a piece at a time with the position of its first byte. Pieces but the last
    /// have a length that is a multiple of 16.
    pub(crate) fn pieces(
        &self,
        start: usize,
        end: usize,
        mut visit: impl FnMut(usize, &[u8]) -> Result<(), ShardError>,
    ) -> Result<(), ShardError> {
        let mut buffer = [0; CHUNK];
        let mut at = start;
        while at < end {
            let here = &mut buffer[..CHUNK.min(end - at)];
            self.read_at(at, here)?;
            visit(at, here)?;
            at += here.len();
        }
        Ok(())
    }

    /// XXH3-64 of the bytes `start..end`.
    pub(crate) fn sum(&self, start: usize, end: usize) -> Result<u64, ShardError> {
        let mut hash = Xxh3::new();
        self.pieces(start, end, |_, bytes| {
            hash.update(bytes);
            Ok(())
        })?;
        Ok(hash.digest())
    }
}
