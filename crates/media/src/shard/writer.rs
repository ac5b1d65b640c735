//! Writing one file.

use super::format::{self, ENTRY_BYTES, Entry, HEADER_BYTES, MOST_KEY_BYTES, TRAILER_BYTES, Trailer};
use super::{Sample, ShardMeta};
use crate::{MediaError, Result};
use bessemer_durable::NewFile;
use std::io::Write;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// Contents of a finished file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardSummary {
    /// The file.
    pub path: PathBuf,
    /// Samples in it.
    pub samples: u64,
    /// Tokens in it.
    pub tokens: u64,
    /// Its length.
    pub file_bytes: u64,
    /// The checksum of the whole file.
    pub checksum: u64,
}

/// Writes one `media-shard` file. It becomes visible in [`ShardWriter::finish`], whole; dropped before that, it leaves nothing.
/// Memory: 64 bytes and the key for each sample.
#[derive(Debug)]
pub struct ShardWriter {
    path: PathBuf,
    file: NewFile,
    meta: ShardMeta,
    entries: Vec<Entry>,
    keys: Vec<u8>,
    at: u64,
    tokens: u64,
    record: Vec<u8>,
}

impl ShardWriter {
    /// Starts a file that will appear at `path`.
    ///
    /// # Errors
    /// [`MediaError::Shard`] if it cannot be written or the vocabulary is empty.
    pub fn create(path: &Path, meta: ShardMeta) -> Result<ShardWriter> {
        if meta.vocab_size == 0 {
            return Err(MediaError::shard(path, "wanted a vocabulary of at least 1 token, found 0"));
        }
        let file = NewFile::create(path).map_err(|e| MediaError::io(path, "create", e))?;
        let mut writer = ShardWriter {
            path: path.to_owned(),
            file,
            meta,
            entries: Vec::new(),
            keys: Vec::new(),
            at: 0,
            tokens: 0,
            record: Vec::new(),
        };
        writer.put(&format::header(&writer.meta))?;
        Ok(writer)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.at += bytes.len() as u64;
        self.file.write_all(bytes).map_err(|e| MediaError::io(&self.path, "write", e))
    }

    /// Appends a sample.
    ///
    /// # Errors
    /// [`MediaError::Sample`] for a token outside the vocabulary or a key of more than 64 KiB, which leaves the file as it was;
    /// [`MediaError::Io`].
    pub fn push(&mut self, sample: &Sample) -> Result<()> {
        let vocab = self.meta.vocab_size;
        if let Some(token) = sample.tokens.iter().find(|&&t| t >= vocab) {
            return Err(MediaError::Sample(format!(
                "token {token} is outside the vocabulary of {vocab} tokens"
            )));
        }
        let too_long = sample.key.len() > MOST_KEY_BYTES;
        let Some(tokens) = u32::try_from(sample.tokens.len()).ok().filter(|_| !too_long) else {
            return Err(MediaError::Sample(
                "a sample has fewer than 2^32 tokens and a key of at most 64 KiB".into(),
            ));
        };
        let mut record = std::mem::take(&mut self.record);
        record.clear();
        record.extend(sample.tokens.iter().flat_map(|t| t.to_le_bytes()));
        record.extend_from_slice(sample.array.data());
        record.resize(record.len().next_multiple_of(8), 0);
        self.entries.push(Entry {
            at: self.at,
            tokens,
            dtype: sample.array.dtype(),
            shape: sample.array.shape().to_vec(),
            key_at: self.keys.len() as u64,
            key_bytes: sample.key.len() as u32,
            sum: xxh3_64(&record),
        });
        self.keys.extend_from_slice(sample.key.as_bytes());
        self.tokens += u64::from(tokens);
        let done = self.put(&record);
        self.record = record;
        done
    }

    /// Samples so far.
    pub fn samples(&self) -> u64 {
        self.entries.len() as u64
    }

    /// Bytes that the file would have after a further sample of `bytes` bytes.
    pub fn file_bytes_with(&self, bytes: u64) -> u64 {
        let index = (self.entries.len() + 1) * ENTRY_BYTES + self.keys.len() + TRAILER_BYTES;
        self.at.saturating_add(bytes).saturating_add(index as u64)
    }

    /// Writes the index and makes the file visible and durable.
    ///
    /// # Errors
    /// [`MediaError::Io`]; there is no file then.
    pub fn finish(mut self) -> Result<ShardSummary> {
        let index_at = self.at;
        let mut sum = Xxh3::new();
        let keys = std::mem::take(&mut self.keys);
        let mut index: Vec<u8> = self.entries.iter().flat_map(Entry::to_bytes).collect();
        index.extend_from_slice(&keys);
        index.resize(index.len().next_multiple_of(8), 0);
        sum.update(&index);
        self.put(&index)?;
        let trailer = Trailer {
            samples: self.entries.len() as u64,
            tokens: self.tokens,
            index_at,
            index_sum: sum.digest(),
            file_bytes: self.at + TRAILER_BYTES as u64,
            header_sum: format::u64_at(&format::header(&self.meta), HEADER_BYTES - 8),
        };
        let bytes = trailer.to_bytes();
        self.put(&bytes)?;
        let ShardWriter { path, file, .. } = self;
        file.commit().map_err(|e| MediaError::io(&path, "finish", e))?;
        Ok(ShardSummary {
            path,
            samples: trailer.samples,
            tokens: trailer.tokens,
            file_bytes: trailer.file_bytes,
            checksum: Trailer::sum(&bytes),
        })
    }
}
