//! Writing a file that llama.cpp loads.

use super::layout::{Architecture, ROPE_DIVISORS, rope_divisors};
use super::metadata::{GgufTokenizer, Value, put_string};
use super::weights::GgufWeights;
use super::{ALIGNMENT, MAGIC, VERSION};
use crate::error::{At, CheckpointError, Result};
use crate::fs::{OsFileSystem, create_dir_durably};
use crate::merged::ADAPTERS;
use crate::parts::Parts;
use crate::source::{TensorSource, TensorSpec};
use bessemer_arch::Model;
use bessemer_durable::NewFile;
use bessemer_units::DType;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

/// Longest name of a tensor in llama.cpp, with the byte that ends it.
const MAX_NAME: usize = 64;

/// Settings of an export.
pub struct GgufExport<'a> {
    /// The model.
    pub model: &'a Model,
    /// Its parameters under their canonical names ([`Model::params`]); tensors of other names are left out.
    pub tensors: &'a mut dyn TensorSource,
    /// Type of the matrices.
    pub weights: GgufWeights,
    /// Name of the model for people (`general.name`).
    pub name: String,
    /// The tokenizer. Rows of the vocabulary that it has no token for are left out.
    pub tokenizer: GgufTokenizer,
    /// Replace a GGUF file at the same place.
    pub overwrite: bool,
    /// Called with (done, total) bytes while writing.
    pub progress: &'a mut dyn FnMut(u64, u64),
}

/// A finished export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GgufReport {
    /// The file.
    pub path: PathBuf,
    /// Architecture that computes it in llama.cpp, e.g. "llama".
    pub architecture: &'static str,
    /// Bytes of the file.
    pub bytes: u64,
    /// Differences in how the two formats express the model.
    pub notes: Vec<String>,
}

/// Writes `path` so that it is there entirely or not at all.
///
/// # Errors
/// [`CheckpointError::Gguf`] if no architecture of llama.cpp computes the model, if the tokenizer does not fit it, or if something is at
/// `path` already (with `overwrite`: something that is no GGUF file). [`CheckpointError::TensorsDiffer`],
/// [`CheckpointError::Source`], [`CheckpointError::Tensor`] for a value that the type cannot hold, and [`CheckpointError::Io`].
pub fn export_gguf(path: &Path, request: GgufExport<'_>) -> Result<GgufReport> {
    let wrong = |problem: String| CheckpointError::Gguf { path: path.into(), problem };
    if request.model.adapters.is_some() {
        return Err(wrong(ADAPTERS.into()));
    }
    let architecture = Architecture::of(request.model).map_err(wrong)?;
    check_target(path, request.overwrite)?;
    let (model, mut notes) = fitted(request.model, &request.tokenizer).map_err(wrong)?;
    if architecture == Architecture::Gpt2 && !model.bias {
        notes.push("gpt2 has biases everywhere; those that this model lacks are written as zeros".into());
    }
    let mut parts = Parts::new(path, request.model, architecture.map(&model), DType::F32, request.tensors)?;
    let mut keys = vec![
        ("general.architecture".into(), Value::String(architecture.name().into())),
        ("general.type".into(), Value::String("model".into())),
        ("general.name".into(), Value::String(request.name)),
        ("general.file_type".into(), Value::U32(request.weights.file_type())),
        ("general.quantization_version".into(), Value::U32(2)),
    ];
    keys.extend(architecture.keys(&model));
    keys.extend(request.tokenizer.keys());
    let divisors = rope_divisors(&model);
    let layout = Layout::plan(&keys, parts.specs(), divisors.as_deref(), request.weights).map_err(wrong)?;
    let other = layout.tensors.iter().filter(|t| !t.vector && t.weights != request.weights).count();
    if other > 0 {
        notes.push(format!("matrices whose rows are not multiples of 32 are stored as f16; number: {other}"));
    }
    write(path, &layout, &mut parts, divisors.as_deref(), (request.overwrite, request.progress))?;
    Ok(GgufReport { path: path.into(), architecture: architecture.name(), bytes: layout.bytes, notes })
}

/// Errors if the file cannot be written there.
fn check_target(path: &Path, overwrite: bool) -> Result<()> {
    let wrong = |problem: &str| CheckpointError::Gguf { path: path.into(), problem: problem.into() };
    let Ok(about) = path.symlink_metadata() else { return Ok(()) };
    if !overwrite {
        return Err(wrong("exists already; choose another path, or allow overwriting"));
    }
    let mut magic = [0; 4];
    let found = about.is_file()
        && bessemer_durable::open_regular(path).at("open", path)?.read_exact(&mut magic).is_ok()
        && magic == MAGIC;
    if found {
        Ok(())
    } else {
        Err(wrong("exists and is not a GGUF file; it is not overwritten: choose another path"))
    }
}

/// The model with a row of the vocabulary for each token, and what was changed for that.
fn fitted(model: &Model, tokenizer: &GgufTokenizer) -> std::result::Result<(Model, Vec<String>), String> {
    let tokens = tokenizer.tokens.len();
    if tokens == 0 || tokens > model.vocab_size || tokenizer.types.len() != tokens {
        return Err(format!(
            "the tokenizer has {tokens} tokens and {} types, the model a vocabulary of {}",
            tokenizer.types.len(),
            model.vocab_size
        ));
    }
    if tokenizer.end_of_text as usize >= tokens {
        return Err(format!("end of text {} is none of {tokens} tokens", tokenizer.end_of_text));
    }
    let mut notes = Vec::new();
    if tokens < model.vocab_size {
        notes.push(format!("the vocabulary was cut from {} to {tokens} rows", model.vocab_size));
    }
    Ok((Model { vocab_size: tokens, ..model.clone() }, notes))
}

/// A tensor of the file.
struct Tensor {
    name: String,
    values: u64,
    bytes: u64,
    weights: GgufWeights,
    vector: bool,
}

/// Places of all parts of a file.
struct Layout {
    /// All bytes before the data, with padding.
    head: Vec<u8>,
    /// Tensors in the order of their data: those of the source, then the divisors.
    tensors: Vec<Tensor>,
    /// Length of the whole file.
    bytes: u64,
}

impl Layout {
    fn plan(
        keys: &[(String, Value)],
        specs: &[TensorSpec],
        divisors: Option<&[f32]>,
        weights: GgufWeights,
    ) -> std::result::Result<Layout, String> {
        let divisors = divisors.map(|d| TensorSpec {
            name: ROPE_DIVISORS.into(),
            shape: vec![d.len()],
            dtype: DType::F32,
        });
        let count = specs.len() + usize::from(divisors.is_some());
        let mut head = MAGIC.to_vec();
        head.extend(VERSION.to_le_bytes());
        head.extend((count as u64).to_le_bytes());
        head.extend((keys.len() as u64).to_le_bytes());
        for (key, value) in keys {
            put_string(&mut head, key);
            value.put(&mut head);
        }
        let (mut tensors, mut at) = (Vec::with_capacity(count), 0u64);
        for spec in specs.iter().chain(&divisors) {
            let tensor = Tensor::new(spec, weights)?;
            put_string(&mut head, &spec.name);
            head.extend((spec.shape.len() as u32).to_le_bytes());
            head.extend(spec.shape.iter().rev().flat_map(|size| (*size as u64).to_le_bytes()));
            head.extend(tensor.weights.tensor_type().to_le_bytes());
            head.extend(at.to_le_bytes());
            at += tensor.bytes.next_multiple_of(ALIGNMENT);
            tensors.push(tensor);
        }
        head.resize(head.len().next_multiple_of(ALIGNMENT as usize), 0);
        let bytes = head.len() as u64 + at;
        Ok(Layout { head, tensors, bytes })
    }
}

impl Tensor {
    fn new(spec: &TensorSpec, weights: GgufWeights) -> std::result::Result<Tensor, String> {
        if spec.name.len() >= MAX_NAME {
            return Err(format!("tensor name {:?}: at most {} bytes", spec.name, MAX_NAME - 1));
        }
        let table = spec.name == "position_embd.weight" || spec.name.ends_with(".ffn_gate_inp.weight");
        let weights = if table { GgufWeights::F32 } else { weights.of(&spec.shape) };
        let values = spec.checked_len().map(|n| n as u64).filter(|n| *n < 1 << 60);
        let sized = values.and_then(|n| Some((n, weights.bytes(n)?)));
        let (values, bytes) = sized
            .ok_or_else(|| format!("tensor {:?}: the size of shape {:?} overflows", spec.name, spec.shape))?;
        Ok(Tensor { name: spec.name.clone(), values, bytes, weights, vector: table || spec.shape.len() < 2 })
    }
}

/// Writes the whole file; `how`: whether one may be replaced, and what is called with (done, total) bytes.
fn write(
    path: &Path,
    layout: &Layout,
    parts: &mut Parts<'_>,
    divisors: Option<&[f32]>,
    how: (bool, &mut dyn FnMut(u64, u64)),
) -> Result<()> {
    let (overwrite, progress) = how;
    let directory = bessemer_durable::parent(path);
    create_dir_durably(&OsFileSystem, directory).at("create", directory)?;
    let mut file = NewFile::create(path).at("create", path)?;
    file.write_all(&layout.head).at("write", path)?;
    let mut done = layout.head.len() as u64;
    let (mut values, mut bytes) = (Vec::new(), Vec::new());
    for (i, tensor) in layout.tensors.iter().enumerate() {
        values.resize(tensor.values as usize, 0.0);
        match divisors {
            Some(divisors) if i == parts.specs().len() => values.copy_from_slice(divisors),
            _ => parts
                .fill(i, &mut values)
                .map_err(|source| CheckpointError::Source { name: tensor.name.clone(), source })?,
        }
        for (chunk, here) in values.chunks(GgufWeights::CHUNK).enumerate() {
            tensor.weights.encode(here, &mut bytes).map_err(|at| CheckpointError::Tensor {
                file: path.into(),
                name: tensor.name.clone(),
                problem: format!(
                    "value {} at element {} cannot be written as {:?}; choose another type",
                    here[at],
                    chunk * GgufWeights::CHUNK + at,
                    tensor.weights
                ),
            })?;
            file.write_all(&bytes).at("write", path)?;
            done += bytes.len() as u64;
            progress(done, layout.bytes);
        }
        let padding = (tensor.bytes.next_multiple_of(ALIGNMENT) - tensor.bytes) as usize;
        file.write_all(&[0; ALIGNMENT as usize][..padding]).at("write", path)?;
        done += padding as u64;
    }
    match overwrite {
        true => file.commit(),
        false => file.commit_new(),
    }
    .at("write", path)
}
