//! Reading one shard file at positions.

use crate::file::ShardFile;
use crate::format::{self, Header, Layout, u64_at};
use crate::{DocumentId, Part, ShardError, ShardMeta};
use bessemer_durable::ConfinedDir;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use xxhash_rust::xxh3::Xxh3;

/// Documents between two marks: their ends are one read of 512 bytes.
const MARKED: u64 = 64;

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

/// A shard file, read at positions. Can be shared between threads.
///
/// Opening verifies header, trailer and index, which costs a pass over the index (32 bytes a document). A block
/// of token data is verified when it is first touched; [`ShardReader::verify`] does all of them.
#[derive(Debug)]
pub struct ShardReader {
    file: ShardFile,
    header: Header,
    layout: Layout,
    checksum: u64,
    /// Where every [`MARKED`]th document ends, so that finding one takes a single read.
    marks: Vec<u64>,
    /// One bit a block: set once its checksum was found right. Two threads may both verify a block; neither
    /// reads it unverified.
    verified: Vec<AtomicU64>,
}

impl ShardReader {
    /// Opens a shard file.
    ///
    /// # Errors
    /// Refuses whatever is not a complete shard file of this version with intact header, index and trailer.
    pub fn open(path: impl AsRef<Path>) -> Result<ShardReader, ShardError> {
        ShardReader::of(ShardFile::open(path.as_ref())?)
    }

    /// Opens the shard file `name` of `dir`.
    pub(crate) fn open_in(dir: &ConfinedDir, name: &str) -> Result<ShardReader, ShardError> {
        ShardReader::of(ShardFile::open_in(dir, name)?)
    }

    fn of(file: ShardFile) -> Result<ShardReader, ShardError> {
        let mut head = [0; format::HEADER_BYTES];
        let read = format::HEADER_BYTES.min(usize::try_from(file.bytes()).unwrap_or(usize::MAX));
        file.read_at(0, &mut head[..read])?;
        let header = Header::parse(&head[..read], file.path())?;
        let layout = header.layout().ok_or_else(|| {
            ShardError::malformed(file.path(), 32, "the counts of tokens and documents overflow")
        })?;
        let (wanted, found) = (layout.file_bytes as u64, file.bytes());
        if found < wanted {
            return Err(ShardError::Truncated { path: file.path().to_owned(), wanted, found });
        }
        if found > wanted {
            return Err(ShardError::TooLong { path: file.path().to_owned(), wanted, found });
        }
        let checksum = check_ends(&file, &header, &layout)?;
        let verified = (0..layout.blocks.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        let mut reader = ShardReader { file, header, layout, checksum, marks: Vec::new(), verified };
        reader.marks = reader.check_index()?;
        Ok(reader)
    }

    /// The index is what a writer wrote (its checksum was right); this refuses a writer's nonsense. Returns the marks.
    fn check_index(&self) -> Result<Vec<u64>, ShardError> {
        let wrong = |at: usize, what: String| ShardError::malformed(self.path(), at, what);
        let layout = &self.layout;
        self.file.pieces(layout.data_end, layout.block_sums, |_, bytes| {
            match bytes.iter().any(|&b| b != 0) {
                true => Err(wrong(layout.data_end, "wanted zeros between tokens and index".into())),
                false => Ok(()),
            }
        })?;
        let (mut last, mut document, mut marks) = (0, 0, Vec::new());
        self.file.pieces(layout.ends, layout.text_bytes, |at, bytes| {
            for (i, end) in bytes.chunks_exact(8).enumerate() {
                let end = u64_at(end, 0);
                if end < last {
                    let what = format!("document {document} ends at token {end}, before it begins at {last}");
                    return Err(wrong(at + 8 * i, what));
                }
                (last, document) = (end, document + 1);
                if document % MARKED == 0 {
                    marks.push(end);
                }
            }
            Ok(())
        })?;
        let mut text_bytes = 0u64;
        self.file.pieces(layout.text_bytes, layout.ids, |_, bytes| {
            let sum = bytes.chunks_exact(8).try_fold(text_bytes, |sum, b| sum.checked_add(u64_at(b, 0)));
            match sum {
                Some(sum) => text_bytes = sum,
                None => {
                    return Err(wrong(layout.text_bytes, "the text bytes of the documents overflow".into()));
                }
            }
            Ok(())
        })?;
        if last != self.header.tokens {
            let tokens = self.header.tokens;
            return Err(wrong(
                layout.ends,
                format!("the documents hold {last} tokens, the header states {tokens}"),
            ));
        }
        if text_bytes != self.header.text_bytes {
            let stated = self.header.text_bytes;
            return Err(wrong(
                48,
                format!("the documents hold {text_bytes} text bytes, the header states {stated}"),
            ));
        }
        Ok(marks)
    }

    /// The file.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Metadata of the file.
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

    /// Bytes that were read of the file since it was opened, with those of opening it.
    pub fn bytes_read(&self) -> u64 {
        self.file.bytes_read()
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
            ShardError::OutOfRange { path: self.path().to_owned(), start, end, tokens }
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
        let mut rest = out.iter_mut();
        self.file.pieces(format::HEADER_BYTES + first, format::HEADER_BYTES + last, |_, bytes| {
            for (b, token) in bytes.chunks_exact(width).zip(&mut rest) {
                *token = token_of(b);
            }
            Ok(())
        })
    }

    /// Verifies every block of token data, also those verified before: the whole file is read. Header, trailer
    /// and index were verified on open and are verified again.
    ///
    /// # Errors
    /// The first damaged part.
    pub fn verify(&self) -> Result<(), ShardError> {
        check_ends(&self.file, &self.header, &self.layout)?;
        (0..self.layout.blocks).try_for_each(|number| self.verify_block(number))
    }

    /// A token outside the vocabulary would index past an embedding table, so it is looked for beside the checksum.
    fn verify_block(&self, number: usize) -> Result<(), ShardError> {
        let block = self.header.block_bytes as usize;
        let start = format::HEADER_BYTES + number * block;
        let end = (start + block).min(self.layout.data_end);
        let wanted = self.file.u64_at(self.layout.block_sums + 8 * number)?;
        let (width, vocab_size) = (self.header.meta.token_bytes() as usize, self.header.meta.vocab_size);
        let mut hash = Xxh3::new();
        let mut outside = None;
        self.file.pieces(start, end, |at, bytes| {
            hash.update(bytes);
            // The maximum is one vectorised pass over bytes that the checksum just brought into the cache.
            let highest = match width {
                2 => bytes.chunks_exact(2).map(|b| u32::from(u16::from_le_bytes([b[0], b[1]]))).max(),
                _ => bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).max(),
            };
            if outside.is_none() && highest.is_some_and(|highest| highest >= vocab_size) {
                let place = bytes.chunks_exact(width).position(|b| token_of(b) >= vocab_size).unwrap_or(0);
                outside = Some((at + place * width, token_of(&bytes[place * width..][..width])));
            }
            Ok(())
        })?;
        let part = Part::Block {
            number: number as u64,
            of: self.layout.blocks as u64,
            start: start as u64,
            end: end as u64,
        };
        format::same_sum(self.path(), part, wanted, hash.digest())?;
        if let Some((at, found)) = outside {
            let what = format!("token {found} is outside the vocabulary of {vocab_size} tokens");
            return Err(ShardError::malformed(self.path(), at, what));
        }
        self.verified[number / 64].fetch_or(1 << (number % 64), Ordering::Release);
        Ok(())
    }

    /// The tokens of document `i` of the file, from 0; `None` past the last.
    ///
    /// # Errors
    /// If the file can no longer be read.
    pub fn document_tokens(&self, i: u64) -> Result<Option<Range<u64>>, ShardError> {
        if i >= self.document_count() {
            return Ok(None);
        }
        let mut ends = [0; 16];
        match i {
            0 => self.file.read_at(self.layout.ends, &mut ends[8..])?,
            _ => self.file.read_at(self.layout.ends + 8 * (i - 1) as usize, &mut ends)?,
        }
        Ok(Some(u64_at(&ends, 0)..u64_at(&ends, 8)))
    }

    /// Document `i` of the file, from 0; `None` past the last.
    ///
    /// # Errors
    /// If the file can no longer be read.
    pub fn document(&self, i: u64) -> Result<Option<Document>, ShardError> {
        let Some(tokens) = self.document_tokens(i)? else { return Ok(None) };
        let mut id = [0; 16];
        self.file.read_at(self.layout.ids + 16 * i as usize, &mut id)?;
        Ok(Some(Document {
            id,
            tokens,
            text_bytes: self.file.u64_at(self.layout.text_bytes + 8 * i as usize)?,
        }))
    }

    /// All documents in file order.
    pub fn documents(&self) -> impl Iterator<Item = Result<Document, ShardError>> + '_ {
        (0..self.document_count()).filter_map(|i| self.document(i).transpose())
    }

    /// Number of the document that holds token `offset`; `None` past the last token.
    ///
    /// # Errors
    /// If the file can no longer be read.
    pub fn document_at(&self, offset: u64) -> Result<Option<u64>, ShardError> {
        if offset >= self.header.tokens {
            return Ok(None);
        }
        // The first document that ends after the offset; empty documents before it end at or before it.
        let first = MARKED * self.marks.partition_point(|&end| end <= offset) as u64;
        let count = MARKED.min(self.document_count() - first) as usize;
        let mut ends = [0; 8 * MARKED as usize];
        let ends = &mut ends[..8 * count];
        self.file.read_at(self.layout.ends + 8 * first as usize, ends)?;
        let place = ends.chunks_exact(8).position(|end| u64_at(end, 0) > offset);
        Ok(place.map(|place| first + place as u64))
    }
}

/// Verifies header, trailer and index; returns the checksum of the whole file.
fn check_ends(file: &ShardFile, header: &Header, layout: &Layout) -> Result<u64, ShardError> {
    let (mut head, mut trailer) = ([0; format::HEADER_BYTES], [0; format::TRAILER_BYTES]);
    file.read_at(0, &mut head)?;
    if Header::parse(&head, file.path())? != *header {
        return Err(ShardError::malformed(file.path(), 0, "the header changed since the file was opened"));
    }
    file.read_at(layout.trailer, &mut trailer)?;
    let index_sum = format::check_trailer(&head, &trailer, layout, file.path())?;
    format::same_sum(file.path(), Part::Index, index_sum, file.sum(layout.data_end, layout.trailer)?)?;
    Ok(format::file_sum(&trailer))
}

/// The token that 2 or 4 bytes hold.
fn token_of(b: &[u8]) -> u32 {
    match *b {
        [a, b] => u32::from(u16::from_le_bytes([a, b])),
        [a, b, c, d] => u32::from_le_bytes([a, b, c, d]),
        _ => 0,
    }
}
