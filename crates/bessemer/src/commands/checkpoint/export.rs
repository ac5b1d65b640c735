//! `bessemer checkpoint export`: a model for other tools.

use crate::cli::{CheckpointExportArgs, ExportFormat, ExportedDType};
use crate::commands::chat_template;
use crate::commands::saved_model::{SavedModel, is_parameter};
use crate::console::{Console, print};
use crate::failure::Failure;
use crate::run_dir::RunDir;
use bessemer_checkpoint::MergedAdapters;
use bessemer_checkpoint::gguf::{GgufExport, GgufTokenizer, GgufWeights, export_gguf};
use bessemer_checkpoint::hf::{HfExport, PeftExport, export_hf, export_peft};
use bessemer_tokenizer::Tokenizer;
use bessemer_train::Observer;
use bessemer_units::{Bytes, DType};
use serde_json::json;

/// Files of an export grow to this size at most.
const EXPORT_FILE_BYTES: u64 = 5 << 30;

/// Result of an export.
struct Exported {
    path: String,
    architecture: &'static str,
    bytes: u64,
    /// Format of a directory.
    files: Option<Vec<String>>,
    notes: Vec<String>,
}

pub(crate) fn run(args: &CheckpointExportArgs, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    let saved = SavedModel::open(&args.run, console)?;
    let done = match args.to {
        ExportFormat::Hf => hf(args, &saved, console)?,
        ExportFormat::Gguf => gguf(args, &saved, console)?,
        ExportFormat::Peft => peft(args, &saved, console)?,
    };
    if saved.model().adapters.is_some() && args.to != ExportFormat::Peft {
        console.say("note: adapters were merged into the matrices that they adapt");
    }
    for note in &done.notes {
        console.say(&format!("note: {note}"));
    }
    let mut about = json!({ "path": done.path, "architecture": done.architecture, "bytes": done.bytes });
    if let Some(files) = done.files {
        about["files"] = json!(files);
    }
    Ok(print(&match as_json {
        true => about.to_string(),
        false => format!("{} ({}, {})", done.path, done.architecture, Bytes(done.bytes)),
    })?)
}

/// Type of weights in safetensors.
fn float(dtype: ExportedDType) -> Result<DType, Failure> {
    match dtype {
        ExportedDType::F32 => Ok(DType::F32),
        ExportedDType::Bf16 => Ok(DType::Bf16),
        ExportedDType::F16 => Ok(DType::F16),
        ExportedDType::Q8 => Err(Failure::usage(
            "--dtype q8_0: wanted f32, bf16 or f16 for this format; q8_0 is a type of GGUF (--to gguf)",
        )),
    }
}

fn peft(args: &CheckpointExportArgs, saved: &SavedModel, console: &mut Console) -> Result<Exported, Failure> {
    let train = RunDir::new(&args.run.run).load_recipe().ok().map(|run| run.value.train);
    if let Some(train) = train.as_ref().filter(|train| !train.trained.is_empty()) {
        return Err(Failure::usage(format!(
            "--to peft: the run trained {:?} besides its adapters (train.trained), which files of adapters do not have; export the merged \
             model with --to hf",
            train.trained
        )));
    }
    let from = || train.map(|train| train.init.from);
    let base = args.base.clone().or_else(from).unwrap_or_default();
    let report = export_peft(
        &args.out,
        PeftExport {
            model: saved.model(),
            tensors: &mut saved.checkpoint.tensors(is_parameter),
            dtype: float(args.dtype)?,
            base: &base,
            overwrite: args.overwrite,
            progress: &mut |done, total| console.progress("exporting", done, total),
        },
    )?;
    let mut notes = report.notes;
    notes.push(format!("base_model_name_or_path is {base:?}; --base names another"));
    Ok(Exported {
        path: report.path.display().to_string(),
        architecture: "LoRA",
        bytes: report.bytes,
        files: Some(report.files),
        notes,
    })
}

fn hf(args: &CheckpointExportArgs, saved: &SavedModel, console: &mut Console) -> Result<Exported, Failure> {
    let dtype = float(args.dtype)?;
    let end = saved.tokenizer.end_of_text();
    let mut tensors = saved.checkpoint.tensors(is_parameter);
    let mut merged =
        MergedAdapters::new(saved.model(), &mut tensors).map_err(|e| Failure::new(e.to_string()))?;
    // Names of tokens that a chat template reads are those of its own tokenizer_config.json.
    let mut extra_files = saved.tokenizer.hf_files();
    for (name, text) in chat_template::files_of(&RunDir::new(&args.run.run))? {
        extra_files.retain(|(known, _)| known != name);
        extra_files.push((name.to_owned(), text.into_bytes()));
    }
    let report = export_hf(
        &args.out,
        HfExport {
            model: &merged.model().clone(),
            model_type: saved.state.model_type.as_deref(),
            balance: RunDir::new(&args.run.run)
                .load_recipe()
                .ok()
                .map(|run| run.value.model.expert_training().balance),
            tensors: &mut merged,
            dtype,
            // Rows that only round the vocabulary up mean nothing to other tools.
            vocab_size: Some(saved.tokenizer.vocab_size()),
            bos_token_id: end,
            eos_token_id: end,
            extra_files,
            max_file_bytes: EXPORT_FILE_BYTES,
            overwrite: args.overwrite,
            progress: &mut |done, total| console.progress("exporting", done, total),
        },
    )?;
    Ok(Exported {
        path: report.path.display().to_string(),
        architecture: report.architecture,
        bytes: report.bytes,
        files: Some(report.files),
        notes: report.notes,
    })
}

fn gguf(args: &CheckpointExportArgs, saved: &SavedModel, console: &mut Console) -> Result<Exported, Failure> {
    let weights = match args.dtype {
        ExportedDType::F32 => GgufWeights::F32,
        ExportedDType::Bf16 => GgufWeights::Bf16,
        ExportedDType::F16 => GgufWeights::F16,
        ExportedDType::Q8 => GgufWeights::Q8_0,
    };
    let mut tensors = saved.checkpoint.tensors(is_parameter);
    let mut merged =
        MergedAdapters::new(saved.model(), &mut tensors).map_err(|e| Failure::new(e.to_string()))?;
    let report = export_gguf(
        &args.out,
        GgufExport {
            model: &merged.model().clone(),
            tensors: &mut merged,
            weights,
            name: RunDir::new(&args.run.run).name(),
            tokenizer: vocabulary(&saved.tokenizer)?,
            overwrite: args.overwrite,
            progress: &mut |done, total| console.progress("exporting", done, total),
        },
    )?;
    Ok(Exported {
        path: report.path.display().to_string(),
        architecture: report.architecture,
        bytes: report.bytes,
        files: None,
        notes: report.notes,
    })
}

fn vocabulary(tokenizer: &Tokenizer) -> Result<GgufTokenizer, Failure> {
    let end_of_text = tokenizer.end_of_text().ok_or_else(|| {
        Failure::new(
            "the tokenizer has no end-of-text token, and llama.cpp would use token 11 instead; nothing was \
             written: use a tokenizer with tokenizer.special_tokens = [\"<|endoftext|>\"]",
        )
    })?;
    let v = tokenizer.gguf_vocabulary()?;
    Ok(GgufTokenizer { pre: v.pre.into(), tokens: v.tokens, types: v.types, merges: v.merges, end_of_text })
}
