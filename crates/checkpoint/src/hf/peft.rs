//! Adapters as PEFT has them: `adapter_config.json` and `adapter_model.safetensors`.

use super::export::{Directory, choose_style, pretty};
use super::fields::Fields;
use super::layout::{Mapped, Order, Part, Style};
use crate::base::{BASE_HASH, base_hash};
use crate::error::{CheckpointError, Result};
use crate::fs::{FileSystem, OsFileSystem};
use crate::parts::Parts;
use crate::source::TensorSource;
use bessemer_arch::{AdapterTarget, Adapters, Model};
use bessemer_units::DType;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Configuration of adapters.
pub(super) const ADAPTER_CONFIG: &str = "adapter_config.json";
/// File of their matrices.
pub(super) const ADAPTER_WEIGHTS: &str = "adapter_model.safetensors";
/// Beginning of the names of the matrices, before the path of their module.
const PREFIX: &str = "base_model.model.";
/// Names of A and B after that path.
const MATRICES: [&str; 2] = ["lora_A.weight", "lora_B.weight"];
/// Name of the magnitudes after that path.
const MAGNITUDE: &str = "lora_magnitude_vector";

/// Path of the list of layers.
fn layers(style: Style) -> &'static str {
    if style == Style::Llama { "model.layers" } else { "transformer.h" }
}

/// Settings of an export of adapters.
pub struct PeftExport<'a> {
    /// The model with its adapters.
    pub model: &'a Model,
    /// Its parameters under their canonical names.
    pub tensors: &'a mut dyn TensorSource,
    /// Type of the matrices in the file: f32, bf16 or f16.
    pub dtype: DType,
    /// Name or path of the base in transformers.
    pub base: &'a str,
    /// Replace an earlier export at the same place, if its files are as they were written.
    pub overwrite: bool,
    /// Called with (done, total) bytes while writing.
    pub progress: &'a mut dyn FnMut(u64, u64),
}

/// A finished export of adapters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeftReport {
    /// The directory.
    pub path: PathBuf,
    /// Modules of the base that have an adapter.
    pub modules: Vec<&'static str>,
    /// Bytes of the tensor file.
    pub bytes: u64,
    /// Its files.
    pub files: Vec<String>,
    /// Remarks.
    pub notes: Vec<String>,
}

/// The module of transformers that a target adapts, as the end of its path.
fn module_of(style: Style, target: AdapterTarget) -> std::result::Result<&'static str, String> {
    use AdapterTarget as T;
    let gpt2 = style != Style::Llama;
    Ok(match (target, gpt2) {
        (T::Qkv, true) => "attn.c_attn",
        (T::Out, true) => "attn.c_proj",
        (T::Up, true) => "mlp.c_fc",
        (T::Down, true) => "mlp.c_proj",
        (T::Query, false) => "self_attn.q_proj",
        (T::Key, false) => "self_attn.k_proj",
        (T::Value, false) => "self_attn.v_proj",
        (T::Out, false) => "self_attn.o_proj",
        (T::Gate, false) => "mlp.gate_proj",
        (T::Up, false) => "mlp.up_proj",
        (T::Down, false) => "mlp.down_proj",
        (T::Query | T::Key | T::Value | T::Gate, true) => {
            return Err(format!(
                "an adapter of \"{}\": GPT2LMHeadModel has queries, keys and values as one module, c_attn; wanted \"qkv\"",
                target.name()
            ));
        }
        (T::Qkv, false) => {
            return Err("an adapter of \"qkv\": LlamaForCausalLM has q_proj, k_proj and v_proj; wanted \"query\", \"key\" and \
                        \"value\""
                .into());
        }
    })
}

/// The adapters of a configuration and of the names of the matrices beside it, for a model of `depth` layers.
pub(super) fn read_adapters(
    fields: &Fields,
    (style, depth): (Style, usize),
    names: &[&str],
    notes: &mut Vec<String>,
) -> Result<Adapters> {
    match fields.str("peft_type")? {
        Some("LORA") => {}
        found => return Err(fields.refuse(format!("peft_type: wanted \"LORA\", found {found:?}"))),
    }
    for (key, expressible) in [
        ("bias", json!("none")),
        ("lora_bias", json!(false)),
        ("modules_to_save", json!([])),
        ("layers_to_transform", json!([])),
        ("fan_in_fan_out", json!(style != Style::Llama)),
    ] {
        fields.only(key, &expressible)?;
    }
    let magnitude = fields.bool("use_dora")?.unwrap_or(false);
    let mut dropout = fields.float("lora_dropout")?.unwrap_or(0.0);
    if magnitude && dropout > 0.0 {
        notes.push(format!(
            "lora_dropout = {dropout} is left out: adapters with magnitudes have no dropout here"
        ));
        dropout = 0.0;
    }
    let mut targets = BTreeSet::new();
    for name in names {
        let path =
            name.strip_prefix(PREFIX).and_then(|path| path.strip_prefix(layers(style))?.strip_prefix('.'));
        let module = path.and_then(|path| path.split_once('.')?.1.rsplit_once(".lora_"));
        let of_module = |target: &AdapterTarget| {
            let (Ok(wanted), Some((found, _))) = (module_of(style, *target), module) else { return false };
            wanted == found
        };
        let Some(target) = AdapterTarget::ALL.into_iter().find(of_module) else {
            return Err(fields.refuse(format!(
                "{ADAPTER_WEIGHTS} has {name}: wanted matrices lora_A and lora_B, and magnitudes, of linear maps of {}.N",
                layers(style)
            )));
        };
        targets.insert(target);
    }
    let (mut ranks, mut alphas) = (BTreeMap::new(), BTreeMap::new());
    for target in &targets {
        let module = module_of(style, *target).map_err(|problem| fields.refuse(problem))?;
        let wanted = "a whole number above 0";
        if let Some(rank) = of_pattern(fields, "rank_pattern", (style, module, depth), wanted, Value::as_u64)?
        {
            ranks.insert(*target, rank);
        }
        if let Some(alpha) =
            of_pattern(fields, "alpha_pattern", (style, module, depth), "a number", Value::as_f64)?
        {
            alphas.insert(*target, alpha);
        }
    }
    Ok(Adapters {
        rank: fields.required("r")?,
        alpha: fields.float("lora_alpha")?.ok_or_else(|| fields.refuse("lora_alpha: missing".into()))?,
        rank_stabilised: fields.bool("use_rslora")?.unwrap_or(false),
        magnitude,
        dropout,
        targets: targets.into_iter().collect(),
        ranks,
        alphas,
    })
}

/// The value that a pattern of PEFT gives the adapters of a module in all layers; `None` if it names none of them.
///
/// PEFT matches a key with the end of a module's path, at a dot (`get_pattern_key`); a key that begins with "^" is the whole path. Keys are names
/// here, not regular expressions.
fn of_pattern<T: PartialEq + Copy>(
    fields: &Fields,
    key: &str,
    (style, module, depth): (Style, &str, usize),
    wanted: &str,
    read: impl Fn(&Value) -> Option<T>,
) -> Result<Option<T>> {
    let patterns = match fields.get(key) {
        None => return Ok(None),
        Some(Value::Object(patterns)) => patterns,
        Some(_) => return Err(fields.refuse(format!("{key}: wanted an object"))),
    };
    let mut values = Vec::new();
    for (name, value) in patterns {
        let plain = name.strip_prefix('^').unwrap_or(name);
        if plain.is_empty() || !plain.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.".contains(&b)) {
            return Err(fields.refuse(format!("{key}: wanted names of modules, found the pattern {name:?}")));
        }
        let value = read(value)
            .ok_or_else(|| fields.refuse(format!("{key}.{name}: wanted {wanted}, found {value}")))?;
        values.push((name.as_str(), plain, value));
    }
    let mut found: Vec<Option<T>> = Vec::new();
    for layer in 0..depth {
        let path = format!("{}.{layer}.{module}", layers(style));
        let of_path = |(name, plain, _): &&(&str, &str, T)| match path.strip_suffix(plain) {
            Some(before) => before.is_empty() || (name == plain && before.ends_with('.')),
            None => false,
        };
        let mut matching = values.iter().filter(of_path);
        let first = matching.next();
        if let Some((name, _, value)) = first
            && let Some((other, ..)) = matching.find(|(.., other)| other != value)
        {
            return Err(fields
                .refuse(format!("{key}: {name:?} and {other:?} both name {path}, with different values")));
        }
        found.push(first.map(|(.., value)| *value));
    }
    match found.iter().position(|value| *value != found[0]) {
        None => Ok(found.first().copied().flatten()),
        Some(layer) => Err(fields.refuse(format!(
            "{key}: {module} has another value in layer {layer} than in layer 0; wanted one for all layers"
        ))),
    }
}

/// The matrices of adapters, and where they stand in the file.
pub(super) fn adapter_parts(model: &Model, style: Style) -> std::result::Result<Vec<Mapped>, String> {
    let (mut list, adapters) = (Vec::new(), model.adapters.clone().unwrap_or_default());
    for spec in model.params() {
        let Some(layer) = spec.id.unit().layer() else { continue };
        for target in &adapters.targets {
            let [a, b] = target.roles();
            let of_role = [(a, MATRICES[0]), (b, MATRICES[1]), (target.magnitude(), MAGNITUDE)];
            let Some((_, end)) = of_role.into_iter().find(|(role, _)| *role == spec.id.role()) else {
                continue;
            };
            let (layers, module) = (layers(style), module_of(style, *target)?);
            let name = format!("{PREFIX}{layers}.{layer}.{module}.{end}");
            let part = Part { name, rows: spec.shape[0], skip: 0, order: Order::Same };
            list.push(Mapped { name: spec.name.clone(), shape: spec.shape.clone(), parts: vec![part] });
        }
    }
    Ok(list)
}

/// Writes `dir` so that it is there entirely or not at all, as [`super::export_hf`] does.
///
/// # Errors
/// A model without adapters, or adapters that modules of transformers do not have.
pub fn export_peft(dir: &Path, request: PeftExport<'_>) -> Result<PeftReport> {
    export_peft_on(&OsFileSystem, dir, request)
}

/// [`export_peft`] on another file system.
fn export_peft_on(fs: &dyn FileSystem, dir: &Path, request: PeftExport<'_>) -> Result<PeftReport> {
    let wrong = |problem: String| CheckpointError::HuggingFace { path: dir.into(), problem };
    let model = request.model;
    let Some(adapters) = &model.adapters else {
        return Err(wrong("wanted a model with adapters (model.adapters), found one without".into()));
    };
    let style = choose_style(&Model { adapters: None, ..model.clone() }).map_err(wrong)?;
    let mapped = adapter_parts(model, style).map_err(wrong)?;
    let mut modules = Vec::new();
    let (mut ranks, mut alphas) = (serde_json::Map::new(), serde_json::Map::new());
    for target in &adapters.targets {
        let module = module_of(style, *target).map_err(wrong)?;
        modules.push(module);
        ranks.extend(adapters.ranks.get(target).map(|rank| (module.into(), json!(rank))));
        alphas.extend(adapters.alphas.get(target).map(|alpha| (module.into(), json!(alpha))));
    }
    let config = json!({
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": request.base,
        "r": adapters.rank,
        "lora_alpha": adapters.alpha,
        "lora_dropout": adapters.dropout,
        "target_modules": modules,
        "bias": "none",
        "use_rslora": adapters.rank_stabilised,
        "use_dora": adapters.magnitude,
        // GPT-2's Conv1D has inputs as rows.
        "fan_in_fan_out": style != Style::Llama,
        "modules_to_save": null,
        "rank_pattern": ranks,
        "alpha_pattern": alphas,
        "init_lora_weights": true,
        "inference_mode": true,
    });
    let base = base_hash(model, request.tensors).map_err(|e| wrong(e.to_string()))?;
    let weights = Parts::new(dir, model, mapped, request.dtype, request.tensors)?;
    let directory = Directory {
        metadata: vec![(BASE_HASH, base)],
        stem: "adapter_model",
        small: vec![(ADAPTER_CONFIG.into(), pretty(&config)?)],
        // PEFT reads one file, ADAPTER_WEIGHTS.
        max_file_bytes: u64::MAX,
        overwrite: request.overwrite,
    };
    let (bytes, files, moved) = directory.write(fs, dir, weights, request.progress)?;
    Ok(PeftReport { path: dir.into(), modules, bytes, files, notes: moved.into_iter().collect() })
}
