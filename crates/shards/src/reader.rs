//! Reading one shard file at positions.

use crate::cache::{BlockCache, CacheRead};
use crate::file::ShardFile;
use crate::format::{self, Header, INDEX_PIECE, Layout, Section, u64_at};
use crate::mask::Mask;
use crate::{DocumentId, Part, ShardError, ShardMeta};
use bessemer_durable::ConfinedDir;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
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
/// Opening verifies header, trailer and the checksums of what follows, which are 8 bytes a MiB of tokens and 8 bytes for 2048 documents. A block of
/// token data, and a piece of 64 KiB of the document index, is verified when it is first touched; [`ShardReader::verify`] does all of
/// them. Files of version 1 have one checksum for the whole index: opening costs a pass over it (32 bytes a document).
#[derive(Debug)]
pub struct ShardReader {
    file: ShardFile,
    header: Header,
    layout: Layout,
    checksum: u64,
    index: DocumentIndex,
    mask: Option<Mask>,
    verified: Verified,
    /// Blocks in memory, if any are, and the number of the file there.
    cache: OnceLock<(Arc<BlockCache>, u64)>,
    /// Bytes of tokens that were requested, and that were in the cache.
    requested: AtomicU64,
    hit: AtomicU64,
}

/// Bytes that were read, since the files were opened.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct ReadCounters {
    /// Of tokens that callers requested.
    pub requested: u64,
    /// Of these, that were in memory.
    pub hit: u64,
    /// From files: requests past the cache, blocks that came into it, blocks that were verified, checksums and the document index.
    pub storage: u64,
    /// That left the cache for others.
    pub evicted: u64,
}

/// Checksum of a block, and its first token outside of the vocabulary.
struct BlockCheck {
    hash: Xxh3,
    width: usize,
    vocab_size: u32,
    /// Byte of the file, and the token.
    outside: Option<(usize, u32)>,
}

impl BlockCheck {
    /// Takes bytes of the block in their order, the first of which is byte `at` of the file.
    fn update(&mut self, at: usize, bytes: &[u8]) {
        self.hash.update(bytes);
        let (width, vocab_size) = (self.width, self.vocab_size);
        // The maximum is one vectorised pass over bytes that the checksum just brought into the processor's cache.
        let highest = match width {
            2 => bytes.chunks_exact(2).map(|b| u32::from(u16::from_le_bytes([b[0], b[1]]))).max(),
            _ => bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).max(),
        };
        if self.outside.is_none() && highest.is_some_and(|highest| highest >= vocab_size) {
            let place = bytes.chunks_exact(width).position(|b| token_of(b) >= vocab_size).unwrap_or(0);
            self.outside = Some((at + place * width, token_of(&bytes[place * width..][..width])));
        }
    }
}

/// How documents are found.
#[derive(Debug)]
enum DocumentIndex {
    /// Version 1, verified when the file was opened: where every [`MARKED`]th document ends, so that finding one takes a single read.
    Marks(Vec<u64>),
    /// Later versions, verified piece by piece.
    Pieces { verified: Verified, further: Vec<Section> },
}

/// One bit a block: set once its checksum was found right. Two threads may both verify a block; neither reads it unverified.
#[derive(Debug)]
pub(crate) struct Verified(Vec<AtomicU64>);

impl Verified {
    pub(crate) fn none_of(blocks: usize) -> Verified {
        Verified((0..blocks.div_ceil(64)).map(|_| AtomicU64::new(0)).collect())
    }

    pub(crate) fn has(&self, number: usize) -> bool {
        self.0[number / 64].load(Ordering::Acquire) >> (number % 64) & 1 != 0
    }

    pub(crate) fn note(&self, number: usize) {
        self.0[number / 64].fetch_or(1 << (number % 64), Ordering::Release);
    }
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
        if found > wanted && header.version == 1 {
            return Err(ShardError::TooLong { path: file.path().to_owned(), wanted, found });
        }
        let Ends { checksum, mask, further } = check_ends(&file, &header, &layout)?;
        let mask = mask.map(|section| Mask::open(&file, section, header.tokens)).transpose()?;
        let index = match header.version {
            1 => DocumentIndex::Marks(Vec::new()),
            _ => {
                let pieces = (layout.sections_end - layout.index_sums) / 8;
                DocumentIndex::Pieces { verified: Verified::none_of(pieces), further }
            }
        };
        let verified = Verified::none_of(layout.blocks);
        let mut reader = ShardReader {
            file,
            header,
            layout,
            checksum,
            index,
            mask,
            verified,
            cache: OnceLock::new(),
            requested: AtomicU64::new(0),
            hit: AtomicU64::new(0),
        };
        match reader.header.version {
            1 => reader.index = DocumentIndex::Marks(reader.check_index()?),
            _ => reader.check_last_end()?,
        }
        Ok(reader)
    }

    /// The documents hold all tokens. (That ends never go back is found where they are read.)
    fn check_last_end(&self) -> Result<(), ShardError> {
        let tokens = self.header.tokens;
        let last = match self.header.documents {
            0 => 0,
            documents => self.end_of(documents - 1)?,
        };
        if last == tokens {
            return Ok(());
        }
        let what = format!("the documents hold {last} tokens, the header states {tokens}");
        Err(ShardError::malformed(self.path(), self.layout.index_sums.min(self.layout.text_bytes), what))
    }

    /// Fills `buffer` from byte `at` of the document index, of which each piece is verified on its first touch.
    fn read_index(&self, at: usize, buffer: &mut [u8]) -> Result<(), ShardError> {
        if let DocumentIndex::Pieces { verified, .. } = &self.index {
            let (first, last) = (at - self.layout.ends, at + buffer.len().max(1) - 1 - self.layout.ends);
            for piece in first / INDEX_PIECE..=last / INDEX_PIECE {
                if !verified.has(piece) {
                    self.verify_piece(piece)?;
                    verified.note(piece);
                }
            }
        }
        self.file.read_at(at, buffer)
    }

    fn verify_piece(&self, piece: usize) -> Result<(), ShardError> {
        let start = self.layout.ends + piece * INDEX_PIECE;
        let end = (start + INDEX_PIECE).min(self.layout.index_sums);
        let wanted = self.file.u64_at(self.layout.index_sums + 8 * piece)?;
        let part = Part::Section { start: start as u64, end: end as u64 };
        format::same_sum(self.path(), part, wanted, self.file.sum(start, end)?)
    }

    /// The token one past document `i` of the file.
    fn end_of(&self, i: u64) -> Result<u64, ShardError> {
        let mut end = [0; 8];
        self.read_index(self.layout.ends + 8 * i as usize, &mut end)?;
        Ok(u64::from_le_bytes(end))
    }

    /// The index is what a writer wrote (its checksums were right); this refuses a writer's nonsense. Returns the marks.
    fn check_index(&self) -> Result<Vec<u64>, ShardError> {
        let wrong = |at: usize, what: String| ShardError::malformed(self.path(), at, what);
        let layout = &self.layout;
        check_padding(&self.file, layout)?;
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
        self.file.bytes()
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
        let end = self.end_of_read(start, out.len())?;
        if out.is_empty() {
            return Ok(());
        }
        let width = self.header.meta.token_bytes() as usize;
        let (first, last) = (start as usize * width, end as usize * width);
        let block = self.header.block_bytes as usize;
        self.requested.fetch_add((last - first) as u64, Ordering::Relaxed);
        let mut rest = out;
        for number in first / block..=(last - 1) / block {
            let here = first.max(number * block)..last.min((number + 1) * block);
            let (now, later) = rest.split_at_mut(here.len() / width);
            self.read_of_block(number, here, now)?;
            rest = later;
        }
        Ok(())
    }

    /// The token one past `len` tokens from `start` on, which must exist.
    fn end_of_read(&self, start: u64, len: usize) -> Result<u64, ShardError> {
        let tokens = self.header.tokens;
        start.checked_add(len as u64).filter(|&end| end <= tokens).ok_or_else(|| {
            let end = start.saturating_add(len as u64);
            ShardError::OutOfRange { path: self.path().to_owned(), start, end, tokens }
        })
    }

    /// Whether the file has a mask: some of its tokens are not scored.
    pub fn has_mask(&self) -> bool {
        self.mask.is_some()
    }

    /// Number of tokens that are scored: all of them without a mask.
    pub fn scored_count(&self) -> u64 {
        self.mask.as_ref().map_or(self.header.tokens, Mask::scored)
    }

    /// Number of tokens that are scored among `len` tokens from `start` on. Does not allocate.
    ///
    /// # Errors
    /// [`ShardError::OutOfRange`], or [`ShardError::Checksum`] naming the damaged part of the mask.
    pub fn count_scored(&self, start: u64, len: u64) -> Result<u64, ShardError> {
        let end = self.end_of_read(start, usize::try_from(len).unwrap_or(usize::MAX))?;
        let Some(mask) = &self.mask else { return Ok(len) };
        let mut scored = 0;
        mask.visit(&self.file, start..end, |_, bits| scored += u64::from(bits.count_ones()))?;
        Ok(scored)
    }

    /// Writes `value` over each of `tokens`, the tokens from `start` on, that is not scored, and returns the number of those that are. Does
    /// not allocate.
    ///
    /// # Errors
    /// As [`ShardReader::count_scored`].
    pub fn replace_unscored(&self, start: u64, tokens: &mut [u32], value: u32) -> Result<u64, ShardError> {
        let end = self.end_of_read(start, tokens.len())?;
        let Some(mask) = &self.mask else { return Ok(tokens.len() as u64) };
        let mut scored = 0;
        mask.visit(&self.file, start..end, |range, bits| {
            scored += u64::from(bits.count_ones());
            let here = &mut tokens[(range.start - start) as usize..(range.end - start) as usize];
            for (place, token) in here.iter_mut().enumerate() {
                if bits >> place & 1 == 0 {
                    *token = value;
                }
            }
        })?;
        Ok(scored)
    }

    /// Copies the tokens at `bytes` of the token data, which are of block `number`.
    fn read_of_block(&self, number: usize, bytes: Range<usize>, out: &mut [u32]) -> Result<(), ShardError> {
        let width = self.header.meta.token_bytes() as usize;
        let decode = |bytes: &[u8], out: &mut [u32]| {
            for (b, token) in bytes.chunks_exact(width).zip(out) {
                *token = token_of(b);
            }
        };
        if let Some((cache, file)) = self.cache.get() {
            let start = bytes.start - number * self.header.block_bytes as usize;
            let within = start..start + bytes.len();
            let key = file << 32 | number as u64;
            let read = cache.read(
                key,
                |block| self.load_block(number, block),
                |block| decode(&block[within], out),
            )?;
            match read {
                CacheRead::Hit => {
                    self.hit.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                    return Ok(());
                }
                CacheRead::Loaded => return Ok(()),
                CacheRead::Outside => {}
            }
        }
        if !self.verified.has(number) {
            self.verify_block(number)?;
        }
        let (from, to) = (format::HEADER_BYTES + bytes.start, format::HEADER_BYTES + bytes.end);
        let mut rest = out;
        self.file.pieces(from, to, |_, bytes| {
            let (now, later) = std::mem::take(&mut rest).split_at_mut(bytes.len() / width);
            decode(bytes, now);
            rest = later;
            Ok(())
        })
    }

    /// Keeps blocks of the file, which is number `file` there, in a cache from now on. The first cache stays.
    pub(crate) fn use_cache(&self, cache: &Arc<BlockCache>, file: u64) {
        self.cache.get_or_init(|| (Arc::clone(cache), file));
    }

    /// Number and most bytes of the blocks of token data.
    pub(crate) fn blocks(&self) -> (usize, usize) {
        (self.layout.blocks, self.header.block_bytes as usize)
    }

    /// Bytes that were read of the file since it was opened, with those of opening it. What left a cache is counted there.
    pub fn counters(&self) -> ReadCounters {
        ReadCounters {
            requested: self.requested.load(Ordering::Relaxed),
            hit: self.hit.load(Ordering::Relaxed),
            storage: self.file.bytes_read(),
            evicted: 0,
        }
    }

    /// Verifies every byte of the file, also what was verified before.
    ///
    /// # Errors
    /// The first damaged part.
    pub fn verify(&self) -> Result<(), ShardError> {
        check_ends(&self.file, &self.header, &self.layout)?;
        if let DocumentIndex::Pieces { further, .. } = &self.index {
            (0..(self.layout.sections_end - self.layout.index_sums) / 8)
                .try_for_each(|piece| self.verify_piece(piece))?;
            self.mask.iter().try_for_each(|mask| mask.verify(&self.file))?;
            for section in further {
                let (start, end) = (section.start, section.start + section.bytes);
                let part = Part::Section { start: start as u64, end: end as u64 };
                format::same_sum(self.path(), part, section.sum, self.file.sum(start, end)?)?;
            }
            self.check_index()?;
        }
        (0..self.layout.blocks).try_for_each(|number| self.verify_block(number))
    }

    fn verify_block(&self, number: usize) -> Result<(), ShardError> {
        self.check_block(number, |bytes, check| {
            self.file.pieces(bytes.start, bytes.end, |at, bytes| {
                check.update(at, bytes);
                Ok(())
            })
        })
    }

    /// Fills `block` with a block of token data and verifies it.
    fn load_block(&self, number: usize, block: &mut Vec<u8>) -> Result<(), ShardError> {
        self.check_block(number, |bytes, check| {
            block.resize(bytes.len(), 0);
            self.file.read_at(bytes.start, block)?;
            check.update(bytes.start, block);
            Ok(())
        })
    }

    /// Verifies a block, which `read` reads. A token outside the vocabulary would index past an embedding table, so it is looked for beside the
    /// checksum.
    fn check_block(
        &self,
        number: usize,
        read: impl FnOnce(Range<usize>, &mut BlockCheck) -> Result<(), ShardError>,
    ) -> Result<(), ShardError> {
        let block = self.header.block_bytes as usize;
        let start = format::HEADER_BYTES + number * block;
        let end = (start + block).min(self.layout.data_end);
        let wanted = self.file.u64_at(self.layout.block_sums + 8 * number)?;
        let (width, vocab_size) = (self.header.meta.token_bytes() as usize, self.header.meta.vocab_size);
        let mut check = BlockCheck { hash: Xxh3::new(), width, vocab_size, outside: None };
        read(start..end, &mut check)?;
        let part = Part::Block {
            number: number as u64,
            of: self.layout.blocks as u64,
            start: start as u64,
            end: end as u64,
        };
        format::same_sum(self.path(), part, wanted, check.hash.digest())?;
        if let Some((at, token)) = check.outside {
            let what = format!("token {token} is outside the vocabulary of {vocab_size} tokens");
            return Err(ShardError::malformed(self.path(), at, what));
        }
        self.verified.note(number);
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
            0 => self.read_index(self.layout.ends, &mut ends[8..])?,
            _ => self.read_index(self.layout.ends + 8 * (i - 1) as usize, &mut ends)?,
        }
        let (start, end) = (u64_at(&ends, 0), u64_at(&ends, 8));
        if start > end || end > self.header.tokens {
            let what = format!(
                "document {i} is at tokens {start}..{end} of {}, before it begins or outside of the file",
                self.header.tokens
            );
            return Err(ShardError::malformed(self.path(), self.layout.ends + 8 * i as usize, what));
        }
        Ok(Some(start..end))
    }

    /// Document `i` of the file, from 0; `None` past the last.
    ///
    /// # Errors
    /// If the file can no longer be read.
    pub fn document(&self, i: u64) -> Result<Option<Document>, ShardError> {
        let Some(tokens) = self.document_tokens(i)? else { return Ok(None) };
        let mut id = [0; 16];
        self.read_index(self.layout.ids + 16 * i as usize, &mut id)?;
        let mut text_bytes = [0; 8];
        self.read_index(self.layout.text_bytes + 8 * i as usize, &mut text_bytes)?;
        Ok(Some(Document { id, tokens, text_bytes: u64::from_le_bytes(text_bytes) }))
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
        let first = MARKED * self.marks_up_to(offset)?;
        let count = MARKED.min(self.document_count().saturating_sub(first)) as usize;
        let mut ends = [0; 8 * MARKED as usize];
        let ends = &mut ends[..8 * count];
        self.read_index(self.layout.ends + 8 * first as usize, ends)?;
        let place = ends.chunks_exact(8).position(|end| u64_at(end, 0) > offset);
        Ok(place.map(|place| first + place as u64))
    }

    /// Of every [`MARKED`]th document, how many end at or before token `offset`: a binary search.
    fn marks_up_to(&self, offset: u64) -> Result<u64, ShardError> {
        let (mut low, mut high) = match &self.index {
            DocumentIndex::Marks(marks) => {
                return Ok(marks.partition_point(|&end| end <= offset) as u64);
            }
            // The last document ends behind the offset, so its mark never counts.
            DocumentIndex::Pieces { .. } => (0, (self.document_count() - 1) / MARKED),
        };
        while low < high {
            let middle = low.midpoint(high);
            match self.end_of(MARKED * (middle + 1) - 1)? <= offset {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        Ok(low)
    }
}

/// The end of a file.
struct Ends {
    /// Checksum of the whole file.
    checksum: u64,
    /// Mask of scored tokens, if the file has one.
    mask: Option<Section>,
    /// Other sections that not every file has.
    further: Vec<Section>,
}

/// Verifies header, trailer, and the index (version 1) or the table of sections, the checksums of blocks and of the document index.
fn check_ends(file: &ShardFile, header: &Header, layout: &Layout) -> Result<Ends, ShardError> {
    let (mut head, mut trailer) = ([0; format::HEADER_BYTES], [0; format::TRAILER_BYTES]);
    file.read_at(0, &mut head)?;
    let path = file.path();
    if Header::parse(&head, path)? != *header {
        return Err(ShardError::malformed(path, 0, "the header changed since the file was opened"));
    }
    // The lengths that files may have were checked.
    let file_bytes = file.bytes() as usize;
    let trailer_at = file_bytes - format::TRAILER_BYTES;
    file.read_at(trailer_at, &mut trailer)?;
    let index_sum = format::check_trailer(&head, &trailer, file_bytes, path)?;
    let checksum = format::file_sum(&trailer);
    if header.version == 1 {
        format::same_sum(path, Part::Index, index_sum, file.sum(layout.data_end, layout.sections_end)?)?;
        return Ok(Ends { checksum, mask: None, further: Vec::new() });
    }
    let start = format::table_start(file.u64_at(trailer_at - 8)?, trailer_at, layout, path)?;
    let mut table = vec![0; trailer_at - start];
    file.read_at(start, &mut table)?;
    format::check_sum(path, Part::Index, index_sum, &table)?;
    let entries = &table[..table.len() - 8];
    let format::Sections { token_sums, index_sums, mask, further } =
        format::read_table(entries, start, layout, header.tokens, path)?;
    for (from, to, sum) in
        [(layout.block_sums, layout.ends, token_sums), (layout.index_sums, layout.sections_end, index_sums)]
    {
        let part = Part::Section { start: from as u64, end: to as u64 };
        format::same_sum(path, part, sum, file.sum(from, to)?)?;
    }
    check_padding(file, layout)?;
    Ok(Ends { checksum, mask, further })
}

/// Tokens end at a multiple of 8 bytes, after zeros.
fn check_padding(file: &ShardFile, layout: &Layout) -> Result<(), ShardError> {
    file.pieces(layout.data_end, layout.block_sums, |_, bytes| match bytes.iter().any(|&b| b != 0) {
        true => {
            let what = "wanted zeros between tokens and index";
            Err(ShardError::malformed(file.path(), layout.data_end, what))
        }
        false => Ok(()),
    })
}

/// The token that 2 or 4 bytes hold.
fn token_of(b: &[u8]) -> u32 {
    match *b {
        [a, b] => u32::from(u16::from_le_bytes([a, b])),
        [a, b, c, d] => u32::from_le_bytes([a, b, c, d]),
        _ => 0,
    }
}
