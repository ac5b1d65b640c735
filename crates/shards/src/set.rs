//! Reading one split: its shard files as one token stream.

use crate::cache::{BlockCache, CacheConfig};
use crate::component::placed;
use crate::set_index::SetIndex;
use crate::{Component, Document, Fingerprint, ReadCounters, ShardError, ShardReader};
use bessemer_durable::AsDir;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use xxhash_rust::xxh3::Xxh3;

/// All shard files of one split, in order, as one stream of tokens and documents. Can be shared between
/// threads. Offsets of tokens and numbers of documents count through all files.
#[derive(Debug)]
pub struct ShardSet {
    path: PathBuf,
    index: SetIndex,
    components: Vec<Component>,
    files: Vec<ShardReader>,
    /// Offset of each file's first token, then the total.
    token_starts: Vec<u64>,
    /// Number of each file's first document, then the total.
    document_starts: Vec<u64>,
    checksum: u64,
    /// Blocks in memory.
    cache: OnceLock<Arc<BlockCache>>,
}

impl ShardSet {
    /// Opens the split in `dir/SPLIT/`, a folder that [`crate::ShardSetWriter`] finished.
    ///
    /// Header, trailer and checksums of every file are verified and held against `shards.json`; token blocks and the document index are
    /// verified when they are first touched.
    ///
    /// # Errors
    /// [`ShardError::Unfinished`] without a `shards.json`; the first file that is damaged or not the listed one.
    pub fn open(dir: impl AsDir, split: &str) -> Result<ShardSet, ShardError> {
        let root = dir.as_dir().map_err(|e| ShardError::io(Path::new(""), "open", e))?;
        let path = root.path().join(split);
        crate::meta::check_split(split)
            .map_err(|what| ShardError::Meta { path: root.path().to_owned(), what })?;
        let dir = root.dir(split).map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => ShardError::Unfinished { path: path.clone() },
            _ => ShardError::io(&path, "open", e),
        })?;
        let index = SetIndex::read(&dir, split)?;
        let mut files = Vec::with_capacity(index.shards.len());
        let (mut token_starts, mut document_starts) = (vec![0], vec![0]);
        let mut checksum = Xxh3::new();
        for (ordinal, listed) in index.shards.iter().enumerate() {
            let reader = ShardReader::open_in(&dir, &listed.file)?;
            let same = |what, wanted: String, found: String| {
                let path = reader.path().to_owned();
                if wanted == found {
                    Ok(())
                } else {
                    Err(ShardError::NotTheListedFile { path, what, wanted, found })
                }
            };
            let meta = reader.meta();
            same("the checksum", listed.checksum.clone(), format!("{:016x}", reader.checksum()))?;
            same("the number of tokens", listed.tokens.to_string(), reader.token_count().to_string())?;
            same(
                "the number of documents",
                listed.documents.to_string(),
                reader.document_count().to_string(),
            )?;
            same("the number of text bytes", listed.text_bytes.to_string(), reader.text_bytes().to_string())?;
            same("the length in bytes", listed.file_bytes.to_string(), reader.file_bytes().to_string())?;
            same("the split", index.split.clone(), meta.split.clone())?;
            same("the place in the split", ordinal.to_string(), meta.ordinal.to_string())?;
            same("the vocabulary", index.vocab_size.to_string(), meta.vocab_size.to_string())?;
            same("the tokenizer", index.tokenizer.to_string(), meta.tokenizer.to_string())?;
            // The sums were checked against overflow with the index.
            token_starts.push(token_starts[ordinal] + reader.token_count());
            document_starts.push(document_starts[ordinal] + reader.document_count());
            checksum.update(&reader.checksum().to_le_bytes());
            files.push(reader);
        }
        let (components, checksum) = (placed(&index.components), checksum.digest());
        Ok(ShardSet {
            path,
            index,
            components,
            files,
            token_starts,
            document_starts,
            checksum,
            cache: OnceLock::new(),
        })
    }

    /// The folder of the split.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Name of the split.
    pub fn split(&self) -> &str {
        &self.index.split
    }

    /// Number of token ids; every token read is below it.
    pub fn vocab_size(&self) -> u32 {
        self.index.vocab_size
    }

    /// The tokenizer that made the tokens.
    pub fn tokenizer(&self) -> Fingerprint {
        self.index.tokenizer
    }

    /// Tokens in all files.
    pub fn token_count(&self) -> u64 {
        self.index.tokens
    }

    /// Documents in all files.
    pub fn document_count(&self) -> u64 {
        self.index.documents
    }

    /// Bytes of the text that the tokens encode.
    pub fn text_bytes(&self) -> u64 {
        self.index.text_bytes
    }

    /// Length of all shard files in bytes.
    pub fn file_bytes(&self) -> u64 {
        self.files.iter().map(ShardReader::file_bytes).sum()
    }

    /// The shard files in order.
    pub fn files(&self) -> &[ShardReader] {
        &self.files
    }

    /// The parts of a training mixture, in the order of their tokens; together they are the split. Empty where its
    /// documents were not distinguished.
    pub fn components(&self) -> &[Component] {
        &self.components
    }

    /// A checksum over the checksums of all files: the same for the same documents, tokenizer, vocabulary and
    /// cutting into files. A run that resumes holds it against the one that it started with.
    pub fn checksum(&self) -> u64 {
        self.checksum
    }

    /// Refuses tokens that were not made with this tokenizer and vocabulary.
    ///
    /// # Errors
    /// [`ShardError::Tokenizer`] or [`ShardError::Vocabulary`].
    pub fn require(&self, tokenizer: Fingerprint, vocab_size: u32) -> Result<(), ShardError> {
        if self.tokenizer() != tokenizer {
            let (wanted, found) = (tokenizer, self.tokenizer());
            return Err(ShardError::Tokenizer { path: self.path.clone(), wanted, found });
        }
        if self.vocab_size() != vocab_size {
            let (wanted, found) = (vocab_size, self.vocab_size());
            return Err(ShardError::Vocabulary { path: self.path.clone(), wanted, found });
        }
        Ok(())
    }

    /// Keeps blocks of tokens in memory from now on, as many as fit into the bytes of `config`. The first call decides: further ones change
    /// nothing. Asks for the memory at once.
    pub fn cache_blocks(&self, config: CacheConfig) {
        let shapes = || self.files.iter().map(ShardReader::blocks);
        let (all, largest) = (shapes().map(|b| b.0).sum::<usize>(), shapes().map(|b| b.1).max().unwrap_or(1));
        let fit = usize::try_from(config.bytes / largest as u64).unwrap_or(usize::MAX).min(all);
        if fit == 0 {
            return;
        }
        let cache = self.cache.get_or_init(|| Arc::new(BlockCache::new(config.policy, fit, largest)));
        self.files.iter().enumerate().for_each(|(file, reader)| reader.use_cache(cache, file as u64));
    }

    /// Bytes that [`ShardSet::cache_blocks`] takes.
    pub fn cache_bytes(&self, config: CacheConfig) -> u64 {
        let shapes = self.files.iter().map(ShardReader::blocks);
        config.bytes.min(shapes.map(|(blocks, bytes)| blocks as u64 * bytes as u64).sum())
    }

    /// Bytes that were read of the files since the set was opened, with those of opening it.
    pub fn counters(&self) -> ReadCounters {
        let evicted = self.cache.get().map_or(0, |cache| cache.evicted());
        let sum = ReadCounters { evicted, ..ReadCounters::default() };
        self.files.iter().map(ShardReader::counters).fold(sum, |sum, of| ReadCounters {
            requested: sum.requested + of.requested,
            hit: sum.hit + of.hit,
            storage: sum.storage + of.storage,
            evicted: sum.evicted,
        })
    }

    /// Whether a file has a mask: some tokens are not scored.
    pub fn has_mask(&self) -> bool {
        self.files.iter().any(ShardReader::has_mask)
    }

    /// Number of tokens that are scored: all of them without a mask.
    pub fn scored_count(&self) -> u64 {
        self.files.iter().map(ShardReader::scored_count).sum()
    }

    /// Number of tokens that are scored among `tokens`, offsets in the split. Does not allocate.
    ///
    /// # Errors
    /// [`ShardError::OutOfRange`], or [`ShardError::Checksum`] naming file and part of the mask.
    pub fn count_scored(&self, tokens: Range<u64>) -> Result<u64, ShardError> {
        let len = tokens.end.saturating_sub(tokens.start);
        self.end_of_read(tokens.start, len)?;
        let mut scored = 0;
        self.each_file(tokens.start, len, |file, start, len| {
            scored += self.files[file].count_scored(start, len)?;
            Ok(())
        })?;
        Ok(scored)
    }

    /// Writes `value` over each of `tokens`, the tokens from `start` on, that is not scored, and returns the number of those that are. Does
    /// not allocate.
    ///
    /// # Errors
    /// As [`ShardSet::count_scored`].
    pub fn replace_unscored(&self, start: u64, tokens: &mut [u32], value: u32) -> Result<u64, ShardError> {
        self.end_of_read(start, tokens.len() as u64)?;
        let (mut scored, mut rest) = (0, tokens);
        self.each_file(start, rest.len() as u64, |file, start, len| {
            let (now, later) = std::mem::take(&mut rest).split_at_mut(len as usize);
            rest = later;
            scored += self.files[file].replace_unscored(start, now, value)?;
            Ok(())
        })?;
        Ok(scored)
    }

    /// Refuses tokens that do not exist.
    fn end_of_read(&self, start: u64, len: u64) -> Result<(), ShardError> {
        let tokens = self.token_count();
        match start.checked_add(len) {
            Some(end) if end <= tokens => Ok(()),
            _ => {
                let end = start.saturating_add(len);
                Err(ShardError::OutOfRange { path: self.path.clone(), start, end, tokens })
            }
        }
    }

    /// Passes the parts of `len` tokens from `start` on, which exist, to `visit`: number of the file, first token in it, tokens.
    fn each_file(
        &self,
        start: u64,
        len: u64,
        mut visit: impl FnMut(usize, u64, u64) -> Result<(), ShardError>,
    ) -> Result<(), ShardError> {
        let (mut at, end) = (start, start + len);
        while at < end {
            // The last file that begins at or before the offset; empty files before it are passed over.
            let file = self.token_starts.partition_point(|&s| s <= at) - 1;
            let here = (end - at).min(self.token_starts[file + 1] - at);
            visit(file, at - self.token_starts[file], here)?;
            at += here;
        }
        Ok(())
    }

    /// Copies the tokens from `start` on into `out`, across files. Verifies each block on its first touch. Does
    /// not allocate.
    ///
    /// # Errors
    /// [`ShardError::OutOfRange`], or [`ShardError::Checksum`] naming file and block.
    pub fn read(&self, start: u64, out: &mut [u32]) -> Result<(), ShardError> {
        self.end_of_read(start, out.len() as u64)?;
        let mut rest = out;
        self.each_file(start, rest.len() as u64, |file, start, len| {
            let (now, later) = std::mem::take(&mut rest).split_at_mut(len as usize);
            rest = later;
            self.files[file].read(start, now)
        })
    }

    /// Number of the document that holds token `offset`; `None` past the last token. Two binary searches.
    ///
    /// # Errors
    /// If a file can no longer be read.
    pub fn document_at(&self, offset: u64) -> Result<Option<u64>, ShardError> {
        if offset >= self.token_count() {
            return Ok(None);
        }
        let file = self.token_starts.partition_point(|&s| s <= offset) - 1;
        let number = self.files[file].document_at(offset - self.token_starts[file])?;
        Ok(number.map(|number| self.document_starts[file] + number))
    }

    /// The tokens of document `i` of the split, from 0, in the whole split; `None` past the last.
    ///
    /// # Errors
    /// If a file can no longer be read.
    pub fn document_tokens(&self, i: u64) -> Result<Option<Range<u64>>, ShardError> {
        if i >= self.document_count() {
            return Ok(None);
        }
        let file = self.document_starts.partition_point(|&s| s <= i) - 1;
        let tokens = self.files[file].document_tokens(i - self.document_starts[file])?;
        let start = self.token_starts[file];
        Ok(tokens.map(|tokens| tokens.start + start..tokens.end + start))
    }

    /// Document `i` of the split, from 0, with its token range in the whole split; `None` past the last.
    ///
    /// # Errors
    /// If a file can no longer be read.
    pub fn document(&self, i: u64) -> Result<Option<Document>, ShardError> {
        if i >= self.document_count() {
            return Ok(None);
        }
        let file = self.document_starts.partition_point(|&s| s <= i) - 1;
        let document = self.files[file].document(i - self.document_starts[file])?;
        let start = self.token_starts[file];
        let placed = |d: Document| Document { tokens: d.tokens.start + start..d.tokens.end + start, ..d };
        Ok(document.map(placed))
    }

    /// All documents in order.
    pub fn documents(&self) -> impl Iterator<Item = Result<Document, ShardError>> + '_ {
        (0..self.document_count()).filter_map(|i| self.document(i).transpose())
    }

    /// Reads and verifies every byte of every file.
    ///
    /// # Errors
    /// The first damaged part.
    pub fn verify(&self) -> Result<(), ShardError> {
        self.files.iter().try_for_each(ShardReader::verify)
    }
}
