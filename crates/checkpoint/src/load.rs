//! Loading: nothing is used before every byte of every file has been held against its checksum.

use crate::compare::MatchReport;
use crate::error::{At, CheckpointError, Result, SourceError};
use crate::format::SafetensorsFile;
use crate::fs::{FileSystem, OsFileSystem, ReadFile};
use crate::manifest::{FileRecord, Manifest, TensorRecord};
use crate::slices;
use crate::source::{TensorSource, TensorSpec};
use crate::store::{open_part, read_manifest};
use bessemer_tensor::host::HostTensor;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// Bytes read at a time while verifying.
const CHUNK: usize = 1 << 20;

/// A verified checkpoint, its files open: what is read later comes from the files that were verified, even if their
/// names change hands meanwhile.
#[derive(Debug)]
pub struct Loaded {
    path: PathBuf,
    manifest: Manifest,
    files: Vec<SafetensorsFile>,
    index: HashMap<String, usize>,
}

impl Loaded {
    /// Opens and verifies the checkpoint in a directory, wherever it stands.
    pub fn open(path: &Path) -> Result<Loaded> {
        Loaded::open_on(&OsFileSystem, path, &mut |_, _| {})
    }

    /// The same on another file system; `progress` is told (done, total) bytes.
    pub fn open_on(fs: &dyn FileSystem, path: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<Loaded> {
        let manifest = read_manifest(fs, path)?;
        // Presence and size of all, before hashing any.
        let mut open = Vec::new();
        for record in &manifest.files {
            let file_path = path.join(&record.name);
            let file = open_part(fs, &file_path)?;
            let found = file.size().at("read the size of", &file_path)?;
            if found != record.bytes {
                return Err(CheckpointError::Size { file: file_path, expected: record.bytes, found });
            }
            open.push((file, file_path));
        }
        let (total, mut done) = (manifest.bytes(), 0);
        let mut files = Vec::new();
        for ((file, file_path), record) in open.into_iter().zip(&manifest.files) {
            let mut advance = |n: u64| {
                done += n;
                progress(done, total);
            };
            verify_file(file.as_ref(), &file_path, record, &mut advance)?;
            files.push(SafetensorsFile::from_file(file, &file_path)?);
        }
        for t in &manifest.tensors {
            check_entries(t, &files)?;
        }
        let index = manifest.tensors.iter().enumerate().map(|(i, t)| (t.name.clone(), i)).collect();
        Ok(Loaded { path: path.into(), manifest, files, index })
    }

    /// Its directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What it holds.
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
        self.read_record(t, &mut values)?;
        Ok(HostTensor { name: name.into(), shape: t.shape.clone(), dtype: t.dtype, values })
    }

    /// Reads a tensor into `values`, which has exactly its number of elements.
    pub fn read_into(&self, name: &str, values: &mut [f32]) -> Result<()> {
        let t = self.require(name)?;
        if t.shape.iter().product::<usize>() != values.len() {
            let problem = format!("shape {:?}, asked for {} values", t.shape, values.len());
            return Err(CheckpointError::Tensor { file: self.path.clone(), name: name.into(), problem });
        }
        self.read_record(t, values)
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

    /// [`Loaded::compare`], with any difference an error that lists it.
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

    fn read_record(&self, t: &TensorRecord, values: &mut [f32]) -> Result<()> {
        for s in &t.slices {
            let file = &self.files[s.file];
            let Some(entry) = file.header().entry(&t.name) else { continue };
            if s.shape == t.shape {
                file.read_f32(entry, 0, values)?;
            } else {
                let mut part = vec![0.0; s.shape.iter().product()];
                file.read_f32(entry, 0, &mut part)?;
                slices::place(&part, &s.start, &s.shape, &t.shape, values);
            }
        }
        Ok(())
    }
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
}

/// BLAKE3 of the first `bytes` bytes of a file, hexadecimal; `advance` is told the bytes of each piece read.
pub(crate) fn checksum(
    file: &dyn ReadFile,
    bytes: u64,
    advance: &mut dyn FnMut(u64),
) -> std::io::Result<String> {
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; CHUNK.min(bytes as usize)];
    let mut at = 0;
    while at < bytes {
        let n = (bytes - at).min(CHUNK as u64) as usize;
        file.read_exact_at(&mut buffer[..n], at)?;
        hasher.update(&buffer[..n]);
        at += n as u64;
        advance(n as u64);
    }
    Ok(hasher.finalize().to_hex().to_string())
}

fn verify_file(
    file: &dyn ReadFile,
    path: &Path,
    record: &FileRecord,
    advance: &mut dyn FnMut(u64),
) -> Result<()> {
    let found = checksum(file, record.bytes, advance).at("read", path)?;
    if found != record.blake3 {
        return Err(CheckpointError::Checksum { file: path.into(), expected: record.blake3.clone(), found });
    }
    Ok(())
}

/// Manifest and safetensors header must describe the same bytes: otherwise two readers would see two models.
fn check_entries(t: &TensorRecord, files: &[SafetensorsFile]) -> Result<()> {
    for s in &t.slices {
        let file = &files[s.file];
        let agrees = file.header().entry(&t.name).is_some_and(|e| {
            e.stored.dtype() == Some(t.dtype)
                && e.shape == s.shape
                && file.data_start() + e.begin == s.offset
                && e.end - e.begin == s.bytes
        });
        if !agrees {
            return Err(CheckpointError::Tensor {
                file: file.path().into(),
                name: t.name.clone(),
                problem: "the file's header and the manifest describe it differently".into(),
            });
        }
    }
    Ok(())
}
