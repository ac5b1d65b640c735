//! Layout of a `media-shard` file, byte by byte.

use super::{DType, ShardMeta, byte_length};
use crate::{MediaError, Result};
use std::path::Path;
use xxhash_rust::xxh3::xxh3_64;

/// Version that is written and read.
pub const VERSION: u32 = 1;
/// First bytes of a file. The first is not ASCII and the last is a line feed, so that a transfer as text breaks them.
pub const MAGIC: [u8; 8] = *b"\x89BMEDIA\n";
pub(super) const END_MAGIC: [u8; 8] = *b"\nAIDEMB\x89";
pub(super) const HEADER_BYTES: usize = 64;
pub(super) const ENTRY_BYTES: usize = 64;
pub(super) const TRAILER_BYTES: usize = 64;
/// A key is at most this long.
pub(super) const MOST_KEY_BYTES: usize = 1 << 16;

pub(super) fn u32_at(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(b[at..at + 4].try_into().expect("four bytes were sliced"))
}

pub(super) fn u64_at(b: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(b[at..at + 8].try_into().expect("eight bytes were sliced"))
}

pub(super) fn header(meta: &ShardMeta) -> [u8; HEADER_BYTES] {
    let mut b = [0; HEADER_BYTES];
    b[..8].copy_from_slice(&MAGIC);
    for (i, v) in [VERSION, HEADER_BYTES as u32, meta.ordinal, meta.vocab_size].into_iter().enumerate() {
        b[8 + 4 * i..12 + 4 * i].copy_from_slice(&v.to_le_bytes());
    }
    b[24..56].copy_from_slice(&meta.tokenizer);
    let sum = xxh3_64(&b[..56]);
    b[56..].copy_from_slice(&sum.to_le_bytes());
    b
}

pub(super) fn parse_header(b: &[u8; HEADER_BYTES], path: &Path) -> Result<ShardMeta> {
    if b[..8] != MAGIC {
        let found = crate::sniff::shown(b);
        return Err(MediaError::shard(
            path,
            format!("not a media-shard: wanted the magic 89 42 4d 45 44 49 41 0a, found {found}"),
        ));
    }
    if u32_at(b, 8) != VERSION {
        let found = u32_at(b, 8);
        return Err(MediaError::shard(
            path,
            format!("wanted media-shard version {VERSION}, found {found}; build the shards again"),
        ));
    }
    if xxh3_64(&b[..56]) != u64_at(b, 56) || u32_at(b, 12) != HEADER_BYTES as u32 {
        return Err(MediaError::shard(
            path,
            "the header is damaged: its checksum differs; build the shards again",
        ));
    }
    Ok(ShardMeta {
        ordinal: u32_at(b, 16),
        vocab_size: u32_at(b, 20),
        tokenizer: b[24..56].try_into().expect("32 bytes were sliced"),
    })
}

/// The end of a file: where the index lies, and a checksum over everything that is not a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Trailer {
    pub(super) samples: u64,
    pub(super) tokens: u64,
    pub(super) index_at: u64,
    pub(super) index_sum: u64,
    pub(super) file_bytes: u64,
    pub(super) header_sum: u64,
}

impl Trailer {
    pub(super) fn to_bytes(self) -> [u8; TRAILER_BYTES] {
        let mut b = [0; TRAILER_BYTES];
        let values =
            [self.samples, self.tokens, self.index_at, self.index_sum, self.file_bytes, self.header_sum];
        for (i, v) in values.into_iter().enumerate() {
            b[8 * i..8 * i + 8].copy_from_slice(&v.to_le_bytes());
        }
        let sum = xxh3_64(&b[..48]);
        b[48..56].copy_from_slice(&sum.to_le_bytes());
        b[56..].copy_from_slice(&END_MAGIC);
        b
    }

    /// The checksum of the whole file: a root over all others.
    pub(super) fn sum(bytes: &[u8; TRAILER_BYTES]) -> u64 {
        u64_at(bytes, 48)
    }

    pub(super) fn parse(b: &[u8; TRAILER_BYTES], length: u64, header: &[u8], path: &Path) -> Result<Trailer> {
        if b[56..] != END_MAGIC {
            return Err(MediaError::shard(
                path,
                "truncated: the end marker is missing; build the shards again",
            ));
        }
        if xxh3_64(&b[..48]) != Self::sum(b) {
            return Err(MediaError::shard(
                path,
                "the trailer is damaged: its checksum differs; build the shards again",
            ));
        }
        let t = Trailer {
            samples: u64_at(b, 0),
            tokens: u64_at(b, 8),
            index_at: u64_at(b, 16),
            index_sum: u64_at(b, 24),
            file_bytes: u64_at(b, 32),
            header_sum: u64_at(b, 40),
        };
        if t.file_bytes != length {
            let wanted = t.file_bytes;
            return Err(MediaError::shard(
                path,
                format!("truncated or appended to: wanted {wanted} bytes, found {length}"),
            ));
        }
        if t.header_sum != u64_at(header, 56) {
            return Err(MediaError::shard(path, "the trailer belongs to another header"));
        }
        let end = length - TRAILER_BYTES as u64;
        let entries = t.samples.checked_mul(ENTRY_BYTES as u64).and_then(|n| n.checked_add(t.index_at));
        if t.index_at < HEADER_BYTES as u64 || entries.is_none_or(|e| e > end) {
            return Err(MediaError::shard(path, "the index does not lie inside the file"));
        }
        Ok(t)
    }
}

/// One sample in the index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    /// Offset of the sample's bytes in the file.
    pub(super) at: u64,
    pub(super) tokens: u32,
    pub(super) dtype: DType,
    pub(super) shape: Vec<u32>,
    /// Place of the key in the table of keys.
    pub(super) key_at: u64,
    pub(super) key_bytes: u32,
    /// Of the sample's bytes.
    pub(super) sum: u64,
}

impl Entry {
    /// Bytes of the sample: tokens, array, zeros up to a multiple of 8; `None` on overflow.
    pub(super) fn bytes(&self) -> Option<u64> {
        let array = byte_length(self.dtype, &self.shape)?;
        (4 * u64::from(self.tokens)).checked_add(array)?.checked_next_multiple_of(8)
    }

    pub(super) fn to_bytes(&self) -> [u8; ENTRY_BYTES] {
        let mut b = [0; ENTRY_BYTES];
        b[..8].copy_from_slice(&self.at.to_le_bytes());
        b[8..12].copy_from_slice(&self.tokens.to_le_bytes());
        b[12] = self.dtype.code();
        b[13] = self.shape.len() as u8;
        for (i, d) in self.shape.iter().enumerate() {
            b[16 + 4 * i..20 + 4 * i].copy_from_slice(&d.to_le_bytes());
        }
        b[32..40].copy_from_slice(&self.key_at.to_le_bytes());
        b[40..44].copy_from_slice(&self.key_bytes.to_le_bytes());
        b[48..56].copy_from_slice(&self.sum.to_le_bytes());
        b
    }

    /// `None` for an entry that no writer writes.
    pub(super) fn parse(b: &[u8]) -> Option<Entry> {
        let dims = usize::from(b[13]);
        if !(1..=4).contains(&dims) || b[14..16].iter().chain(&b[44..48]).chain(&b[56..64]).any(|&v| v != 0) {
            return None;
        }
        let entry = Entry {
            at: u64_at(b, 0),
            tokens: u32_at(b, 8),
            dtype: DType::from_code(b[12])?,
            shape: (0..dims).map(|i| u32_at(b, 16 + 4 * i)).collect(),
            key_at: u64_at(b, 32),
            key_bytes: u32_at(b, 40),
            sum: u64_at(b, 48),
        };
        b[16 + 4 * dims..32].iter().all(|&v| v == 0).then_some(entry)
    }
}
