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
use serde_json::json;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Configuration of adapters.
pub(super) const ADAPTER_CONFIG: &str = "adapter_config.json";
/// File of their matrices.
pub(super) const ADAPTER_WEIGHTS: &str = "adapter_model.safetensors";
/// Beginning of the names of the matrices, before the path of their module.
const PREFIX: &str = "base_model.model.";
/// Names of A and B after that path.
const MATRICES: [&str; 2] = ["lora_A", "lora_B"];

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

/// The adapters of a configuration and of the names of the matrices beside it.
pub(super) fn read_adapters(
    fields: &Fields,
    style: Style,
    names: &[&str],
    notes: &mut Vec<String>,
) -> Result<Adapters> {
    match fields.str("peft_type")? {
        Some("LORA") => {}
        found => return Err(fields.refuse(format!("peft_type: wanted \"LORA\", found {found:?}"))),
    }
    for (key, expressible) in [
        ("bias", json!("none")),
        ("use_dora", json!(false)),
        ("lora_bias", json!(false)),
        ("rank_pattern", json!({})),
        ("alpha_pattern", json!({})),
        ("modules_to_save", json!([])),
        ("layers_to_transform", json!([])),
        ("fan_in_fan_out", json!(style != Style::Llama)),
    ] {
        fields.only(key, &expressible)?;
    }
    if let Some(share) = fields.float("lora_dropout")?.filter(|share| *share > 0.0) {
        notes.push(format!("lora_dropout = {share} is left out: adapters have no dropout here"));
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
                "{ADAPTER_WEIGHTS} has {name}: wanted matrices lora_A and lora_B of linear maps of {}.N",
                layers(style)
            )));
        };
        targets.insert(target);
    }
    Ok(Adapters {
        rank: fields.required("r")?,
        alpha: fields.float("lora_alpha")?.ok_or_else(|| fields.refuse("lora_alpha: missing".into()))?,
        rank_stabilised: fields.bool("use_rslora")?.unwrap_or(false),
        targets: targets.into_iter().collect(),
    })
}

/// The matrices of adapters, and where they stand in the file.
pub(super) fn adapter_parts(model: &Model, style: Style) -> std::result::Result<Vec<Mapped>, String> {
    let (mut list, adapters) = (Vec::new(), model.adapters.clone().unwrap_or_default());
    for spec in model.params() {
        let Some(layer) = spec.id.unit().layer() else { continue };
        for target in &adapters.targets {
            let Some(which) = target.roles().iter().position(|role| *role == spec.id.role()) else {
                continue;
            };
            let (layers, module, matrix) = (layers(style), module_of(style, *target)?, MATRICES[which]);
            let name = format!("{PREFIX}{layers}.{layer}.{module}.{matrix}.weight");
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
    for target in &adapters.targets {
        modules.push(module_of(style, *target).map_err(wrong)?);
    }
    let config = json!({
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": request.base,
        "r": adapters.rank,
        "lora_alpha": adapters.alpha,
        "lora_dropout": 0.0,
        "target_modules": modules,
        "bias": "none",
        "use_rslora": adapters.rank_stabilised,
        "use_dora": false,
        // GPT-2's Conv1D has inputs as rows.
        "fan_in_fan_out": style != Style::Llama,
        "modules_to_save": null,
        "rank_pattern": {},
        "alpha_pattern": {},
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
