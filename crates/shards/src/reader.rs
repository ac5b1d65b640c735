//! Reading one shard file through a memory map.

use crate::format::{self, Header, Layout, u64_at};
use crate::map::map_file;
use crate::{DocumentId, Part, ShardError, ShardMeta};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// One document of a shard file or of a set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    /// Identity that the corpus gave it.
    pub id: DocumentId,
    /// Its tokens: offsets in the file ([`ShardReader`]) or in the whole split ([`crate::ShardSet`]).
    pub tokens: Range<u64>,
    /// Bytes of the text that the tokens encode.
    pub text_bytes: u64,
}

/// A shard file, memory-mapped. Can be shared between threads.
///
/// Opening verifies header, trailer and index, which costs a pass over the index (32 bytes a document). A block
/// of token data is verified when it is first touched; [`ShardReader::verify`] does all of them.
#[derive(Debug)]
pub struct ShardReader {
    path: PathBuf,
    map: memmap2::Mmap,
    header: Header,
    layout: Layout,
    checksum: u64,
    /// One bit a block: set once its checksum was found right. Two threads may both verify a block; neither
    /// reads it unverified.
    verified: Vec<AtomicU64>,
}

impl ShardReader {
    /// Opens and maps a shard file.
    ///
    /// # Errors
    /// Refuses whatever is not a complete shard file of this version with intact header, index and trailer.
    pub fn open(path: impl AsRef<Path>) -> Result<ShardReader, ShardError> {
        let path = path.as_ref();
        let map = map_file(path)?;
        let header = Header::parse(&map, path)?;
        let layout = header
            .layout()
            .ok_or_else(|| ShardError::malformed(path, 32, "the counts of tokens and documents overflow"))?;
        let (wanted, found) = (layout.file_bytes as u64, map.len() as u64);
        if found < wanted {
            return Err(ShardError::Truncated { path: path.to_owned(), wanted, found });
        }
        if found > wanted {
            return Err(ShardError::TooLong { path: path.to_owned(), wanted, found });
        }
        let index_sum = format::check_trailer(&map, &layout, path)?;
        format::check_sum(path, Part::Index, index_sum, &map[layout.data_end..layout.trailer])?;
        let checksum = format::file_sum(&map[layout.trailer..]);
        let verified = (0..layout.blocks.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        let reader = ShardReader { path: path.to_owned(), map, header, layout, checksum, verified };
        reader.check_index()?;
        Ok(reader)
    }

    /// The index is what a writer wrote (its checksum was right); this refuses a writer's nonsense.
    fn check_index(&self) -> Result<(), ShardError> {
        let wrong = |at: usize, what: String| Err(ShardError::malformed(&self.path, at, what));
        let layout = &self.layout;
        if self.map[layout.data_end..layout.block_sums].iter().any(|&b| b != 0) {
            return wrong(layout.data_end, "wanted zeros between tokens and index".into());
        }
        let (mut last, mut text_bytes) = (0, 0u64);
        for i in 0..self.document_count() {
            let end = self.document_end(i);
            if end < last {
                let at = layout.ends + 8 * i as usize;
                return wrong(at, format!("document {i} ends at token {end}, before it begins at {last}"));
            }
            last = end;
            let bytes = u64_at(&self.map, layout.text_bytes + 8 * i as usize);
            match text_bytes.checked_add(bytes) {
                Some(sum) => text_bytes = sum,
                None => return wrong(layout.text_bytes, "the text bytes of the documents overflow".into()),
            }
        }
        if last != self.header.tokens {
            let tokens = self.header.tokens;
            return wrong(
                layout.ends,
                format!("the documents hold {last} tokens, the header states {tokens}"),
            );
        }
        if text_bytes != self.header.text_bytes {
            let stated = self.header.text_bytes;
            return wrong(
                48,
                format!("the documents hold {text_bytes} text bytes, the header states {stated}"),
            );
        }
        Ok(())
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What the file says about its tokens.
    pub fn meta(&self) -> &ShardMeta {
        &self.header.meta
    }

    /// Number of tokens.
    pub fn token_count(&self) -> u64 {
        self.header.tokens
    }

    /// Number of documents.
    pub fn document_count(&self) -> u64 {
        self.header.documents
    }

    /// Bytes of the text that the tokens encode.
    pub fn text_bytes(&self) -> u64 {
        self.header.text_bytes
    }

    /// Length of the file in bytes.
    pub fn file_bytes(&self) -> u64 {
        self.layout.file_bytes as u64
    }

    /// The checksum of the whole file: a root over header, index and block checksums, held by the trailer.
    pub fn checksum(&self) -> u64 {
        self.checksum
    }

    /// Copies the tokens from `start` on into `out`, verifying each block on its first touch. Does not allocate.
    ///
    /// # Errors
    /// [`ShardError::OutOfRange`], or [`ShardError::Checksum`] naming the damaged block.
    pub fn read(&self, start: u64, out: &mut [u32]) -> Result<(), ShardError> {
        let tokens = self.header.tokens;
        let end = start.checked_add(out.len() as u64).filter(|&end| end <= tokens).ok_or_else(|| {
            let end = start.saturating_add(out.len() as u64);
            ShardError::OutOfRange { path: self.path.clone(), start, end, tokens }
        })?;
        if out.is_empty() {
            return Ok(());
        }
        let width = self.header.meta.token_bytes() as usize;
        let (first, last) = (start as usize * width, end as usize * width);
        let block = self.header.block_bytes as usize;
        for number in first / block..=(last - 1) / block {
            if self.verified[number / 64].load(Ordering::Acquire) >> (number % 64) & 1 == 0 {
                self.verify_block(number)?;
            }
        }
        let bytes = &self.map[format::HEADER_BYTES + first..format::HEADER_BYTES + last];
        if width == 2 {
            for (token, b) in out.iter_mut().zip(bytes.chunks_exact(2)) {
                *token = u32::from(u16::from_le_bytes([b[0], b[1]]));
            }
        } else {
            for (token, b) in out.iter_mut().zip(bytes.chunks_exact(4)) {
                *token = u32::from_le_bytes([b[0], b[1], b[2], b[3]]);
            }
        }
        Ok(())
    }

    /// Verifies every block of token data, also those verified before: the whole file is read. Header, trailer
    /// and index were verified on open and are verified again.
    ///
    /// # Errors
    /// The first damaged part.
    pub fn verify(&self) -> Result<(), ShardError> {
        Header::parse(&self.map, &self.path)?;
        let index_sum = format::check_trailer(&self.map, &self.layout, &self.path)?;
        let index = &self.map[self.layout.data_end..self.layout.trailer];
        format::check_sum(&self.path, Part::Index, index_sum, index)?;
        (0..self.layout.blocks).try_for_each(|number| self.verify_block(number))
    }

    fn verify_block(&self, number: usize) -> Result<(), ShardError> {
        let block = self.header.block_bytes as usize;
        let start = format::HEADER_BYTES + number * block;
        let end = (start + block).min(self.layout.data_end);
        let wanted = u64_at(&self.map, self.layout.block_sums + 8 * number);
        let bytes = &self.map[start..end];
        let part = Part::Block {
            number: number as u64,
            of: self.layout.blocks as u64,
            start: start as u64,
            end: end as u64,
        };
        format::check_sum(&self.path, part, wanted, bytes)?;
        self.check_vocabulary(bytes, start)?;
        self.verified[number / 64].fetch_or(1 << (number % 64), Ordering::Release);
        Ok(())
    }

    /// A token outside the vocabulary would index past an embedding table. The maximum of a block is one
    /// vectorised pass over bytes that the checksum just brought into the cache.
    fn check_vocabulary(&self, bytes: &[u8], start: usize) -> Result<(), ShardError> {
        let width = self.header.meta.token_bytes() as usize;
        let token = |b: &[u8]| match width {
            2 => u32::from(u16::from_le_bytes([b[0], b[1]])),
            _ => u32::from_le_bytes([b[0], b[1], b[2], b[3]]),
        };
        let vocab_size = self.header.meta.vocab_size;
        let highest = match width {
            2 => bytes.chunks_exact(2).map(|b| u32::from(u16::from_le_bytes([b[0], b[1]]))).max(),
            _ => bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).max(),
        };
        if highest.is_none_or(|highest| highest < vocab_size) {
            return Ok(());
        }
        let at = bytes.chunks_exact(width).position(|b| token(b) >= vocab_size).unwrap_or(0);
        let found = token(&bytes[at * width..]);
        let what = format!("token {found} is outside the vocabulary of {vocab_size} tokens");
        Err(ShardError::malformed(&self.path, start + at * width, what))
    }

    fn document_end(&self, i: u64) -> u64 {
        u64_at(&self.map, self.layout.ends + 8 * i as usize)
    }

    /// Document `i` of the file, from 0.
    pub fn document(&self, i: u64) -> Option<Document> {
        if i >= self.document_count() {
            return None;
        }
        let begin = if i == 0 { 0 } else { self.document_end(i - 1) };
        let id = self.layout.ids + 16 * i as usize;
        Some(Document {
            id: self.map[id..id + 16].try_into().expect("16 bytes were sliced"),
            tokens: begin..self.document_end(i),
            text_bytes: u64_at(&self.map, self.layout.text_bytes + 8 * i as usize),
        })
    }

    /// All documents in file order.
    pub fn documents(&self) -> impl Iterator<Item = Document> + '_ {
        (0..self.document_count()).filter_map(|i| self.document(i))
    }

    /// Number of the document that holds token `offset`; `None` past the last token. Binary search.
    pub fn document_at(&self, offset: u64) -> Option<u64> {
        if offset >= self.header.tokens {
            return None;
        }
        // The first document that ends after the offset; empty documents before it end at or before it.
        let (mut low, mut high) = (0, self.document_count());
        while low < high {
            let middle = low + (high - low) / 2;
            if self.document_end(middle) <= offset { low = middle + 1 } else { high = middle }
        }
        Some(low)
    }
}
