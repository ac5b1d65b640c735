//! Saving: everything is written and synced under a hidden name, the manifest last; one rename makes it a checkpoint.
//!
//! ```text
//! plan · lock · sweep leftovers · room?              nothing written yet: an impossible request ends here
//! mkdir .step-N.partial-PID
//! each tensor file: create, write, fsync
//! manifest.json:    create, write, fsync
//! fsync .step-N.partial-PID                          names of the files
//! rename to step-N                                   readers see all of it or nothing
//! fsync the store's directory                        the name; only now is it reported
//! ```
//! An error up to the rename removes the hidden directory. A crash leaves it, and no reader looks at it.

use crate::error::{At, CheckpointError, Result};
use crate::format::{Layout, split, write_file};
use crate::fs::create_dir_durably;
use crate::manifest::{FileRecord, MANIFEST_NAME, Manifest, SliceRecord, TensorRecord};
use crate::publish::{Hidden, Unfinished};
use crate::source::TensorSource;
use crate::store::{Store, is_checkpoint_file, step_name};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// What to save.
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
    /// Told (done, total) bytes while writing.
    pub progress: &'a mut dyn FnMut(u64, u64),
}

/// A checkpoint that is on stable storage.
#[derive(Debug, Clone, PartialEq)]
pub struct SaveReport {
    /// Its directory.
    pub path: PathBuf,
    /// Bytes written, manifest included.
    pub bytes: u64,
    /// Wall-clock seconds from call to durable.
    pub seconds: f64,
    /// Leftovers of interrupted saves that were removed.
    pub cleaned: Vec<PathBuf>,
    /// Where something that had the checkpoint's name and is not this program's to remove now stands: a symbolic link, or
    /// a directory with files of others.
    pub set_aside: Option<PathBuf>,
}

/// A file of the checkpoint before it is written.
struct PlannedFile {
    name: String,
    layout: Layout,
}

impl Store {
    /// Saves a checkpoint; when this returns `Ok`, it survives a power cut.
    ///
    /// On an error nothing that was there before has changed, with one exception that the error names as "sync" of the
    /// store's directory: then the new checkpoint is complete, but may be lost in a power cut. A checkpoint of the same
    /// step is replaced in one atomic exchange. A tensor with a value that is not finite is refused by name.
    ///
    /// Memory: one tensor as f32, plus 4 MiB.
    pub fn save(&self, mut request: SaveRequest<'_>) -> Result<SaveReport> {
        let started = Instant::now();
        let files = plan(&request)?;
        let total: u64 = files.iter().map(|f| f.layout.bytes).fold(0, u64::saturating_add);

        self.check_own()?;
        create_dir_durably(self.fs.as_ref(), &self.dir).at("create", &self.dir)?;
        let lock = self.lock()?;
        let cleaned = self.sweep(lock.is_some());
        if let Ok(free) = self.fs.free_bytes(&self.dir) {
            // The manifest: its text for each tensor, state and recipe; a MiB more than enough for block rounding.
            let needed = total.saturating_add(1 << 20).saturating_add(request.recipe.len() as u64);
            if free < needed {
                return Err(CheckpointError::NoSpace { dir: self.dir.clone(), needed, free });
            }
        }

        let hidden = Hidden {
            fs: self.fs.as_ref(),
            root: &self.dir,
            partial: self.hidden(request.step, "partial"),
            target: step_name(request.step),
            aside: self.hidden(request.step, "replaced"),
            is_ours: &is_checkpoint_file,
        };
        let written = self.write_all(&hidden.path(), &files, total, &mut request);
        let published = written.and_then(|bytes| Ok((bytes, hidden.publish()?)));
        let (bytes, set_aside) = published.map_err(|unfinished| unfinished.clean(&hidden))?;
        Ok(SaveReport {
            path: self.path(request.step),
            bytes,
            seconds: started.elapsed().as_secs_f64(),
            cleaned,
            set_aside,
        })
    }

    /// Writes and syncs everything into `partial`.
    fn write_all(
        &self,
        partial: &Path,
        files: &[PlannedFile],
        total: u64,
        request: &mut SaveRequest<'_>,
    ) -> std::result::Result<u64, Unfinished> {
        let fs = self.fs.as_ref();
        // A directory that is there already belongs to somebody else.
        fs.create_dir(partial).at("create", partial).map_err(Unfinished::keep)?;
        let mut done = 0;
        let mut records = Vec::new();
        for f in files {
            let path = partial.join(&f.name);
            let mut file = fs.create_file(&path).at("create", &path)?;
            let progress = &mut request.progress;
            let mut advance = |n: u64| {
                done += n;
                progress(done, total);
            };
            let w = write_file(file.as_mut(), &path, &f.layout, request.tensors, &mut advance)?;
            records.push(FileRecord { name: f.name.clone(), bytes: w.bytes, blake3: w.blake3 });
        }
        let manifest = Manifest {
            step: request.step,
            tokens: request.tokens,
            writer: format!("bessemer {}", env!("CARGO_PKG_VERSION")),
            tokenizer: request.tokenizer.take(),
            recipe: std::mem::take(&mut request.recipe),
            state: request.state.take(),
            files: records,
            tensors: tensor_records(request.tensors, files),
        };
        let bytes = manifest
            .to_bytes()
            .map_err(|problem| CheckpointError::Request { step: request.step, problem })?;
        let path = partial.join(MANIFEST_NAME);
        let mut file = fs.create_file(&path).at("create", &path)?;
        file.write_all(&bytes).at("write", &path)?;
        file.sync().at("sync", &path)?;
        fs.sync_dir(partial).at("sync", partial)?;
        Ok(total + bytes.len() as u64)
    }
}

/// Lays out the files, and refuses what could not be read back.
fn plan(request: &SaveRequest<'_>) -> Result<Vec<PlannedFile>> {
    let wrong = |problem: String| CheckpointError::Request { step: request.step, problem };
    if !request.state.is_object() {
        return Err(wrong("state: wanted a JSON object".into()));
    }
    let specs = request.tensors.specs();
    let mut names = std::collections::HashSet::new();
    if let Some(twice) = specs.iter().find(|s| !names.insert(s.name.as_str())) {
        return Err(wrong(format!("tensor {:?} is given twice", twice.name)));
    }
    let groups = split(specs, request.max_file_bytes);
    let count = groups.len();
    groups
        .iter()
        .enumerate()
        .map(|(i, members)| {
            let name = format!("shard-{:05}-of-{count:05}.safetensors", i + 1);
            let layout = Layout::plan(specs, members, &[("format", "pt")]).map_err(wrong)?;
            Ok(PlannedFile { name, layout })
        })
        .collect()
}

fn tensor_records(source: &dyn TensorSource, files: &[PlannedFile]) -> Vec<TensorRecord> {
    let specs = source.specs();
    let mut records: Vec<Option<TensorRecord>> = vec![None; specs.len()];
    for (file, planned) in files.iter().enumerate() {
        for (i, offset, bytes) in &planned.layout.tensors {
            let s = &specs[*i];
            let slice = SliceRecord {
                file,
                offset: *offset,
                bytes: *bytes,
                start: vec![0; s.shape.len()],
                shape: s.shape.clone(),
            };
            records[*i] = Some(TensorRecord {
                name: s.name.clone(),
                dtype: s.dtype,
                shape: s.shape.clone(),
                slices: vec![slice],
            });
        }
    }
    records.into_iter().flatten().collect()
}
