//! Loading: nothing is used before it has been held against its checksum.

use crate::ahead::{ChunkCache, ChunkId};
use crate::compare::MatchReport;
use crate::error::{CheckpointError, Result, SourceError};
use crate::format::{self, SafetensorsFile};
use crate::fs::{FileSystem, OsFileSystem};
use crate::manifest::{Manifest, SliceRecord, TensorRecord};
use crate::slices::{Copied, Wanted, entry_name};
use crate::source::{TensorSource, TensorSpec};
use crate::store::{open_part, read_manifest};
use crate::verified::{VerifiedFile, verify_all};
use bessemer_mesh::BoxRange;
use bessemer_tensor::host::HostTensor;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// Elements read at a time.
const BLOCK: usize = 1 << 18;
/// Elements that are read and thrown away rather than leaving a gap between two reads.
const GAP: usize = 1 << 12;

/// A checkpoint whose bytes are verified: all of them before anything is used ([`Loaded::open`]), or each chunk of a file when
/// something of it is read first ([`crate::Store::load_lazily`]). Files stay open: what is read later comes from the files that
/// were verified, even if their names change hands meanwhile.
pub struct Loaded {
    path: PathBuf,
    manifest: Manifest,
    files: Vec<OnceLock<OpenFile>>,
    index: HashMap<String, usize>,
    /// Slices of each file: tensor and slice.
    slices: Vec<Vec<(usize, usize)>>,
    /// Directory of files that are not open yet.
    fs: Option<Arc<dyn FileSystem>>,
    cache: Arc<ChunkCache>,
}

/// A file whose header is verified.
struct OpenFile {
    tensors: SafetensorsFile,
    bytes: Arc<VerifiedFile>,
}

/// Chunks of a checkpoint that somebody will read, in their order ([`Loaded::plan_reads`]).
#[derive(Debug, Clone, Default)]
pub struct ReadPlan {
    chunks: Vec<ChunkId>,
}

impl std::fmt::Debug for Loaded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loaded").field("path", &self.path).field("manifest", &self.manifest).finish()
    }
}

impl Loaded {
    /// Opens and verifies the checkpoint in a directory, wherever it stands.
    pub fn open(path: &Path) -> Result<Loaded> {
        Loaded::open_on(&OsFileSystem, path, &mut |_, _| {})
    }

    /// The same on another file system; `progress` is called with (done, total) bytes.
    pub fn open_on(fs: &dyn FileSystem, path: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<Loaded> {
        let loaded = Loaded::of(path, read_manifest(fs, path)?, None);
        // Presence and size of all, before hashing any.
        let open: Vec<_> =
            (0..loaded.files.len()).map(|number| loaded.open_file(fs, number)).collect::<Result<_>>()?;
        let (total, mut done) = (loaded.manifest.bytes(), 0);
        verify_all(&open, &mut |n| {
            done += n;
            progress(done, total);
        })?;
        for (number, file) in open.into_iter().enumerate() {
            // Nobody else has it yet.
            let _ = loaded.files[number].set(loaded.check_header(number, file)?);
        }
        Ok(loaded)
    }

    /// A checkpoint whose files are opened when something in them is read.
    pub(crate) fn lazy(fs: Arc<dyn FileSystem>, path: &Path, manifest: Manifest) -> Loaded {
        Loaded::of(path, manifest, Some(fs))
    }

    fn of(path: &Path, manifest: Manifest, fs: Option<Arc<dyn FileSystem>>) -> Loaded {
        let index = manifest.tensors.iter().enumerate().map(|(i, t)| (t.name.clone(), i)).collect();
        let mut slices = vec![Vec::new(); manifest.files.len()];
        for (tensor, record) in manifest.tensors.iter().enumerate() {
            for (slice, s) in record.slices.iter().enumerate() {
                slices[s.file].push((tensor, slice));
            }
        }
        let files = manifest.files.iter().map(|_| OnceLock::new()).collect();
        Loaded { path: path.into(), manifest, files, index, slices, fs, cache: Arc::default() }
    }

    fn open_file(&self, fs: &dyn FileSystem, number: usize) -> Result<Arc<VerifiedFile>> {
        let record = &self.manifest.files[number];
        let path = self.path.join(&record.name);
        let file = VerifiedFile::new(open_part(fs, &path)?, &path, record, number, Arc::clone(&self.cache));
        file.map(Arc::new)
    }

    /// Reads the header of a file. Manifest and header must describe the same bytes: otherwise two readers would see two models.
    fn check_header(&self, number: usize, bytes: Arc<VerifiedFile>) -> Result<OpenFile> {
        let path = self.path.join(&self.manifest.files[number].name);
        let file = SafetensorsFile::from_file(Box::new(Arc::clone(&bytes)), &path)?;
        for (tensor, slice) in &self.slices[number] {
            let t = &self.manifest.tensors[*tensor];
            let s = &t.slices[*slice];
            let agrees = entry_of(&file, t, s).is_some_and(|e| {
                e.stored.dtype() == Some(t.dtype)
                    && e.shape == s.shape
                    && file.data_start() + e.begin == s.offset
                    && e.end - e.begin == s.bytes
            });
            if !agrees {
                return Err(CheckpointError::Tensor {
                    file: path,
                    name: t.name.clone(),
                    problem: "the file's header and the manifest describe it differently".into(),
                });
            }
        }
        Ok(OpenFile { tensors: file, bytes })
    }

    /// An open file whose header is verified.
    fn file(&self, number: usize) -> Result<&OpenFile> {
        if let (None, Some(fs)) = (self.files[number].get(), &self.fs) {
            let file = self.check_header(number, self.open_file(fs.as_ref(), number)?)?;
            // Another thread may have been faster, with the same result.
            let _ = self.files[number].set(file);
        }
        self.files[number].get().ok_or_else(|| CheckpointError::MissingFile {
            file: self.path.join(&self.manifest.files[number].name),
        })
    }

    /// Bytes of tensor files that were read so far, those that only verify others included.
    pub fn bytes_read(&self) -> u64 {
        self.cache.bytes_read()
    }

    /// Its directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Contents.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Gives up the files and keeps the description.
    pub fn into_manifest(self) -> Manifest {
        self.manifest
    }

    /// The description of one tensor.
    pub fn tensor(&self, name: &str) -> Option<&TensorRecord> {
        self.index.get(name).map(|i| &self.manifest.tensors[*i])
    }

    /// Reads a tensor into memory.
    pub fn read_tensor(&self, name: &str) -> Result<HostTensor> {
        let t = self.require(name)?;
        let mut values = vec![0.0; t.shape.iter().product()];
        self.read_runs(name, &[(0, values.len())], &mut values)?;
        Ok(HostTensor { name: name.into(), shape: t.shape.clone(), dtype: t.dtype, values })
    }

    /// Reads a tensor into `values`, which has exactly its number of elements.
    pub fn read_into(&self, name: &str, values: &mut [f32]) -> Result<()> {
        let elements = self.require(name)?.shape.iter().product();
        self.read_runs(name, &[(0, elements)], values)
    }

    /// Reads some elements of a tensor: `runs` are (first element of the whole tensor, how many), and `values` gets them one run
    /// after the other. Nothing is read of files that have none of them.
    pub fn read_runs(&self, name: &str, runs: &[(usize, usize)], values: &mut [f32]) -> Result<()> {
        let t = self.require(name)?;
        let wanted = self.wanted(t, runs, values.len())?;
        let mut block = Vec::new();
        for s in &t.slices {
            let part = BoxRange { start: s.start.clone(), shape: s.shape.clone() };
            let copies = wanted.within(&t.shape, &part);
            if copies.is_empty() {
                continue;
            }
            let file = &self.file(s.file)?.tensors;
            if let Some(entry) = entry_of(file, t, s) {
                read_copies(file, entry, &copies, &mut block, values)?;
            }
        }
        Ok(())
    }

    /// Plans to read elements of tensors, (name, runs) as of [`Loaded::read_runs`], in this order.
    ///
    /// # Errors
    /// As [`Loaded::read_runs`] for what is not among the tensors.
    pub fn plan_reads<'a>(
        &self,
        wanted: impl IntoIterator<Item = (&'a str, Vec<(usize, usize)>)>,
    ) -> Result<ReadPlan> {
        let (mut chunks, mut seen) = (Vec::new(), HashSet::new());
        for (name, runs) in wanted {
            let t = self.require(name)?;
            let wanted = self.wanted(t, &runs, runs.iter().map(|run| run.1).sum())?;
            for s in &t.slices {
                let chunk = self.manifest.files[s.file].chunk_bytes;
                if chunk == 0 {
                    continue;
                }
                let part = BoxRange { start: s.start.clone(), shape: s.shape.clone() };
                let byte = |element: usize| s.offset + element as u64 * t.dtype.size() as u64;
                for c in wanted.within(&t.shape, &part).into_iter().filter(|c| c.len > 0) {
                    for index in byte(c.local) / chunk..=(byte(c.local + c.len) - 1) / chunk {
                        let id = ChunkId { file: s.file, index };
                        if seen.insert(id) {
                            chunks.push(id);
                        }
                    }
                }
            }
        }
        Ok(ReadPlan { chunks })
    }

    /// Runs `reader` while threads read and verify what it will ask for, a few chunks ahead of it: loading then takes the time of
    /// the disk or of the hashes, whatever is longer, and not the sum of both and of what `reader` does. Memory: 64 MiB, or a chunk more than
    /// there are threads, at most four.
    pub fn reading_ahead<T>(&self, plan: ReadPlan, reader: impl FnOnce() -> T) -> T {
        let mut chunks = plan.chunks;
        let mut open = HashMap::new();
        for id in &chunks {
            if let Entry::Vacant(place) = open.entry(id.file) {
                // The reader meets the error itself.
                let Ok(file) = self.file(id.file) else { return reader() };
                place.insert(&file.bytes);
            }
        }
        // With its header the first chunk of a file was verified.
        chunks.retain(|id| !open[&id.file].is_intact(id.index));
        let largest = self.manifest.files.iter().map(|f| f.chunk_bytes).max().unwrap_or(0);
        let read = |id: ChunkId, bytes: &mut Vec<u8>| open[&id.file].chunk(id.index, bytes);
        let announce = |id: ChunkId| open[&id.file].will_read(id.index);
        self.cache.reading_ahead(chunks, largest, &announce, &read, reader)
    }

    /// Checks which elements of a tensor are wanted, `values` of them.
    fn wanted(&self, t: &TensorRecord, runs: &[(usize, usize)], values: usize) -> Result<Wanted> {
        Wanted::new(runs, t.shape.iter().product(), values).map_err(|problem| {
            let problem = format!("shape {:?}: {problem}", t.shape);
            CheckpointError::Tensor { file: self.path.clone(), name: t.name.clone(), problem }
        })
    }

    /// Holds the tensors of the checkpoint for which `scope` is true (the parameters, say, and not the optimizer's
    /// moments) against the (name, shape) list that a model wants.
    pub fn compare<'a>(
        &'a self,
        wanted: impl IntoIterator<Item = (&'a str, &'a [usize])>,
        scope: impl Fn(&str) -> bool,
    ) -> MatchReport {
        let found =
            self.manifest.tensors.iter().filter(|t| scope(&t.name)).map(|t| (t.name.as_str(), &t.shape[..]));
        MatchReport::compare(wanted, found)
    }

    /// Returns an error that lists the differences found by [`Loaded::compare`], if there are any.
    pub fn require_match<'a>(
        &'a self,
        wanted: impl IntoIterator<Item = (&'a str, &'a [usize])>,
        scope: impl Fn(&str) -> bool,
    ) -> Result<MatchReport> {
        let report = self.compare(wanted, scope);
        if report.is_exact() {
            return Ok(report);
        }
        Err(CheckpointError::TensorsDiffer { path: self.path.clone(), report })
    }

    /// The tensors for which `scope` is true, as a source.
    pub fn tensors(&self, scope: impl Fn(&str) -> bool) -> LoadedTensors<'_> {
        let specs = self.manifest.tensors.iter().filter(|t| scope(&t.name));
        let specs =
            specs.map(|t| TensorSpec { name: t.name.clone(), shape: t.shape.clone(), dtype: t.dtype });
        LoadedTensors { loaded: self, specs: specs.collect() }
    }

    fn require(&self, name: &str) -> Result<&TensorRecord> {
        self.tensor(name).ok_or_else(|| CheckpointError::Tensor {
            file: self.path.clone(),
            name: name.into(),
            problem: format!("not among the {} tensors of this checkpoint", self.manifest.tensors.len()),
        })
    }
}

/// What a file's header says of a slice. Files of format version 1 have at most one slice of a tensor, under the tensor's name.
fn entry_of<'f>(file: &'f SafetensorsFile, t: &TensorRecord, s: &SliceRecord) -> Option<&'f format::Entry> {
    let part = BoxRange { start: s.start.clone(), shape: s.shape.clone() };
    file.header().entry(&entry_name(&t.name, &t.shape, &part)).or_else(|| file.header().entry(&t.name))
}

/// Reads elements of an entry to where they go, with few reads of the file.
fn read_copies(
    file: &SafetensorsFile,
    entry: &format::Entry,
    copies: &[Copied],
    block: &mut Vec<f32>,
    values: &mut [f32],
) -> Result<()> {
    let mut rest = copies;
    while let Some(first) = rest.first() {
        if first.len >= BLOCK {
            file.read_f32(entry, first.local, &mut values[first.to..first.to + first.len])?;
            rest = &rest[1..];
            continue;
        }
        let mut end = first.local;
        let near = |c: &&Copied| {
            let fits = c.local <= end + GAP && c.local + c.len <= first.local + BLOCK;
            if fits {
                end = c.local + c.len;
            }
            fits
        };
        let count = rest.iter().take_while(near).count().max(1);
        let (here, later) = rest.split_at(count);
        block.clear();
        block.resize(here[count - 1].local + here[count - 1].len - first.local, 0.0);
        file.read_f32(entry, first.local, block)?;
        for c in here {
            values[c.to..c.to + c.len].copy_from_slice(&block[c.local - first.local..][..c.len]);
        }
        rest = later;
    }
    Ok(())
}

/// Tensors of a loaded checkpoint as the source of another save or of an export.
pub struct LoadedTensors<'a> {
    loaded: &'a Loaded,
    specs: Vec<TensorSpec>,
}

impl TensorSource for LoadedTensors<'_> {
    fn specs(&self) -> &[TensorSpec] {
        &self.specs
    }

    fn fill(&mut self, index: usize, values: &mut [f32]) -> std::result::Result<(), SourceError> {
        Ok(self.loaded.read_into(&self.specs[index].name, values)?)
    }

    fn fill_part(
        &mut self,
        index: usize,
        first: usize,
        values: &mut [f32],
    ) -> Option<std::result::Result<(), SourceError>> {
        let run = (first, values.len());
        Some(self.loaded.read_runs(&self.specs[index].name, &[run], values).map_err(SourceError::from))
    }
}
