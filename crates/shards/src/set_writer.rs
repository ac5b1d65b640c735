//! Writing one split as several shard files and their index.

use crate::component::{ListedComponent, check_name};
use crate::set_index::{INDEX_FILE, ListedFile, SetIndex, is_shard_name, shard_name};
use crate::writer::scored_of;
use crate::{DocumentId, Fingerprint, ShardError, ShardMeta, ShardWriter};
use bessemer_durable::{AsDir, ConfinedDir, EntryKind};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Default length of a file at which a set goes on to the next one: 256 MiB.
pub const DEFAULT_FILE_BYTES: u64 = 256 << 20;

/// Metadata that all files of one split share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SplitMeta {
    /// Name of the split: 1 to 32 of `a-z 0-9 - _`. It is also the name of the split's folder.
    pub split: String,
    /// Number of token ids.
    pub vocab_size: u32,
    /// The tokenizer that makes the tokens.
    pub tokenizer: Fingerprint,
}

/// Contents of a finished set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetSummary {
    /// The folder of the split.
    pub path: PathBuf,
    /// Number of shard files.
    pub files: u64,
    /// Tokens in them.
    pub tokens: u64,
    /// Documents in them.
    pub documents: u64,
    /// Bytes of the text that the tokens encode.
    pub text_bytes: u64,
    /// Tokens that are scored.
    pub scored: u64,
    /// Length of all shard files in bytes.
    pub file_bytes: u64,
}

/// Writes one split into `dir/SPLIT/`: `00000.shard`, `00001.shard`, … and, last, `shards.json`.
///
/// A document is never cut: a file goes on to the next before the document that would make it longer than
/// `file_bytes`, so that only a single document can exceed it. Names and contents are a pure function of the
/// documents pushed. Whatever an earlier writer left in the folder is invalidated first (its `shards.json` is
/// removed) and replaced. One writer a folder at a time.
#[derive(Debug)]
pub struct ShardSetWriter {
    dir: PathBuf,
    /// Handle of the folder through which all of its files are reached.
    own: ConfinedDir,
    meta: SplitMeta,
    file_bytes: u64,
    current: Option<ShardWriter>,
    done: Vec<ListedFile>,
    /// Tokens of these that are scored.
    scored: u64,
    components: Vec<ListedComponent>,
}

impl ShardSetWriter {
    /// Starts a split. Creates the folders that are missing and removes a `shards.json` that is there.
    ///
    /// # Errors
    /// [`ShardError::Meta`] for values that the format does not allow, [`ShardError::Io`].
    pub fn create(dir: impl AsDir, meta: SplitMeta, file_bytes: u64) -> Result<Self, ShardError> {
        let root = dir.as_new_dir().map_err(|e| ShardError::io(Path::new(""), "open", e))?;
        let dir = root.path().join(&meta.split);
        let wrong = |what: String| ShardError::Meta { path: dir.clone(), what };
        file_meta(&meta, 0).check().map_err(wrong)?;
        if file_bytes == 0 {
            return Err(wrong("file_bytes: wanted at least 1, found 0".into()));
        }
        // What stands behind a symbolic link is somebody else's set: nothing of it is replaced or removed.
        let own = root.create_dir(&meta.split).map_err(|e| ShardError::io(&dir, "write into", e))?;
        root.sync().map_err(|e| ShardError::write(&dir, e))?;
        // From here until the new index is there, the folder is not a finished set.
        match own.remove_file(INDEX_FILE) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                return Err(ShardError::io(&dir, "remove the index of an earlier set in", e));
            }
            _ => own.sync().map_err(|e| ShardError::write(&dir, e))?,
        }
        let (current, done, components) = (None, Vec::new(), Vec::new());
        Ok(ShardSetWriter { dir, own, meta, file_bytes, current, done, scored: 0, components })
    }

    /// Begins a component of a training mixture: the documents pushed from here on belong to it, until the next one
    /// begins. A split has either no component or every document in one; a component may have no document.
    ///
    /// # Errors
    /// [`ShardError::Meta`] for a name that is none or was used before, and where documents were pushed before the first.
    pub fn begin_component(&mut self, name: &str) -> Result<(), ShardError> {
        let wrong = |what: String| ShardError::Meta { path: self.dir.clone(), what };
        check_name(name).map_err(wrong)?;
        if self.components.iter().any(|component| component.name == name) {
            return Err(wrong(format!("component {name:?} was begun before")));
        }
        if self.components.is_empty() && (self.current.is_some() || !self.done.is_empty()) {
            return Err(wrong(format!("component {name:?} begins after documents of no component")));
        }
        self.components.push(ListedComponent { name: name.into(), ..ListedComponent::default() });
        Ok(())
    }

    /// Appends one document, all tokens of which are scored; see [`ShardWriter::push_document`].
    ///
    /// # Errors
    /// As [`ShardWriter::push_document`] and [`ShardWriter::finish`].
    pub fn push_document(
        &mut self,
        id: DocumentId,
        text_bytes: u64,
        tokens: &[u32],
    ) -> Result<(), ShardError> {
        self.push_scored(id, text_bytes, tokens, std::slice::from_ref(&(0..tokens.len())))
    }

    /// Appends one document of which only the tokens at `scored` are scored; see [`ShardWriter::push_scored`].
    ///
    /// # Errors
    /// As [`ShardWriter::push_scored`] and [`ShardWriter::finish`].
    pub fn push_scored(
        &mut self,
        id: DocumentId,
        text_bytes: u64,
        tokens: &[u32],
        scored: &[Range<usize>],
    ) -> Result<(), ShardError> {
        let (all, of_them) = (tokens.len() as u64, scored_of(scored));
        let full = self
            .current
            .as_ref()
            .is_some_and(|w| w.documents() > 0 && w.file_bytes_with(all, of_them) > self.file_bytes);
        if full {
            self.finish_file()?;
        }
        if self.current.is_none() {
            self.current = Some(self.next_file()?);
        }
        let writer = self.current.as_mut().expect("a file was just started");
        writer.push_scored(id, text_bytes, tokens, scored)?;
        if let Some(component) = self.components.last_mut() {
            component.tokens += tokens.len() as u64;
            component.documents += 1;
            component.text_bytes += text_bytes;
        }
        Ok(())
    }

    /// Finishes the last file, removes shard files of an earlier, longer set and writes `shards.json`. A split
    /// without documents gets one empty file.
    ///
    /// # Errors
    /// [`ShardError::Io`]; the folder has no `shards.json` then.
    pub fn finish(mut self) -> Result<SetSummary, ShardError> {
        if self.current.is_none() && self.done.is_empty() {
            self.current = Some(self.next_file()?);
        }
        self.finish_file()?;
        self.remove_stale()?;
        let files = std::mem::take(&mut self.done);
        let file_bytes = files.iter().map(|f| f.file_bytes).sum();
        let components = std::mem::take(&mut self.components);
        let meta = &self.meta;
        let index = SetIndex::new(&meta.split, meta.vocab_size, meta.tokenizer, components, files);
        index.write(&self.own)?;
        Ok(SetSummary {
            path: self.dir,
            files: index.shards.len() as u64,
            tokens: index.tokens,
            documents: index.documents,
            text_bytes: index.text_bytes,
            scored: self.scored,
            file_bytes,
        })
    }

    fn next_file(&self) -> Result<ShardWriter, ShardError> {
        let ordinal = u32::try_from(self.done.len()).map_err(|_| ShardError::Meta {
            path: self.dir.clone(),
            what: "a split holds at most 2^32 files".into(),
        })?;
        ShardWriter::create_in(&self.own, &shard_name(ordinal), file_meta(&self.meta, ordinal))
    }

    fn finish_file(&mut self) -> Result<(), ShardError> {
        let Some(writer) = self.current.take() else { return Ok(()) };
        let summary = writer.finish()?;
        self.scored += summary.scored;
        self.done.push(ListedFile {
            file: shard_name(self.done.len() as u32),
            tokens: summary.tokens,
            documents: summary.documents,
            text_bytes: summary.text_bytes,
            file_bytes: summary.file_bytes,
            checksum: format!("{:016x}", summary.checksum),
        });
        Ok(())
    }

    /// Removes shard files that an earlier set had beyond this one, and what a killed writer left.
    fn remove_stale(&self) -> Result<(), ShardError> {
        let error = |e| ShardError::io(&self.dir, "remove stale files of", e);
        for (name, kind) in self.own.list("").map_err(error)? {
            let Some(name) = name.to_str().filter(|_| kind == EntryKind::File) else { continue };
            let listed = self.done.iter().any(|f| f.file == name);
            let left_over = name.strip_prefix('.').and_then(|n| n.strip_suffix(".partial"));
            if (is_shard_name(name) && !listed) || left_over.is_some_and(is_shard_name) {
                self.own.remove_file(name).map_err(error)?;
            }
        }
        Ok(())
    }
}

fn file_meta(meta: &SplitMeta, ordinal: u32) -> ShardMeta {
    ShardMeta { vocab_size: meta.vocab_size, tokenizer: meta.tokenizer, split: meta.split.clone(), ordinal }
}
