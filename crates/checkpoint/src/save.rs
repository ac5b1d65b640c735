//! Saving: every rank writes and syncs its files under a hidden name, the committing rank writes the manifest last, and one rename
//! makes it a checkpoint.
//!
//! ```text
//! committing rank                                    every rank
//! plan · lock · sweep leftovers · room?              nothing written yet: an impossible request ends here
//! mkdir .step-N.partial-PID          ── ticket ──►   each tensor file: create, write, fsync
//!                                                    fsync .step-N.partial-PID (the names of the files)
//!                                    ◄── part ───    names, lengths, checksums, slices; no tensor
//! each file of other ranks: there, with its length?
//! manifest.json: create, write, fsync
//! fsync .step-N.partial-PID
//! rename to step-N                                   readers see all of it or nothing
//! fsync the store's directory                        the name; only now is it reported
//! ```
//! An error up to the rename, or a part that never comes, removes the hidden directory. A crash leaves it, and no reader looks at
//! it. A save by one rank ([`Store::save`]) is the same with one part.

use crate::compressed::SUFFIX;
use crate::error::{At, CheckpointError, Result};
use crate::format::{Layout, split, write_file};
use crate::fs::{LockGuard, create_dir_durably, remove_files};
use crate::manifest::{FileRecord, MANIFEST_NAME, Manifest, Previous, SliceRecord, TensorRecord};
use crate::publish::{Hidden, Unfinished};
use crate::slices::entry_name;
use crate::source::{TensorSource, TensorSpec};
use crate::store::{Store, create_part, is_checkpoint_file, open_part, step_name};
use bessemer_mesh::BoxRange;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Instant;

/// Contents of a save.
pub struct SaveRequest<'a> {
    /// Optimizer steps done.
    pub step: u64,
    /// Training tokens consumed.
    pub tokens: u64,
    /// State of trainer, loader and random number generators: a JSON object.
    pub state: serde_json::Value,
    /// The resolved recipe, as text.
    pub recipe: String,
    /// Fingerprint of the tokenizer, if there is one.
    pub tokenizer: Option<String>,
    /// The tensors.
    pub tensors: &'a mut dyn TensorSource,
    /// Largest tensor file in bytes; a larger tensor gets a file of its own.
    pub max_file_bytes: u64,
    /// Called with (done, total) bytes while writing.
    pub progress: &'a mut dyn FnMut(u64, u64),
}

/// A checkpoint that is on stable storage.
#[derive(Debug, Clone, PartialEq)]
pub struct SaveReport {
    /// Its directory.
    pub path: PathBuf,
    /// Bytes of all ranks before compression, manifest included.
    pub bytes: u64,
    /// Wall-clock seconds from call to durable.
    pub seconds: f64,
    /// Leftovers of interrupted saves that were removed.
    pub cleaned: Vec<PathBuf>,
    /// Where something that had the checkpoint's name and is not this program's to remove now stands: a symbolic link, or
    /// a directory with files of others.
    pub set_aside: Option<PathBuf>,
}

/// Name of the hidden directory of a save, for the other ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SaveTicket {
    /// Step of the checkpoint.
    pub step: u64,
    /// Process number of the committing rank.
    pub process: u32,
}

/// A box of a tensor that a rank writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSlice {
    /// Number of the tensor among those of the checkpoint.
    pub tensor: usize,
    /// The box.
    pub part: BoxRange,
}

/// One rank's share of a save.
pub struct PartRequest<'a> {
    /// The rank, counted from 0. Rank 0 is the one that commits.
    pub rank: usize,
    /// Ranks that write.
    pub ranks: usize,
    /// The boxes that this rank writes, one entry each, described by [`slice_specs`].
    pub tensors: &'a mut dyn TensorSource,
    /// Where these boxes lie, in the order of the entries.
    pub slices: &'a [TensorSlice],
    /// Largest tensor file in bytes; a larger box gets a file of its own.
    pub max_file_bytes: u64,
    /// Called with (done, total) bytes of this rank while writing.
    pub progress: &'a mut dyn FnMut(u64, u64),
}

/// What a rank has written and synced: small enough to be sent to the rank that commits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WrittenPart {
    files: Vec<FileRecord>,
    slices: Vec<WrittenSlice>,
}

/// A box in one of a rank's files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenSlice {
    tensor: usize,
    /// `file` counts the rank's own files.
    record: SliceRecord,
}

impl WrittenPart {
    /// Bytes of the rank's files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|f| f.bytes).sum()
    }
}

/// Contents of a checkpoint besides the values of its tensors.
#[derive(Debug, Clone, PartialEq)]
pub struct Contents {
    /// Training tokens consumed.
    pub tokens: u64,
    /// State of trainer, loader and random number generators: a JSON object.
    pub state: serde_json::Value,
    /// The resolved recipe, as text.
    pub recipe: String,
    /// Fingerprint of the tokenizer, if there is one.
    pub tokenizer: Option<String>,
    /// The whole tensors.
    pub tensors: Vec<TensorSpec>,
}

/// An unfinished save, on the rank that commits it. Dropped without [`SaveInProgress::commit`] it is abandoned: what was written is
/// removed, and nothing that was there before has changed.
pub struct SaveInProgress {
    store: Store,
    ticket: SaveTicket,
    started: Instant,
    cleaned: Vec<PathBuf>,
    previous: Option<Previous>,
    /// Whether the hidden directory is still to be removed.
    open: bool,
    _lock: Option<Box<dyn LockGuard>>,
}

/// A file of the checkpoint before it is written.
struct PlannedFile {
    name: String,
    layout: Layout,
}

/// Name, shape and type of each box as an entry of a file. `tensors` are the whole ones.
pub fn slice_specs(tensors: &[TensorSpec], slices: &[TensorSlice]) -> Vec<TensorSpec> {
    let spec = |s: &TensorSlice| {
        let whole = &tensors[s.tensor];
        let name = entry_name(&whole.name, &whole.shape, &s.part);
        TensorSpec { name, shape: s.part.shape.clone(), dtype: whole.dtype }
    };
    slices.iter().map(spec).collect()
}

impl Store {
    /// Saves a checkpoint; when this returns `Ok`, it survives a power cut.
    ///
    /// On an error nothing that was there before has changed, with one exception that the error names as "sync" of the
    /// store's directory: then the new checkpoint is complete, but may be lost in a power cut. A checkpoint of the same
    /// step is replaced in one atomic exchange. A tensor with a value that is not finite is refused by name.
    ///
    /// Memory: 16 MiB, and one tensor as f32 if the source gives whole tensors only.
    pub fn save(&self, request: SaveRequest<'_>) -> Result<SaveReport> {
        let tensors = request.tensors.specs().to_vec();
        let whole = |(tensor, spec): (usize, &TensorSpec)| {
            let part = BoxRange { start: vec![0; spec.shape.len()], shape: spec.shape.clone() };
            TensorSlice { tensor, part }
        };
        let slices: Vec<_> = tensors.iter().enumerate().map(whole).collect();
        let contents = Contents {
            tokens: request.tokens,
            state: request.state,
            recipe: request.recipe,
            tokenizer: request.tokenizer,
            tensors,
        };
        contents.check(request.step)?;
        let mut part = PartRequest {
            rank: 0,
            ranks: 1,
            tensors: request.tensors,
            slices: &slices,
            max_file_bytes: request.max_file_bytes,
            progress: request.progress,
        };
        // Refused before anything is written.
        let files = plan(request.step, &part, self.compresses)?;
        let bytes = files.iter().map(|f| f.layout.bytes).fold(0, u64::saturating_add);
        let saving = self.begin(request.step, bytes.saturating_add(contents.recipe.len() as u64))?;
        let part = self.write_files(saving.ticket(), files, &mut part)?;
        saving.commit(vec![part], contents)
    }

    /// Begins a save of `bytes` bytes by several ranks, on the one that commits: takes the store's lock, removes what interrupted saves left, and makes
    /// the hidden directory. Each rank then calls [`Store::write_part`], and this one [`SaveInProgress::commit`].
    ///
    /// # Errors
    /// Another process that saves here, or less space than `bytes`, all ranks' together.
    pub fn begin(&self, step: u64, bytes: u64) -> Result<SaveInProgress> {
        let started = Instant::now();
        self.check_own()?;
        create_dir_durably(self.fs.as_ref(), &self.dir).at("create", &self.dir)?;
        let lock = self.lock()?;
        let cleaned = self.sweep(lock.is_some());
        if let Ok(free) = self.fs.free_bytes(&self.dir) {
            let needed = Store::space_for(bytes);
            if free < needed {
                return Err(CheckpointError::NoSpace { dir: self.dir.clone(), needed, free });
            }
        }
        let previous = self.newest_before(step);
        let ticket = SaveTicket { step, process: std::process::id() };
        // A directory that is there already belongs to somebody else.
        let partial = self.partial(ticket);
        self.fs.create_dir(&partial).at("create", &partial)?;
        Ok(SaveInProgress {
            store: self.clone(),
            ticket,
            started,
            cleaned,
            previous,
            open: true,
            _lock: lock,
        })
    }

    /// Writes this rank's files of a save that rank 0 has begun. When it returns `Ok`, they and their names survive a power cut.
    ///
    /// # Errors
    /// A box that could not be read back, a value that is not finite, or the file system's answer; on ranks other than 0 a
    /// directory that is not there, because the ranks do not see the same files.
    pub fn write_part(&self, ticket: SaveTicket, mut part: PartRequest<'_>) -> Result<WrittenPart> {
        let files = plan(ticket.step, &part, self.compresses)?;
        let written = self.write_files(ticket, files, &mut part)?;
        if part.rank > 0 {
            // The committing rank syncs it when the manifest is in it; other hosts must do it themselves.
            let partial = self.partial(ticket);
            self.fs.sync_dir(&partial).at("sync", &partial)?;
        }
        Ok(written)
    }

    pub(crate) fn partial(&self, ticket: SaveTicket) -> PathBuf {
        self.dir.join(self.hidden_of(ticket.step, "partial", ticket.process))
    }

    /// Writes and syncs a rank's files.
    fn write_files(
        &self,
        ticket: SaveTicket,
        files: Vec<PlannedFile>,
        part: &mut PartRequest<'_>,
    ) -> Result<WrittenPart> {
        let total: u64 = files.iter().map(|f| f.layout.bytes).fold(0, u64::saturating_add);
        let (partial, mut done) = (self.partial(ticket), 0);
        let mut written = WrittenPart { files: Vec::new(), slices: Vec::new() };
        for (number, f) in files.into_iter().enumerate() {
            let path = partial.join(&f.name);
            let mut file = create_part(self.fs.as_ref(), &path)?;
            let progress = &mut part.progress;
            let mut advance = |n: u64| {
                done += n;
                progress(done, total);
            };
            let w = write_file(file.as_mut(), &path, &f.layout, part.tensors, &mut advance)?;
            for (entry, offset, bytes) in &f.layout.tensors {
                let TensorSlice { tensor, part } = part.slices[*entry].clone();
                let (start, shape) = (part.start, part.shape);
                let record = SliceRecord { file: number, offset: *offset, bytes: *bytes, start, shape };
                written.slices.push(WrittenSlice { tensor, record });
            }
            let (name, bytes, blake3) = (f.name, w.bytes, w.blake3);
            let record = FileRecord { name, bytes, blake3, chunk_bytes: w.chunk_bytes, chunks: w.chunks };
            written.files.push(record);
        }
        Ok(written)
    }
}

impl SaveInProgress {
    /// Ticket for the other ranks.
    pub fn ticket(&self) -> SaveTicket {
        self.ticket
    }

    /// Makes what all ranks have written a checkpoint: `parts` in the order of the ranks. When this returns `Ok`, it survives a
    /// power cut.
    ///
    /// # Errors
    /// Slices that leave a gap or overlap, a rank's file that is not seen here, or the file system's answer; as
    /// [`Store::save`], with nothing changed.
    pub fn commit(mut self, parts: Vec<WrittenPart>, contents: Contents) -> Result<SaveReport> {
        contents.check(self.ticket.step)?;
        let written = self.write_manifest(parts, contents);
        self.publish(written)
    }

    /// Makes the hidden directory, which has its manifest and `written` bytes, a checkpoint.
    pub(crate) fn publish(mut self, written: Result<u64>) -> Result<SaveReport> {
        let store = self.store.clone();
        let hidden = Hidden {
            fs: store.fs.as_ref(),
            root: &store.dir,
            partial: store.hidden(self.ticket.step, "partial"),
            target: step_name(self.ticket.step),
            aside: store.hidden(self.ticket.step, "replaced"),
            is_ours: &is_checkpoint_file,
        };
        let written = written.map_err(Unfinished::from);
        let published = written.and_then(|bytes| Ok((bytes, hidden.publish()?)));
        // Removed right here if it is to be removed at all.
        self.open = false;
        let (bytes, set_aside) = published.map_err(|unfinished| unfinished.clean(&hidden))?;
        Ok(SaveReport {
            path: store.path(self.ticket.step),
            bytes,
            seconds: self.started.elapsed().as_secs_f64(),
            cleaned: std::mem::take(&mut self.cleaned),
            set_aside,
        })
    }

    /// Writes and syncs the manifest, and returns the bytes of all files.
    fn write_manifest(&mut self, parts: Vec<WrittenPart>, contents: Contents) -> Result<u64> {
        let step = self.ticket.step;
        let wrong = |problem| CheckpointError::Request { step, problem };
        let (fs, partial) = (self.store.fs.as_ref(), self.store.partial(self.ticket));
        for file in parts.iter().skip(1).flat_map(|p| &p.files) {
            let path = partial.join(&file.name);
            let found = open_part(fs, &path)?.size().at("read the size of", &path)?;
            if found != file.bytes {
                return Err(CheckpointError::Size { file: path, expected: file.bytes, found });
            }
        }
        let record =
            |t: TensorSpec| TensorRecord { name: t.name, dtype: t.dtype, shape: t.shape, slices: Vec::new() };
        let mut tensors: Vec<TensorRecord> = contents.tensors.into_iter().map(record).collect();
        let mut files = Vec::new();
        for part in parts {
            for WrittenSlice { tensor, mut record } in part.slices {
                record.file += files.len();
                let t = tensors.get_mut(tensor);
                t.ok_or_else(|| wrong(format!("a slice of tensor {tensor}")))?.slices.push(record);
            }
            files.extend(part.files);
        }
        let manifest = Manifest {
            step,
            tokens: contents.tokens,
            writer: format!("bessemer {}", env!("CARGO_PKG_VERSION")),
            tokenizer: contents.tokenizer,
            recipe: contents.recipe,
            state: contents.state,
            previous: self.previous.take(),
            files,
            tensors,
        };
        let bytes = manifest.to_bytes().map_err(wrong)?;
        let path = partial.join(MANIFEST_NAME);
        let mut file = fs.create_file(&path).at("create", &path)?;
        file.write_all(&bytes).at("write", &path)?;
        file.sync().at("sync", &path)?;
        fs.sync_dir(&partial).at("sync", &partial)?;
        Ok(manifest.bytes() + bytes.len() as u64)
    }
}

impl Drop for SaveInProgress {
    fn drop(&mut self) {
        if self.open {
            let name = self.store.hidden(self.ticket.step, "partial");
            // Best effort: the next save sweeps what stays.
            let _ = remove_files(self.store.fs.as_ref(), &self.store.dir, &name, &is_checkpoint_file);
        }
    }
}

impl Contents {
    fn check(&self, step: u64) -> Result<()> {
        let wrong = |problem: String| Err(CheckpointError::Request { step, problem });
        if !self.state.is_object() {
            return wrong("state: wanted a JSON object".into());
        }
        let mut names = std::collections::HashSet::new();
        match self.tensors.iter().find(|s| !names.insert(s.name.as_str())) {
            Some(twice) => wrong(format!("tensor {:?} is given twice", twice.name)),
            None => Ok(()),
        }
    }
}

/// Lays out a rank's files, and refuses what could not be read back. A rank of several that has nothing writes no file.
fn plan(step: u64, part: &PartRequest<'_>, compresses: bool) -> Result<Vec<PlannedFile>> {
    let wrong = |problem: String| CheckpointError::Request { step, problem };
    let specs = part.tensors.specs();
    if specs.len() != part.slices.len() {
        let problem = format!("{} tensors are given for {} slices", specs.len(), part.slices.len());
        return Err(wrong(problem));
    }
    let mut groups = split(specs, part.max_file_bytes);
    let of_rank = match part.ranks {
        0 | 1 => String::new(),
        _ => {
            groups.retain(|members| !members.is_empty());
            format!("rank-{:05}-", part.rank)
        }
    };
    let count = groups.len();
    let file = |(i, members): (usize, &Vec<usize>)| {
        let suffix = if compresses { SUFFIX } else { "" };
        let name = format!("{of_rank}shard-{:05}-of-{count:05}.safetensors{suffix}", i + 1);
        Ok(PlannedFile { name, layout: Layout::plan(specs, members, &[("format", "pt")]).map_err(wrong)? })
    };
    groups.iter().enumerate().map(file).collect()
}
