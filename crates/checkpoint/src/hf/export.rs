//! Writing a directory that `transformers` loads.

use super::layout::{Style, absent_biases};
use super::peft::ADAPTER_CONFIG;
use super::written::{EXPORT_MANIFEST, ExportManifest};
use super::{gpt2, llama};
use crate::error::{At, CheckpointError, Result};
use crate::format::{Layout, split, write_file};
use crate::fs::{EntryKind, FileSystem, IsOurs, OsFileSystem, create_dir_durably, parent_of, remove_files};
use crate::manifest::{FileRecord, check_file_name};
use crate::merged::ADAPTERS;
use crate::parts::Parts;
use crate::publish::{Hidden, Unfinished};
use crate::source::TensorSource;
use bessemer_arch::Model;
use bessemer_units::DType;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Settings of an export.
pub struct HfExport<'a> {
    /// The model.
    pub model: &'a Model,
    /// `model_type` of the configuration that the model was imported from: its class is written where it expresses the model.
    pub model_type: Option<&'a str>,
    /// Weight of the balance loss of experts ([`bessemer_arch::ExpertsConfig::balance`]), if it is known.
    pub balance: Option<f64>,
    /// Its parameters under their canonical names ([`Model::params`]); tensors of other names are left out.
    pub tensors: &'a mut dyn TensorSource,
    /// Type of the weights in the files: f32, bf16 or f16.
    pub dtype: DType,
    /// Rows of the vocabulary that are written: the tokenizer's size, where the model's is padded. `None`: all.
    pub vocab_size: Option<usize>,
    /// Token at the beginning of a text, if the tokenizer has one.
    pub bos_token_id: Option<u32>,
    /// Token at the end of a text, if the tokenizer has one.
    pub eos_token_id: Option<u32>,
    /// Further files by name, e.g. tokenizer.json and tokenizer_config.json.
    pub extra_files: Vec<(String, Vec<u8>)>,
    /// Largest tensor file in bytes; above it the weights are cut into files with an index.
    pub max_file_bytes: u64,
    /// Replace an earlier export at the same place, if its files are as they were written.
    pub overwrite: bool,
    /// Called with (done, total) bytes while writing.
    pub progress: &'a mut dyn FnMut(u64, u64),
}

/// A finished export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HfExportReport {
    /// The directory.
    pub path: PathBuf,
    /// Class that loads it, e.g. "LlamaForCausalLM".
    pub architecture: &'static str,
    /// Bytes of the tensor files.
    pub bytes: u64,
    /// Its files.
    pub files: Vec<String>,
    /// Differences in how the two formats express the model.
    pub notes: Vec<String>,
}

const CONFIG: &str = "config.json";
const GENERATION_CONFIG: &str = "generation_config.json";
const INDEX: &str = "model.safetensors.index.json";

/// Writes `dir` so that it is there entirely or not at all. A directory that exists must be empty, or, with
/// `overwrite`, hold an earlier export and nothing else: [`EXPORT_MANIFEST`] lists its files with their checksums, and a
/// file that is not listed or has changed since is never replaced or removed.
pub fn export_hf(dir: &Path, request: HfExport<'_>) -> Result<HfExportReport> {
    export_hf_on(&OsFileSystem, dir, request)
}

/// [`export_hf`] on another file system.
pub fn export_hf_on(fs: &dyn FileSystem, dir: &Path, request: HfExport<'_>) -> Result<HfExportReport> {
    let wrong = |problem: String| CheckpointError::HuggingFace { path: dir.into(), problem };
    let style = choose_style(request.model).map_err(wrong)?;
    let mut model = request.model.clone();
    let mut notes = Vec::new();
    if let Some(v) = request.vocab_size.filter(|v| *v != model.vocab_size) {
        if v == 0 || v > model.vocab_size {
            return Err(wrong(format!("vocabulary of {v} rows wanted, the model has {}", model.vocab_size)));
        }
        notes.push(format!("the vocabulary was cut from {} to {v} rows", model.vocab_size));
        model.vocab_size = v;
    }
    for (what, id) in [("bos", request.bos_token_id), ("eos", request.eos_token_id)] {
        if let Some(id) = id.filter(|id| *id as usize >= model.vocab_size) {
            return Err(wrong(format!(
                "{what} token {id} is outside the vocabulary of {}",
                model.vocab_size
            )));
        }
    }
    if !request.dtype.is_float() {
        return Err(wrong(format!("weights as {} wanted; use f32, bf16 or f16", request.dtype)));
    }
    if style == Style::Gpt2 && !model.bias {
        let found = if model.qkv_bias { "only those of queries, keys and values" } else { "none" };
        notes.push(format!(
            "GPT-2 has biases everywhere; this model has {found}: the others are written as zeros"
        ));
    }
    for (name, _) in &request.extra_files {
        check_file_name(name).map_err(wrong)?;
        if is_own_name(name) {
            return Err(wrong(format!("extra file {name:?} is one that the export itself writes")));
        }
    }
    let mut mapped = style.map(&model);
    if style == Style::Gpt2 {
        mapped.extend(absent_biases(&model, |m| style.map(m)));
    }
    for part in mapped.iter_mut().flat_map(|m| &mut m.parts) {
        part.name = style.full_name(&part.name);
    }
    let weights = Parts::new(dir, request.model, mapped, request.dtype, request.tensors)?;

    let mut config = match style {
        // OPT is only read, and never chosen.
        Style::Gpt2 | Style::Opt => gpt2::config(&model),
        Style::Llama => llama::config(&model, request.model_type, request.balance),
    };
    let tokens = [("bos_token_id", request.bos_token_id), ("eos_token_id", request.eos_token_id)];
    let mut generation = Map::new();
    generation.insert("_from_model_config".into(), json!(true));
    for (key, id) in tokens {
        // Null and not absent: the classes' defaults are ids of other vocabularies.
        config.insert(key.into(), json!(id));
        if let Some(id) = id {
            generation.insert(key.into(), json!(id));
        }
    }
    let dtype = match request.dtype {
        DType::Bf16 => "bfloat16",
        DType::F16 => "float16",
        _ => "float32",
    };
    // The name before version 5 and since.
    config.insert("torch_dtype".into(), json!(dtype));
    config.insert("dtype".into(), json!(dtype));
    config.insert("use_cache".into(), json!(true));

    let mut small = vec![
        (CONFIG.to_string(), pretty(&Value::Object(config))?),
        (GENERATION_CONFIG.to_string(), pretty(&Value::Object(generation))?),
    ];
    small.extend(request.extra_files);
    let directory = Directory {
        metadata: Vec::new(),
        stem: "model",
        small,
        max_file_bytes: request.max_file_bytes,
        overwrite: request.overwrite,
    };
    let (bytes, files, moved) = directory.write(fs, dir, weights, request.progress)?;
    notes.extend(moved);
    let architecture = match style {
        Style::Gpt2 | Style::Opt => "GPT2LMHeadModel",
        Style::Llama => llama::class(&model, request.model_type).0,
    };
    Ok(HfExportReport { path: dir.into(), architecture, bytes, files, notes })
}

/// A directory of files of tensors and small ones.
pub(super) struct Directory {
    /// Names of files of tensors begin with it.
    pub(super) stem: &'static str,
    pub(super) small: Vec<(String, Vec<u8>)>,
    /// Metadata of the files of tensors besides their format.
    pub(super) metadata: Vec<(&'static str, String)>,
    pub(super) max_file_bytes: u64,
    /// Replace an earlier export that is as it was written.
    pub(super) overwrite: bool,
}

impl Directory {
    /// Writes it so that it is there entirely or not at all. Returns the bytes of the tensor files, all names, and a remark if
    /// something was moved away.
    pub(super) fn write(
        self,
        fs: &dyn FileSystem,
        dir: &Path,
        mut weights: Parts<'_>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(u64, Vec<String>, Option<String>)> {
        let wrong = |problem: String| CheckpointError::HuggingFace { path: dir.into(), problem };
        let replaced = check_target(fs, dir, self.overwrite)?;
        let parent = parent_of(dir);
        create_dir_durably(fs, parent).at("create", parent)?;
        let name = dir
            .file_name()
            .and_then(|n| n.to_str())
            .ok_or_else(|| wrong("wanted a directory name".into()))?;
        // The user may name a place behind a link; from here on nothing is resolved through one.
        let root = fs.real_path(parent).at("resolve", parent)?;
        let extra: BTreeSet<String> = self.small.iter().map(|f| f.0.clone()).collect();
        let is_ours = |file: &str| is_own_name(file) || extra.contains(file) || replaced.contains(file);
        sweep(fs, &root, name, &is_ours);
        let hidden_name = |purpose: &str| format!(".{name}.{purpose}-{}", std::process::id());
        let hidden = Hidden {
            fs,
            root: &root,
            partial: hidden_name("partial"),
            target: name.into(),
            aside: hidden_name("replaced"),
            is_ours: &is_ours,
        };
        let files = (self.stem, self.small, self.max_file_bytes);
        let written = write_all(fs, &hidden.path(), &mut weights, &self.metadata, files, progress)
            .and_then(|written| Ok((written, hidden.publish()?)));
        let ((bytes, files), set_aside) = written.map_err(|unfinished| unfinished.clean(&hidden))?;
        let moved = set_aside
            .map(|path| format!("moved the earlier contents of {} to {}", dir.display(), path.display()));
        Ok((bytes, files, moved))
    }
}

/// The architecture that can express the model, or what stands in the way of each.
pub(super) fn choose_style(model: &Model) -> std::result::Result<Style, String> {
    if model.adapters.is_some() {
        return Err(ADAPTERS.into());
    }
    let (gpt2, llama) = (gpt2::obstacles(model), llama::obstacles(model));
    if gpt2.is_empty() {
        return Ok(Style::Gpt2);
    }
    if llama.is_empty() {
        return Ok(Style::Llama);
    }
    Err(format!(
        "cannot express this model as a supported Hugging Face architecture; differences from \
         GPT2LMHeadModel: {}; from LlamaForCausalLM: {}",
        gpt2.join(", "),
        llama.join(", ")
    ))
}

/// Whether every export may write a file of this name.
fn is_own_name(name: &str) -> bool {
    [CONFIG, GENERATION_CONFIG, INDEX, ADAPTER_CONFIG, EXPORT_MANIFEST].contains(&name)
        || name.ends_with(".safetensors")
}

/// Errors if the target cannot be written; gives the names of the files that an earlier export left there. It is replaced
/// only if the export's own list says of every file in it that it is as it was written.
fn check_target(fs: &dyn FileSystem, dir: &Path, overwrite: bool) -> Result<BTreeSet<String>> {
    let wrong = |problem: String| CheckpointError::HuggingFace { path: dir.into(), problem };
    match fs.kind(dir).at("look for", dir)? {
        None => return Ok(BTreeSet::new()),
        Some(EntryKind::Directory) => {}
        Some(EntryKind::Link) => {
            return Err(wrong("is a symbolic link, which is not replaced; choose another place".into()));
        }
        Some(_) => return Err(wrong("exists and is not a directory; choose another place".into())),
    }
    let entries = fs.list_dir(dir).at("list", dir)?;
    if entries.is_empty() {
        return Ok(BTreeSet::new());
    }
    if !overwrite {
        return Err(wrong("exists and is not empty; choose another place, or allow overwriting".into()));
    }
    if !entries.iter().any(|e| e.0 == EXPORT_MANIFEST && e.1 == EntryKind::File) {
        return Err(wrong(format!(
            "holds no {EXPORT_MANIFEST}, so this program did not write it (or an old version did); it is not \
             overwritten: remove it, or choose another place"
        )));
    }
    let listed = ExportManifest::read(fs, dir)?;
    for (name, kind) in &entries {
        let as_written = match name == EXPORT_MANIFEST {
            true => true,
            false => *kind == EntryKind::File && listed.is_as_written(fs, dir, name)?,
        };
        if !as_written {
            return Err(wrong(format!(
                "holds {name}, which the earlier export did not write or which has changed since; nothing is \
                 overwritten: move it away, or choose another place"
            )));
        }
    }
    Ok(entries.into_iter().map(|e| e.0).collect())
}

/// Removes what interrupted exports to the same place left. Best effort.
fn sweep(fs: &dyn FileSystem, root: &Path, name: &str, is_ours: IsOurs<'_>) {
    for (entry, kind) in fs.list_dir(root).unwrap_or_default() {
        let pid = entry
            .strip_prefix('.')
            .and_then(|e| e.strip_prefix(name))
            .and_then(|e| e.strip_prefix(".partial-"))
            .and_then(|pid| pid.parse().ok());
        if kind == EntryKind::Directory && pid.is_some_and(|pid| !crate::store::is_alive(pid)) {
            let _ = remove_files(fs, root, &entry, is_ours);
        }
    }
}

pub(super) fn pretty(value: &Value) -> Result<Vec<u8>> {
    let mut bytes = serde_json::to_vec_pretty(value)
        .map_err(|e| CheckpointError::HuggingFace { path: CONFIG.into(), problem: e.to_string() })?;
    bytes.push(b'\n');
    Ok(bytes)
}

/// Writes and syncs everything into `partial`; gives the bytes of the tensor files and all names.
fn write_all(
    fs: &dyn FileSystem,
    partial: &Path,
    weights: &mut Parts<'_>,
    metadata: &[(&str, String)],
    (stem, mut small, max_file_bytes): (&str, Vec<(String, Vec<u8>)>, u64),
    progress: &mut dyn FnMut(u64, u64),
) -> std::result::Result<(u64, Vec<String>), Unfinished> {
    let wrong = |problem: String| CheckpointError::HuggingFace { path: partial.into(), problem };
    fs.create_dir(partial).at("create", partial).map_err(Unfinished::keep)?;
    let groups = split(weights.specs(), max_file_bytes);
    let count = groups.len();
    let metadata: Vec<(&str, &str)> = std::iter::once(("format", "pt"))
        .chain(metadata.iter().map(|(key, value)| (*key, &**value)))
        .collect();
    let mut planned = Vec::new();
    for (i, members) in groups.iter().enumerate() {
        let name = match count {
            1 => format!("{stem}.safetensors"),
            _ => format!("{stem}-{:05}-of-{count:05}.safetensors", i + 1),
        };
        planned.push((name, Layout::plan(weights.specs(), members, &metadata).map_err(wrong)?));
    }
    let total: u64 = planned.iter().map(|p| p.1.bytes).sum();
    if count > 1 {
        let mut map = Map::new();
        let mut size = 0;
        for (name, layout) in &planned {
            for (i, _, bytes) in &layout.tensors {
                map.insert(weights.specs()[*i].name.clone(), json!(name));
                size += bytes;
            }
        }
        map.sort_keys();
        small.push((INDEX.into(), pretty(&json!({"metadata": {"total_size": size}, "weight_map": map}))?));
    }
    let (mut done, mut manifest) = (0, ExportManifest::default());
    for (name, layout) in planned {
        let path = partial.join(&name);
        let mut file = fs.create_file(&path).at("create", &path)?;
        let mut advance = |n: u64| {
            done += n;
            progress(done, total);
        };
        let w = write_file(file.as_mut(), &path, &layout, weights, &mut advance)?;
        manifest.files.push(FileRecord::whole(name, w.bytes, w.blake3));
    }
    for (name, bytes) in &small {
        let blake3 = blake3::hash(bytes).to_hex().to_string();
        manifest.files.push(FileRecord::whole(name.clone(), bytes.len() as u64, blake3));
    }
    let mut names: Vec<String> = manifest.files.iter().map(|f| f.name.clone()).collect();
    names.push(EXPORT_MANIFEST.into());
    small.push((EXPORT_MANIFEST.into(), pretty(&manifest.to_json())?));
    for (name, bytes) in small {
        let path = partial.join(&name);
        let mut file = fs.create_file(&path).at("create", &path)?;
        file.write_all(&bytes).at("write", &path)?;
        file.sync().at("sync", &path)?;
    }
    fs.sync_dir(partial).at("sync", partial)?;
    Ok((total, names))
}
