//! Reading one file: any sample at once, each held against its checksum.

use super::format::{self, ENTRY_BYTES, Entry, HEADER_BYTES, TRAILER_BYTES, Trailer};
use super::{Array, Sample, ShardMeta, byte_length};
use crate::{MediaError, Result};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::xxh3_64;

/// A reader of one `media-shard` file. It holds the index (64 bytes and the key a sample) and reads samples from the file when they
/// are asked for; threads may share it.
#[derive(Debug)]
pub struct ShardReader {
    path: PathBuf,
    file: File,
    meta: ShardMeta,
    trailer: Trailer,
    checksum: u64,
    index: Vec<u8>,
}

impl ShardReader {
    /// Opens a file and verifies header, trailer and index.
    ///
    /// # Errors
    /// [`MediaError::Io`]; [`MediaError::Shard`] for a foreign, truncated or damaged file or one of another version.
    pub fn open(path: &Path) -> Result<ShardReader> {
        let file = bessemer_durable::open_regular(path).map_err(|e| MediaError::io(path, "open", e))?;
        let info = file.metadata().map_err(|e| MediaError::io(path, "look at", e))?;
        let length = info.len();
        let read = |at: u64, bytes: &mut [u8]| {
            file.read_exact_at(bytes, at).map_err(|e| MediaError::io(path, "read", e))
        };
        let mut header = [0; HEADER_BYTES];
        let least = (HEADER_BYTES + TRAILER_BYTES) as u64;
        if length < least {
            let mut begin = [0; 8];
            if length >= 8 {
                read(0, &mut begin)?;
            }
            let what = if begin == format::MAGIC { "truncated" } else { "not a media-shard" };
            return Err(MediaError::shard(
                path,
                format!("{what}: wanted at least {least} bytes, found {length}"),
            ));
        }
        read(0, &mut header)?;
        let meta = format::parse_header(&header, path)?;
        let mut end = [0; TRAILER_BYTES];
        read(length - TRAILER_BYTES as u64, &mut end)?;
        let trailer = Trailer::parse(&end, length, &header, path)?;
        // Bounded by the length of the file, which is there.
        let bytes = length - TRAILER_BYTES as u64 - trailer.index_at;
        let mut index =
            vec![
                0;
                usize::try_from(bytes)
                    .map_err(|_| MediaError::shard(path, "the index exceeds the address space"))?
            ];
        read(trailer.index_at, &mut index)?;
        if xxh3_64(&index) != trailer.index_sum {
            return Err(MediaError::shard(
                path,
                "the index is damaged: its checksum differs; build the shards again",
            ));
        }
        let reader =
            ShardReader { path: path.to_owned(), file, meta, trailer, checksum: Trailer::sum(&end), index };
        reader.check_index()?;
        Ok(reader)
    }

    /// Samples lie one behind another from the header to the index, keys likewise: every byte belongs to one part.
    fn check_index(&self) -> Result<()> {
        let wrong =
            |i: u64| MediaError::shard(&self.path, format!("the index contradicts itself at sample {i}"));
        let (mut at, mut key_at, mut tokens) = (HEADER_BYTES as u64, 0u64, 0u64);
        for i in 0..self.trailer.samples {
            let entry = self.entry(i).ok_or_else(|| wrong(i))?;
            let bytes = entry.bytes().ok_or_else(|| wrong(i))?;
            if entry.at != at || entry.key_at != key_at {
                return Err(wrong(i));
            }
            at = at.checked_add(bytes).filter(|&e| e <= self.trailer.index_at).ok_or_else(|| wrong(i))?;
            key_at += u64::from(entry.key_bytes);
            tokens = tokens.checked_add(u64::from(entry.tokens)).ok_or_else(|| wrong(i))?;
            self.key(i).ok_or_else(|| wrong(i))?;
        }
        let keys = self.index.len() as u64 - self.trailer.samples * ENTRY_BYTES as u64;
        if at != self.trailer.index_at || key_at.next_multiple_of(8) != keys || tokens != self.trailer.tokens
        {
            return Err(MediaError::shard(
                &self.path,
                "the index does not account for every byte of the file",
            ));
        }
        Ok(())
    }

    fn entry(&self, i: u64) -> Option<Entry> {
        let at = usize::try_from(i).ok()?.checked_mul(ENTRY_BYTES)?;
        Entry::parse(self.index.get(at..at.checked_add(ENTRY_BYTES)?)?)
    }

    /// The key of sample `i`.
    pub fn key(&self, i: u64) -> Option<&str> {
        if i >= self.trailer.samples {
            return None;
        }
        let entry = self.entry(i)?;
        let keys = self.trailer.samples as usize * ENTRY_BYTES;
        let at = keys.checked_add(usize::try_from(entry.key_at).ok()?)?;
        std::str::from_utf8(self.index.get(at..at.checked_add(entry.key_bytes as usize)?)?).ok()
    }

    /// Sample `i`, from 0.
    ///
    /// # Errors
    /// [`MediaError::Argument`] past the last one, [`MediaError::Shard`] where its bytes differ from their checksum or a token is
    /// outside the vocabulary, [`MediaError::Io`].
    pub fn sample(&self, i: u64) -> Result<Sample> {
        let n = self.trailer.samples;
        if i >= n {
            return Err(MediaError::Argument(format!("{}: sample {i} of {n}", self.path.display())));
        }
        let broken = || MediaError::shard(&self.path, format!("the index contradicts itself at sample {i}"));
        let entry = self.entry(i).ok_or_else(broken)?;
        let key = self.key(i).ok_or_else(broken)?.to_owned();
        let bytes = entry.bytes().and_then(|b| usize::try_from(b).ok()).ok_or_else(broken)?;
        let mut record = vec![0; bytes];
        self.file.read_exact_at(&mut record, entry.at).map_err(|e| MediaError::io(&self.path, "read", e))?;
        if xxh3_64(&record) != entry.sum {
            let (from, to) = (entry.at, entry.at + bytes as u64);
            return Err(MediaError::shard(
                &self.path,
                format!(
                    "sample {i} (bytes {from}..{to}) is damaged: its checksum differs; build the shards again"
                ),
            ));
        }
        let array_at = 4 * entry.tokens as usize;
        let array_bytes = byte_length(entry.dtype, &entry.shape).ok_or_else(broken)? as usize;
        let tokens: Vec<u32> = record[..array_at].chunks_exact(4).map(|b| format::u32_at(b, 0)).collect();
        if let Some(token) = tokens.iter().find(|&&t| t >= self.meta.vocab_size) {
            let vocab = self.meta.vocab_size;
            return Err(MediaError::shard(
                &self.path,
                format!("sample {i}: token {token} is outside the vocabulary of {vocab}"),
            ));
        }
        let array = Array::new(entry.dtype, &entry.shape, record[array_at..array_at + array_bytes].to_vec())?;
        Ok(Sample { key, tokens, array })
    }

    /// All samples in order.
    pub fn samples(&self) -> impl Iterator<Item = Result<Sample>> + '_ {
        (0..self.trailer.samples).map(|i| self.sample(i))
    }

    /// Reads everything and holds it against the checksums.
    ///
    /// # Errors
    /// As [`ShardReader::sample`].
    pub fn verify(&self) -> Result<()> {
        self.samples().try_for_each(|s| s.map(drop))
    }

    /// Number of samples.
    pub fn len(&self) -> u64 {
        self.trailer.samples
    }

    /// Whether there is no sample.
    pub fn is_empty(&self) -> bool {
        self.trailer.samples == 0
    }

    /// Number of tokens.
    pub fn tokens(&self) -> u64 {
        self.trailer.tokens
    }

    /// Vocabulary, tokenizer and place in the set.
    pub fn meta(&self) -> &ShardMeta {
        &self.meta
    }

    /// The checksum of the whole file: a root over all others.
    pub fn checksum(&self) -> u64 {
        self.checksum
    }
}
