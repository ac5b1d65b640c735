//! Writing one shard file.

use crate::format::{
    self, BLOCK_BYTES, DOCUMENT_BYTES, HEADER_BYTES, Header, INDEX_PIECE, TRAILER_BYTES, VERSION,
};
use crate::mask::{MaskBits, check_ranges, mask_bytes};
use crate::{DocumentId, ShardError, ShardMeta};
use bessemer_durable::{ConfinedDir, NewFile};
use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// Contents of a finished shard file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardSummary {
    /// The file.
    pub path: PathBuf,
    /// Tokens in it.
    pub tokens: u64,
    /// Documents in it.
    pub documents: u64,
    /// Bytes of the text that the tokens encode.
    pub text_bytes: u64,
    /// Tokens that are scored.
    pub scored: u64,
    /// Length of the file in bytes.
    pub file_bytes: u64,
    /// The checksum of the whole file (see [`crate::ShardReader::checksum`]).
    pub checksum: u64,
}

/// Writes one shard file, document by document.
///
/// The file is written under a hidden temporary name beside `path` and gets its name in
/// [`ShardWriter::finish`], after its bytes are on disk. Dropped before that, or after an error, it removes
/// the temporary file and leaves nothing. One writer a path at a time.
///
/// Memory: one block (1 MiB), the file's buffer, 32 bytes a document, and one bit a token if some are not scored.
#[derive(Debug)]
pub struct ShardWriter {
    path: PathBuf,
    file: NewFile,
    meta: ShardMeta,
    block_bytes: u32,
    /// Token bytes that are not yet a whole block.
    block: Vec<u8>,
    block_sums: Vec<u64>,
    ends: Vec<u64>,
    text_lengths: Vec<u64>,
    ids: Vec<DocumentId>,
    tokens: u64,
    text_bytes: u64,
    /// Tokens that are scored.
    scored: u64,
    /// From the first document on that has a token that is not scored.
    mask: Option<MaskBits>,
    failed: bool,
}

impl ShardWriter {
    /// Starts a shard file that will appear at `path` when it is finished. The directory must exist.
    ///
    /// # Errors
    /// [`ShardError::Meta`] for values that the format does not allow, [`ShardError::Write`].
    pub fn create(path: impl AsRef<Path>, meta: ShardMeta) -> Result<ShardWriter, ShardError> {
        Self::create_with_blocks(path.as_ref(), meta, BLOCK_BYTES)
    }

    /// Starts the shard file `name` in `dir`.
    pub(crate) fn create_in(
        dir: &ConfinedDir,
        name: &str,
        meta: ShardMeta,
    ) -> Result<ShardWriter, ShardError> {
        let path = dir.path().join(name);
        Self::start(&path, meta, BLOCK_BYTES, || dir.new_file(name))
    }

    /// As [`ShardWriter::create`] with another block size, so that tests see many blocks in a small file.
    pub(crate) fn create_with_blocks(
        path: &Path,
        meta: ShardMeta,
        block_bytes: u32,
    ) -> Result<ShardWriter, ShardError> {
        if path.file_name().is_none() {
            return Err(ShardError::Meta { path: path.to_owned(), what: "wanted the name of a file".into() });
        }
        Self::start(path, meta, block_bytes, || NewFile::create(path))
    }

    fn start(
        path: &Path,
        meta: ShardMeta,
        block_bytes: u32,
        create: impl FnOnce() -> std::io::Result<NewFile>,
    ) -> Result<ShardWriter, ShardError> {
        meta.check().map_err(|what| ShardError::Meta { path: path.to_owned(), what })?;
        let file = create().map_err(|e| ShardError::write(path, e))?;
        let mut writer = ShardWriter {
            path: path.to_owned(),
            file,
            meta,
            block_bytes,
            block: Vec::with_capacity(block_bytes as usize),
            block_sums: Vec::new(),
            ends: Vec::new(),
            text_lengths: Vec::new(),
            ids: Vec::new(),
            tokens: 0,
            text_bytes: 0,
            scored: 0,
            mask: None,
            failed: false,
        };
        // The header is known last; zeros until then, so that no prefix of the file looks like a shard file.
        writer.write(&[0; HEADER_BYTES])?;
        Ok(writer)
    }

    /// Appends one document, all tokens of which are scored. `text_bytes` is the length of the text that `tokens` encode; tokens that
    /// encode no text, such as a separator, belong to `tokens` too if they are to be trained on. An empty document is kept
    /// in the index.
    ///
    /// # Errors
    /// [`ShardError::TokenOutsideVocabulary`] leaves the writer as it was. After [`ShardError::Write`] (disk full)
    /// the file cannot be finished.
    pub fn push_document(
        &mut self,
        id: DocumentId,
        text_bytes: u64,
        tokens: &[u32],
    ) -> Result<(), ShardError> {
        self.push_scored(id, text_bytes, tokens, std::slice::from_ref(&(0..tokens.len())))
    }

    /// Appends one document of which only some tokens are scored: those at `scored`, ascending ranges of positions within the document
    /// that do not overlap. The others are read as context, and are no targets. Without a range none is scored.
    ///
    /// # Errors
    /// As [`ShardWriter::push_document`]; [`ShardError::ScoredRange`] leaves the writer as it was.
    pub fn push_scored(
        &mut self,
        id: DocumentId,
        text_bytes: u64,
        tokens: &[u32],
        scored: &[Range<usize>],
    ) -> Result<(), ShardError> {
        if self.failed {
            return Err(ShardError::Poisoned { path: self.path.clone() });
        }
        let vocab_size = self.meta.vocab_size;
        if let Some(position) = tokens.iter().position(|&t| t >= vocab_size) {
            return Err(ShardError::TokenOutsideVocabulary {
                path: self.path.clone(),
                document: self.ends.len() as u64,
                position,
                token: tokens[position],
                vocab_size,
            });
        }
        let sum = self.text_bytes.checked_add(text_bytes).ok_or_else(|| ShardError::Meta {
            path: self.path.clone(),
            what: format!("text_bytes: the sum over documents overflows with {text_bytes}"),
        })?;
        check_ranges(tokens.len(), scored).map_err(|fault| ShardError::ScoredRange {
            path: self.path.clone(),
            document: self.ends.len() as u64,
            fault,
        })?;
        let width = self.meta.token_bytes() as usize;
        let mut rest = tokens;
        while !rest.is_empty() {
            let room = (self.block_bytes as usize - self.block.len()) / width;
            let (now, later) = rest.split_at(room.min(rest.len()));
            if width == 2 {
                self.block.extend(now.iter().flat_map(|&t| (t as u16).to_le_bytes()));
            } else {
                self.block.extend(now.iter().flat_map(|t| t.to_le_bytes()));
            }
            rest = later;
            if self.block.len() == self.block_bytes as usize {
                self.flush_block()?;
            }
        }
        let of_document = scored_of(scored);
        if self.mask.is_none() && of_document < tokens.len() as u64 {
            self.mask = Some(MaskBits::all_scored(self.tokens));
        }
        if let Some(mask) = &mut self.mask {
            mask.push(tokens.len(), scored);
        }
        self.scored += of_document;
        self.tokens += tokens.len() as u64;
        self.text_bytes = sum;
        self.ends.push(self.tokens);
        self.text_lengths.push(text_bytes);
        self.ids.push(id);
        Ok(())
    }

    /// Tokens pushed so far.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Documents pushed so far.
    pub fn documents(&self) -> u64 {
        self.ends.len() as u64
    }

    /// Bytes that the file would have if it were finished after a further document of `tokens` tokens, `scored` of which are scored.
    pub fn file_bytes_with(&self, tokens: u64, scored: u64) -> u64 {
        let mask = match self.mask.is_some() || scored < tokens {
            true => mask_bytes(self.tokens + tokens) as u64,
            false => 0,
        };
        let data = (self.tokens + tokens) * u64::from(self.meta.token_bytes());
        let sums = data.div_ceil(u64::from(self.block_bytes)) * 8;
        let index = (self.documents() + 1) * DOCUMENT_BYTES;
        let index_sums = index.div_ceil(INDEX_PIECE as u64) * 8;
        let table = format::table_bytes(format::REQUIRED + usize::from(mask > 0)) as u64;
        (HEADER_BYTES as u64 + data).next_multiple_of(8)
            + sums
            + index
            + index_sums
            + mask
            + table
            + TRAILER_BYTES as u64
    }

    /// Writes index, trailer and header, makes the file durable and gives it its name.
    ///
    /// # Errors
    /// [`ShardError::Write`]; nothing is visible then and a file that had the name before is untouched, except
    /// when only the last fsync of the directory failed.
    pub fn finish(mut self) -> Result<ShardSummary, ShardError> {
        if self.failed {
            return Err(ShardError::Poisoned { path: self.path.clone() });
        }
        if !self.block.is_empty() {
            self.flush_block()?;
        }
        let documents = self.documents();
        let header = Header {
            version: VERSION,
            meta: self.meta.clone(),
            block_bytes: self.block_bytes,
            tokens: self.tokens,
            documents,
            text_bytes: self.text_bytes,
        };
        let layout = header.layout().ok_or_else(|| ShardError::Meta {
            path: self.path.clone(),
            what: "the file would not fit into the address space".into(),
        })?;
        let header = header.to_bytes();

        self.write(&[0; 8][..layout.block_sums - layout.data_end])?;
        let block_sums = std::mem::take(&mut self.block_sums);
        let token_sums = self.write_sums(&block_sums)?;
        let mut pieces = PieceSums::default();
        let mut chunk = Vec::new();
        let columns = [std::mem::take(&mut self.ends), std::mem::take(&mut self.text_lengths)];
        for values in columns.iter().flat_map(|column| column.chunks(8192)) {
            chunk.clear();
            chunk.extend(values.iter().flat_map(|v| v.to_le_bytes()));
            pieces.update(&chunk);
            self.write(&chunk)?;
        }
        for ids in std::mem::take(&mut self.ids).chunks(4096) {
            let bytes = ids.as_flattened();
            pieces.update(bytes);
            self.write(bytes)?;
        }
        let index_sums = self.write_sums(&pieces.finish())?;
        let mut sections = layout.sections(token_sums, index_sums).to_vec();
        let mut file_bytes = layout.file_bytes as u64;
        if let Some(mask) = self.mask.take() {
            let (bytes, sum) = mask.section();
            let one_more = format::table_bytes(format::REQUIRED + 1) - format::table_bytes(format::REQUIRED);
            file_bytes += (bytes.len() + one_more) as u64;
            sections.push(format::mask_section(layout.sections_end, bytes.len(), sum));
            self.write(&bytes)?;
        }
        let table = format::table(&sections);
        self.write(&table)?;
        let trailer = format::trailer(&header, xxh3_64(&table), file_bytes);
        self.write(&trailer)?;

        // The header goes over the zeros at the beginning.
        let error = |e| ShardError::write(&self.path, e);
        self.file.write_all_at(&header, 0).map_err(error)?;
        self.file.commit().map_err(error)?;
        Ok(ShardSummary {
            path: self.path,
            tokens: self.tokens,
            documents,
            text_bytes: self.text_bytes,
            scored: self.scored,
            file_bytes,
            checksum: format::file_sum(&trailer),
        })
    }

    /// Writes a list of checksums and returns the checksum of the list.
    fn write_sums(&mut self, sums: &[u64]) -> Result<u64, ShardError> {
        let bytes: Vec<u8> = sums.iter().flat_map(|sum| sum.to_le_bytes()).collect();
        self.write(&bytes)?;
        Ok(xxh3_64(&bytes))
    }

    fn flush_block(&mut self) -> Result<(), ShardError> {
        let block = std::mem::take(&mut self.block);
        self.block_sums.push(xxh3_64(&block));
        self.write(&block)?;
        self.block = block;
        self.block.clear();
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), ShardError> {
        self.file.write_all(bytes).map_err(|e| {
            self.failed = true;
            ShardError::write(&self.path, e)
        })
    }
}

/// Tokens in ranges that do not overlap.
pub(crate) fn scored_of(ranges: &[Range<usize>]) -> u64 {
    // Ranges that are refused later may have any length.
    ranges.iter().fold(0, |sum: u64, range| sum.saturating_add(range.len() as u64))
}

/// Checksums of the pieces of the document index, while it is written.
#[derive(Default)]
struct PieceSums {
    hash: Xxh3,
    /// Bytes of the piece so far.
    filled: usize,
    sums: Vec<u64>,
}

impl PieceSums {
    fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(INDEX_PIECE - self.filled));
            self.hash.update(now);
            self.filled += now.len();
            bytes = later;
            if self.filled == INDEX_PIECE {
                self.end_piece();
            }
        }
    }

    fn end_piece(&mut self) {
        self.sums.push(self.hash.digest());
        (self.hash, self.filled) = (Xxh3::new(), 0);
    }

    fn finish(mut self) -> Vec<u64> {
        if self.filled > 0 {
            self.end_piece();
        }
        self.sums
    }
}
