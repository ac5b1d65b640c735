//! A folder of `media-shard` files and the list that makes it complete.

use super::{Sample, ShardMeta, ShardReader, ShardSummary, ShardWriter};
use crate::{MediaError, Result};
use bessemer_durable::ConfinedDir;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The list of a set's files, written last.
pub const INDEX_FILE: &str = "media-shards.json";
const FORMAT: &str = "bessemer-media-shards";
/// A longer list is not read.
const MOST_INDEX_BYTES: u64 = 64 << 20;

/// Name of file `ordinal` of a set.
pub fn shard_name(ordinal: u64) -> String {
    format!("{ordinal:05}.media")
}

fn is_shard_name(name: &str) -> bool {
    name.strip_suffix(".media").is_some_and(|n| n.len() >= 5 && n.bytes().all(|b| b.is_ascii_digit()))
}

/// One file in the list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListedFile {
    /// Name inside the folder.
    pub file: String,
    /// Samples in it.
    pub samples: u64,
    /// Tokens in it.
    pub tokens: u64,
    /// Its length.
    pub file_bytes: u64,
    /// Its checksum, 16 hexadecimal digits.
    pub checksum: String,
}

/// `media-shards.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetIndex {
    format: String,
    version: u32,
    /// Number of token ids.
    pub vocab_size: u32,
    /// Fingerprint of the tokenizer, 64 hexadecimal digits.
    pub tokenizer: String,
    /// How the samples were made.
    pub settings: serde_json::Value,
    /// Counts of what was read, kept and dropped.
    pub counts: serde_json::Value,
    /// Samples in all files.
    pub samples: u64,
    /// Tokens in all files.
    pub tokens: u64,
    /// The files in order.
    pub shards: Vec<ListedFile>,
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

impl SetIndex {
    /// Reads the list of a folder and holds each file's header, length and checksum against it.
    ///
    /// # Errors
    /// [`MediaError::Shard`] for a set that is unfinished, contradicts itself or its files; [`MediaError::Io`].
    pub fn open(dir: &Path) -> Result<(SetIndex, Vec<ShardReader>)> {
        let path = dir.join(INDEX_FILE);
        let set = ConfinedDir::open_named(dir).map_err(|e| MediaError::io(dir, "open", e))?;
        let length = match set.facts(INDEX_FILE) {
            Ok(Some(facts)) => facts.bytes,
            Ok(None) => {
                return Err(MediaError::shard(
                    dir,
                    format!("no {INDEX_FILE}: the set was not finished; build it again"),
                ));
            }
            Err(e) => return Err(MediaError::io(&path, "look at", e)),
        };
        if length > MOST_INDEX_BYTES {
            return Err(MediaError::shard(
                &path,
                format!("wanted at most {MOST_INDEX_BYTES} bytes, found {length}"),
            ));
        }
        let text = set.read(INDEX_FILE).map_err(|e| MediaError::io(&path, "read", e))?;
        let index: SetIndex =
            serde_json::from_slice(&text).map_err(|e| MediaError::shard(&path, e.to_string()))?;
        if index.format != FORMAT || index.version != super::VERSION {
            let (format, version) = (&index.format, index.version);
            let wanted = super::VERSION;
            return Err(MediaError::shard(
                &path,
                format!("wanted {FORMAT} version {wanted}, found {format} version {version}"),
            ));
        }
        let mut readers = Vec::new();
        for (i, listed) in index.shards.iter().enumerate() {
            if listed.file != shard_name(i as u64) {
                return Err(MediaError::shard(
                    &path,
                    format!("wanted the name {}, found {}", shard_name(i as u64), listed.file),
                ));
            }
            let reader = ShardReader::open(&dir.join(&listed.file))?;
            let meta = reader.meta();
            let same = reader.len() == listed.samples
                && reader.tokens() == listed.tokens
                && format!("{:016x}", reader.checksum()) == listed.checksum
                && meta.vocab_size == index.vocab_size
                && hex(&meta.tokenizer) == index.tokenizer
                && meta.ordinal as usize == i;
            if !same {
                return Err(MediaError::shard(
                    &dir.join(&listed.file),
                    format!("is not the file that {INDEX_FILE} lists"),
                ));
            }
            readers.push(reader);
        }
        let sums =
            (readers.iter().map(ShardReader::len).sum(), readers.iter().map(ShardReader::tokens).sum());
        if sums != (index.samples, index.tokens) {
            return Err(MediaError::shard(&path, "the sums of samples or tokens differ from the files"));
        }
        Ok((index, readers))
    }
}

/// Writes a set: `00000.media`, `00001.media`, ... and, last, `media-shards.json`. Samples are never cut; a file goes on to the next
/// before the sample that would make it longer than the limit. Names and bytes are a pure function of the samples pushed.
#[derive(Debug)]
pub struct SetWriter {
    dir: ConfinedDir,
    vocab_size: u32,
    tokenizer: [u8; 32],
    file_bytes: u64,
    current: Option<ShardWriter>,
    done: Vec<ShardSummary>,
}

impl SetWriter {
    /// Starts a set in `dir`, which is created; a list that is there is removed first, so that the set counts as unfinished.
    ///
    /// # Errors
    /// [`MediaError::Io`], [`MediaError::Argument`] for a file size of 0.
    pub fn create(dir: &Path, vocab_size: u32, tokenizer: [u8; 32], file_bytes: u64) -> Result<SetWriter> {
        if file_bytes == 0 || vocab_size == 0 {
            return Err(MediaError::Argument(
                "media shards: wanted a file size and a vocabulary of at least 1".into(),
            ));
        }
        let set = ConfinedDir::create_named(dir).map_err(|e| MediaError::io(dir, "create", e))?;
        match set.remove_file(INDEX_FILE) {
            Ok(()) => set.sync().map_err(|e| MediaError::io(dir, "sync", e))?,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => return Err(MediaError::io(&dir.join(INDEX_FILE), "remove", e)),
        }
        Ok(SetWriter { dir: set, vocab_size, tokenizer, file_bytes, current: None, done: Vec::new() })
    }

    /// Appends a sample.
    ///
    /// # Errors
    /// As [`ShardWriter::push`] and [`ShardWriter::finish`].
    pub fn push(&mut self, sample: &Sample) -> Result<()> {
        let bytes = (4 * sample.tokens.len() + sample.array.data().len() + sample.key.len()) as u64;
        if self
            .current
            .as_ref()
            .is_some_and(|w| w.samples() > 0 && w.file_bytes_with(bytes) > self.file_bytes)
        {
            self.finish_file()?;
        }
        if self.current.is_none() {
            let ordinal = u32::try_from(self.done.len())
                .map_err(|_| MediaError::Argument("more than 2^32 shard files".into()))?;
            let meta = ShardMeta { vocab_size: self.vocab_size, tokenizer: self.tokenizer, ordinal };
            self.current =
                Some(ShardWriter::create(&self.dir.path().join(shard_name(u64::from(ordinal))), meta)?);
        }
        self.current.as_mut().expect("a file was just started").push(sample)
    }

    fn finish_file(&mut self) -> Result<()> {
        if let Some(writer) = self.current.take() {
            self.done.push(writer.finish()?);
        }
        Ok(())
    }

    /// Finishes the last file, removes files of an earlier, longer set and of killed writers, and writes the list.
    ///
    /// # Errors
    /// [`MediaError::Io`]; the folder has no list then.
    pub fn finish(mut self, settings: serde_json::Value, counts: serde_json::Value) -> Result<SetIndex> {
        self.finish_file()?;
        let shards: Vec<ListedFile> = self
            .done
            .iter()
            .enumerate()
            .map(|(i, s)| ListedFile {
                file: shard_name(i as u64),
                samples: s.samples,
                tokens: s.tokens,
                file_bytes: s.file_bytes,
                checksum: format!("{:016x}", s.checksum),
            })
            .collect();
        let dir = self.dir.path();
        for (name, _) in self.dir.list("").map_err(|e| MediaError::io(dir, "list", e))? {
            let name = name.to_string_lossy().into_owned();
            let partial =
                name.strip_prefix('.').and_then(|n| n.strip_suffix(".partial")).is_some_and(is_shard_name);
            if partial || (is_shard_name(&name) && !shards.iter().any(|s| s.file == name)) {
                let removed = self.dir.remove_file(&name);
                removed.map_err(|e| MediaError::io(&dir.join(&name), "remove the stale file", e))?;
            }
        }
        let index = SetIndex {
            format: FORMAT.into(),
            version: super::VERSION,
            vocab_size: self.vocab_size,
            tokenizer: hex(&self.tokenizer),
            settings,
            counts,
            samples: shards.iter().map(|s| s.samples).sum(),
            tokens: shards.iter().map(|s| s.tokens).sum(),
            shards,
        };
        let path = dir.join(INDEX_FILE);
        let mut text =
            serde_json::to_vec_pretty(&index).map_err(|e| MediaError::shard(&path, e.to_string()))?;
        text.push(b'\n');
        self.dir.write(INDEX_FILE, &text).map_err(|e| MediaError::io(&path, "write", e))?;
        Ok(index)
    }
}
