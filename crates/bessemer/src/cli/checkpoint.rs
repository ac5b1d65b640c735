//! `bessemer checkpoint`, and `generate`, which reads one.

use super::RecipeArgs;
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

/// A checkpoint of a run.
#[derive(Debug, Clone, Args)]
pub(crate) struct RunArgs {
    /// Run directory, e.g. runs/quickstart.
    pub(crate) run: PathBuf,
    /// Step of the checkpoint [default: the newest intact one].
    #[arg(long)]
    pub(crate) step: Option<u64>,
}

/// A checkpoint of a run or an object store.
#[derive(Debug, Clone, Args)]
pub(crate) struct PlaceArgs {
    /// Run directory, directory of checkpoints, checkpoint, or URL, e.g. s3://bucket/prefix.
    pub(crate) run: PathBuf,
    /// Step of the checkpoint [default: the newest intact one].
    #[arg(long)]
    pub(crate) step: Option<u64>,
}

/// `bessemer checkpoint reshard`
#[derive(Debug, Args)]
pub(crate) struct ReshardArgs {
    /// Checkpoint; of a run directory or object store the newest one.
    pub(crate) from: PathBuf,
    /// Directory in which step-N is created, e.g. runs/other/checkpoints.
    pub(crate) out: PathBuf,
    /// Step of the checkpoint.
    #[arg(long)]
    pub(crate) step: Option<u64>,
    /// Layout to write for: keys of [parallel], e.g. tensor=2,pipeline=2.
    ///
    /// Each rank of this layout then reads few files. Keys that are left out have their defaults. Without this flag
    /// each tensor is cut evenly along its first dim.
    #[arg(long, value_name = "KEY=VALUE,…")]
    pub(crate) layout: Option<String>,
    /// Number of ranks; each has its own files.
    #[arg(long, value_name = "N", default_value = "1")]
    pub(crate) ranks: std::num::NonZeroUsize,
    /// Largest file, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 4096, value_parser = clap::value_parser!(u64).range(1..=1 << 24))]
    pub(crate) max_file_mib: u64,
}

/// `bessemer checkpoint plan`
#[derive(Debug, Args)]
pub(crate) struct CheckpointPlanArgs {
    #[command(flatten)]
    pub(crate) recipe: RecipeArgs,
    /// Number of ranks of the job.
    #[arg(long, value_name = "N", default_value = "1")]
    pub(crate) ranks: std::num::NonZeroUsize,
}

/// `bessemer generate`
#[derive(Debug, Args)]
pub(crate) struct GenerateArgs {
    #[command(flatten)]
    pub(crate) run: RunArgs,
    /// Adapters to put on the model: a run with [model.adapters], or a directory of PEFT.
    #[arg(long, value_name = "DIR", conflicts_with = "ranks")]
    pub(crate) adapter: Option<PathBuf>,
    /// Accept adapters that do not record a hash of their base.
    #[arg(long, requires = "adapter")]
    pub(crate) unchecked_base: bool,
    /// Text to continue; `-` reads it from standard input.
    #[arg(long, short, default_value = "")]
    pub(crate) prompt: String,
    /// File with the text to continue, used byte for byte; `-` is standard input.
    #[arg(long, value_name = "FILE", conflicts_with = "prompt")]
    pub(crate) prompt_file: Option<PathBuf>,
    /// File of prompts, one per line, or JSON lines (.jsonl).
    ///
    /// Each prompt is continued --samples times. A JSON line is a string or an object with the key `text`.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["prompt", "prompt_file"])]
    pub(crate) prompts: Option<PathBuf>,
    /// Stop before this string, which is not printed (may be repeated).
    #[arg(long, value_name = "STRING", value_parser = stop)]
    pub(crate) stop: Vec<String>,
    /// Most new tokens of a text.
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = max_tokens)]
    pub(crate) max_tokens: usize,
    /// Sampling temperature; 0 always takes the most likely token.
    #[arg(long, value_name = "T", default_value_t = 0.8, allow_negative_numbers = true, value_parser = temperature)]
    pub(crate) temperature: f64,
    /// Sample among the K most likely tokens; 0 for all.
    #[arg(long, value_name = "K", default_value_t = 0)]
    pub(crate) top_k: u64,
    /// Sample among the most likely tokens that together have this probability.
    #[arg(long, value_name = "P", default_value_t = 0.95, allow_negative_numbers = true, value_parser = top_p)]
    pub(crate) top_p: f64,
    /// Seed of the sampling.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=i64::MAX as u64))]
    pub(crate) seed: u64,
    /// Number of texts to generate.
    ///
    /// Each of several texts follows a line with its number.
    #[arg(long, short = 'n', value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(crate) samples: u64,
    /// Ranks that share the experts of each layer, as threads.
    ///
    /// The first has everything else. A number that divides the experts of every layer.
    #[arg(long, value_name = "N", default_value = "1")]
    pub(crate) ranks: std::num::NonZeroUsize,
    /// Threads of each rank; 0 shares all cores out.
    #[arg(long, default_value_t = 0, value_parser = super::threads)]
    pub(crate) threads: usize,
}

fn stop(text: &str) -> Result<String, String> {
    if text.is_empty() { Err("wanted at least one character".into()) } else { Ok(text.into()) }
}

fn max_tokens(text: &str) -> Result<usize, String> {
    super::whole(text, 0..=1 << 32, "generation also ends where the model ends its text")
}

fn temperature(text: &str) -> Result<f64, String> {
    super::number(text, 0.0..=100.0, "0 takes the most likely token each time")
}

fn top_p(text: &str) -> Result<f64, String> {
    super::number(text, f64::MIN_POSITIVE..=1.0, "1 takes all tokens")
        .map_err(|_| "wanted a number above 0 and at most 1; 1 takes all tokens".into())
}

/// `bessemer checkpoint ...`
#[derive(Debug, Subcommand)]
pub(crate) enum CheckpointCommand {
    /// List the checkpoints of a run or an object store.
    Ls {
        /// Run directory, directory of checkpoints, or URL, e.g. s3://bucket/prefix.
        run: PathBuf,
    },
    /// Show the tensors and the training state of a checkpoint.
    Inspect(PlaceArgs),
    /// Verify the checksums of a checkpoint.
    ///
    /// Reads every byte. Without --step, verifies all checkpoints of the run or object store.
    Verify(PlaceArgs),
    /// Delete checkpoints that the retention rule does not keep.
    ///
    /// The rule is the save section of the recipe, or --keep-last.
    Gc {
        /// Run directory, or URL of an object store.
        run: PathBuf,
        /// Keep only the N newest, instead of those that [save] of the recipe keeps.
        #[arg(long)]
        keep_last: Option<u64>,
    },
    /// Compare two checkpoints; exit code 1 if they differ.
    Diff {
        /// First checkpoint; of a run directory or object store the newest one.
        a: PathBuf,
        /// Second checkpoint.
        b: PathBuf,
        /// Compare only tensors.
        #[arg(long)]
        tensors: bool,
    },
    /// Predict the bytes that each rank saves and loads.
    ///
    /// Computed from the layout of the recipe; no training runs and no file is written.
    Plan(CheckpointPlanArgs),
    /// Rewrite a checkpoint for another layout or number of files.
    ///
    /// Values are copied bit for bit.
    Reshard(ReshardArgs),
    /// Copy a checkpoint to a directory or an object store.
    ///
    /// The copy is byte for byte and verified.
    Copy {
        /// Checkpoint; of a run directory or object store the newest one.
        from: PathBuf,
        /// Directory in which step-N is created, or URL, e.g. s3://bucket/prefix.
        to: PathBuf,
        /// Step of the checkpoint.
        #[arg(long)]
        step: Option<u64>,
    },
    /// Upload the checkpoints of a run to its object store.
    ///
    /// Afterwards the store holds the newest checkpoint and those that [save] of the recipe keeps.
    Upload {
        /// Run directory.
        run: PathBuf,
        /// URL of the object store [default: save.upload of the recipe].
        #[arg(long, value_name = "URL")]
        to: Option<String>,
        /// Upload even if another run has uploaded there.
        ///
        /// Also if a job of this run on another host has. The other one is refused from then on.
        #[arg(long)]
        take_over: bool,
    },
    /// Export a model for Hugging Face or llama.cpp.
    Export(CheckpointExportArgs),
    /// Import a Hugging Face model as a run directory.
    Import {
        /// Directory with config.json and model.safetensors.
        from: PathBuf,
        /// Directory with adapters of this model that PEFT wrote: adapter_config.json and adapter_model.safetensors.
        #[arg(long, value_name = "DIR")]
        adapters: Option<PathBuf>,
        /// Accept adapters that do not record a hash of their base.
        #[arg(long, requires = "adapters")]
        unchecked_base: bool,
        /// Run directory to create.
        #[arg(long, short)]
        out: PathBuf,
    },
}

/// `bessemer checkpoint export`
#[derive(Debug, Args)]
pub(crate) struct CheckpointExportArgs {
    #[command(flatten)]
    pub(crate) run: RunArgs,
    /// Format of the export.
    #[arg(long, value_enum, default_value = "hf")]
    pub(crate) to: ExportFormat,
    /// Directory to create, or file for gguf.
    #[arg(long, short)]
    pub(crate) out: PathBuf,
    /// Element type of the exported weights (rounded to nearest).
    #[arg(long, value_enum, default_value = "f32")]
    pub(crate) dtype: ExportedDType,
    /// Name or path of the base for transformers, with `--to peft`; without it: `train.init.from` of the recipe.
    #[arg(long, value_name = "NAME")]
    pub(crate) base: Option<String>,
    /// Replace an earlier export at this path.
    #[arg(long)]
    pub(crate) overwrite: bool,
}

/// Layout of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExportFormat {
    /// Hugging Face directory: config.json, model.safetensors, tokenizer.json.
    Hf,
    /// llama.cpp file, with the tokenizer.
    Gguf,
    /// Adapters alone, as PEFT has them: adapter_config.json, adapter_model.safetensors.
    Peft,
}

/// Type of exported weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExportedDType {
    /// 4 bytes.
    F32,
    /// 2 bytes, the range of f32.
    Bf16,
    /// 2 bytes, up to 65504.
    F16,
    /// gguf only: 8-bit integers with one scale for each block of 32.
    #[value(name = "q8_0")]
    Q8,
}
