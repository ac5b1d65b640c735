//! Checksums of the chunks of a file: with them a reader trusts the bytes that it needs without reading the others.
//!
//! BLAKE3 is a tree over pieces of 1 KiB (O'Connor et al. 2020, section 2.1). A chunk is a subtree of it, its checksum is the
//! subtree's chaining value, and the checksums of all chunks merge into the BLAKE3 of the whole file, which every other tool
//! computes too. A file of one chunk has no checksum beside the whole one.

use blake3::hazmat::{
    ChainingValue, HasherExt, Mode, left_subtree_len, merge_subtrees_non_root, merge_subtrees_root,
};
use blake3::{Hash, Hasher};

const MIB: u64 = 1 << 20;
/// Smallest and largest chunk that is written.
const SMALLEST: u64 = MIB;
const LARGEST: u64 = 64 * MIB;
/// Chunks of a file, unless its chunks would be larger than [`LARGEST`].
const MOST_CHUNKS: u64 = 256;

/// Bytes of a chunk of a file of `bytes`: a power of two.
pub(crate) fn chunk_bytes(bytes: u64) -> u64 {
    bytes.div_ceil(MOST_CHUNKS).clamp(SMALLEST, LARGEST).next_power_of_two()
}

/// Checks a chunk size that a manifest states.
pub(crate) fn check_chunk_bytes(chunk: u64) -> Result<(), String> {
    if chunk.is_power_of_two() && (1024..=LARGEST).contains(&chunk) {
        return Ok(());
    }
    Err(format!("chunk_bytes is {chunk}, wanted a power of two from 1024 to {LARGEST}"))
}

/// Number of chunk checksums of a file: none if one chunk is all of it.
pub(crate) fn count(bytes: u64, chunk: u64) -> u64 {
    if bytes > chunk { bytes.div_ceil(chunk) } else { 0 }
}

/// BLAKE3 of a file of `bytes` from the checksums of its chunks, of which there are at least two.
pub(crate) fn merge(chunks: &[ChainingValue], chunk: u64, bytes: u64) -> Hash {
    let (left, right) = halves(chunks, chunk, bytes);
    merge_subtrees_root(&left, &right, Mode::Hash)
}

fn halves(chunks: &[ChainingValue], chunk: u64, bytes: u64) -> (ChainingValue, ChainingValue) {
    // A power of two, and no less than a chunk.
    let left = left_subtree_len(bytes);
    let (first, second) = chunks.split_at((left / chunk) as usize);
    (subtree(first, chunk, left), subtree(second, chunk, bytes - left))
}

fn subtree(chunks: &[ChainingValue], chunk: u64, bytes: u64) -> ChainingValue {
    if let [one] = chunks {
        return *one;
    }
    let (left, right) = halves(chunks, chunk, bytes);
    merge_subtrees_non_root(&left, &right, Mode::Hash)
}

/// Checksums of a file that is written from its beginning to its end.
pub(crate) struct FileHasher {
    chunk: u64,
    bytes: u64,
    at: u64,
    current: Hasher,
    chunks: Vec<ChainingValue>,
}

impl FileHasher {
    /// For a file that will have `bytes`.
    pub(crate) fn new(bytes: u64) -> FileHasher {
        FileHasher { chunk: chunk_bytes(bytes), bytes, at: 0, current: Hasher::new(), chunks: Vec::new() }
    }

    pub(crate) fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let left = self.chunk - self.at % self.chunk;
            let here = left.min(bytes.len() as u64) as usize;
            let (now, later) = bytes.split_at(here);
            self.current.update(now);
            (self.at, bytes) = (self.at + here as u64, later);
            let ends = here as u64 == left || self.at == self.bytes;
            if ends && self.bytes > self.chunk {
                self.chunks.push(self.current.finalize_non_root());
                self.current = Hasher::new();
                // Offsets of subtrees are multiples of 1 KiB; nothing follows the last one.
                if self.at < self.bytes {
                    self.current.set_input_offset(self.at);
                }
            }
        }
    }

    /// The file's BLAKE3, the bytes of a chunk, and the chunks' checksums.
    pub(crate) fn finish(self) -> (String, u64, Vec<String>) {
        let whole = match self.chunks.len() {
            0 => self.current.finalize(),
            _ => merge(&self.chunks, self.chunk, self.bytes),
        };
        let chunks = self.chunks.iter().map(|c| Hash::from_bytes(*c).to_hex().to_string());
        (whole.to_hex().to_string(), self.chunk, chunks.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checksum of the chunk that begins at `offset`.
    fn chunk_checksum(bytes: &[u8], offset: u64) -> ChainingValue {
        Hasher::new().set_input_offset(offset).update(bytes).finalize_non_root()
    }

    /// Lengths around every boundary, written in pieces of odd lengths: the whole has the BLAKE3 that `blake3::hash` gives.
    #[test]
    fn chunks_merge_into_the_checksum_of_the_whole_file() {
        let data: Vec<u8> = (0..5 * MIB + 3).map(|i| ((i * 2_654_435_761) >> 13) as u8).collect();
        for bytes in [0, 1, 1023, MIB - 1, MIB, MIB + 1, 2 * MIB, 3 * MIB - 1, 4 * MIB, 5 * MIB + 3] {
            let data = &data[..bytes as usize];
            let mut hasher = FileHasher::new(bytes);
            data.chunks(77_777).for_each(|piece| hasher.update(piece));
            let (whole, chunk, chunks) = hasher.finish();
            assert_eq!(whole, blake3::hash(data).to_hex().to_string(), "{bytes}");
            assert_eq!(chunks.len() as u64, count(bytes, chunk), "{bytes}");
            for (i, stated) in chunks.iter().enumerate() {
                let start = i as u64 * chunk;
                let end = (start + chunk).min(bytes);
                let found = chunk_checksum(&data[start as usize..end as usize], start);
                assert_eq!(*stated, Hash::from_bytes(found).to_hex().to_string(), "{bytes}, chunk {i}");
            }
        }
    }

    #[test]
    fn large_files_have_large_chunks() {
        assert_eq!(chunk_bytes(0), MIB);
        assert_eq!(chunk_bytes(256 * MIB), MIB);
        assert_eq!(chunk_bytes(256 * MIB + 1), 2 * MIB);
        assert_eq!(chunk_bytes(4 << 30), 16 * MIB);
        assert_eq!(chunk_bytes(1 << 50), 64 * MIB);
    }
}
