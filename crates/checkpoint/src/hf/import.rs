//! Reading a directory that `transformers` wrote, or a snapshot from the hub.

use super::export::choose_style;
use super::fields::Fields;
use super::layout::{LM_HEAD, Mapped, Order, Part, Style, put_rows};
use super::peft::{ADAPTER_CONFIG, ADAPTER_WEIGHTS, adapter_parts, read_adapters};
use super::{experts, gpt2, llama, opt};
use crate::base::BASE_HASH;
use crate::error::{At, CheckpointError, Result, SourceError};
use crate::format::{Entry, SafetensorsFile};
use crate::fs::{EntryKind, FileSystem, Links, OsFileSystem, read_small};
use crate::manifest::check_file_name;
use crate::source::{TensorSource, TensorSpec};
use bessemer_arch::{ExpertsConfig, Model, ModelConfig};
use bessemer_tensor::host::HostTensor;
use bessemer_units::DType;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// Longest index file.
const MAX_INDEX_BYTES: u64 = 64 << 20;

/// A model in Hugging Face's layout, checked: every parameter is there with its shape, nothing else is. Values are read
/// one tensor at a time; it can be the [`TensorSource`] of a save.
#[derive(Debug)]
pub struct HfImport {
    style: Style,
    model: Model,
    model_type: String,
    experts: Option<ExpertsConfig>,
    notes: Vec<String>,
    bos: Vec<u32>,
    eos: Vec<u32>,
    dir: PathBuf,
    mapped: Vec<Mapped>,
    specs: Vec<TensorSpec>,
    files: Vec<SafetensorsFile>,
    /// Hash of the base that the file of adapters records.
    base_hash: Option<String>,
    /// Tensor name without prefix to (file, its full name).
    found: HashMap<String, (usize, String)>,
}

/// Opens `dir` and checks that it holds a model that Bessemer can express.
pub fn import_hf(dir: &Path) -> Result<HfImport> {
    HfImport::open_on(&OsFileSystem, dir)
}

impl HfImport {
    /// [`import_hf`] on another file system.
    pub fn open_on(fs: &dyn FileSystem, dir: &Path) -> Result<HfImport> {
        let fields = Fields::read(fs, &dir.join("config.json"))?;
        let (style, config, absent, notes) = read_config(&fields)?;
        if config.vocab_size > 1 << 28 {
            return Err(fields.refuse(format!("vocab_size: {}, at most {}", config.vocab_size, 1 << 28)));
        }
        let model = config.resolve(None).map_err(|e| fields.refuse(e.to_string()))?;
        let files = open_weights(fs, dir)?;
        let model_type = fields.str("model_type")?.unwrap_or_default().to_owned();
        let mut import = HfImport {
            style,
            model_type,
            experts: config.experts,
            notes,
            bos: fields.token_ids("bos_token_id")?,
            eos: fields.token_ids("eos_token_id")?,
            dir: dir.into(),
            mapped: style.map(&model),
            specs: Vec::new(),
            base_hash: None,
            found: names(style, &files)?,
            files,
            model,
        };
        import.drop_tied_head(style)?;
        import.check(style, absent)?;
        Ok(import)
    }

    /// The adapters that PEFT wrote to a directory, of a model whose parameters are elsewhere.
    ///
    /// # Errors
    /// Same errors as [`HfImport::add_adapters`], and a model that transformers cannot have.
    pub fn adapters_of(base: &Model, dir: &Path) -> Result<HfImport> {
        let style = choose_style(base)
            .map_err(|problem| CheckpointError::HuggingFace { path: dir.into(), problem })?;
        let mut import = HfImport {
            style,
            model: base.clone(),
            model_type: String::new(),
            experts: None,
            notes: Vec::new(),
            bos: Vec::new(),
            eos: Vec::new(),
            dir: dir.into(),
            mapped: Vec::new(),
            specs: Vec::new(),
            files: Vec::new(),
            base_hash: None,
            found: HashMap::new(),
        };
        import.add_adapters(dir)?;
        Ok(import)
    }

    /// Adds the adapters of a directory that PEFT wrote to the model.
    ///
    /// # Errors
    /// A configuration with features that are not here, matrices that are missing, left over, of another shape or not finite.
    pub fn add_adapters(&mut self, dir: &Path) -> Result<()> {
        let fs = &OsFileSystem;
        let fields = Fields::read(fs, &dir.join(ADAPTER_CONFIG))?;
        let weights = dir.join(ADAPTER_WEIGHTS);
        let pickle = dir.join("adapter_model.bin");
        if fs.kind(&weights).at("look for", &weights)?.is_none()
            && fs.kind(&pickle).at("look for", &pickle)?.is_some()
        {
            return Err(fields.refuse(format!(
                "the matrices are in {}, a pickle, which can run code and is not opened: wanted {ADAPTER_WEIGHTS}; save them as safetensors with PEFT",
                pickle.display()
            )));
        }
        let file = SafetensorsFile::open(fs, &weights, Links::Follow)?;
        let names: Vec<&str> = file.header().entries.iter().map(|entry| entry.name.as_str()).collect();
        let adapters = read_adapters(&fields, (self.style, self.model.layers), &names, &mut self.notes)?;
        let model = Model { adapters: Some(adapters), ..self.model.clone() };
        model.check().map_err(|e| fields.refuse(e.to_string()))?;
        let mapped = adapter_parts(&model, self.style).map_err(|problem| fields.refuse(problem))?;
        let mut report = crate::MatchReport::default();
        for of in &mapped {
            let part = &of.parts[0];
            match file.header().entry(&part.name) {
                None => report.missing.push(part.name.clone()),
                Some(entry) if entry.shape != of.shape => report.shape_mismatch.push(crate::ShapeMismatch {
                    name: entry.name.clone(),
                    wanted: of.shape.clone(),
                    found: entry.shape.clone(),
                }),
                Some(entry) => {
                    let wrong = |problem: String| CheckpointError::Tensor {
                        file: weights.clone(),
                        name: entry.name.clone(),
                        problem,
                    };
                    let Some(dtype) = entry.stored.dtype().filter(|dtype| dtype.is_float()) else {
                        let stored = entry.stored.name();
                        return Err(wrong(format!("stored as {stored}, wanted F32, F16 or BF16")));
                    };
                    let mut values = vec![0.0; of.shape.iter().product()];
                    file.read_f32(entry, 0, &mut values)?;
                    if let Some(at) = values.iter().position(|value| !value.is_finite()) {
                        return Err(wrong(format!("element {at} is {}, wanted a number", values[at])));
                    }
                    self.specs.push(TensorSpec { name: of.name.clone(), shape: of.shape.clone(), dtype });
                    report.matched.push(entry.name.clone());
                }
            }
        }
        let known: BTreeSet<&str> = mapped.iter().map(|of| of.parts[0].name.as_str()).collect();
        report.unexpected =
            names.iter().filter(|name| !known.contains(*name)).map(|name| (*name).into()).collect();
        if !report.is_exact() {
            return Err(CheckpointError::TensorsDiffer { path: weights, report });
        }
        self.base_hash = file.header().metadata.get(BASE_HASH).cloned();
        let number = self.files.len();
        self.found.extend(known.iter().map(|name| ((*name).to_owned(), (number, (*name).to_owned()))));
        self.mapped.extend(mapped);
        self.files.push(file);
        self.model = model;
        Ok(())
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// [`crate::base_hash`] of the base of the adapters, if their file records one; those of PEFT do not.
    pub fn base_hash(&self) -> Option<&str> {
        self.base_hash.as_deref()
    }

    /// The table that resolves to the model, with the weight of its balance loss.
    pub fn config(&self) -> ModelConfig {
        ModelConfig { experts: self.experts.clone(), ..ModelConfig::of(&self.model) }
    }

    /// `model_type` of its configuration.
    pub fn model_type(&self) -> &str {
        &self.model_type
    }

    /// Remarks for the user: settings of the imported model that this format expresses differently.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Tokens at the beginning of a text.
    pub fn bos_token_ids(&self) -> &[u32] {
        &self.bos
    }

    /// Tokens at the end of a text.
    pub fn eos_token_ids(&self) -> &[u32] {
        &self.eos
    }

    /// Reads one parameter by its canonical name.
    pub fn read_tensor(&self, name: &str) -> Result<HostTensor> {
        let index =
            self.specs.iter().position(|s| s.name == name).ok_or_else(|| CheckpointError::Tensor {
                file: self.dir.clone(),
                name: name.into(),
                problem: "not a parameter of this model".into(),
            })?;
        let spec = &self.specs[index];
        let mut values = vec![0.0; spec.shape.iter().product()];
        self.read(index, &mut values)?;
        Ok(HostTensor { name: name.into(), shape: spec.shape.clone(), dtype: spec.dtype, values })
    }

    fn entry(&self, part: &Part) -> Option<(&SafetensorsFile, &Entry)> {
        let (file, full) = self.found.get(&part.name)?;
        let file = &self.files[*file];
        Some((file, file.header().entry(full)?))
    }

    fn read(&self, index: usize, values: &mut [f32]) -> Result<()> {
        let mapped = &self.mapped[index];
        let columns = mapped.columns();
        let mut first = 0;
        for part in &mapped.parts {
            let rows = first..first + part.rows;
            let place = &mut values[rows.start * columns..rows.end * columns];
            match self.entry(part) {
                // A bias that the files do not have.
                None => place.fill(0.0),
                Some((file, entry)) if part.order == Order::Same => {
                    file.read_f32(entry, part.skip * columns, place)?;
                }
                Some((file, entry)) => {
                    let mut stored = vec![0.0; place.len()];
                    file.read_f32(entry, 0, &mut stored)?;
                    put_rows(&stored, first, part.rows, columns, part.order, values);
                }
            }
            first = rows.end;
        }
        Ok(())
    }

    /// A tied output projection may be written out all the same; it must then be the embedding.
    fn drop_tied_head(&mut self, style: Style) -> Result<()> {
        if !self.model.tied_embeddings {
            return Ok(());
        }
        let Some((head_file, head)) = self.found.remove(LM_HEAD) else { return Ok(()) };
        let Some((file, name)) = self.found.get(style.embedding()) else { return Ok(()) };
        let (a_file, b_file) = (&self.files[head_file], &self.files[*file]);
        let (Some(a), Some(b)) = (a_file.header().entry(&head), b_file.header().entry(name)) else {
            return Ok(());
        };
        let mut same = a.shape == b.shape && a.stored == b.stored;
        let len: usize = a.shape.iter().product();
        let (mut x, mut y) = (vec![0.0f32; len.min(1 << 18)], vec![0.0f32; len.min(1 << 18)]);
        let mut at = 0;
        while same && at < len {
            let n = (len - at).min(1 << 18);
            a_file.read_f32(a, at, &mut x[..n])?;
            b_file.read_f32(b, at, &mut y[..n])?;
            same = x[..n].iter().zip(&y[..n]).all(|(x, y)| x.to_bits() == y.to_bits());
            at += n;
        }
        if same {
            return Ok(());
        }
        Err(CheckpointError::Tensor {
            file: a_file.path().into(),
            name: head,
            problem: format!(
                "differs from {name:?} although tie_word_embeddings is true; set it to false if they are meant to differ"
            ),
        })
    }

    /// Every part there with its shape and a type that can be read, nothing left over.
    fn check(&mut self, style: Style, absent: llama::AbsentBiases) -> Result<()> {
        for (name, (file, full)) in &self.found {
            let file = &self.files[*file];
            let Some(entry) = file.header().entry(full) else { continue };
            if let Some(problem) = experts::stack(&self.model, name, &entry.shape) {
                return Err(CheckpointError::Tensor {
                    file: file.path().into(),
                    name: full.clone(),
                    problem,
                });
            }
        }
        let mut report = crate::MatchReport::default();
        let mut known = BTreeSet::new();
        let mut specs = Vec::new();
        for m in &self.mapped {
            let mut dtypes = BTreeSet::new();
            let zero = m.name.ends_with(".bias")
                && ((absent.attention && m.name.contains(".attention."))
                    || (absent.mlp && m.name.contains(".mlp.")));
            for part in &m.parts {
                known.insert(part.name.as_str());
                let shape = m.part_shape(part);
                match self.entry(part) {
                    None if zero => {}
                    None => report.missing.push(style.full_name(&part.name)),
                    Some((_, e)) if e.shape != shape => report.shape_mismatch.push(crate::ShapeMismatch {
                        name: e.name.clone(),
                        wanted: shape,
                        found: e.shape.clone(),
                    }),
                    Some((file, e)) => {
                        match e.stored.dtype().filter(|d| d.is_float()) {
                            Some(d) => dtypes.insert(d),
                            None => {
                                return Err(CheckpointError::Tensor {
                                    file: file.path().into(),
                                    name: e.name.clone(),
                                    problem: format!(
                                        "stored as {}, wanted F32, F16 or BF16; save the model in one of these first",
                                        e.stored.name()
                                    ),
                                });
                            }
                        };
                        report.matched.push(e.name.clone());
                    }
                }
            }
            // Parts of different types: f32 holds both.
            let dtype = if dtypes.len() == 1 { dtypes.first().copied() } else { None };
            specs.push(TensorSpec {
                name: m.name.clone(),
                shape: m.shape.clone(),
                dtype: dtype.unwrap_or(DType::F32),
            });
        }
        let mut left: Vec<&String> =
            self.found.iter().filter(|f| !known.contains(f.0.as_str())).map(|f| &f.1.1).collect();
        left.sort();
        report.unexpected = left.into_iter().cloned().collect();
        if !report.is_exact() {
            return Err(CheckpointError::TensorsDiffer { path: self.dir.clone(), report });
        }
        self.specs = specs;
        Ok(())
    }
}

impl TensorSource for HfImport {
    fn specs(&self) -> &[TensorSpec] {
        &self.specs
    }

    fn fill(&mut self, index: usize, values: &mut [f32]) -> std::result::Result<(), SourceError> {
        Ok(self.read(index, values)?)
    }
}

type Read = (Style, ModelConfig, llama::AbsentBiases, Vec<String>);

/// Which architecture config.json names, and its model.
fn read_config(f: &Fields) -> Result<Read> {
    if f.get("quantization_config").is_some() {
        return Err(f.refuse(
            "quantization_config: quantised weights cannot be imported; use the original model".into(),
        ));
    }
    let kind = f.str("model_type")?.ok_or_else(|| f.refuse("model_type: missing".into()))?;
    let classes: &[&str] = match kind {
        "gpt2" => &["GPT2LMHeadModel", "GPT2Model"],
        "llama" => &["LlamaForCausalLM", "LlamaModel"],
        "mistral" => &["MistralForCausalLM", "MistralModel"],
        "qwen2" => &["Qwen2ForCausalLM", "Qwen2Model"],
        "qwen3" => &["Qwen3ForCausalLM", "Qwen3Model"],
        "mixtral" => &["MixtralForCausalLM", "MixtralModel"],
        "olmoe" => &["OlmoeForCausalLM", "OlmoeModel"],
        "qwen2_moe" => &["Qwen2MoeForCausalLM", "Qwen2MoeModel"],
        "qwen3_moe" => &["Qwen3MoeForCausalLM", "Qwen3MoeModel"],
        "opt" => &["OPTForCausalLM", "OPTModel"],
        other => {
            return Err(f.refuse(format!(
                "model_type: {other:?} is not supported; supported: gpt2, llama, mistral, mixtral, olmoe, opt, qwen2, \
                 qwen2_moe, qwen3, qwen3_moe"
            )));
        }
    };
    if let Some(list) = f.get("architectures") {
        let named: Vec<&str> = list.as_array().into_iter().flatten().filter_map(|v| v.as_str()).collect();
        if !named.is_empty() && !named.iter().any(|n| classes.contains(n)) {
            return Err(f.refuse(format!(
                "architectures: {named:?} is not a supported language model; supported: {classes:?}"
            )));
        }
    }
    let none = llama::AbsentBiases { attention: false, mlp: false };
    if kind == "gpt2" {
        let (config, notes) = gpt2::read_config(f)?;
        return Ok((Style::Gpt2, config, none, notes));
    }
    if kind == "opt" {
        let (config, notes) = opt::read_config(f)?;
        return Ok((Style::Opt, config, none, notes));
    }
    let (config, absent, notes) = llama::read_config(f, kind)?;
    Ok((Style::Llama, config, absent, notes))
}

/// Opens the tensor files that the directory has.
fn open_weights(fs: &dyn FileSystem, dir: &Path) -> Result<Vec<SafetensorsFile>> {
    let entries = fs.list_dir(dir).at("list", dir)?;
    let has = |name: &str| entries.iter().any(|e| e.0 == name && e.1 != EntryKind::Directory);
    if has(SINGLE) {
        return Ok(vec![SafetensorsFile::open(fs, &dir.join(SINGLE), Links::Follow)?]);
    }
    if has(INDEX) {
        return open_indexed(fs, dir);
    }
    let foreign = [".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".bin.index.json"];
    let found: Vec<&str> = entries
        .iter()
        .map(|e| e.0.as_str())
        .filter(|n| foreign.iter().any(|f| n.ends_with(f)))
        .take(4)
        .collect();
    let problem = if found.is_empty() {
        format!("neither {SINGLE} nor {INDEX} is there")
    } else {
        format!(
            "the weights are in {found:?}, which Bessemer does not open: reading a pickle can run code. In an environment that you trust, load the model with transformers and call save_pretrained(directory, safe_serialization=True), then import that directory"
        )
    };
    Err(CheckpointError::HuggingFace { path: dir.into(), problem })
}

/// The files of an index, and the index held against their headers.
fn open_indexed(fs: &dyn FileSystem, dir: &Path) -> Result<Vec<SafetensorsFile>> {
    #[derive(serde::Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let path = dir.join(INDEX);
    let wrong = |problem: String| CheckpointError::HuggingFace { path: path.clone(), problem };
    let file = fs.open_file(&path, Links::Follow).at("open", &path)?;
    let bytes = read_small(file.as_ref(), MAX_INDEX_BYTES).at("read", &path)?;
    let text = bessemer_durable::decode_text(bytes).at("read", &path)?;
    let index: Index = serde_json::from_str(&text).map_err(|e| wrong(format!("not a valid index: {e}")))?;
    let names: BTreeSet<&str> = index.weight_map.values().map(String::as_str).collect();
    let mut files = Vec::new();
    let mut by_name = HashMap::new();
    for name in names {
        check_file_name(name).map_err(wrong)?;
        if !name.ends_with(".safetensors") {
            return Err(wrong(format!("file {name:?}: only safetensors files are opened")));
        }
        by_name.insert(name, files.len());
        files.push(SafetensorsFile::open(fs, &dir.join(name), Links::Follow)?);
    }
    for (tensor, name) in &index.weight_map {
        if files[by_name[name.as_str()]].header().entry(tensor).is_none() {
            return Err(wrong(format!("tensor {tensor:?} is listed in {name:?}, but missing there")));
        }
    }
    Ok(files)
}

/// Tensor names without prefix, buffers that hold no parameter left out.
fn names(style: Style, files: &[SafetensorsFile]) -> Result<HashMap<String, (usize, String)>> {
    let mut found = HashMap::new();
    for (i, file) in files.iter().enumerate() {
        for e in &file.header().entries {
            let short = style.short_name(&e.name);
            if style.is_ignored(short) {
                continue;
            }
            if let Some((_, other)) = found.insert(short.to_string(), (i, e.name.clone())) {
                return Err(CheckpointError::Tensor {
                    file: file.path().into(),
                    name: e.name.clone(),
                    problem: format!("is the same parameter as {other:?}, which is also there"),
                });
            }
        }
    }
    Ok(found)
}
