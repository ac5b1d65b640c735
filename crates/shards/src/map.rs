//! The read-only memory map of a shard file, and the only unsafe code of this crate.
#![allow(unsafe_code)] // Mapping a file is unsafe by nature: see the reason at the block.

use crate::ShardError;
use std::fs::{self, File};
use std::path::Path;

/// Maps a regular file for reading. An empty file gives an empty map.
///
/// The path is examined before it is opened, because opening a FIFO would wait for its writer.
pub(crate) fn map_file(path: &Path) -> Result<memmap2::Mmap, ShardError> {
    let meta = fs::metadata(path).map_err(|e| ShardError::io(path, "open", e))?;
    if !meta.is_file() {
        let found = if meta.is_dir() { "a directory" } else { "a FIFO, socket or device" };
        return Err(ShardError::NotAFile { path: path.to_owned(), found });
    }
    let file = File::open(path).map_err(|e| ShardError::io(path, "open", e))?;
    // SAFETY: the bytes of a map must not change under the `&[u8]` that it lends. Shard files are written under
    // a hidden name and renamed when complete; no code of this project writes to, cuts or grows a file under
    // its final name, it only replaces the name, which leaves a mapped file untouched. A foreign program that
    // writes into a shard file while it is mapped could still change bytes (caught by the block checksums where
    // they were not yet verified) or cut the file (SIGBUS ends the process): the README states this, and that
    // shard directories belong on a local disk which only this program writes to.
    unsafe { memmap2::Mmap::map(&file) }.map_err(|e| ShardError::io(path, "memory-map", e))
}
